//! Links on an address that several processes share through the broker (`steward`).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::steward::{BindAddr, Lease, Names, ServiceRegistry, Sharing};
use super::{UdpLink, UdpLinkError, UdpOptions, interface, socket};
use crate::link::Multihomed;
use crate::nic::QpnPartition;
use crate::wire::Qpn;

impl UdpLink {
    /// Binds a part of UDP port 4791 of `ip`, beside other processes that do the same: the queue pair numbers
    /// are those of the QPN partition that [`SharedAddress::partition`](crate::link::SharedAddress::partition) returns. Returns
    /// a link for each of `count` shards (1, 2, 4 ... 32) of one NIC, like
    /// [`bind_shards`](Self::bind_shards).
    ///
    /// # Errors
    /// See [`bind`](Self::bind). Also fails if all partitions are in use, or if the processes that share the
    /// address do not share it with this user.
    pub fn bind_shared(
        ip: IpAddr,
        options: &UdpOptions,
        count: usize,
        sharing: &Sharing,
    ) -> Result<Vec<UdpLink>, UdpLinkError> {
        Ok(share(&[ip], options, count, sharing)?.swap_remove(0))
    }

    /// Binds every address of an interface like [`bind_shared`](Self::bind_shared); see
    /// [`bind_interface`](Self::bind_interface).
    ///
    /// # Errors
    /// See [`bind_shared`](Self::bind_shared).
    pub fn bind_interface_shared(
        name: &str,
        options: &UdpOptions,
        count: usize,
        sharing: &Sharing,
    ) -> Result<Vec<Multihomed<UdpLink>>, UdpLinkError> {
        let (addresses, options) = interface::find(name, options)?;
        interface::join(name, share(&addresses, &options, count, sharing)?)
    }
}

/// Returns the links of each address, one for each shard.
fn share(
    ips: &[IpAddr],
    options: &UdpOptions,
    count: usize,
    sharing: &Sharing,
) -> Result<Vec<Vec<UdpLink>>, UdpLinkError> {
    let count = count.next_power_of_two().min(QpnPartition::COUNT / 2);
    let bind_addrs = ips.iter().map(|ip| BindAddr::new(*ip, options)).collect();
    let (lease, sockets) = Lease::join(bind_addrs, count, sharing)?;
    let adopt = |(ip, sockets): (&IpAddr, Vec<OwnedFd>)| {
        let links = sockets.into_iter().enumerate().map(|(i, socket)| {
            let mut link = UdpLink::new(*ip, options, socket::adopt(*ip, socket, options)?)?;
            link.lease = Some(lease.clone());
            // Only the shard that has QP1 receives requests for services.
            if i == Qpn::GSI.get() as usize & (count - 1) {
                let names = Names::of(lease.has_shared_names()).map_err(failed(*ip))?;
                let registry = ServiceRegistry::new(BindAddr::new(*ip, options), names, lease.any_user());
                link.add_registry(registry.map_err(failed(*ip))?).map_err(failed(*ip))?;
            }
            if i > 0 {
                // The first link monitors the state of the port for all shards.
                link.link_state = None;
            }
            Ok(link)
        });
        links.collect()
    };
    ips.iter().zip(sockets).map(adopt).collect()
}

fn failed(ip: IpAddr) -> impl Fn(io::Error) -> UdpLinkError {
    move |source| UdpLinkError::System { ip, what: "creating the service registry", source }
}

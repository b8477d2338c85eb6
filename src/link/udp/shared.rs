//! Links of an address that other processes have too.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::steward::{Claims, Names, Place, Sharing, Tenancy};
use super::{UdpLink, UdpLinkError, UdpOptions, interface, socket};
use crate::link::Multihomed;
use crate::nic::Seat;
use crate::wire::Qpn;

impl UdpLink {
    /// Has a part of UDP port 4791 of `ip`, beside other processes that do the same: the numbers of queue pairs begin with
    /// what the part is ([`Link::seat`](crate::link::Link::seat)). A link for each of `count` shards (1, 2, 4 … 32) of one
    /// NIC, as of [`bind_shards`](Self::bind_shards).
    ///
    /// # Errors
    /// See [`bind`](Self::bind); and if all parts are taken, or those who share do not share with this user.
    pub fn bind_shared(
        ip: IpAddr,
        options: &UdpOptions,
        count: usize,
        sharing: &Sharing,
    ) -> Result<Vec<UdpLink>, UdpLinkError> {
        Ok(share(&[ip], options, count, sharing)?.swap_remove(0))
    }

    /// [`bind_shared`](Self::bind_shared) for every address of an interface; see [`bind_interface`](Self::bind_interface).
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

/// The links of each address, one for each shard.
fn share(
    ips: &[IpAddr],
    options: &UdpOptions,
    count: usize,
    sharing: &Sharing,
) -> Result<Vec<Vec<UdpLink>>, UdpLinkError> {
    let count = count.next_power_of_two().min(Seat::COUNT / 2);
    let places = ips.iter().map(|ip| Place::new(*ip, options)).collect();
    let (tenancy, sockets) = Tenancy::join(places, count, sharing)?;
    let adopt = |(ip, sockets): (&IpAddr, Vec<OwnedFd>)| {
        let links = sockets.into_iter().enumerate().map(|(i, socket)| {
            let mut link = UdpLink::new(*ip, options, socket::adopt(*ip, socket, options)?)?;
            link.tenancy = Some(tenancy.clone());
            // QP1 is of one shard.
            if i == Qpn::GSI.get() as usize & (count - 1) {
                let names = Names::of(tenancy.has_shared_names()).map_err(failed(*ip))?;
                let claims = Claims::new(Place::new(*ip, options), names, tenancy.any_user());
                link.add_claims(claims.map_err(failed(*ip))?).map_err(failed(*ip))?;
            }
            if i > 0 {
                // The first one's port is that of all.
                link.watch = None;
            }
            Ok(link)
        });
        links.collect()
    };
    ips.iter().zip(sockets).map(adopt).collect()
}

fn failed(ip: IpAddr) -> impl Fn(io::Error) -> UdpLinkError {
    move |source| UdpLinkError::System { ip, what: "making room for services", source }
}

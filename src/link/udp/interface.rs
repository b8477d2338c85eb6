//! All addresses of an interface as one link: a socket for each, as a wildcard would take those of other interfaces too.

use std::net::IpAddr;

use super::{UdpLink, UdpLinkError, UdpOptions};
use crate::link::{Multihomed, interfaces};

impl UdpLink {
    /// Binds UDP port 4791 of every address of an interface, for the shards of one NIC as
    /// [`bind_shards`](Self::bind_shards) does. The GID table has them in the order of
    /// [`Interface::addresses`](crate::link::Interface::addresses).
    ///
    /// # Errors
    /// If there is no such interface, or one of its addresses cannot be bound.
    pub fn bind_interface(
        name: &str,
        options: &UdpOptions,
        count: usize,
    ) -> Result<Vec<Multihomed<UdpLink>>, UdpLinkError> {
        let (addresses, options) = find(name, options)?;
        let bind = |ip| UdpLink::bind_shards(ip, &options, count);
        join(name, addresses.into_iter().map(bind).collect::<Result<_, _>>()?)
    }
}

/// The addresses of an interface, and how to bind them.
pub(super) fn find(name: &str, options: &UdpOptions) -> Result<(Vec<IpAddr>, UdpOptions), UdpLinkError> {
    let missing = || UdpLinkError::NoInterface { name: name.to_owned() };
    let interface = interfaces().into_iter().find(|i| i.name == name).ok_or_else(missing)?;
    Ok((interface.addresses, UdpOptions { interface: Some(name.to_owned()), ..options.clone() }))
}

/// For each shard one link of all its addresses, of the links of each address.
pub(super) fn join(
    name: &str,
    by_address: Vec<Vec<UdpLink>>,
) -> Result<Vec<Multihomed<UdpLink>>, UdpLinkError> {
    let mut by_shard: Vec<Vec<UdpLink>> = Vec::new();
    for links in by_address {
        by_shard.resize_with(links.len(), Vec::new);
        for (shard, mut link) in by_shard.iter_mut().zip(links) {
            if !shard.is_empty() {
                // The first one's port is that of all.
                link.watch = None;
            }
            shard.push(link);
        }
    }
    let joined = by_shard.into_iter().map(|links| Multihomed::new(format!("udp {name}"), links));
    let missing = || UdpLinkError::NoInterface { name: name.to_owned() };
    joined.collect::<Option<_>>().ok_or_else(missing)
}

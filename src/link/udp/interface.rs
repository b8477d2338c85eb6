//! All addresses of an interface as one link: a socket for each, as a wildcard would take those of other interfaces too.

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
        let missing = || UdpLinkError::NoInterface { name: name.to_owned() };
        let interface = interfaces().into_iter().find(|i| i.name == name).ok_or_else(missing)?;
        let options = UdpOptions { interface: Some(name.to_owned()), ..options.clone() };
        let mut by_shard: Vec<Vec<UdpLink>> = Vec::new();
        for ip in interface.addresses {
            let links = UdpLink::bind_shards(ip, &options, count)?;
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
        joined.collect::<Option<_>>().ok_or_else(missing)
    }
}

//! Addresses of a NIC's port, and resolution of address vectors to packet flows.

use std::net::IpAddr;

use super::{AddressError, AddressVector};
use crate::wire::{Flow, Gid, Qpn};

/// Addresses of a NIC's port.
#[derive(Clone, Debug, Default)]
pub struct PortAddresses {
    /// GID table. All-zero entries are empty.
    pub gids: Vec<Gid>,
    /// UDP source port of all packets, if the link uses a fixed one.
    pub src_port: Option<u16>,
}

/// First port of the dynamic port range, from which RoCEv2 source ports are taken (annex A17.9.2).
const DYNAMIC_PORTS: u32 = 0xc000;

impl PortAddresses {
    /// Replaces the GIDs with `gids`. GIDs that remain keep their indices; removed ones leave empty entries,
    /// which new ones fill first. Returns whether the table has changed.
    pub(crate) fn replace_gids(&mut self, gids: &[Gid]) -> bool {
        let before = self.gids.clone();
        for ours in self.gids.iter_mut().filter(|ours| !gids.contains(ours)) {
            *ours = Gid::default();
        }
        for gid in gids {
            if !self.gids.contains(gid) {
                match self.gids.iter_mut().find(|ours| **ours == Gid::default()) {
                    Some(hole) => *hole = *gid,
                    None => self.gids.push(*gid),
                }
            }
        }
        self.gids != before
    }

    /// Returns the GID at `index`; `None` if the entry is empty or out of range.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied().filter(|gid| *gid != Gid::default())
    }

    /// Iterates over the non-empty entries, with their indices.
    fn set_gids(&self) -> impl DoubleEndedIterator<Item = (usize, Gid)> {
        self.gids.iter().copied().enumerate().filter(|(_, gid)| *gid != Gid::default())
    }

    /// Returns the index of the GID to use when the peer is unknown: the first one that is not link-local or,
    /// if all are, the first.
    pub fn main_gid(&self) -> Option<usize> {
        let routable = self.set_gids().find(|(_, gid)| !is_link_local(*gid));
        routable.or_else(|| self.set_gids().next()).map(|(i, _)| i)
    }

    /// Returns the index of the source GID for a peer: among GIDs of the peer's IP version, preferably one of
    /// the same scope, then the one with the longest common prefix (RFC 6724, section 5, rules 2 and 8). The
    /// first of several equally good ones is returned.
    pub fn gid_towards(&self, peer: Gid) -> Option<usize> {
        let v4 = peer.ip().is_ipv4();
        let fits = |gid: Gid| {
            let prefix = (u128::from_be_bytes(gid.0) ^ u128::from_be_bytes(peer.0)).leading_zeros();
            (is_link_local(gid) == is_link_local(peer), prefix)
        };
        // Reversed, because `max_by_key` returns the last of equals.
        let same_version = self.set_gids().rev().filter(|(_, gid)| gid.ip().is_ipv4() == v4);
        same_version.max_by_key(|(_, gid)| fits(*gid)).map(|(i, _)| i)
    }

    /// Resolves an address vector to the flow of packets from queue pair `src` to queue pair `dst`.
    ///
    /// # Errors
    /// [`AddressError`] if the local GID does not exist or is of the other IP version.
    pub fn flow(&self, av: &AddressVector, src: Qpn, dst: Qpn) -> Result<Flow, AddressError> {
        let index = av.sgid_index;
        let count = self.gids.len();
        let ours = self.gid(index.into()).ok_or(AddressError::GidIndex { index, count })?;
        let (from, to) = (ours.ip(), av.dgid.ip());
        if from.is_ipv4() != to.is_ipv4() {
            return Err(AddressError::Family { index, ours, peer: av.dgid });
        }
        let src_port = self.src_port.unwrap_or_else(|| dynamic_port(av.flow_label, src, dst));
        Ok(Flow {
            src: from,
            dst: to,
            src_port,
            traffic_class: av.traffic_class,
            hop_limit: match av.hop_limit {
                // Defaults of IP: any distance for a host, the local network only for a group (RFC 1112,
                // 6.1).
                0 if to.is_multicast() => 1,
                0 => 64,
                given => given,
            },
            flow_label: if to.is_ipv6() { av.flow_label & 0xf_ffff } else { 0 },
            vlan_priority: None,
        })
    }
}

/// Reports whether a GID is an IPv6 link-local address.
fn is_link_local(gid: Gid) -> bool {
    matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the UDP source port. It is derived from the flow label or, if that is 0, from both queue pair
/// numbers, which gives both directions the same port (annex A17.9.3.1).
fn dynamic_port(flow_label: u32, src: Qpn, dst: Qpn) -> u16 {
    let folded = match flow_label & 0xf_ffff {
        0 => {
            let product = src.get() as u64 * dst.get() as u64;
            (product ^ product >> 20 ^ product >> 40) as u32
        }
        label => label,
    };
    (DYNAMIC_PORTS | (folded ^ folded >> 14) & 0x3fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn source_gid_is_the_one_most_similar_to_the_peer() {
        let gids = ["fe80::1", "10.0.0.1", "192.168.7.1", "fd00:1::1", "2001:db8::1", "fd00:2::1"];
        let mut port = PortAddresses { gids: gids.map(gid).to_vec(), src_port: None };
        for (peer, index) in [
            ("fe80::9", 0),
            ("10.0.0.9", 1),
            ("192.168.7.9", 2),
            ("fd00:1::9", 3),
            ("fd00:2::9", 5),
            ("2001:db8:7::9", 4),
            ("200.0.0.9", 2),
        ] {
            assert_eq!(port.gid_towards(gid(peer)), Some(index), "{peer}");
        }
        assert_eq!(port.main_gid(), Some(1));
        // A GID that the port has lost.
        port.gids[1] = Gid::default();
        assert_eq!((port.gid_towards(gid("10.0.0.9")), port.main_gid()), (Some(2), Some(2)));
        // The only GID that is left.
        port.gids.truncate(1);
        assert_eq!((port.gid_towards(gid("fd00::9")), port.main_gid()), (Some(0), Some(0)));
        assert_eq!(port.gid_towards(gid("10.0.0.9")), None);
    }
}

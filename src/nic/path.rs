use std::net::IpAddr;

use crate::transport::{AddressError, AddressVector};
use crate::wire::{Flow, Gid, Qpn};

/// The addresses of a NIC's port.
#[derive(Clone, Debug, Default)]
pub struct PortAddresses {
    /// The GID table. An entry of zeros is none.
    pub gids: Vec<Gid>,
    /// The UDP source port of all packets, where the link cannot choose.
    pub src_port: Option<u16>,
}

/// Source ports of RoCEv2 are from the dynamic range, so that routers spread flows by them (annex A17.9.2).
const DYNAMIC_PORTS: u32 = 0xc000;

impl PortAddresses {
    /// Takes `gids` for the table: those that were there keep their index, holes are zero and filled again.
    /// Whether anything has changed.
    pub(super) fn replace_gids(&mut self, gids: &[Gid]) -> bool {
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

    /// The GID at `index`, if there is one.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied().filter(|gid| *gid != Gid::default())
    }

    /// Those that are set, and their indices.
    fn set_gids(&self) -> impl DoubleEndedIterator<Item = (usize, Gid)> {
        self.gids.iter().copied().enumerate().filter(|(_, gid)| *gid != Gid::default())
    }

    /// The index of the GID for peers of which nothing is known: the first, but a link-local one only if all are.
    pub fn main_gid(&self) -> Option<usize> {
        let routable = self.set_gids().find(|(_, gid)| !is_link_local(*gid));
        routable.or_else(|| self.set_gids().next()).map(|(i, _)| i)
    }

    /// The index of the GID to talk to a peer from: of its IP version, and of its scope if there is one; of those the one
    /// that has the longest prefix in common with it (RFC 6724, section 5, rules 2 and 8), the first of equals.
    pub fn gid_towards(&self, peer: Gid) -> Option<usize> {
        let v4 = peer.ip().is_ipv4();
        let fits = |gid: Gid| {
            let prefix = (u128::from_be_bytes(gid.0) ^ u128::from_be_bytes(peer.0)).leading_zeros();
            (is_link_local(gid) == is_link_local(peer), prefix)
        };
        // Backwards, as the last of equals is taken.
        let same_version = self.set_gids().rev().filter(|(_, gid)| gid.ip().is_ipv4() == v4);
        same_version.max_by_key(|(_, gid)| fits(*gid)).map(|(i, _)| i)
    }

    /// The path of packets from `src` to `dst` by an address vector.
    ///
    /// # Errors
    /// [`AddressError`] where our GID is missing or of the other IP version.
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
                // As IP does by default: to a host anywhere, to a group on this wire only (RFC 1112, 6.1).
                0 if to.is_multicast() => 1,
                0 => 64,
                given => given,
            },
            flow_label: if to.is_ipv6() { av.flow_label & 0xf_ffff } else { 0 },
        })
    }
}

/// Of IPv6 on one link.
fn is_link_local(gid: Gid) -> bool {
    matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// By the flow label where one is given, else by both queue pairs, so that both directions have the same
/// (annex A17.9.3.1).
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
    fn a_peer_is_talked_to_from_the_gid_that_is_most_like_it() {
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
        // One that it has no more.
        port.gids[1] = Gid::default();
        assert_eq!((port.gid_towards(gid("10.0.0.9")), port.main_gid()), (Some(2), Some(2)));
        // With nothing else, what there is.
        port.gids.truncate(1);
        assert_eq!((port.gid_towards(gid("fd00::9")), port.main_gid()), (Some(0), Some(0)));
        assert_eq!(port.gid_towards(gid("10.0.0.9")), None);
    }
}

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

//! Capability of links that exchange packets through the memory of the host.
#![forbid(unsafe_code)]

use crate::transport::PeerChange;

/// Exchange of packets through the memory of the host. Fabric ports and UDP links with rings in shared memory
/// implement this trait; contexts and drivers call its methods through [`HostMemory`].
pub trait MemoryPath {
    /// Reports whether the link copies the bytes of all packets, as
    /// [`TxBurst::copy_to`](super::TxBurst::copy_to) does, in which case the computation of ICRCs can be
    /// deferred until then. A link may begin to do so when it has transmitted.
    fn supports_deferred_icrc(&mut self) -> bool {
        false
    }

    /// Permits packets without ICRCs ([`IpIdent::Elided`](crate::wire::IpIdent::Elided)) in both directions,
    /// for NICs of one host that exchange packets through memory. Without this call, all packets have ICRCs.
    fn elide_icrcs(&mut self) {}

    /// Returns the next change of the path to a peer. At first, all peers have the window of the link
    /// ([`LinkInfo::window`](super::LinkInfo::window)), and all paths have room.
    fn next_peer_change(&mut self) -> Option<PeerChange> {
        None
    }

    /// Makes the link's descriptors signal packets that arrive from now on. Returns true if some have arrived
    /// already, which no descriptor signals. A link whose descriptors always signal packets does nothing.
    fn prepare_to_sleep(&mut self) -> bool {
        false
    }

    /// Reports whether packets have taken rings in shared memory.
    fn has_used_rings(&mut self) -> bool {
        false
    }
}

/// The [`MemoryPath`] of a link, as the code above the link may use it
/// ([`Link::host_memory`](super::Link::host_memory)).
pub struct HostMemory<'a> {
    path: &'a mut dyn MemoryPath,
    /// Whether middleware reads the packets, so that each needs its ICRC.
    needs_icrcs: bool,
}

impl<'a> HostMemory<'a> {
    /// Returns the access for a NIC directly above the link.
    pub fn new(path: &'a mut dyn MemoryPath) -> HostMemory<'a> {
        HostMemory { path, needs_icrcs: false }
    }

    /// Returns the access for a NIC above middleware: all packets have ICRCs, which are not deferred.
    /// Middleware passes on the access of its inner link by
    /// `self.inner.host_memory().map(HostMemory::with_icrcs)`.
    #[must_use]
    pub fn with_icrcs(self) -> HostMemory<'a> {
        HostMemory { needs_icrcs: true, ..self }
    }

    /// Calls [`MemoryPath::supports_deferred_icrc`]; returns false above middleware.
    pub fn supports_deferred_icrc(&mut self) -> bool {
        !self.needs_icrcs && self.path.supports_deferred_icrc()
    }

    /// Calls [`MemoryPath::elide_icrcs`]; has no effect above middleware.
    pub fn elide_icrcs(&mut self) {
        if !self.needs_icrcs {
            self.path.elide_icrcs();
        }
    }

    /// Calls [`MemoryPath::next_peer_change`].
    pub fn next_peer_change(&mut self) -> Option<PeerChange> {
        self.path.next_peer_change()
    }

    /// Calls [`MemoryPath::prepare_to_sleep`].
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.path.prepare_to_sleep()
    }

    /// Calls [`MemoryPath::has_used_rings`].
    pub fn has_used_rings(&mut self) -> bool {
        self.path.has_used_rings()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const CHANGE: PeerChange =
        PeerChange::Window(IpAddr::V4(Ipv4Addr::LOCALHOST), crate::transport::PeerWindow::OfLink);

    /// Path that records whether ICRCs are elided.
    struct Rings {
        elides_icrcs: bool,
    }

    impl MemoryPath for Rings {
        fn supports_deferred_icrc(&mut self) -> bool {
            true
        }
        fn elide_icrcs(&mut self) {
            self.elides_icrcs = true;
        }
        fn next_peer_change(&mut self) -> Option<PeerChange> {
            Some(CHANGE)
        }
        fn prepare_to_sleep(&mut self) -> bool {
            true
        }
        fn has_used_rings(&mut self) -> bool {
            true
        }
    }

    #[test]
    fn packets_have_icrcs_above_middleware_and_all_else_is_forwarded() {
        for is_inside in [false, true] {
            let mut rings = Rings { elides_icrcs: false };
            let mut memory = HostMemory::new(&mut rings);
            if is_inside {
                memory = memory.with_icrcs();
            }
            memory.elide_icrcs();
            assert_eq!(memory.supports_deferred_icrc(), !is_inside);
            assert_eq!(memory.next_peer_change(), Some(CHANGE));
            assert!(memory.prepare_to_sleep() && memory.has_used_rings());
            assert_eq!(rings.elides_icrcs, !is_inside);
        }
    }
}

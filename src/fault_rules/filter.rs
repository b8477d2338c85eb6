//! Conditions on the packets that a rule counts.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::mad::{Mad, MessageKind};
use crate::wire::{Ecn, Flow, Opcode, Packet, Psn, Qpn, Transport};

/// A packet as a filter sees it.
pub(crate) struct Seen<'a> {
    /// Time since the link was opened.
    pub elapsed: Duration,
    pub flow: &'a Flow,
    /// Bytes from BTH to ICRC.
    pub bytes: &'a [u8],
}

/// PSNs from the first to the last inclusive, modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PsnRange {
    pub first: Psn,
    pub last: Psn,
}

impl PsnRange {
    fn contains(self, psn: Psn) -> bool {
        let after_first = |psn: Psn| psn.get().wrapping_sub(self.first.get()) & 0xff_ffff;
        after_first(psn) <= after_first(self.last)
    }
}

/// Condition on the contents of a packet.
type Predicate = Arc<dyn Fn(&Packet<'_>) -> bool + Send + Sync>;

/// Conjunction of conditions. An unset condition holds for every packet.
#[derive(Clone, Default)]
pub(super) struct Filter {
    /// Alternatives.
    pub opcodes: Option<Vec<Opcode>>,
    pub psn: Option<PsnRange>,
    pub qp: Option<Qpn>,
    pub from: Option<IpAddr>,
    pub to: Option<IpAddr>,
    pub ecn: Option<Ecn>,
    /// Messages of the connection manager, alternatives.
    pub cm: Option<Vec<MessageKind>>,
    /// Time since the link was opened.
    pub time: Option<Range<Duration>>,
    pub predicates: Vec<Predicate>,
}

impl Filter {
    pub fn matches(&self, seen: &Seen<'_>) -> bool {
        self.from.is_none_or(|from| from == seen.flow.src)
            && self.to.is_none_or(|to| to == seen.flow.dst)
            && self.ecn.is_none_or(|ecn| ecn == seen.flow.ecn())
            && self.time.as_ref().is_none_or(|time| time.contains(&seen.elapsed))
            && (!self.reads_contents() || Packet::parse(seen.bytes).is_ok_and(|p| self.matches_contents(&p)))
    }

    /// Reports whether the filter needs the parsed packet, in which case it matches no malformed packet.
    fn reads_contents(&self) -> bool {
        let by_header = self.opcodes.is_some() || self.psn.is_some() || self.qp.is_some();
        by_header || self.cm.is_some() || !self.predicates.is_empty()
    }

    fn matches_contents(&self, packet: &Packet<'_>) -> bool {
        let bth = packet.bth();
        self.opcodes.as_ref().is_none_or(|some| some.contains(&bth.opcode))
            && self.psn.is_none_or(|range| range.contains(bth.psn))
            && self.qp.is_none_or(|qp| qp == bth.dest_qp)
            && self
                .cm
                .as_ref()
                .is_none_or(|some| cm_message(packet).is_some_and(|m| some.contains(&m.message.kind())))
            && self.predicates.iter().all(|predicate| predicate(packet))
    }
}

/// Reports whether a packet is a request that its destination acknowledges.
pub(crate) fn is_acknowledged_request(packet: &Packet<'_>) -> bool {
    let row = packet.row();
    row.operation.is_request() && matches!(row.transport, Transport::Rc | Transport::Xrc)
}

/// Returns the connection manager's message in a packet, if there is one.
pub(crate) fn cm_message(packet: &Packet<'_>) -> Option<Mad> {
    let to_gsi = packet.bth().dest_qp == Qpn::GSI && packet.row().transport == Transport::Ud;
    to_gsi.then(|| Mad::parse(packet.payload()).ok()).flatten()
}

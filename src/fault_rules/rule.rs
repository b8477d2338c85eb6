//! Fault injection rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::alteration::Alteration;
use super::filter::{Filter, Seen, cm_message, is_acknowledged_request};
use crate::wire::mad::{Message, RejReason};
use crate::wire::{NakCode, Packet, RnrTimer, Syndrome};

/// Direction of a packet, as seen from the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Transmit.
    Tx,
    /// Receive.
    Rx,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
        })
    }
}

/// Fault to apply to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// The packet is delivered twice.
    Duplicate,
    /// The packet is delivered after the next one.
    Reorder,
    /// One byte of the packet is changed, so that its ICRC check fails.
    Corrupt,
    /// The packet is delivered later by the given duration; packets that arrive in the meantime overtake it.
    Delay(Duration),
    /// The given number of copies is delivered in addition to the packet.
    Repeat(u32),
    /// One byte of the packet is changed as described.
    Alter(Alteration),
    /// The ECN field of the IP header is set to congestion experienced.
    Mark,
    /// The packet is delivered as usual, and once more after the given duration.
    Replay(Duration),
    /// The packet, a request of a reliable service, does not arrive, and the sender gets a NAK with the given
    /// code as if from the destination.
    Nak(NakCode),
    /// As [`Nak`](Self::Nak), with an RNR NAK.
    RnrNak(RnrTimer),
    /// The packet, a REQ or REP of the connection manager, does not arrive, and the sender gets a REJ with
    /// the given reason as if from the destination.
    Reject(RejReason),
}

impl Action {
    /// Reports whether the packet itself is lost.
    pub(crate) fn is_loss(self) -> bool {
        self == Action::Drop || self.is_answer()
    }

    /// Reports whether the packet is answered in place of its destination.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Action::Nak(_) | Action::RnrNak(_) | Action::Reject(_))
    }

    /// Returns the syndrome of the answer, if that is a NAK or an RNR NAK.
    pub(crate) fn nak_syndrome(self) -> Option<Syndrome> {
        match self {
            Action::Nak(code) => Some(Syndrome::Nak(code)),
            Action::RnrNak(timer) => Some(Syndrome::RnrNak(timer)),
            _ => None,
        }
    }

    /// Reports whether the action is possible for a packet.
    fn is_possible(self, seen: &Seen<'_>) -> bool {
        let packet = || Packet::parse(seen.bytes).ok();
        match self {
            Action::Alter(alteration) => alteration.at.offset(seen.bytes).is_some(),
            Action::Nak(_) | Action::RnrNak(_) => packet().is_some_and(|p| is_acknowledged_request(&p)),
            Action::Reject(_) => {
                let message = packet().and_then(|p| cm_message(&p));
                message.is_some_and(|mad| matches!(mad.message, Message::Req(_) | Message::Rep(_)))
            }
            _ => true,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Drop => f.write_str("drop"),
            Action::Duplicate | Action::Repeat(_) => f.write_str("dup"),
            Action::Reorder => f.write_str("reorder"),
            Action::Corrupt | Action::Alter(_) => f.write_str("corrupt"),
            Action::Delay(_) => f.write_str("delay"),
            Action::Mark => f.write_str("mark"),
            Action::Replay(_) => f.write_str("replay"),
            Action::Nak(_) => f.write_str("nak"),
            Action::RnrNak(_) => f.write_str("rnr"),
            Action::Reject(_) => f.write_str("cm:rej"),
        }
    }
}

/// Selection among the packets that match a rule's filter.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum When {
    /// The n-th packet only, counted from 1.
    Nth(u64),
    /// Every n-th packet: the n-th, the 2n-th and so on.
    Every(u64),
    /// Each packet with the given probability.
    Probability(f64),
    /// The packets from the `first` to the `last` inclusive, counted from 1.
    Range {
        /// Number of the first packet.
        first: u64,
        /// Number of the last packet; `None` for all that follow.
        last: Option<u64>,
    },
}

impl When {
    /// Every packet.
    pub(crate) const EACH: When = When::Range { first: 1, last: None };

    /// Reports whether the `n`-th packet, counted from 1, is selected; `draw` returns true with the given
    /// probability.
    pub(crate) fn selects(self, n: u64, draw: impl FnOnce(f64) -> bool) -> bool {
        match self {
            When::Nth(nth) => n == nth,
            When::Every(every) => every > 0 && n.is_multiple_of(every),
            When::Probability(p) => draw(p),
            When::Range { first, last } => n >= first && last.is_none_or(|last| n <= last),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Nth(n) => write!(f, "{n}"),
            When::Every(n) => write!(f, "every:{n}"),
            When::Probability(p) => write!(f, "p:{p}"),
            When::Range { first, last: Some(last) } => write!(f, "{first}..{last}"),
            When::Range { first, last: None } => write!(f, "{first}.."),
        }
    }
}

/// A fault, and the packets that it applies to.
///
/// The textual form is `[tx:|rx:]ACTION=WHEN[,KEY=VALUE]...` (default `tx`), with
/// - `drop`, `dup` (`,copies=4`), `reorder`, `corrupt` (`,at=psn`, `,xor=0x20`, `,icrc=repair`), `mark`,
///   `delay` and `replay` (both need `,by=2ms`) for ACTION. `nak=CODE[@WHEN]`, `rnr=TIMER[@WHEN]` and
///   `cm:rej=REASON[@WHEN]` answer the packet; `cm:drop=NAME[@WHEN]` and the like apply to a message of the
///   connection manager;
/// - `3`, `3..7`, `3..`, `every:13` or `p:0.01` for WHEN;
/// - the filters `opcode=N|NAME`, `psn=N`, `psn=N..M`, `qp=N`, `from=ADDRESS`, `to=ADDRESS`, `ecn=ce`,
///   `cm=NAME`, `payload=1025..` and `time=2ms..5ms`. Alternatives are separated by `|` (`opcode=ack|read-response`).
#[derive(Clone)]
pub struct Rule {
    /// Direction of the packets.
    pub direction: Direction,
    /// The fault.
    pub action: Action,
    /// Packets affected, among those that match the filter.
    pub when: When,
    pub(super) filter: Filter,
    /// The rule's textual form; if the rule was parsed, as it was written.
    pub(super) text: String,
}

impl Rule {
    /// Creates a rule without a filter, which matches all packets in the given direction.
    pub fn new(direction: Direction, action: Action, when: When) -> Rule {
        let rest = match action {
            Action::Delay(by) | Action::Replay(by) => format!("{when},by={}ns", by.as_nanos()),
            Action::Repeat(copies) => format!("{when},copies={copies}"),
            Action::Alter(Alteration { at, xor, repair_icrc }) => {
                let icrc = if repair_icrc { ",icrc=repair" } else { "" };
                format!("{when},at={at},xor={xor:#x}{icrc}")
            }
            Action::Nak(code) => format!("{}@{when}", Syndrome::Nak(code).to_byte() & 0x1f),
            Action::RnrNak(timer) => format!("{}@{when}", timer.code()),
            Action::Reject(reason) => format!("{}@{when}", reason.code()),
            Action::Drop | Action::Duplicate | Action::Reorder | Action::Corrupt | Action::Mark => {
                when.to_string()
            }
        };
        let text = format!("{direction}:{action}={rest}");
        Rule { direction, action, when, filter: Filter::default(), text }
    }

    /// Restricts the rule further, to packets for which `filter` returns true. Only packets that match all
    /// filters are counted.
    #[must_use]
    pub fn only(mut self, filter: impl Fn(&Packet<'_>) -> bool + Send + Sync + 'static) -> Rule {
        self.filter.predicates.push(Arc::new(filter));
        self
    }

    /// Reports whether a packet matches the filter.
    pub(crate) fn matches_filter(&self, seen: &Seen<'_>) -> bool {
        self.filter.matches(seen) && self.action.is_possible(seen)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.text)
    }
}

/// Error when parsing a fault rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("fault rule '{rule}': {reason}")]
pub struct RuleError {
    /// Text of the rule.
    pub rule: String,
    /// The reason, and the form expected.
    pub reason: String,
}

//! Fault injection rules.

use std::fmt;
use std::time::Duration;

use super::filter::{Filter, Seen};
use crate::wire::Packet;

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
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Drop => f.write_str("drop"),
            Action::Duplicate => f.write_str("dup"),
            Action::Reorder => f.write_str("reorder"),
            Action::Corrupt => f.write_str("corrupt"),
            Action::Delay(_) => f.write_str("delay"),
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
/// On the command line: `[tx:|rx:]ACTION=WHEN[,KEY=VALUE]...` (default `tx`), with the actions `drop`, `dup`,
/// `reorder`, `corrupt` and `delay` (which also needs `,by=2ms`); with `3`, `3..7`, `3..`, `every:13` or
/// `p:0.01` for WHEN; and with the filters `opcode=N|NAME`, `psn=N`, `psn=N..M`, `qp=N`, `from=ADDRESS`,
/// `to=ADDRESS`, `ecn=ce` and `time=2ms..5ms`. Alternatives are separated by `|` (`opcode=ack|read-response`).
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
        let parameters = match action {
            Action::Delay(by) => format!(",by={}ns", by.as_nanos()),
            _ => String::new(),
        };
        let text = format!("{direction}:{action}={when}{parameters}");
        Rule { direction, action, when, filter: Filter::default(), text }
    }

    /// Restricts the rule further, to packets for which `filter` returns true. Only packets that match all
    /// filters are counted.
    #[must_use]
    pub fn only(mut self, filter: impl Fn(&Packet<'_>) -> bool + Send + Sync + 'static) -> Rule {
        self.filter.only(filter);
        self
    }

    /// Reports whether a packet matches the filter.
    pub(super) fn matches_filter(&self, seen: &Seen<'_>) -> bool {
        self.filter.matches(seen)
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

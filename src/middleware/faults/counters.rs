//! Counters of fault rules.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault_rules::{Action, Direction, Rule};
use crate::sys::counters::counters;

counters! {
    /// Number of faults injected in one direction, by kind.
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    FaultCounts {
        /// Packets dropped.
        dropped,
        /// Packets duplicated.
        duplicated,
        /// Packets delivered after the packet that followed them.
        reordered,
        /// Packets corrupted.
        corrupted,
        /// Packets delayed.
        delayed,
        /// Packets marked as having experienced congestion.
        marked,
        /// Packets delivered again later.
        replayed,
        /// Packets answered in place of their destination: by a NAK, an RNR NAK or a REJ.
        answered,
    }
}

/// A rule's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RuleCount {
    /// The rule in textual form.
    pub rule: String,
    /// Packets that matched the rule's filter.
    pub matched: u64,
    /// Packets that the fault was applied to.
    pub struck: u64,
}

impl RuleCount {
    /// Returns a warning if no packet has matched the rule.
    pub fn warning(&self) -> Option<String> {
        let rule = &self.rule;
        (self.matched == 0)
            .then(|| format!("warning: fault rule '{rule}' matched no packet and had no effect"))
    }

    /// Returns each rule's counters, summed over several links with the same rules.
    pub fn sum<'a>(links: impl IntoIterator<Item = &'a FaultCounters>) -> Vec<RuleCount> {
        let mut sum: Vec<RuleCount> = Vec::new();
        for link in links {
            for (i, count) in link.rules().enumerate() {
                match sum.get_mut(i) {
                    Some(to) => {
                        (to.matched, to.struck) = (to.matched + count.matched, to.struck + count.struck)
                    }
                    None => sum.push(count),
                }
            }
        }
        sum
    }
}

impl fmt::Display for RuleCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleCount { rule, matched, struck } = self;
        write!(f, "fault {rule}: matched {matched} packets, affected {struck}")
    }
}

/// Handle to the counters of a [`Faults`](super::Faults) link, usable from any thread.
#[derive(Clone, Debug)]
pub struct FaultCounters(pub(super) Arc<[RuleCounter]>);

#[derive(Debug)]
pub(super) struct RuleCounter {
    rule: Rule,
    pub matched: AtomicU64,
    pub struck: AtomicU64,
}

impl FaultCounters {
    pub(super) fn new(rules: &[Rule]) -> FaultCounters {
        let counter = |rule: &Rule| RuleCounter { rule: rule.clone(), matched: 0.into(), struck: 0.into() };
        FaultCounters(rules.iter().map(counter).collect())
    }

    /// Returns the counters of each rule, in the order given to [`Faults::new`](super::Faults::new).
    pub fn rules(&self) -> impl Iterator<Item = RuleCount> {
        self.0.iter().map(|RuleCounter { rule, matched, struck }| RuleCount {
            rule: rule.to_string(),
            matched: matched.load(Ordering::Relaxed),
            struck: struck.load(Ordering::Relaxed),
        })
    }

    /// Returns the number of faults injected in one direction, summed over all rules for it.
    pub fn get(&self, direction: Direction) -> FaultCounts {
        let mut counts = FaultCounts::default();
        for RuleCounter { rule, struck, .. } in self.0.iter().filter(|c| c.rule.direction == direction) {
            let count = match rule.action {
                Action::Drop => &mut counts.dropped,
                Action::Duplicate | Action::Repeat(_) => &mut counts.duplicated,
                Action::Reorder => &mut counts.reordered,
                Action::Corrupt | Action::Alter(_) => &mut counts.corrupted,
                Action::Delay(_) => &mut counts.delayed,
                Action::Mark => &mut counts.marked,
                Action::Replay(_) => &mut counts.replayed,
                Action::Nak(_) | Action::RnrNak(_) | Action::Reject(_) => &mut counts.answered,
            };
            *count += struck.load(Ordering::Relaxed);
        }
        counts
    }
}

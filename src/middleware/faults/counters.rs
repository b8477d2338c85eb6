//! Counters of faults.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault_rules::{Action, Direction, Rule};
use crate::sys::counters::counters;

counters! {
    /// Number of faults injected in one direction, by kind.
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    "" FaultCounts {
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

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.named().map(|(name, n)| format!("{n} {name}")).collect();
        f.write_str(&counts.join(", "))
    }
}

/// A fault's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FaultCount {
    /// The fault in textual form.
    pub rule: String,
    /// Number of packets, calls or objects that matched.
    pub matched: u64,
    /// Number of those to which the fault was applied.
    pub struck: u64,
    /// Kind of what the fault applies to, in the singular: `packet`, `call` or `object`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub kind: &'static str,
}

impl FaultCount {
    /// Returns the counters of each fault, summed over several devices with the same faults.
    pub fn sum(counts: impl IntoIterator<Item = FaultCount>) -> Vec<FaultCount> {
        let mut sum: Vec<FaultCount> = Vec::new();
        for count in counts {
            match sum.iter_mut().find(|to| to.rule == count.rule) {
                Some(to) => to.add(&count),
                None => sum.push(count),
            }
        }
        sum
    }

    fn add(&mut self, other: &FaultCount) {
        self.matched += other.matched;
        self.struck += other.struck;
    }

    /// Returns a warning if nothing has matched the fault.
    pub fn warning(&self) -> Option<String> {
        let FaultCount { rule, kind, .. } = self;
        (self.matched == 0)
            .then(|| format!("warning: fault rule '{rule}' matched no {kind} and had no effect"))
    }
}

impl fmt::Display for FaultCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultCount { rule, matched, struck, kind } = self;
        write!(f, "fault {rule}: matched {matched} {kind}s, affected {struck}")
    }
}

/// Handle to the counters of a [`Faults`](super::Faults) link, usable from any thread.
#[derive(Clone, Debug, Default)]
pub struct FaultCounters(pub(super) Arc<[RuleCounter]>);

#[derive(Debug)]
pub(super) struct RuleCounter {
    pub rule: Rule,
    pub matched: AtomicU64,
    pub struck: AtomicU64,
}

impl FaultCounters {
    pub(super) fn new(rules: &[Rule]) -> FaultCounters {
        let counter = |rule: &Rule| RuleCounter { rule: rule.clone(), matched: 0.into(), struck: 0.into() };
        FaultCounters(rules.iter().map(counter).collect())
    }

    /// Returns the counters of each rule, in the order given to [`Faults::new`](super::Faults::new).
    pub fn rules(&self) -> impl Iterator<Item = FaultCount> {
        self.0.iter().map(|RuleCounter { rule, matched, struck }| FaultCount {
            rule: rule.to_string(),
            matched: matched.load(Ordering::Relaxed),
            struck: struck.load(Ordering::Relaxed),
            kind: "packet",
        })
    }

    /// Returns the counters of each rule, summed over several links with the same rules.
    pub fn sum<'a>(links: impl IntoIterator<Item = &'a FaultCounters>) -> Vec<FaultCount> {
        let mut sum: Vec<FaultCount> = Vec::new();
        for link in links {
            for (i, count) in link.rules().enumerate() {
                match sum.get_mut(i) {
                    Some(to) => to.add(&count),
                    None => sum.push(count),
                }
            }
        }
        sum
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

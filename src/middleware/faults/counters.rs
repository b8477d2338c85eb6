//! Counters of faults.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fault_rules::{Action, Direction, Rule};
use crate::sys::counters::counters;
use crate::sys::tally::{self, Tally};

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

    /// Shares the counters of the faults that this process creates from now on, for
    /// [`read_shared`](Self::read_shared). Returns a descriptor the first time that a process calls it.
    ///
    /// # Errors
    /// If there is no memory or descriptor left.
    #[doc(hidden)]
    pub fn share() -> io::Result<Option<OwnedFd>> {
        tally::share()
    }

    /// Notes that this process has reported its faults itself.
    #[doc(hidden)]
    pub fn set_reported() {
        tally::set_reported();
    }

    /// Returns the counters of each fault of a process that has ended, from the descriptor of [`share`](Self::share); none
    /// if the process has reported them itself.
    ///
    /// # Errors
    /// If the descriptor is another one.
    #[doc(hidden)]
    pub fn read_shared(counts: BorrowedFd<'_>) -> io::Result<Vec<FaultCount>> {
        let count = |(rule, kind, matched, struck)| FaultCount { rule, matched, struck, kind };
        Ok(FaultCount::sum(tally::read_shared(counts)?.into_iter().map(count)))
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
    pub tally: Tally,
}

impl FaultCounters {
    pub(super) fn new(rules: &[Rule]) -> FaultCounters {
        let counter =
            |rule: &Rule| RuleCounter { rule: rule.clone(), tally: Tally::new(&rule.to_string(), "packet") };
        FaultCounters(rules.iter().map(counter).collect())
    }

    /// Returns the counters of each rule, in the order given to [`Faults::new`](super::Faults::new).
    pub fn rules(&self) -> impl Iterator<Item = FaultCount> {
        self.0.iter().map(|RuleCounter { rule, tally }| FaultCount {
            rule: rule.to_string(),
            matched: tally.matched().load(Ordering::Relaxed),
            struck: tally.struck().load(Ordering::Relaxed),
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
        for RuleCounter { rule, tally } in self.0.iter().filter(|c| c.rule.direction == direction) {
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
            *count += tally.struck().load(Ordering::Relaxed);
        }
        counts
    }
}

//! Counters of faults.

use std::fmt;

use crate::middleware::faults::RuleCount;

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
    /// Name of a thing that matches, in the singular.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub kind: &'static str,
}

impl FaultCount {
    /// Returns the counters of each fault, summed over several devices with the same faults.
    pub fn sum(counts: impl IntoIterator<Item = FaultCount>) -> Vec<FaultCount> {
        let mut sum: Vec<FaultCount> = Vec::new();
        for count in counts {
            match sum.iter_mut().find(|to| to.rule == count.rule) {
                Some(to) => (to.matched, to.struck) = (to.matched + count.matched, to.struck + count.struck),
                None => sum.push(count),
            }
        }
        sum
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

impl From<RuleCount> for FaultCount {
    fn from(count: RuleCount) -> FaultCount {
        FaultCount { rule: count.rule, matched: count.matched, struck: count.struck, kind: "packet" }
    }
}

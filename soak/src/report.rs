//! Lines that workers print for the supervisor, and the ledger that compares both ends of each connection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::plan;

/// A process and its incarnation, which counts the restarts.
pub type Incarnation = (usize, u32);

/// A line of a worker.
#[derive(Serialize, Deserialize, Debug)]
pub enum Report {
    /// The worker accepts connections.
    Ready,
    /// A connection that the worker initiated has ended.
    Initiated(Initiated),
    /// A connection to the worker has ended. The number is that of messages received and verified.
    Accepted { connection: u64, received: u64 },
    /// Totals of this incarnation.
    Totals(Totals),
    /// A result that the specification does not allow.
    Violation(String),
    /// All connections that the worker initiated have ended, and it makes no others. Repeated until the
    /// worker exits.
    Drained,
}

/// The end of a connection, as its initiator saw it.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Initiated {
    pub connection: u64,
    /// The other end; `None` if it has not responded.
    pub target: Option<Incarnation>,
    /// Number of posted messages that complete a receive at the target, and of those with a successful
    /// completion.
    pub posted: u64,
    pub completed: u64,
}

/// Counts of one worker, or of all.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Connections established, on the initiating side, by each method.
    pub connections_by_cm: u64,
    pub connections_by_exchange: u64,
    /// Connections that were made to replace one that had failed.
    pub reconnects: u64,
    /// Messages that have completed and were verified at one end or both.
    pub messages: u64,
    /// Bytes compared with the pattern.
    pub bytes: u64,
    pub faults: FaultTotals,
    /// Connections that failed, by status or reason.
    pub errors: BTreeMap<String, u64>,
}

/// Packets that fault rules have affected.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultTotals {
    pub dropped: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    pub delayed: u64,
}

impl AddAssign<&Totals> for Totals {
    fn add_assign(&mut self, other: &Totals) {
        self.connections_by_cm += other.connections_by_cm;
        self.connections_by_exchange += other.connections_by_exchange;
        self.reconnects += other.reconnects;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.faults.dropped += other.faults.dropped;
        self.faults.duplicated += other.faults.duplicated;
        self.faults.reordered += other.faults.reordered;
        self.faults.corrupted += other.faults.corrupted;
        self.faults.delayed += other.faults.delayed;
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
    }
}

/// Connections with a report from one end, and the incarnations that were killed and so report nothing.
#[derive(Default)]
pub struct Ledger {
    initiated: HashMap<u64, Initiated>,
    accepted: HashMap<u64, (Incarnation, u64)>,
    killed: HashSet<Incarnation>,
}

impl Ledger {
    /// Records the initiator's report.
    ///
    /// # Errors
    /// The text of a violation.
    pub fn initiated(&mut self, report: Initiated) -> Result<(), String> {
        match self.accepted.remove(&report.connection) {
            Some((_, received)) => check(&report, received),
            None if report.target.is_none_or(|target| self.killed.contains(&target)) => Ok(()),
            None => {
                self.initiated.insert(report.connection, report);
                Ok(())
            }
        }
    }

    /// Records the target's report.
    ///
    /// # Errors
    /// The text of a violation.
    pub fn accepted(&mut self, by: Incarnation, connection: u64, received: u64) -> Result<(), String> {
        match self.initiated.remove(&connection) {
            Some(report) => check(&report, received),
            None if self.killed.contains(&plan::initiator(connection)) => Ok(()),
            None => {
                self.accepted.insert(connection, (by, received));
                Ok(())
            }
        }
    }

    /// Forgets the connections of a killed process, whose other ends cannot be compared.
    pub fn killed(&mut self, process: Incarnation) {
        self.killed.insert(process);
        self.initiated.retain(|_, report| report.target != Some(process));
        self.accepted.retain(|connection, _| plan::initiator(*connection) != process);
    }

    /// Checks that the target has reported every message that the initiator reported as successful.
    ///
    /// # Errors
    /// The text of a violation.
    pub fn finish(&self) -> Result<(), String> {
        if let Some(report) = self.initiated.values().find(|report| report.completed > 0) {
            return check(report, 0);
        }
        match self.accepted.iter().find(|(_, (_, received))| *received > 0) {
            Some((connection, (by, received))) => Err(format!(
                "connection {connection:#x}: process {} received {received} messages, but the initiator \
                 reported no such connection",
                by.0
            )),
            None => Ok(()),
        }
    }
}

/// Checks that each message was delivered once, or its work request failed: successful messages were
/// received, and no more were received than posted.
fn check(report: &Initiated, received: u64) -> Result<(), String> {
    let Initiated { connection, posted, completed, .. } = *report;
    if (completed..=posted).contains(&received) {
        return Ok(());
    }
    Err(format!(
        "connection {connection:#x}: {posted} messages were posted and {completed} completed successfully, \
         but {received} were received"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(posted: u64, completed: u64) -> Initiated {
        Initiated { connection: plan::connection_number(1, 0, 9), target: Some((2, 0)), posted, completed }
    }

    #[test]
    fn a_successful_message_that_was_not_received_is_a_violation_in_either_order() {
        for (posted, completed, received, is_valid) in
            [(5, 3, 3, true), (5, 3, 5, true), (5, 3, 2, false), (5, 5, 6, false)]
        {
            let report = report(posted, completed);
            let mut ledger = Ledger::default();
            ledger.initiated(report).unwrap();
            assert_eq!(ledger.accepted((2, 0), report.connection, received).is_ok(), is_valid);
            let mut ledger = Ledger::default();
            ledger.accepted((2, 0), report.connection, received).unwrap();
            assert_eq!(ledger.initiated(report).is_ok(), is_valid);
        }
    }

    #[test]
    fn a_missing_report_is_a_violation_unless_its_process_was_killed() {
        let mut ledger = Ledger::default();
        ledger.initiated(report(5, 5)).unwrap();
        assert!(ledger.finish().unwrap_err().contains("but 0 were received"));
        ledger.killed((2, 0));
        assert_eq!(ledger.finish(), Ok(()));
        ledger.initiated(report(5, 5)).unwrap();
        assert_eq!(ledger.finish(), Ok(()));
        ledger.accepted((2, 1), report(0, 0).connection, 1).unwrap();
        assert!(ledger.finish().unwrap_err().contains("reported no such connection"));
        ledger.killed((1, 0));
        assert_eq!(ledger.finish(), Ok(()));
    }
}

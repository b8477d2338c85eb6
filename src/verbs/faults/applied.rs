//! Faults that acted on the packets or objects of a failed queue pair.

use std::fmt;
use std::time::Duration;

use crate::driver::{ObjectChange, ObjectFault};
use crate::fault_rules::{Action, AppliedRule};
use crate::transport::{Ago, Failure, Instant};
use crate::wire::{Counted, Opcode, Psn};

/// Fault that may explain a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AppliedFault {
    /// The fault in textual form.
    pub rule: String,
    /// Effect.
    pub effect: FaultEffect,
    /// Time of the effect before the failure; for packets, of the last one.
    pub ago: Duration,
}

/// Effect of a fault on a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultEffect {
    /// An action was applied to packets of the queue pair.
    Packets {
        /// The action.
        action: Action,
        /// Number of packets of the queue pair, up to the last one.
        count: u64,
        /// PSN of the last packet, which had not been acknowledged when the queue pair failed.
        psn: Psn,
        /// Opcode of the last packet.
        opcode: Opcode,
    },
    /// The queue pair, or an object that it uses, was changed.
    Object(ObjectChange),
}

impl AppliedFault {
    pub(in crate::verbs) fn of_packets(applied: &AppliedRule, failure: &Failure) -> AppliedFault {
        let AppliedRule { rule, packets, psn, opcode, at, .. } = applied;
        AppliedFault {
            rule: rule.to_string(),
            effect: FaultEffect::Packets { action: rule.action, count: *packets, psn: *psn, opcode: *opcode },
            ago: Instant(failure.at).since(*at),
        }
    }

    pub(in crate::verbs) fn of_object(fault: &ObjectFault, at: Instant, failure: &Failure) -> AppliedFault {
        AppliedFault {
            rule: fault.to_string(),
            effect: FaultEffect::Object(fault.change()),
            ago: Instant(failure.at).since(at),
        }
    }
}

impl fmt::Display for AppliedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AppliedFault { ref rule, effect, ago } = *self;
        write!(f, "fault rule '{rule}' ")?;
        match effect {
            FaultEffect::Packets { action, count, psn, opcode } => {
                let last = if count == 1 { "" } else { "the last " };
                write!(
                    f,
                    "{} {} of this QP, {last}with PSN {psn} ({opcode})",
                    done(action),
                    Counted(count, "packet")
                )?;
            }
            FaultEffect::Object(change) => f.write_str(changed(change))?,
        }
        write!(f, " {}", Ago(ago))
    }
}

/// Returns what an action did to packets, as a verb.
fn done(action: Action) -> &'static str {
    match action {
        Action::Drop => "dropped",
        Action::Duplicate | Action::Repeat(_) => "duplicated",
        Action::Reorder => "reordered",
        Action::Corrupt | Action::Alter(_) => "corrupted",
        Action::Delay(_) => "delayed",
        Action::Mark => "marked",
        Action::Replay(_) => "replayed",
        Action::Nak(_) | Action::RnrNak(_) | Action::Reject(_) => "answered",
    }
}

/// Returns what the change of an object did to the failed queue pair.
fn changed(change: ObjectChange) -> &'static str {
    match change {
        ObjectChange::QpError(_) | ObjectChange::Event(_) => "moved this QP to ERR",
        ObjectChange::CqOverrun(_) => "made a completion queue of this QP overflow",
        ObjectChange::RevokeMr(_) => "revoked the region",
        ObjectChange::Port { .. } | ObjectChange::Speed(_) => "took the port down",
        ObjectChange::Gid { .. } => "changed the GID table",
        ObjectChange::DeviceFatal => "made the device fail",
    }
}

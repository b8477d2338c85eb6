//! Faults of every kind in one language: on packets ([`Rule`]), on calls ([`CallFault`]) and on objects
//! ([`ObjectFault`]).
//!
//! The first part of a fault's text selects its kind: `call:` a call; `qp:`, `cq:`, `mr:`, `gid:`, `event:`,
//! `port=`, `speed=` and `device=` an object; anything else a packet rule.
//!
//! ```
//! # use std::error::Error;
//! use urxe::verbs::faults::Fault;
//!
//! let faults = ["drop=every:13", "call:ibv_create_cq=ENOMEM@2", "port=down@5ms"];
//! let parsed: Vec<Fault> = faults.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
//! assert_eq!(parsed[1].to_string(), faults[1]);
//! # Ok::<(), Box<dyn Error>>(())
//! ```

mod applied;
mod call;
mod call_table;
mod device;
mod errno_table;
mod injector;
mod object;

use std::fmt;
use std::str::FromStr;

pub use applied::{AppliedFault, FaultEffect};
pub use call::{CallEffect, CallFault, CallFaults, CallVerdict};
pub use call_table::Call;
#[doc(hidden)]
pub use device::DeviceFaults;
pub(super) use injector::Injector;

pub use crate::driver::{ObjectChange, ObjectFault, Trigger};
pub use crate::nic::PortSpeed;

pub use crate::fault_rules::When;
use crate::fault_rules::{Rule, RuleError};
pub use crate::middleware::faults::FaultCount;

/// A fault of any kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A fault on packets.
    Packet(Rule),
    /// A fault on calls.
    Call(CallFault),
    /// A fault on an object of the NIC.
    Object(ObjectFault),
}

impl Fault {
    /// Reports whether the fault applies with a probability, so that its effects depend on a seed.
    pub fn is_random(&self) -> bool {
        let when = match self {
            Fault::Packet(rule) => rule.when,
            Fault::Call(call) => call.when(),
            Fault::Object(_) => return false,
        };
        matches!(when, When::Probability(_))
    }

    /// Returns the packet rules among `faults`, in order.
    pub fn packet_rules<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<Rule> {
        let rule = |fault: &Fault| if let Fault::Packet(rule) = fault { Some(rule.clone()) } else { None };
        faults.into_iter().filter_map(rule).collect()
    }

    /// Returns the faults on calls among `faults`, in order.
    pub fn call_faults<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<CallFault> {
        let call = |fault: &Fault| if let Fault::Call(call) = fault { Some(call.clone()) } else { None };
        faults.into_iter().filter_map(call).collect()
    }

    /// Returns the faults on objects among `faults`, in order.
    pub fn object_faults<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<ObjectFault> {
        let object =
            |fault: &Fault| if let Fault::Object(object) = fault { Some(object.clone()) } else { None };
        faults.into_iter().filter_map(object).collect()
    }
}

impl FromStr for Fault {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Fault, RuleError> {
        match text.split_once(':') {
            Some(("call", _)) => text.parse().map(Fault::Call),
            _ if object::is_object(text) => text.parse().map(Fault::Object),
            _ => text.parse().map(Fault::Packet),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Packet(rule) => rule.fmt(f),
            Fault::Call(call) => call.fmt(f),
            Fault::Object(object) => object.fmt(f),
        }
    }
}

impl From<Rule> for Fault {
    fn from(rule: Rule) -> Fault {
        Fault::Packet(rule)
    }
}

impl From<CallFault> for Fault {
    fn from(call: CallFault) -> Fault {
        Fault::Call(call)
    }
}

impl From<ObjectFault> for Fault {
    fn from(object: ObjectFault) -> Fault {
        Fault::Object(object)
    }
}

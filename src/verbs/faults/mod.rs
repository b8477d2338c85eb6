//! Faults of every kind in one language: on packets ([`Rule`]), on calls ([`CallFault`]).
//!
//! The first part of a fault's text selects its kind: `call:` a call, anything else a packet rule.
//!
//! ```
//! # use std::error::Error;
//! use urxe::verbs::faults::Fault;
//!
//! let faults = ["drop=every:13", "call:ibv_create_cq=ENOMEM@2", "call:ibv_poll_cq=slow,by=2ms"];
//! let parsed: Vec<Fault> = faults.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
//! assert_eq!(parsed[1].to_string(), faults[1]);
//! # Ok::<(), Box<dyn Error>>(())
//! ```

mod call;
mod call_table;
mod count;
mod errno_table;
mod occurrence;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use call::{CallEffect, CallFault, CallFaults, CallVerdict};
pub use call_table::Call;
pub use count::FaultCount;
pub use occurrence::Occurrence;

use crate::link::faults::{Rule, RuleError};

/// A fault of any kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A fault on packets.
    Packet(Rule),
    /// A fault on calls.
    Call(CallFault),
}

impl Fault {
    /// Returns the packet rules among `faults`, in order.
    pub fn packet_rules(faults: &[Fault]) -> Vec<Rule> {
        faults
            .iter()
            .filter_map(|fault| if let Fault::Packet(rule) = fault { Some(rule.clone()) } else { None })
            .collect()
    }

    /// Returns the faults on calls among `faults`, in order.
    pub fn call_faults(faults: &[Fault]) -> Vec<CallFault> {
        faults
            .iter()
            .filter_map(|fault| if let Fault::Call(call) = fault { Some(call.clone()) } else { None })
            .collect()
    }
}

impl FromStr for Fault {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Fault, RuleError> {
        match text.split_once(':') {
            Some(("call", _)) => text.parse().map(Fault::Call),
            _ => text.parse().map(Fault::Packet),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Packet(rule) => rule.fmt(f),
            Fault::Call(call) => call.fmt(f),
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

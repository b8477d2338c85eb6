//! Reports of injected faults.

use bytes::Bytes;

use crate::fault_rules::Rule;
use crate::transport::Instant;
use crate::wire::{Flow, IpIdent};

/// An injected fault.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FaultEvent<'a> {
    /// Time of the fault.
    pub at: Instant,
    /// The rule that was applied.
    pub rule: &'a Rule,
    /// Number of packets that have matched the rule's filter, including this one.
    pub count: u64,
    /// The packet's addresses, source port and traffic class.
    pub flow: Flow,
    /// The packet's IPv4 identification, as far as it is known.
    pub ident: IpIdent,
    /// The packet from BTH to ICRC, before the fault was applied.
    pub packet: Bytes,
}

/// Callback for every injected fault.
pub type Observer = Box<dyn FnMut(&FaultEvent<'_>) + Send>;

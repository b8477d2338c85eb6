//! Rules of fault injection: the packets that a rule applies to, what it does to them, and its textual form.
//! Links and middleware share these types; the middleware applies the rules.
#![forbid(unsafe_code)]

mod alteration;
mod applied;
mod filter;
mod hint;
mod parse;
mod rule;

pub(crate) use alteration::write_icrc;
pub use alteration::{Alteration, HeaderField, Place};
pub use applied::{AppliedRule, FailedPackets};
pub(crate) use filter::{Seen, cm_message, is_acknowledged_request};
pub(crate) use hint::hint;
pub(crate) use parse::{duration, number, when};
pub use rule::{Action, Direction, Rule, RuleError, When};

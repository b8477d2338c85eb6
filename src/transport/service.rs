//! Transport services as types: the parameter of [`SendWr`](super::SendWr) and [`Qp`](crate::verbs::Qp).
//!
//! | | [`Rc`] | [`Uc`] | [`Ud`] | [`Untyped`] |
//! | --- | --- | --- | --- | --- |
//! | [`Connected`]: connects to one peer; SEND, WRITE, memory windows | yes | yes | | yes |
//! | [`Reliable`]: READ, atomics, FLUSH, SEND with invalidate | yes | | | yes |
//! | [`Datagrams`]: SEND to a destination, multicast | | | yes | yes |
//!
//! A call that the service does not have does not compile:
//!
//! ```compile_fail,E0277
//! # use urxe::verbs::*;
//! # use urxe::verbs::errors::PostError;
//! fn read(qp: &Qp<Uc>, from: RemoteAddr) -> Result<(), PostError> {
//!     qp.post_send(&SendWr::read(1, &[], from)) // the service `Uc` is not reliable
//! }
//! ```

use std::fmt;

use super::QpType;

/// Any service: a queue pair whose work requests are checked when they are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Untyped {}

/// Reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rc {}

/// Unreliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uc {}

/// Unreliable datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ud {}

/// A service that a queue pair has by its type.
pub trait Service: Copy + fmt::Debug + Send + Sync + 'static {
    /// The service as a value.
    const TYPE: QpType;
}

impl Service for Rc {
    const TYPE: QpType = QpType::Rc;
}

impl Service for Uc {
    const TYPE: QpType = QpType::Uc;
}

impl Service for Ud {
    const TYPE: QpType = QpType::Ud;
}

/// A service whose queue pairs are connected to one peer.
#[diagnostic::on_unimplemented(
    message = "the service `{Self}` has no connections, WRITEs or memory windows",
    note = "a datagram has a destination: `SendWr::send_to`"
)]
pub trait Connected {}

impl Connected for Untyped {}
impl Connected for Rc {}
impl Connected for Uc {}

/// A service in which the peer responds.
#[diagnostic::on_unimplemented(
    message = "the service `{Self}` is not reliable: it has no READs, atomics, FLUSHes or SENDs with invalidate"
)]
pub trait Reliable: Connected {}

impl Reliable for Untyped {}
impl Reliable for Rc {}

/// A service whose queue pairs send datagrams.
#[diagnostic::on_unimplemented(
    message = "the service `{Self}` has no datagrams: a queue pair sends to the peer of its connection"
)]
pub trait Datagrams {}

impl Datagrams for Untyped {}
impl Datagrams for Ud {}

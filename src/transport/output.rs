//! Effects of a queue pair's step.

use super::{AsyncEvent, Completion, SrqId};
use crate::wire::Qpn;

/// Effect of a queue pair's step, to be carried out by the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Completion for the send completion queue.
    Sent(Completion),
    /// Completion for the send completion queue, to be delivered once the link has accepted this turn's
    /// packets, because no acknowledgement will follow.
    Emitted(Completion),
    /// Completion for the receive completion queue.
    Received(Completion),
    /// Completion for the completion queue of an XRC shared receive queue.
    ReceivedFrom(SrqId, Completion),
    /// The queue pair has refused a request, and recorded why; it enters ERR.
    Refused(Qpn),
    /// Event for the asynchronous event queue.
    Event(AsyncEvent),
}

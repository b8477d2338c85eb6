//! Effects of a step of a queue pair.

use super::{AsyncEvent, Completion, SrqId};

/// Effect of a step that the NIC carries out for the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Completion for the send completion queue.
    Sent(Completion),
    /// Completion for the send completion queue once the link has accepted the packets of this turn, because
    /// no acknowledgement will follow.
    Emitted(Completion),
    /// Completion for the receive completion queue.
    Received(Completion),
    /// Completion for the completion queue of an XRC shared receive queue.
    ReceivedFrom(SrqId, Completion),
    /// Event for the asynchronous event queue.
    Event(AsyncEvent),
}

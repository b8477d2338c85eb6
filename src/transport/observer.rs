//! Observer of queue pairs: receives their events as they happen, for event logs.
//!
//! Without an observer, an event costs one comparison. Nothing else depends on the observer.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::slow_event::EventKind;
use super::{Completion, Instant, WcOpcode};
use crate::memory::AccessError;
use crate::wire::{Flow, NakCode, Operation, Psn, Qpn, RKey, Syndrome};

/// Event of a queue pair.
#[derive(Clone, Copy, Debug)]
pub enum QpEvent<'a> {
    /// A state change, timeout, NAK or retransmission, with the PSN that it concerns. NAKs that are received are
    /// also [`NakReceived`](Self::NakReceived), which comes before their consequences.
    Slow(Psn, EventKind),
    /// A NAK or RNR NAK for a PSN in flight was received.
    NakReceived(Psn, Syndrome),
    /// Requests are missing: first PSN, number.
    Gap(Psn, u32),
    /// A request asks for access to memory, before its check.
    MemoryAccess {
        /// PSN of the request.
        psn: Psn,
        /// Operation.
        operation: Operation,
        /// Virtual address.
        va: u64,
        /// Remote key.
        rkey: RKey,
        /// Length in bytes.
        len: u32,
    },
    /// A check of a request failed.
    CheckFailed {
        /// PSN of the request.
        psn: Psn,
        /// Code of the NAK, if there is one.
        code: Option<NakCode>,
        /// Reason for which access to memory is denied, if that is the cause.
        access: Option<AccessError>,
    },
    /// Congestion control has changed what may be sent.
    Congestion(CongestionState),
    /// A work request was posted.
    Posted {
        /// Whether it is a receive.
        is_recv: bool,
        /// Whether it generates a completion on success.
        signaled: bool,
        /// Identifier.
        wr_id: u64,
        /// Kind of work request.
        opcode: WcOpcode,
        /// Length in bytes.
        len: u64,
    },
    /// A work request completed.
    Completed(&'a Completion),
}

/// Limits that congestion control sets to a queue pair.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CongestionState {
    /// Rate in bits per second; `None` if it is not limited.
    pub rate: Option<f64>,
    /// α of DCQCN; `None` for other algorithms.
    pub alpha: Option<f64>,
    /// Congestion window in flight cost: bytes with a part for each packet.
    pub window: u64,
}

/// Queue pair of an event.
#[derive(Clone, Copy, Debug)]
pub struct ObservedQp {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Path to the peer; `None` before RTR and for unconnected services.
    pub flow: Option<Flow>,
    /// Number of the peer's queue pair, if there is a path.
    pub dest_qpn: Qpn,
}

/// Receiver of the events of a NIC. It is called while the NIC is locked, so it must not call back into it.
pub trait QpObserver: Send + Sync {
    /// Takes an event of a queue pair. `at` is `None` where the caller has no clock: the event happens now.
    fn on_qp_event(&self, at: Option<Instant>, qp: &ObservedQp, event: &QpEvent<'_>);

    /// Takes a received packet, from BTH to ICRC, that the NIC has dropped. `reason` is the name of the counter
    /// that counts it.
    fn on_drop(&self, at: Instant, flow: &Flow, packet: &[u8], reason: &'static str);

    /// Takes the time of what happens next.
    fn on_time(&self, at: Instant);
}

/// Observer of a queue pair, if there is one.
#[derive(Clone, Default)]
pub struct Observer(Option<Observation>);

/// Observer of a queue pair, and what it was told last.
#[derive(Clone)]
pub struct Observation {
    observer: Arc<dyn QpObserver>,
    congestion: Cell<Option<CongestionState>>,
    /// PSN behind the newest request of the peer.
    next_request: Cell<Option<Psn>>,
}

impl Observer {
    /// Returns an observer that calls `observer`.
    pub fn new(observer: Arc<dyn QpObserver>) -> Observer {
        Observer(Some(Observation { observer, congestion: Cell::new(None), next_request: Cell::new(None) }))
    }

    /// Returns the observer and what it was told.
    #[inline]
    pub(super) fn get(&self) -> Option<&Observation> {
        self.0.as_ref()
    }

    /// Returns the receiver of the events.
    #[inline]
    pub fn receiver(&self) -> Option<&Arc<dyn QpObserver>> {
        self.0.as_ref().map(|observation| &observation.observer)
    }

    /// Returns the observer of another connection.
    pub fn restarted(&self) -> Observer {
        self.receiver().cloned().map(Observer::new).unwrap_or_default()
    }
}

impl Observation {
    /// Returns the receiver of the events.
    pub fn receiver(&self) -> &dyn QpObserver {
        &*self.observer
    }

    /// Reports whether this state of congestion control differs from the one that was reported last.
    pub fn is_new(&self, state: CongestionState) -> bool {
        self.congestion.replace(Some(state)) != Some(state)
    }

    /// Takes a request of the peer that occupies `span` PSNs. Returns the number of PSNs missing between it and the
    /// newest one; `expected` is the PSN that the responder expects.
    pub fn note_request(&self, expected: Psn, psn: Psn, span: u32) -> u32 {
        let known = self.next_request.get().filter(|next| next.is_after(expected));
        let next = known.unwrap_or(expected);
        let end = psn + span;
        self.next_request.set(Some(if end.is_after(next) { end } else { next }));
        psn.since(next).max(0) as u32
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({})", u8::from(self.0.is_some()))
    }
}

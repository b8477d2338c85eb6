//! State shared by the requester and the responder of a queue pair.

use super::comp_counter::OpCounters;
use super::history::History;
use super::observer::{ObservedQp, Observer, QpEvent};
use super::slow_event::EventKind;
use super::state::KeptAttrs;
use super::{
    AlternatePath, Completion, Instant, MigrationState, QpInit, QpState, QpType, Quirks, WcOpcode, WcStatus,
    XrcdId,
};
use crate::memory::{Accessor, PdId};
use crate::wire::{
    Bth, Ecn, Flow, HeaderSet, Headers, Mtu, Opcode, Operation, PKey, Position, Psn, Qpn, Transport,
};

/// Identity and attributes of a queue pair, shared by its requester and responder.
#[derive(Debug)]
pub(super) struct Connection {
    pub qp_type: QpType,
    pub qpn: Qpn,
    pub pd: PdId,
    pub state: QpState,
    /// Whether every send generates a completion, regardless of its flags.
    pub signal_all: bool,
    made_with: QpInit,
    /// Slow events, and the record of the last failure.
    pub history: History,
    /// Observer of the queue pair, which stays until it is destroyed.
    pub observer: Observer,
    /// Completion counters, which stay attached until the queue pair is destroyed.
    pub op_counters: OpCounters,
    pub attr: KeptAttrs,
    pub pkey: PKey,
    pub av: Option<super::AddressVector>,
    /// Path to the peer; `None` before RTR and for unconnected services.
    pub flow: Option<Flow>,
    /// Path of requests and READ responses: `flow`, but ECN-capable if congestion control uses marks.
    pub data_flow: Option<Flow>,
    /// Whether congestion control uses marks, so that requests and READ responses are ECN-capable.
    pub uses_marks: bool,
    pub migration: MigrationState,
    pub alternate: Option<Alternate>,
}

impl Connection {
    /// Enters `state`, and traces and records the transition with its `cause`.
    pub fn enter(&mut self, state: QpState, cause: &'static str, now: Instant) {
        if self.state != state {
            let (qpn, from) = (self.qpn, self.state);
            trace_event!(DEBUG, "urxe::qp", "state change", qpn = %qpn, from = %from, to = %state, cause = cause);
            self.state = state;
            self.record(now, Psn::default(), None, EventKind::StateChange { from, to: state, cause });
            if state == QpState::Rts {
                self.history.forget_failure();
            }
        }
    }

    /// Records a slow event in the history, and tells the observer.
    #[cold]
    pub fn record(&self, at: Instant, psn: Psn, sent: Option<Instant>, kind: EventKind) {
        self.history.record(at, psn, sent, kind);
        self.observe(Some(at), || QpEvent::Slow(psn, kind));
    }

    /// Tells the observer of an event, if there is one; `at` is `None` where no clock is at hand.
    #[inline]
    pub fn observe<'e>(&self, at: Option<Instant>, event: impl FnOnce() -> QpEvent<'e>) {
        if let Some(observer) = self.observer.get() {
            let qp = ObservedQp { qpn: self.qpn, flow: self.flow, dest_qpn: self.attr.dest_qpn };
            observer.receiver().on_qp_event(at, &qp, &event());
        }
    }

    pub fn new(init: &QpInit, qpn: Qpn) -> Connection {
        let mtu = if init.qp_type.is_connected() { Mtu::Mtu1024 } else { init.port_mtu };
        Connection {
            qp_type: init.qp_type,
            qpn,
            pd: init.pd,
            state: QpState::Reset,
            signal_all: init.signal_all,
            made_with: *init,
            history: History::default(),
            observer: Observer::default(),
            op_counters: OpCounters::default(),
            attr: KeptAttrs { mtu, ..KeptAttrs::default() },
            pkey: PKey::DEFAULT,
            av: None,
            flow: None,
            data_flow: None,
            uses_marks: false,
            migration: MigrationState::Migrated,
            alternate: None,
        }
    }

    /// Resets all attributes to their values at creation (transition to RESET).
    pub fn reset(&mut self) {
        let (init, op_counters) = (self.made_with, std::mem::take(&mut self.op_counters));
        let (history, observer) = (self.history.renewed(), self.observer.restarted());
        *self = Connection { op_counters, history, observer, ..Connection::new(&init, self.qpn) };
    }

    /// Returns a SEND completion with the given status and no data, as a template for other completions.
    pub fn completion(&self, wr_id: u64, status: WcStatus) -> Completion {
        let completion = Completion::new(wr_id, self.qpn, WcOpcode::Send, status);
        Completion { src_qpn: self.attr.dest_qpn, solicited: true, ..completion }
    }

    /// Sets the path to the peer.
    pub fn set_flow(&mut self, flow: Flow) {
        self.flow = Some(flow);
        self.data_flow = Some(if self.uses_marks { flow.with_ecn(Ecn::Ect0) } else { flow });
    }

    pub fn quirks(&self) -> &Quirks {
        &self.made_with.quirks
    }

    pub fn domain(&self) -> Option<XrcdId> {
        self.made_with.domain
    }

    /// Returns the protection domain and QP number under which this queue pair accesses memory.
    pub fn accessor(&self) -> Accessor {
        Accessor { pd: self.pd, qpn: self.qpn }
    }

    pub fn transport(&self) -> Transport {
        match self.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
            QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
        }
    }

    /// Builds the base transport header (BTH) of a packet to the peer.
    pub fn bth(&self, operation: Operation, position: Position, extra: HeaderSet, psn: Psn) -> Bth {
        let opcode = Opcode::find(self.transport(), operation, position, extra)
            .expect("the table has a row for everything a requester or responder of the service sends");
        Bth {
            opcode,
            mig_req: self.quirks().mig_req && self.migration == MigrationState::Migrated,
            pkey: self.pkey,
            dest_qp: self.attr.dest_qpn,
            psn,
            ..Bth::default()
        }
    }

    /// Builds the headers of a packet, with empty extension headers.
    #[inline]
    pub fn headers(&self, operation: Operation, position: Position, extra: HeaderSet, psn: Psn) -> Headers {
        Headers { bth: self.bth(operation, position, extra, psn), ..Headers::default() }
    }
}

/// Alternate path of a connection, with its resolved flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alternate {
    pub path: AlternatePath,
    pub flow: Flow,
    pub pkey: PKey,
}

/// Connection path on which a packet arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMatch {
    /// Path in use.
    Primary,
    /// Alternate path.
    Alternate,
}

/// Error that requires the queue pair to enter the error state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fatal;

//! Sans-I/O core: takes packets and the current time, and returns packets, deadlines and completions.
//!
//! A [`QueuePair`] is a requester and a responder over one connection. Each step gets an [`Env`] (step
//! context): the time, the NIC's memory table, a [`TxQueue`] for packets and a list for effects ([`Output`]).
//! There are no sockets, threads, clocks or locks in here.
#![forbid(unsafe_code)]

mod codes;
mod comp_counter;
mod congestion;
mod connection;
mod counters;
mod credits;
mod egress_room;
mod env;
mod event;
mod failure;
mod failure_text;
mod fifo;
mod history;
mod ids;
mod init;
mod injected_error;
mod last_acks;
mod migration;
mod observer;
mod output;
mod pacer;
mod peer_change;
mod port_addresses;
mod qp;
mod quirks;
mod recovery;
mod recv_queue;
mod requester;
mod responder;
mod send_queue;
mod send_slots;
mod send_wr;
pub mod service;
mod sge_list;
mod slow_event;
#[cfg(feature = "live")]
mod snapshot;
mod srq;
pub mod state;
mod time;
mod traffic;
mod tuning;
mod work;

#[cfg(feature = "unstable-internals")]
pub use crate::burst::{
    BurstLimits, Copier, GatheredPackets, PayloadRun, PayloadSource, PeerPath, RxBurst, SenderPayloads,
    TxBurst, TxQueue,
};
pub use comp_counter::{AttachCounterError, CompCounter, CountUnit, CountedOps};
#[cfg(feature = "unstable-internals")]
pub use congestion::QpController;
pub use congestion::{
    Congestion, CongestionAlgorithm, CongestionConfig, CongestionError, CongestionParameter, ParameterSet,
    Rate,
};
pub use connection::PathMatch;
pub use counters::{Counters, QpCounters, Retransmissions};
pub use egress_room::{EgressRoom, priority_of};
pub use env::Env;
pub use event::AsyncEvent;
pub use failure::{
    FailedRequest, Failure, FailureCause, InvalidRequest, LastAck, LocalCheck, PastEvent, PathSizes, Refusal,
    RetryLimits, Transmission, TransmissionEnd,
};
pub(crate) use failure_text::{Ago, JoinedFailure};
pub use ids::{SrqId, XrcdId};
pub use init::{QpInit, RecvCaps, SendCaps};
pub use injected_error::InjectedError;
pub use last_acks::LastAcks;
pub use observer::{CongestionState, ObservedQp, Observer, QpEvent, QpObserver};
pub use output::Output;
pub use peer_change::PeerChange;
pub use port_addresses::PortAddresses;
pub use qp::{Pending, QueuePair};
pub use quirks::{AckRequests, CnpScope, EarlySends, Quirks};
pub use recovery::TimerDeferral;
pub use send_slots::PolledSends;
pub use send_wr::SendWr;
pub use slow_event::EventKind;
#[cfg(feature = "live")]
pub use snapshot::{PeerSnapshot, QpSnapshot};
pub use srq::SharedReceives;
#[cfg(feature = "unstable-internals")]
pub use state::AttrMask;
pub use state::{
    AddressError, AddressVector, AlternatePath, MigrationState, ModifyError, QpAttr, QpState, QpType,
};
pub use time::{Instant, earliest};
pub use traffic::Traffic;
pub use tuning::{PacingLimits, PeerWindow, Tuning};
pub use work::{
    Completion, CqId, Destination, MAX_MESSAGE, Placement, PostError, PostListError, RecvWr, RemoteAddr,
    SendFlags, Sge, WcOpcode, WcStatus, WrData, WrOp,
};

//! The public API: contexts, protection domains, regions, completion queues and queue pairs.
//!
//! Names and semantics are those of libibverbs. Objects keep alive what they are created from: a [`Qp`] holds
//! its [`Pd`] and [`Cq`]s, so they may be dropped in any order. All objects are `Send + Sync`.
//!
//! A thread that polls drives the NIC; while no thread polls, a background thread does.

mod adapter;
mod ah;
pub(crate) mod any_error;
mod channel;
mod channel_wait;
pub mod cm;
mod congestion;
mod context;
mod context_warnings;
mod cq;
mod cq_poll;
mod device;
mod dm;
mod errno;
pub mod errors;
mod event;
pub mod explain;
pub mod faults;
mod gsi;
mod identity;
#[cfg(feature = "live")]
pub mod live;
pub mod memory;
mod mr;
mod mw;
mod open_devices;
mod pd;
mod port_counters;
mod qp;
mod query;
mod quota;
mod spawn;
mod srq;
mod test_endpoint;
mod typed_qp;
mod wait;
mod warnings;
mod xrc;

pub use crate::driver::Notify;
pub use crate::fabric::{Fabric, FabricConfig};
#[doc(hidden)]
pub use crate::link::{ClaimError, JoinError};
pub use crate::memory::{Access, AtomicOp, PdId};
pub use crate::nic::{Limits, Personality};
#[doc(hidden)]
pub use crate::sys::signals::signals_restart_calls;
pub use crate::transport::service;
pub use crate::transport::service::{Rc, Uc, Ud};
pub use crate::transport::{
    AckRequests, AddressVector, AlternatePath, AsyncEvent, CnpScope, CompCounter, Completion, Congestion,
    CongestionAlgorithm, CongestionParameter, CountUnit, CountedOps, Counters, CqId, Destination, EarlySends,
    EventKind, MigrationState, ParameterSet, Placement, QpAttr, QpState, QpType, Quirks, RecvCaps, RecvWr,
    RemoteAddr, Retransmissions, SendCaps, SendFlags, SendWr, Sge, SrqId, WcOpcode, WcStatus, WrData, WrOp,
};
pub use crate::wire::mad::{MAD_LEN, ServiceId};
pub use crate::wire::{AckTimeout, Gid, LKey, Mtu, NakCode, PKey, Psn, QKey, Qpn, RKey, RnrTimer, grh};
#[doc(hidden)]
pub use adapter::{Adapter, AdapterError};
pub use ah::Ah;
pub use channel::{CompletionChannel, CqEvent};
pub use context::{Context, ContextOptions, WeakContext};
pub use cq::{Cq, CqOptions};
pub use cq_poll::{CqPoll, Wc, WcFlags};
pub use device::{Device, devices};
pub(crate) use errors::{
    AccessError, AckError, AddressError, AttachCounterError, AttachError, CongestionError, ConnectError,
    CqOverflow, CreateError, DestroyCqError, DeviceError, ManagementError, MemoryAccessError, ModifyError,
    MulticastError, OpenError, PKeyTableSize, PairError, PostError, PostListError, WaitError, WrongService,
};
pub use gsi::{ManagementPort, ReceivedMad, ServiceClaim};
#[doc(hidden)]
pub use identity::{DeviceNameError, DeviceNames, Identity};
pub(crate) use memory::RawMr;
pub use mr::{Mr, MrOptions};
pub use pd::Pd;
#[doc(hidden)]
pub use port_counters::{PUBLISHING_INTERVAL_MS, port_counter_files};
pub use qp::{ConnectOptions, Endpoint, ListPolicy, Qp, QpOptions};
pub use query::{AtomicCap, DeviceAttr, DeviceCaps, OnDemand, Pacing, PortAttr, PortState};
#[doc(hidden)]
pub use query::{lid_of, node_guid};
pub use spawn::FabricThread;
pub use srq::{Srq, SrqAttr, SrqOptions};
pub use test_endpoint::{MeshNode, PairBuilder, TestEndpoint};
pub use warnings::{Warning, WarningKind};
pub use xrc::Xrcd;

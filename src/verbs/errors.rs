//! Error types of the verbs API.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::memory::Access;
use crate::transport::{Completion, QpType, WcStatus};
use crate::wire::Mtu;

pub use super::device::DeviceError;
pub use super::test_endpoint::PairError;
pub use super::typed_qp::WrongService;
pub use crate::driver::{AttachError, CqOverflow};
pub use crate::memory::{AccessError, ManagementError};
pub use crate::nic::{MulticastError, PKeyTableSize};
pub use crate::transport::{
    AddressError, AttachCounterError, CongestionError, InjectedError, ModifyError, PostError, PostListError,
};

/// Reason why a context could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum OpenError {
    /// The link has no IP address, so there is no GID.
    #[error("{0} has no IP address, so the NIC would have no GID")]
    NoAddress(String),
    /// The link's packets are too small for the smallest path MTU.
    #[error("{name} carries IP packets of at most {mtu} bytes, too few for a path MTU of 256")]
    MtuTooSmall {
        /// Name of the link.
        name: String,
        /// Largest IP packet that the link carries, in bytes.
        mtu: usize,
    },
    /// The given number of shards is not a power of two from 1 to 64.
    #[error("a NIC has 1, 2, 4, 8, 16, 32 or 64 shards, not {0}")]
    Shards(usize),
    /// An eventfd or the background thread could not be created.
    #[error("cannot create an eventfd or the background thread: {0}")]
    System(#[from] io::Error),
    /// The fabric could not add the port.
    Fabric(#[from] crate::fabric::FabricError),
    /// A fault on the call, which was not executed.
    Injected(InjectedError),
}

/// Reason why an object could not be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is above the device's limit or below the minimum.
    #[error("{name} is {value}, it must be {min} to {max}")]
    Value {
        /// Name of the size.
        name: &'static str,
        /// The given value.
        value: u64,
        /// Minimum.
        min: u64,
        /// The device's limit.
        max: u64,
    },
    /// The device's limit on objects of this kind has been reached.
    #[error("all {max} {kind} of the device are in use")]
    Exhausted {
        /// Name of the kind, in the plural.
        kind: &'static str,
        /// The device's limit.
        max: u32,
    },
    /// REMOTE_WRITE or REMOTE_ATOMIC was given without LOCAL_WRITE, which both require (IBA 11.2.8.2).
    #[error("{0} permits peers to write and requires LOCAL_WRITE")]
    AccessNeedsLocalWrite(Access),
    /// An XRC target queue pair was requested without an XRC domain, or a queue pair of another type with
    /// one.
    #[error("Xrcd::create_target_qp creates XRC target QPs, and no others")]
    XrcTarget,
    /// A queue pair of a type that never receives cannot have a shared receive queue.
    #[error("a {0:?} QP does not receive and cannot have a shared receive queue")]
    NoReceives(QpType),
    /// The given permissions include unknown flags or cannot be combined.
    #[error("invalid access {access}: {reason}")]
    Access {
        /// The given permissions.
        access: Access,
        /// Explanation of the conflict.
        reason: &'static str,
    },
    /// The key table rejected the change, for example because windows are bound to the region.
    Management(#[from] ManagementError),
    /// An object of the given kind belongs to another context, so it cannot be used here.
    #[error("the {0} belongs to another context")]
    OtherContext(&'static str),
    /// The address vector cannot be used on the port.
    #[error("no path to the destination: {0}")]
    Address(#[from] AddressError),
    /// The completion is not for a datagram with a routing header (GRH), so the path to the sender is
    /// unknown.
    #[error("the received data have no GRH of a datagram to an address of this port")]
    NoGrh,
    /// An eventfd could not be created; holds the `errno` value.
    #[error("cannot create a completion channel: {}", io::Error::from_raw_os_error(*.0))]
    Channel(i32),
    /// The device has failed ([`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal)).
    #[error("the device has failed: close the context and open another")]
    DeviceFatal,
    /// A fault on the call, which was not executed.
    Injected(InjectedError),
}

impl CreateError {
    /// Fails with [`CreateError::Value`] unless the value is in the range.
    pub(super) fn check(
        name: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<(), CreateError> {
        let (min, max) = range.into_inner();
        if (min..=max).contains(&value) { Ok(()) } else { Err(CreateError::Value { name, value, min, max }) }
    }
}

/// Reason why a queue pair could not be connected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The requested path MTU is above the port's active MTU.
    #[error("path MTU {requested:?} is above the port's, {active:?}")]
    Mtu {
        /// The requested path MTU.
        requested: Mtu,
        /// The port's active MTU.
        active: Mtu,
    },
    /// The port has no GID of the same IP version as the peer's.
    #[error("the peer's GID is {peer}, and the port has no GID of that IP version")]
    NoGid {
        /// The peer's GID.
        peer: crate::wire::Gid,
    },
    /// A state transition failed.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

/// Reason why a completion queue could not be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyCqError {
    /// The given number of work queues still complete to the queue.
    #[error("{0} work queues use this CQ: destroy their queue pairs and shared receive queues first")]
    InUse(u32),
    /// The given number of events were retrieved from the queue's channel and not acknowledged in time.
    #[error("{0} events of this CQ are not acknowledged: call Cq::ack_events first")]
    Unacknowledged(u64),
}

/// Error returned if more events are acknowledged than were retrieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot acknowledge {given} events: {unacked} are unacknowledged")]
pub struct AckError {
    /// Number of events that the call was to acknowledge.
    pub given: u64,
    /// Number of unacknowledged events.
    pub unacked: u64,
}

/// Reason why a wait ended without a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The given timeout expired.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// A signal interrupted the wait. Waits are restarted, and this error is not returned, if the program has
    /// signal handlers and all of them were installed with `SA_RESTART`.
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// In virtual time, nothing pending on the fabric could end the wait: no packet, no timer, and no other
    /// thread of [`Fabric::spawn`](crate::fabric::Fabric::spawn).
    #[error(
        "the fabric has no packet in flight and no timer that could end the wait; if another thread is to end it, start that \
         thread with Fabric::spawn"
    )]
    Idle,
    /// The completion queue has overflowed, so completions were lost.
    #[error(transparent)]
    Overflow(#[from] CqOverflow),
    /// The completion has an error status.
    #[error("work request {} failed: {}", .0.wr_id, .0.status)]
    Failed(Completion),
    /// The listener's device has failed permanently, so no further request can arrive.
    #[error("the device was removed, so no further request can arrive")]
    DeviceRemoved,
    /// The wait could not be set up, because the system is out of descriptors or memory; holds the `errno`
    /// value.
    #[error("cannot wait: {}", io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The tokio runtime could not watch the descriptor (crate `urxe-tokio`), because the system is out of
    /// descriptors or the runtime is shutting down (`ECANCELED`); holds the `errno` value.
    #[error("tokio cannot watch the descriptor: {}", io::Error::from_raw_os_error(*.0))]
    Runtime(i32),
}

impl Completion {
    /// Returns the completion if its status is success, otherwise [`WaitError::Failed`] with the completion.
    #[doc(hidden)]
    pub fn successful(self) -> Result<Completion, WaitError> {
        if self.status == WcStatus::Success { Ok(self) } else { Err(WaitError::Failed(self)) }
    }
}

/// Error returned for an access outside a region's memory.
pub use crate::memory::OutOfBuffer as MemoryAccessError;

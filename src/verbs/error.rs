use std::io;
use std::time::Duration;

use crate::link::JoinError;
use crate::memory::{Access, ManagementError, OutOfBuffer};
use crate::nic::{CqOverflow, MulticastError, TooManyQps};
use crate::transport::{AddressError, Completion, ModifyError, PostError, QpType};
use crate::wire::Mtu;

/// Why a context was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The link has no IP address, so there is no GID.
    #[error("{0} has no IP address, so the NIC would have no GID")]
    NoAddress(String),
    /// The link's packets are too small for the smallest path MTU.
    #[error("{name} carries IP packets of at most {mtu} bytes, too few for a path MTU of 256")]
    MtuTooSmall {
        /// The link.
        name: String,
        /// Its IP MTU.
        mtu: usize,
    },
    /// There cannot be so many shards.
    #[error("a NIC has 1, 2, 4, 8, 16, 32 or 64 shards, not {0}")]
    Shards(usize),
    /// A system call failed: an eventfd or the background thread.
    #[error("cannot set up the NIC's wake-up: {0}")]
    System(#[from] io::Error),
    /// The fabric refused the port.
    #[error(transparent)]
    Fabric(#[from] crate::link::fabric::FabricError),
}

/// Why an object was not created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateError {
    /// A size above the device's limit, or zero where there must be something.
    #[error("{name} is {value}, it must be {min} to {max}")]
    Value {
        /// Which size.
        name: &'static str,
        /// As given.
        value: u64,
        /// The least.
        min: u64,
        /// The device's limit.
        max: u64,
    },
    /// All of this kind are in use.
    #[error("all {max} {kind} of the device are in use")]
    Exhausted {
        /// Plural name.
        kind: &'static str,
        /// The device's limit.
        max: u32,
    },
    /// REMOTE_WRITE and REMOTE_ATOMIC write, so they need LOCAL_WRITE (IBA 11.2.8.2).
    #[error("{0:?} lets peers write and needs LOCAL_WRITE too")]
    AccessNeedsLocalWrite(Access),
    /// An XRC target is made in its domain, and nothing else is.
    #[error("an XRC target is made by Xrcd::create_target_qp, and nothing else is")]
    XrcTarget,
    /// A queue pair that never receives.
    #[error("a {0:?} QP receives nothing, so it has no shared receive queue")]
    NoReceives(QpType),
    /// Permissions that do not go together, or do not exist.
    #[error("access {access:?}: {why}")]
    Access {
        /// As given.
        access: Access,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Windows are bound to the region.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// Two objects that must be of one context are not.
    #[error("the {0} is of another context")]
    OtherContext(&'static str),
    /// The address vector does not fit the port.
    #[error("no path: {0}")]
    Address(#[from] AddressError),
    /// There is no way back to the sender of what is no datagram.
    #[error("the receive has no routing header of a datagram to this port")]
    NoGrh,
    /// An eventfd could not be made; the system's error number.
    #[error("cannot make a completion channel: {}", io::Error::from_raw_os_error(*.0))]
    Channel(i32),
    /// The device has failed ([`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal)).
    #[error("the device has failed: close the context and open another")]
    Gone,
}

impl From<TooManyQps> for CreateError {
    fn from(e: TooManyQps) -> Self {
        CreateError::Exhausted { kind: "QPs", max: e.0 }
    }
}

/// Why a queue pair was not connected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The port cannot carry this path MTU.
    #[error("path MTU {asked:?} is above the port's, {active:?}")]
    Mtu {
        /// As asked for.
        asked: Mtu,
        /// The port's.
        active: Mtu,
    },
    /// None of our GIDs is of the IP version of the peer's.
    #[error("the peer's GID is {peer}, and the port has no GID of that IP version")]
    NoGid {
        /// The peer's.
        peer: crate::wire::Gid,
    },
    /// A transition failed.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

/// Why a queue pair was not attached to a multicast group.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The NIC refused: the queue pair or the group is of the wrong kind, or a limit is reached.
    #[error(transparent)]
    Refused(#[from] MulticastError),
    /// The link could not join the group.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// Why a completion queue was not destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DestroyCqError {
    /// Queue pairs complete to it.
    #[error("{0} work queues complete to it: destroy their queue pairs, and shared receive queues, first")]
    InUse(u32),
    /// Events were taken off its channel.
    #[error("{0} events were taken and not acknowledged")]
    Unacknowledged(u64),
}

/// More events were acknowledged than were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} events acknowledged, but only {unacked} were taken and not acknowledged yet")]
pub struct AckError {
    /// As given.
    pub given: u64,
    /// Those that there are.
    pub unacked: u64,
}

/// Why waiting brought nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WaitError {
    /// None came in time.
    #[error("nothing came within {0:?}")]
    TimedOut(Duration),
    /// A signal was handled by one who does not want calls to go on afterwards (without `SA_RESTART`).
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// Virtual time: nothing is pending on the fabric that could bring one.
    #[error("nothing is under way on the fabric that could bring anything")]
    Idle,
    /// Completions were lost.
    #[error(transparent)]
    Overflow(#[from] CqOverflow),
    /// It came, with an error.
    #[error("work request {} failed: {}", .0.wr_id, .0.status)]
    Failed(Completion),
}

/// Why a work request, or one of a list, was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index} of the list was not posted: {error}")]
pub struct PostListError {
    /// The first that was not; those before it were.
    pub index: usize,
    /// Why.
    pub error: PostError,
}

/// An access to a region's memory failed.
pub type MemoryAccessError = OutOfBuffer;

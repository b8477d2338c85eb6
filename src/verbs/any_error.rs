//! The error of any call, for programs that pass errors on.

use std::io;
use std::net::AddrParseError;

use super::cm::{IdError, SessionError};
use super::{
    AckError, AddressError, AttachCounterError, AttachError, CongestionError, ConnectError, CqOverflow,
    CreateError, DestroyCqError, DeviceError, MemoryAccessError, ModifyError, MulticastError, OpenError,
    PKeyTableSize, PairError, PostError, PostListError, WaitError, WrongService,
};
use crate::broker::SharingError;
use crate::fabric::FabricError;
use crate::link::udp::UdpLinkError;
use crate::link::{BindError, FramesError, PacketError, SpecError};
use crate::middleware::capture::CaptureError;
use crate::middleware::faults::{RuleError, RulesError};
#[cfg(feature = "qlog")]
use crate::middleware::qlog::QlogError;

/// Error of any call that a test or program makes: each error type of the verbs API, of links, fabrics and
/// middleware converts to it with `?`. The message and the source are those of the original error.
///
/// ```
/// use std::time::Duration;
/// use urxe::verbs::*;
///
/// fn main() -> Result<(), urxe::Error> {
///     let (a, b) = Fabric::new().pair()?;
///     let target = b.pd.reg_mr(64, Access::ALL)?;
///     a.qp.post_send(&SendWr::write(1, &[], target.remote(0)).inline(b"hello"))?;
///     a.cq.wait(Duration::from_secs(1))?;
///     assert_eq!(target.read_vec(0..5)?, b"hello");
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// A context could not be opened.
    Open(#[from] OpenError),
    /// An object could not be created or changed.
    Create(#[from] CreateError),
    /// A pair or mesh of NICs could not be created.
    Pair(#[from] PairError),
    /// The attributes or the state of a queue pair could not be changed.
    Modify(#[from] ModifyError),
    /// A queue pair could not be connected.
    Connect(#[from] ConnectError),
    /// A queue pair could not be attached to a multicast group.
    Attach(#[from] AttachError),
    /// A queue pair could not be detached from a multicast group.
    Multicast(#[from] MulticastError),
    /// A completion counter could not be attached.
    AttachCounter(#[from] AttachCounterError),
    /// A work request was rejected.
    Post(#[from] PostError),
    /// A work request of a list was rejected.
    PostList(#[from] PostListError),
    /// A queue pair is of another service than requested.
    Service(#[from] WrongService),
    /// A wait ended without a result, or with the completion of a failed work request.
    Wait(#[from] WaitError),
    /// A completion queue has overflowed.
    Overflow(#[from] CqOverflow),
    /// A completion queue could not be destroyed.
    DestroyCq(#[from] DestroyCqError),
    /// Too many events were acknowledged.
    Ack(#[from] AckError),
    /// A memory access lay outside the region.
    Memory(#[from] MemoryAccessError),
    /// The address vector cannot be used on the port.
    Address(#[from] AddressError),
    /// A partition key table has the wrong length.
    PKeys(#[from] PKeyTableSize),
    /// A call of the connection manager failed.
    Id(#[from] IdError),
    /// A session of the connection manager failed.
    Session(#[from] SessionError),
    /// A device on an address of the host could not be opened.
    Device(#[from] DeviceError),
    /// A link could not be opened.
    Link(#[from] BindError),
    /// A UDP link could not be opened.
    Udp(#[from] UdpLinkError),
    /// A packet link could not be opened.
    Packet(#[from] PacketError),
    /// A link of Ethernet frames could not be opened.
    Frames(#[from] FramesError),
    /// The address could not be shared with other processes.
    Sharing(#[from] SharingError),
    /// A call of a fabric failed.
    Fabric(#[from] FabricError),
    /// A text or a parameter of congestion control is invalid.
    Congestion(#[from] CongestionError),
    /// A fault rule is invalid.
    Rule(#[from] RuleError),
    /// A file of fault rules is invalid or cannot be read.
    Rules(#[from] RulesError<RuleError>),
    /// The text of a link is invalid.
    Spec(#[from] SpecError),
    /// The text of an address is invalid.
    ParseAddress(#[from] AddrParseError),
    /// A capture could not be written.
    Capture(#[from] CaptureError),
    /// A call of the system failed.
    Io(#[from] io::Error),
}

#[cfg(feature = "qlog")]
impl From<QlogError> for Error {
    /// Converts the error of an event log to [`Error::Io`].
    fn from(error: QlogError) -> Error {
        let (QlogError::Create { source, .. } | QlogError::Incomplete { source, .. }) = &error;
        Error::Io(io::Error::new(source.kind(), error.to_string()))
    }
}

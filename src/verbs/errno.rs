//! Mapping from this crate's error types to the `errno` values that libibverbs programs get, with one row per
//! cause.
//!
//! The rules are those of hardware providers: `EINVAL` for a value that is invalid by itself or at this time;
//! `ENOMEM` for an exhausted resource, including a full queue; `EBUSY` for an object that is still in use;
//! `EIO` for a lost device; and `EAGAIN` for a non-blocking call without a result.

use std::error::Error;
use std::io;

use libc::{
    EADDRINUSE, EADDRNOTAVAIL, EAGAIN, EBUSY, ECONNREFUSED, EFAULT, EINTR, EINVAL, EIO, EMSGSIZE,
    ENETUNREACH, ENODEV, ENOENT, ENOMEM, EOPNOTSUPP, EOVERFLOW, EPERM, ETIMEDOUT,
};

use super::any_error::Error as AnyError;
use super::cm::{IdError, SessionError};
use super::{
    AccessError, AckError, AddressError, AttachCounterError, AttachError, ClaimError, ConnectError,
    CqOverflow, CreateError, DestroyCqError, DeviceError, JoinError, ManagementError, MemoryAccessError,
    ModifyError, MulticastError, OpenError, PKeyTableSize, PairError, PostError, PostListError, WaitError,
};
use crate::broker::SharingError;
use crate::cm::CmError;
use crate::fabric::FabricError;
use crate::link::BindError;
use crate::link::udp::UdpLinkError;
use crate::middleware::capture::CaptureError;
use crate::middleware::faults::RulesError;
use crate::transport::InjectedError;

/// Implements `errno` for each error type, from rows of the form `type { cause => number, ... }`. The
/// variants in front of these are errors of other types, whose numbers apply.
macro_rules! table {
    ($($(#[$doc:meta])* $error:ident $([$($of:ident)+])? { $($cause:pat => $number:expr,)* })+) => {
        $(impl $error {
            /// Returns the `errno` value that libibverbs programs get for this error. Connection manager
            /// events report it too, as in librdmacm.
            $(#[$doc])*
            #[doc(hidden)]
            pub fn errno(&self) -> i32 {
                let number = self.number();
                trace_event!(DEBUG, "urxe::errno", "error of a call", errno = number, error = %self);
                number
            }

            fn number(&self) -> i32 {
                match self {
                    $($(Self::$of(error) => error.number(),)+)?
                    $($cause => $number,)*
                }
            }
        })+
    };
}

table! {
    PostError [Injected Address] {
        Self::QueueFull(_) => ENOMEM,
        Self::DeviceFatal => EIO,
        Self::State(_)
        | Self::TooManySges { .. }
        | Self::InlineTooLong { .. }
        | Self::InlineNotAllowed(_)
        | Self::TooLong(_)
        | Self::AtomicLength(_)
        | Self::Unsupported(..)
        | Self::Destination
        | Self::HandlePd { .. }
        | Self::SharedQueue
        | Self::NoReadResources
        | Self::NoData(_)
        | Self::WindowKind(_)
        | Self::NoPlacement => EINVAL,
    }
    PostListError {
        Self { error, .. } => error.number(),
    }
    ModifyError [Injected Address] {
        Self::DeviceFatal => EIO,
        Self::Transition { .. } | Self::CurState { .. } | Self::Missing { .. } | Self::NotAllowed { .. } | Self::Migration { .. } | Self::Value { .. } => EINVAL,
    }
    InjectedError {
        Self { errno, .. } => *errno,
    }
    AddressError {
        Self::GidIndex { .. } | Self::Family { .. } => EINVAL,
    }
    CreateError [Management Address Injected] {
        Self::Value { .. }
        | Self::AccessNeedsLocalWrite(_)
        | Self::Access { .. }
        | Self::OtherContext(_)
        | Self::XrcTarget
        | Self::NoReceives(_)
        | Self::NoGrh => EINVAL,
        Self::Exhausted { .. } => ENOMEM,
        Self::Channel(errno) => *errno,
        Self::DeviceFatal => EIO,
    }
    ManagementError {
        Self::UnknownKey { .. }
        | Self::WrongPd { .. }
        | Self::WrongQp { .. }
        | Self::Range { .. }
        | Self::Access { .. }
        | Self::NotInvalidatable { .. } => EINVAL,
        Self::InUse { .. } | Self::WindowsBound { .. } => EBUSY,
    }
    /// Applies only to calls that return this error; a work request reports an access error in its
    /// completion.
    AccessError {
        Self::UnknownKey { .. } => ENOENT,
        Self::WrongPd { .. } | Self::WrongQp { .. } | Self::Permission { .. } => EPERM,
        Self::NotMapped { .. } | Self::OutOfRange { .. } => EFAULT,
    }
    DestroyCqError {
        Self::InUse(_) | Self::Unacknowledged(_) => EBUSY,
    }
    MulticastError {
        Self::NotMulticast(_) | Self::Service(_) | Self::NotAttached(_) => EINVAL,
        Self::TooManyGroups(_) | Self::GroupFull(_) | Self::TooManyAttachments(_) => ENOMEM,
    }
    AttachCounterError {
        Self::State(_) => EINVAL,
        Self::Operations(_) => EOPNOTSUPP,
        Self::Occupied(_) => EBUSY,
    }
    JoinError {
        Self::NotMulticast(_) => EINVAL,
        Self::NoAddress(_) => EADDRNOTAVAIL,
        Self::Unsupported(_) => EOPNOTSUPP,
        Self::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
    }
    AttachError [Multicast Join] {}
    AckError {
        Self { .. } => EINVAL,
    }
    PKeyTableSize {
        Self { .. } => EINVAL,
    }
    MemoryAccessError {
        Self { .. } => EFAULT,
    }
    CqOverflow {
        Self { .. } => EOVERFLOW,
    }
    /// In verbs, an error status in a completion does not make the call fail: the call returns the
    /// completion.
    WaitError [Overflow] {
        Self::TimedOut(_) => ETIMEDOUT,
        Self::Interrupted => EINTR,
        Self::Idle => EAGAIN,
        Self::Failed(_) => EIO,
        Self::DeviceRemoved => ENODEV,
        Self::System(errno) | Self::Runtime(errno) => *errno,
    }
    OpenError [Injected Fabric] {
        Self::NoAddress(_) => EADDRNOTAVAIL,
        Self::MtuTooSmall { .. } => EMSGSIZE,
        Self::Shards(_) => EINVAL,
        Self::System(e) => e.raw_os_error().unwrap_or(EIO),
    }
    UdpLinkError {
        Self::InUse { .. } => EADDRINUSE,
        Self::NotLocal { .. } | Self::NoInterface { .. } => ENODEV,
        Self::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
    }
    SharingError [Link] {
        Self::Refused { errno, .. } | Self::NoRings { errno, .. } => *errno,
        Self::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
    }
    BindError [Udp] {
        Self::Packet(e) => of_cause(e),
        Self::Frames(e) => of_cause(e),
        Self::Fabric | Self::Shards { .. } => EINVAL,
    }
    DeviceError [Link Open] {}
    ClaimError {
        Self::InUse { .. } => EADDRINUSE,
        Self::NotLocal { .. } => EADDRNOTAVAIL,
        Self::NoAccess { source, .. } | Self::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
    }
    ConnectError [Modify] {
        Self::Mtu { .. } => EINVAL,
        Self::NoGid { .. } => ENETUNREACH,
    }
    /// For a failure after the call has returned, an event reports the number.
    IdError [Injected Modify Device Open Protocol] {
        Self::State { .. }
        | Self::Family { .. }
        | Self::PrivateData { .. }
        | Self::NoQp
        | Self::QpType { .. }
        | Self::OtherDevice
        | Self::NoAttributes(_)
        | Self::Value { .. }
        | Self::Ended
        | Self::Inherited | Self::NoHost(_) => EINVAL,
        Self::PortInUse(_) | Self::NoPort(_) | Self::Joined(_) => EADDRINUSE,
        // As in the kernel's `cma_check_port`.
        Self::PortInUseByWildcard(_) => EADDRNOTAVAIL,
        Self::NoRoute { source, .. } => source.raw_os_error().unwrap_or(ENETUNREACH),
        Self::Claim { addr, source } => match source {
            ClaimError::InUse { .. } if addr.ip().is_unspecified() => EADDRNOTAVAIL,
            other => other.number(),
        },
        Self::NoDevice(_) | Self::NoGroup(_) => EADDRNOTAVAIL,
        Self::System(e) => e.raw_os_error().unwrap_or(EIO),
    }
    CmError {
        Self::InUse(_) => EADDRINUSE,
        Self::TooMany(_) => ENOMEM,
        Self::Gid(_) => EADDRNOTAVAIL,
        Self::Unknown(_) | Self::State { .. } | Self::PrivateData { .. } | Self::Info(_) | Self::Datagram => EINVAL,
    }
    FabricError {
        Self::AddressInUse(_) => EADDRINUSE,
        Self::NoAddress | Self::NotUnicast(_) | Self::UnknownAddress(_) => EADDRNOTAVAIL,
        Self::Probability { .. } | Self::Mtu(_) | Self::Zero { .. } | Self::NoQueue { .. } | Self::Simulated => EINVAL,
        Self::NoDevice(_) | Self::NoHost => ENODEV,
        Self::NoObject { .. } => ENOENT,
    }
    CaptureError {
        Self::Create { source, .. } | Self::Write(source) | Self::Incomplete { source, .. } => source.raw_os_error().unwrap_or(EIO),
    }
    PairError [Open Create Connect] {}
    /// For an event that reports a failure, the number is that of its status.
    SessionError [Id Create Wait] {
        Self::Rejected { .. } => ECONNREFUSED,
        Self::Failed { status, .. } => if *status < 0 { -status } else { EIO },
    }
    AnyError [Open Create Pair Modify Connect Attach Multicast AttachCounter Post PostList Wait Overflow
        DestroyCq Ack Memory Address PKeys Id Session Device Link Udp Sharing Capture Fabric] {
        Self::Packet(e) => of_cause(e),
        Self::Frames(e) => of_cause(e),
        Self::Rules(RulesError::File { source: e, .. }) | Self::Io(e) => e.raw_os_error().unwrap_or(EIO),
        Self::Service(_) | Self::Congestion(_) | Self::Rule(_) | Self::Rules(_) | Self::Spec(_) | Self::ParseAddress(_) => EINVAL,
    }
}

/// Returns the error number of the system error in an error's chain of causes, or `ENODEV` if the chain
/// contains none.
fn of_cause(e: &(dyn Error + 'static)) -> i32 {
    match (e.downcast_ref::<io::Error>(), e.source()) {
        (Some(system), _) => system.raw_os_error().unwrap_or(EIO),
        (None, Some(cause)) => of_cause(cause),
        (None, None) => ENODEV,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::{QpState, QpType, WcOpcode};
    use crate::verbs::*;

    /// Checks the numbers against the values that Linux programs are compiled with.
    #[test]
    fn errno_numbers_are_those_of_linux() {
        let full = PostError::QueueFull(4);
        let path = AddressError::GidIndex { index: 1, count: 1 };
        let modify = ModifyError::Value { name: "x", value: 1, min: 0, max: 0 };
        let rows = [
            (full.errno(), 12),
            (PostError::State(QpState::Reset).errno(), 22),
            (PostError::TooManySges { got: 2, max: 1 }.errno(), 22),
            (PostError::InlineTooLong { got: 2, max: 1 }.errno(), 22),
            (PostError::Unsupported(QpType::Ud, WcOpcode::RdmaRead).errno(), 22),
            (PostError::Address(path).errno(), 22),
            (PostListError { index: 0, error: full }.errno(), 12),
            (PostListError { index: 3, error: PostError::Destination }.errno(), 22),
            (modify.errno(), 22),
            (ModifyError::Address(path).errno(), 22),
            (CreateError::Value { name: "x", value: 1, min: 2, max: 3 }.errno(), 22),
            (CreateError::Exhausted { kind: "QPs", max: 1 }.errno(), 12),
            (CreateError::OtherContext("x").errno(), 22),
            (CreateError::Channel(24).errno(), 24),
            (CreateError::DeviceFatal.errno(), 5),
            (ManagementError::NotInvalidatable { key: 1 }.errno(), 22),
            (CreateError::Management(ManagementError::WindowsBound { key: 1, count: 1 }).errno(), 16),
            (PostError::NoPlacement.errno(), 22),
            (MulticastError::GroupFull(1).errno(), 12),
            (MulticastError::NotAttached(Gid::default()).errno(), 22),
            (AttachError::Join(JoinError::NoAddress([224, 0, 0, 1].into())).errno(), 99),
            (AttachError::Join(JoinError::Unsupported([224, 0, 0, 1].into())).errno(), 95),
            (AttachError::Multicast(MulticastError::TooManyGroups(1)).errno(), 12),
            (DestroyCqError::InUse(1).errno(), 16),
            (DestroyCqError::Unacknowledged(1).errno(), 16),
            (AckError { given: 1, unacked: 0 }.errno(), 22),
            (PKeyTableSize { given: 0, needed: 1, max: 2 }.errno(), 22),
            (MemoryAccessError { offset: 1, len: 1, size: 1 }.errno(), 14),
            (CqOverflow { capacity: 1 }.errno(), 75),
            (WaitError::TimedOut(Duration::ZERO).errno(), 110),
            (WaitError::Idle.errno(), 11),
            (WaitError::Interrupted.errno(), 4),
            (WaitError::Runtime(125).errno(), 125),
            (WaitError::Overflow(CqOverflow { capacity: 1 }).errno(), 75),
            (OpenError::NoAddress("x".into()).errno(), 99),
            (OpenError::MtuTooSmall { name: "x".into(), mtu: 1 }.errno(), 90),
            (OpenError::Shards(3).errno(), 22),
            (OpenError::System(std::io::Error::from_raw_os_error(24)).errno(), 24),
            (OpenError::System(std::io::Error::other("x")).errno(), 5),
            (OpenError::Fabric(FabricError::AddressInUse([127, 0, 0, 1].into())).errno(), 98),
            (OpenError::Fabric(FabricError::NoAddress).errno(), 99),
            (ConnectError::Mtu { requested: Mtu::Mtu4096, active: Mtu::Mtu1024 }.errno(), 22),
            (ConnectError::NoGid { peer: Gid::default() }.errno(), 101),
            (ConnectError::Modify(modify).errno(), 22),
            (PairError::Open(OpenError::NoAddress("x".into())).errno(), 99),
            (PairError::Create(CreateError::DeviceFatal).errno(), 5),
            (DeviceError::Open(OpenError::NoAddress("x".into())).errno(), 99),
            (IdError::State { call: "x", state: "y" }.errno(), 22),
            (IdError::PortInUse(([0, 0, 0, 0], 7).into()).errno(), 98),
            (IdError::PortInUseByWildcard(([0, 0, 0, 0], 7).into()).errno(), 99),
            (IdError::NoDevice([192, 0, 2, 1].into()).errno(), 99),
            (IdError::Protocol(CmError::TooMany(1)).errno(), 12),
            (AnyError::from(PostError::QueueFull(4)).errno(), 12),
            (AnyError::from(FabricError::NoAddress).errno(), 99),
            (AnyError::from(SessionError::Wait(WaitError::Idle)).errno(), 11),
            (AnyError::from("x".parse::<std::net::IpAddr>().unwrap_err()).errno(), 22),
            (DeviceError::Link(UdpLinkError::NotLocal { ip: [192, 0, 2, 1].into() }).errno(), 19),
        ];
        for (row, (got, expected)) in rows.into_iter().enumerate() {
            assert_eq!(got, expected, "row {row}");
        }
    }

    /// Checks the numbers for errors returned by calls that fail, rather than for errors constructed by the
    /// test.
    #[test]
    fn full_queue_yields_enomem_and_invalid_state_yields_einval() {
        let (a, _b) = Fabric::virtual_time(FabricConfig::default()).unwrap().pair().unwrap();
        let small = SendCaps { max_wr: 1, max_sge: 1, max_inline: 0 };
        let qp = a.pd.create_qp(&a.cq, &a.cq, &QpOptions { send: small, ..QpOptions::default() }).unwrap();
        assert_eq!(qp.post_send(&SendWr::send(1, &[])).unwrap_err().errno(), libc::EINVAL);
        qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
        qp.post_send(&SendWr::send(1, &[])).unwrap();
        assert_eq!(qp.post_send(&SendWr::send(2, &[])).unwrap_err().errno(), libc::ENOMEM);
        let back = QpAttr { state: Some(QpState::Init), ..QpAttr::default() };
        assert_eq!(qp.modify(&back).unwrap_err().errno(), libc::EINVAL);
        let huge = a.context.query_device().limits.max_cqe as usize + 1;
        assert_eq!(a.context.create_cq(huge).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(a.cq.clone().destroy(Duration::ZERO).unwrap_err().errno(), libc::EBUSY);
    }
}

//! Work requests as an application posts them, and the completions that answer them.

use std::fmt;

use crate::memory::{Access, AtomicOp, Bind, FastReg, PdId, WindowKind};
use crate::wire::opcode::HeaderSet;
use crate::wire::{Feth, LKey, Operation, QKey, Qpn, RKey};

/// The longest message: 2^31 bytes (IBA 9.4.1).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A scatter/gather element: a run of bytes of a registered region. Laid out as C's `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte, as the region's addresses count.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The region.
    pub lkey: LKey,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrOp {
    /// Sends to the peer's next receive.
    Send,
    /// SEND with four bytes of immediate data for the receive's completion.
    SendWithImm(u32),
    /// SEND that invalidates an rkey at the peer: of a window of type 2, or of a fast region.
    SendWithInv(RKey),
    /// Writes to the peer's memory.
    Write {
        /// Address at the peer.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
    },
    /// RDMA WRITE that completes the peer's next receive with four bytes of immediate data.
    WriteWithImm {
        /// Address at the peer.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// The four bytes.
        imm: u32,
    },
    /// Reads the peer's memory.
    Read {
        /// Address at the peer.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
    },
    /// An atomic on 8 bytes of the peer's memory; the old value comes back.
    Atomic {
        /// Address at the peer, a multiple of 8.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// What to do.
        op: AtomicOp,
    },
    /// Stores 8 bytes in the peer's memory, all at once.
    AtomicWrite {
        /// Address at the peer, a multiple of 8.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// The bytes.
        value: [u8; 8],
    },
    /// Completes when all earlier WRITEs to the range are placed so.
    Flush {
        /// First byte at the peer.
        va: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// Bytes.
        len: u32,
        /// What placed means.
        placement: Placement,
        /// The whole region, wherever the range is.
        whole_region: bool,
    },
    /// Binds a memory window.
    BindMw(Bind),
    /// Opens a part of a fast region.
    RegMr(FastReg),
    /// Closes a window of type 2 or a fast region of ours, once all work requests before this one are complete.
    LocalInv(RKey),
}

/// What a FLUSH waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Placement {
    /// Everybody at the peer sees the data.
    pub global: bool,
    /// It outlasts a loss of power, as far as the memory does.
    pub persistent: bool,
}

impl Placement {
    /// As a FETH has it.
    pub const fn bits(self) -> u32 {
        (if self.global { Feth::GLOBAL } else { 0 }) | (if self.persistent { Feth::PERSISTENT } else { 0 })
    }

    /// What peers must be allowed to do for it.
    pub const fn access(self) -> Access {
        let global = if self.global { Access::FLUSH_GLOBAL.0 } else { 0 };
        Access(global | if self.persistent { Access::FLUSH_PERSISTENT.0 } else { 0 })
    }

    /// From a FETH. `None` for none, or one that is reserved.
    pub const fn from_bits(bits: u32) -> Option<Placement> {
        match bits {
            1..=3 => {
                Some(Placement { global: bits & Feth::GLOBAL != 0, persistent: bits & Feth::PERSISTENT != 0 })
            }
            _ => None,
        }
    }
}

impl WrOp {
    /// What its packets do, and what of ImmDt and IETH the last one carries. `None` if it has no packets.
    pub fn on_wire(self) -> Option<(Operation, HeaderSet)> {
        Some(match self {
            WrOp::Send => (Operation::Send, HeaderSet::NONE),
            WrOp::SendWithImm(_) => (Operation::Send, HeaderSet::IMMDT),
            WrOp::SendWithInv(_) => (Operation::Send, HeaderSet::IETH),
            WrOp::Write { .. } => (Operation::Write, HeaderSet::NONE),
            WrOp::WriteWithImm { .. } => (Operation::Write, HeaderSet::IMMDT),
            WrOp::Read { .. } => (Operation::ReadRequest, HeaderSet::NONE),
            WrOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => {
                (Operation::CompareSwap, HeaderSet::NONE)
            }
            WrOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => (Operation::FetchAdd, HeaderSet::NONE),
            WrOp::AtomicWrite { .. } => (Operation::AtomicWrite, HeaderSet::NONE),
            WrOp::Flush { .. } => (Operation::Flush, HeaderSet::NONE),
            WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_) => return None,
        })
    }

    /// Whether it has a response of its own, so that an acknowledgement alone does not complete it.
    pub const fn awaits_response(self) -> bool {
        matches!(
            self,
            WrOp::Read { .. } | WrOp::Atomic { .. } | WrOp::AtomicWrite { .. } | WrOp::Flush { .. }
        )
    }

    /// Whether it takes a receive at the peer.
    pub const fn takes_receive(self) -> bool {
        matches!(self, WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_) | WrOp::WriteWithImm { .. })
    }

    /// Whether its response brings data to its scatter/gather elements.
    pub const fn brings_data(self) -> bool {
        matches!(self, WrOp::Read { .. } | WrOp::Atomic { .. })
    }

    /// Whether it is about keys of our own memory and has no packets.
    pub const fn is_local(self) -> bool {
        matches!(self, WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_))
    }

    /// Whether it takes scatter/gather elements or inline data.
    pub const fn has_data(self) -> bool {
        !self.is_local() && !matches!(self, WrOp::AtomicWrite { .. } | WrOp::Flush { .. })
    }

    /// What its scatter/gather elements must allow.
    pub const fn local_access(self) -> Access {
        if self.brings_data() { Access::LOCAL_WRITE } else { Access::LOCAL_READ }
    }

    /// The opcode of its completion.
    pub const fn completion_opcode(self) -> WcOpcode {
        match self {
            WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_) => WcOpcode::Send,
            WrOp::Write { .. } | WrOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            WrOp::Read { .. } => WcOpcode::RdmaRead,
            WrOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompSwap,
            WrOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => WcOpcode::FetchAdd,
            WrOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            WrOp::Flush { .. } => WcOpcode::Flush,
            WrOp::BindMw(_) => WcOpcode::BindMw,
            WrOp::RegMr(_) => WcOpcode::RegMr,
            WrOp::LocalInv(_) => WcOpcode::LocalInv,
        }
    }
}

/// How a send work request behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// Make a completion on success too (errors always make one).
    pub signaled: bool,
    /// Raise a solicited event at the peer's completion queue.
    pub solicited: bool,
    /// Wait for all earlier READs and atomics of this queue.
    pub fence: bool,
}

impl SendFlags {
    /// Just signaled.
    pub const SIGNALED: SendFlags = SendFlags { signaled: true, solicited: false, fence: false };
}

/// Where the data of a send work request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here; copied while posting, so that it may change at once.
    Inline(&'a [u8]),
    /// Inline data in several pieces, which go out one behind the other.
    InlineList(&'a [&'a [u8]]),
}

impl<'a> WrData<'a> {
    /// The pieces of inline data.
    pub(super) fn inline(&self) -> &[&'a [u8]] {
        match self {
            WrData::Sges(_) => &[],
            WrData::Inline(piece) => std::slice::from_ref(piece),
            WrData::InlineList(pieces) => pieces,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match self {
            WrData::Sges(sges) => sges.is_empty(),
            _ => self.inline().iter().all(|piece| piece.is_empty()),
        }
    }
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: WrOp,
    /// With which data.
    pub data: WrData<'a>,
    /// How.
    pub flags: SendFlags,
    /// Where to, for a UD queue pair, or an XRC one; others have their peer.
    pub to: Option<Destination>,
}

/// What a work request says of its destination, where that is not the queue pair's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Where a datagram goes.
    Qp {
        /// Protection domain of the address handle; must be the QP's.
        pd: PdId,
        /// The path.
        av: super::AddressVector,
        /// The peer's QP.
        qpn: Qpn,
        /// The peer's queue key. With its highest bit set, our QP's own goes out instead (IBA 10.2.5).
        qkey: QKey,
    },
    /// The peer's shared receive queue, for an XRC queue pair: its receives, and its protection domain.
    Srq(super::SrqId),
}

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a SEND's data goes, element after element.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive into `sges`, filled in order. Without elements it takes messages without data.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> RecvWr<'a> {
        RecvWr { wr_id, sges }
    }

    /// A receive of a message without data: an empty SEND, or a WRITE with immediate.
    pub const fn empty(wr_id: u64) -> RecvWr<'static> {
        RecvWr { wr_id, sges: &[] }
    }
}

/// Why none of several work requests was taken, which are posted together or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nothing was posted: work request {index} of the batch was refused: {error}")]
pub struct PostBatchError {
    /// The first that was refused.
    pub index: usize,
    /// Why.
    pub error: PostError,
}

/// How a work request ended, with the numbers of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error, strum::FromRepr)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    #[error("success")]
    Success = 0,
    /// A message longer than the receive's buffers.
    #[error("local length error")]
    LocLenErr = 1,
    /// The QP cannot do this.
    #[error("local QP operation error")]
    LocQpOpErr = 2,
    /// A local key, range or permission is wrong.
    #[error("local protection error")]
    LocProtErr = 4,
    /// The QP went to the error state before this was done.
    #[error("work request flushed")]
    WrFlushErr = 5,
    /// A window was not bound, a region not opened, a key not invalidated (memory management operation error).
    #[error("memory management operation error")]
    MwBindErr = 6,
    /// A response that makes no sense.
    #[error("bad response error")]
    BadRespErr = 7,
    /// The responder's own memory refused a remote operation.
    #[error("local access error")]
    LocAccessErr = 8,
    /// The peer says the request is invalid.
    #[error("remote invalid request error")]
    RemInvReqErr = 9,
    /// The peer's memory refuses: key, range or permission.
    #[error("remote access error")]
    RemAccessErr = 10,
    /// The peer failed.
    #[error("remote operation error")]
    RemOpErr = 11,
    /// The peer did not answer within the retries.
    #[error("transport retry counter exceeded")]
    RetryExcErr = 12,
    /// The peer had no receive posted within the retries.
    #[error("RNR retry counter exceeded")]
    RnrRetryExcErr = 13,
}

/// What kind of work request ended, with the numbers of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, strum::FromRepr)]
#[repr(u32)]
pub enum WcOpcode {
    /// A SEND.
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A compare-and-swap.
    CompSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A memory window bound.
    BindMw = 5,
    /// A key invalidated.
    LocalInv = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A fast registration; verbs has no number for it, so the first of those that are left to drivers.
    RegMr = 135,
    /// A receive, by a SEND.
    Recv = 128,
    /// A receive, by a WRITE with immediate.
    RecvRdmaWithImm = 129,
}

impl fmt::Display for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcOpcode::Send => "SEND",
            WcOpcode::RdmaWrite => "RDMA WRITE",
            WcOpcode::RdmaRead => "RDMA READ",
            WcOpcode::CompSwap => "compare-and-swap",
            WcOpcode::FetchAdd => "fetch-and-add",
            WcOpcode::BindMw => "memory window bind",
            WcOpcode::LocalInv => "local invalidate",
            WcOpcode::Flush => "FLUSH",
            WcOpcode::AtomicWrite => "ATOMIC WRITE",
            WcOpcode::RegMr => "fast registration",
            WcOpcode::Recv => "receive",
            WcOpcode::RecvRdmaWithImm => "receive (WRITE with immediate)",
        })
    }
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's.
    pub wr_id: u64,
    /// How it ended. On an error only `wr_id`, `status`, `qpn` and `vendor_err` count.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received, read or swapped; for sends the message's length. A UD receive counts the 40 bytes of
    /// the routing header too.
    pub byte_len: u32,
    /// The immediate data, if some came.
    pub imm: Option<u32>,
    /// The key of ours that the SEND invalidated, if it did.
    pub invalidated: Option<RKey>,
    /// The QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub src_qpn: Qpn,
    /// Says more about an error than the status: an implementation's own number, 0 for none.
    pub vendor_err: u32,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The first 40 bytes of the receive are the routing header (UD).
    pub grh: bool,
    /// That header is IPv4's, in the last 20 of them, not IPv6's (UD).
    pub over_ipv4: bool,
    /// Index of the partition key that the message came with.
    pub pkey_index: u16,
}

/// A completion queue's handle, unique in its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CqId(pub u32);

/// Why a work request was not taken. The queue is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The device has failed ([`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal)).
    #[error("the device has failed and takes no work requests: close the context and open another")]
    DeviceFatal,
    /// The QP's state does not take it.
    #[error("the QP is in state {0}, which takes no such work request")]
    State(super::QpState),
    /// All slots hold work requests that are not complete.
    #[error("the queue is full: all {0} work requests are outstanding")]
    QueueFull(u32),
    /// More elements than the queue was made for.
    #[error("{got} scatter/gather elements, the queue takes {max}")]
    TooManySges {
        /// Given.
        got: usize,
        /// The queue's limit.
        max: u32,
    },
    /// More inline data than the queue was made for.
    #[error("{got} bytes inline, the queue takes {max}")]
    InlineTooLong {
        /// Given.
        got: usize,
        /// The queue's limit.
        max: u32,
    },
    /// READs and atomics bring data back, so there is nothing to send inline.
    #[error("{0:?} cannot have inline data")]
    InlineNotAllowed(WcOpcode),
    /// Above 2^31 bytes.
    #[error("{0} bytes exceed the longest message, 2^31")]
    TooLong(u64),
    /// Atomics take exactly 8 bytes.
    #[error("an atomic needs 8 bytes for its result, not {0}")]
    AtomicLength(u64),
    /// What has no data was given some.
    #[error("{0:?} takes no scatter/gather elements and no inline data")]
    NoData(WcOpcode),
    /// `bind_mw` is for windows of type 1.
    #[error("a window of {0:?} is bound by a work request, not by bind_mw")]
    WindowKind(WindowKind),
    /// A FLUSH for nothing.
    #[error("a FLUSH is to global visibility, to persistence, or both")]
    NoPlacement,
    /// The service does not have this operation.
    #[error("a {0:?} QP has no {1:?}")]
    Unsupported(super::QpType, WcOpcode),
    /// A UD work request says to which QP it goes, an XRC one to which shared receive queue; others say nothing.
    #[error("a UD work request names a QP, an XRC one a shared receive queue, others name no destination")]
    Destination,
    /// The address handle is of another protection domain.
    #[error("the address handle is of {handle:?}, the QP of {qp:?}")]
    HandlePd {
        /// The handle's domain.
        handle: PdId,
        /// The QP's.
        qp: PdId,
    },
    /// The address vector does not fit the port.
    #[error("no path: {0}")]
    Address(super::AddressError),
    /// Receives of a QP with a shared receive queue are posted there.
    #[error("the QP has a shared receive queue: post the receive there")]
    SharedQueue,
    /// The QP was set up without READ and atomic resources.
    #[error("READs and atomics need max_rd_atomic above 0")]
    NoReadResources,
}

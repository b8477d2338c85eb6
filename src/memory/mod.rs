//! Protection domains, regions, keys and access checks: the only module that accesses user memory.
//!
//! User memory is shared with a peer, as with DMA: it is accessed through raw addresses only, never through a
//! `&mut [u8]`, and atomics are atomic instructions. Every key in a packet or a work request goes through
//! [`Table::local`] or [`Table::remote`], which check key, protection domain, range and permission. The
//! program may unmap or protect memory that it has registered: the access then fails with [`Faulted`], by the
//! copies of `guarded` and the signal handler of `fault`, and so does the work request.

mod access;
mod buffer;
mod copy;
mod extent;
mod fault;
mod guarded;
mod mapped;
mod null;
mod prefetch;
mod region;
mod shareable;
mod slice;
mod table;
#[cfg(test)]
mod tests;
mod window;

pub use access::{Access, AccessError, Accessor, ManagementError, PdId};
pub use buffer::{Buffer, OutOfBuffer};
pub use extent::Extent;
pub use fault::{install_fault_handler, unblock_fault_signals};
pub use guarded::{CopySource, Faulted};
#[cfg(feature = "unstable-internals")]
pub use mapped::{is_mapped, may_read, may_write, prefer_huge_pages};
pub use mapped::{page_size, supports_populate};
pub use region::FastReg;
pub use shareable::{
    PeerMemory, PeerMemoryError, ShareableMemory, all_shareable, payload_epoch, shareable_generation,
    withdraw_payloads,
};
pub use slice::{AtomicOp, HostSlice};
pub use table::{KeyDifference, NearestKey, RegionInfo, ReregMr, Table};
pub use window::{Bind, WindowKind};

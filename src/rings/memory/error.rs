//! Errors of rings.

use std::io;

use crate::memory::Faulted;

/// Reason why a ring cannot be used, or can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The memory does not have the length of a ring of this version.
    #[error("shared memory of {len} bytes is not a ring")]
    Length {
        /// Length in bytes.
        len: i64,
    },
    /// The other process could still truncate the memory.
    #[error("shared memory of a ring is not sealed")]
    Unsealed,
    /// The other process has not allocated the memory, which would be charged to this one as it reads.
    #[error("{allocated} bytes of the shared memory of a ring are allocated, not all {len}")]
    Unallocated {
        /// Number of allocated bytes.
        allocated: i64,
        /// Length in bytes.
        len: i64,
    },
    /// A position is impossible.
    #[error("ring with head {head} and tail {tail}: the other process has broken the protocol")]
    Position {
        /// Number of bytes written.
        head: u64,
        /// Number of bytes read.
        tail: u64,
    },
    /// A record is malformed.
    #[error(
        "ring record of {len} bytes in segments of {segment}, where {available} bytes are: the other process has \
         broken the protocol"
    )]
    Record {
        /// Length that the record claims to have.
        len: u32,
        /// Segment length that the record claims to have.
        segment: u16,
        /// Number of bytes between tail and head.
        available: u64,
    },
    /// Payloads that are left out of a record are not where they should be.
    #[error(
        "ring record of {len} bytes with {count} payloads elsewhere: the other process has broken the protocol"
    )]
    Payloads {
        /// Length of the packets, with the payloads.
        len: u32,
        /// Number of payloads that are left out.
        count: u32,
    },
    /// The memory cannot be created, mapped or accessed.
    #[error("shared memory of a ring: {0}")]
    System(#[from] io::Error),
}

impl From<Faulted> for RingError {
    fn from(_: Faulted) -> RingError {
        rustix::io::Errno::FAULT.into()
    }
}

impl From<rustix::io::Errno> for RingError {
    fn from(error: rustix::io::Errno) -> RingError {
        RingError::System(error.into())
    }
}

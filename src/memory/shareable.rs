//! Memory from which other processes copy payloads themselves.
//!
//! The owner allocates a sealed memfd, and passes its descriptor to a peer, which maps it for reading. The
//! seals prevent the peer from writing to the memory, and the owner from shrinking it or removing allocated
//! pages while it is mapped.
//!
//! ```text
//!   file: header page, with the epoch │ data
//! ```
//!
//! A payload may be copied only until its work request completes, because the program may then change the
//! memory. The acknowledgement of a packet follows its execution, so only a request that ends without being
//! acknowledged can complete too early. The owner then changes the epoch of all its memory
//! ([`withdraw_payloads`]). A reader compares the epoch after each copy with the one that came with the
//! payload, and discards the copy if they differ.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::mm::ProtFlags;

use super::{HostSlice, install_fault_handler};
use crate::sys::mapping::Mapping;
use crate::sys::memfd;
use crate::sys::quota::{Quota, Share};

/// Length of the header, a multiple of every page size.
const HEADER: usize = 64 << 10;

/// Seals of shareable memory. `FUTURE_WRITE` also rules out that anyone punches holes.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// Maximum size of all memory of other processes that this process maps. Its page tables take 0.2 % of that.
const MAX_MAPPED: u64 = 256 << 30;

/// Unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// Size of all memory of other processes that this process has mapped.
static MAPPED: Quota = Quota::new();

/// This process's shareable memory.
static REGISTRY: Mutex<Vec<Arc<ShareableMemory>>> = Mutex::new(Vec::new());

/// Number of changes of the registry.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Epoch of all shareable memory.
static EPOCH: AtomicU32 = AtomicU32::new(0);

impl Mapping {
    fn epoch(&self) -> &AtomicU32 {
        // SAFETY: the mapping begins with the epoch, and lives as long as the borrow. Only the owner, which
        // has mapped it for writing, stores to it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }
    }

    fn data_len(&self) -> usize {
        self.len - HEADER
    }

    /// Returns the address of the first byte of data.
    fn data(&self) -> NonNull<u8> {
        // SAFETY: the mapping is at least as long as its header.
        unsafe { self.base.add(HEADER) }
    }
}

/// Memory of this process that others may map for reading.
#[derive(Debug)]
pub struct ShareableMemory {
    id: u32,
    mapping: Mapping,
    fd: OwnedFd,
}

impl ShareableMemory {
    /// Allocates at least `len` zero bytes, and registers them. [`unregister`](Self::unregister) must be
    /// called before the memory is dropped.
    pub(super) fn allocate(len: usize) -> io::Result<Arc<ShareableMemory>> {
        static IDS: AtomicU32 = AtomicU32::new(1);
        let len = len.checked_next_multiple_of(HEADER).and_then(|len| len.checked_add(HEADER));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let fd = memfd::create("urxe region", len)?;
        let mapping = Mapping::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        fcntl_add_seals(&fd, SEALS | SealFlags::SEAL)?;
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let memory = Arc::new(ShareableMemory { id, mapping, fd });
        let mut registry = REGISTRY.lock();
        memory.mapping.epoch().store(EPOCH.load(Ordering::Relaxed), Ordering::Relaxed);
        registry.push(memory.clone());
        GENERATION.fetch_add(1, Ordering::Release);
        drop(registry);
        Ok(memory)
    }

    /// Removes the memory from those of this process: no further payload of it is shared.
    pub(super) fn unregister(&self) {
        let mut registry = REGISTRY.lock();
        registry.retain(|memory| memory.id != self.id);
        GENERATION.fetch_add(1, Ordering::Release);
    }

    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.mapping.data()
    }

    /// Returns the number of the memory, at least 1, which no other memory of this process ever has.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the range of addresses.
    pub fn range(&self) -> std::ops::Range<usize> {
        let start = self.start().addr().get();
        start..start + self.mapping.data_len()
    }
}

/// The descriptor of the memory.
impl AsFd for ShareableMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of changes of this process's shareable memory.
#[inline]
pub fn shareable_generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Returns this process's shareable memory.
pub fn all_shareable() -> Vec<Arc<ShareableMemory>> {
    REGISTRY.lock().clone()
}

/// Returns the epoch of payloads that are shared now.
pub fn payload_epoch() -> u32 {
    EPOCH.load(Ordering::Acquire)
}

/// Withdraws all payloads that are in use by other processes: they discard what they have copied and not yet
/// acknowledged, as if the packets had been lost. To be called before a request completes, or is dropped,
/// that may still be executed.
pub fn withdraw_payloads() {
    if shareable_generation() == 0 {
        return;
    }
    let registry = REGISTRY.lock();
    let epoch = EPOCH.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    registry.iter().for_each(|memory| memory.mapping.epoch().store(epoch, Ordering::Relaxed));
    // Before the program changes the memory. Pairs with the fence in `PeerMemory::is_in`.
    fence(Ordering::SeqCst);
}

/// Reason why memory of another process is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum PeerMemoryError {
    /// The owner could still truncate it or take pages away, or this process could write to it.
    #[error("memory of another process without the seals {SEALS:?}")]
    Unsealed,
    /// It has no data, or its pages are not all allocated.
    #[error("memory of another process with {allocated} of {len} bytes allocated")]
    Length {
        /// Length of the file in bytes.
        len: u64,
        /// Number of bytes allocated.
        allocated: u64,
    },
    /// This process has mapped as much as it may.
    #[error("memory of another process of {len} bytes exceeds the {MAX_MAPPED} that are mapped at most")]
    TooMuch {
        /// Length of the file in bytes.
        len: u64,
    },
    /// The owner has shared as many as it may.
    #[error("another process has shared its maximum number of memories")]
    TooMany,
    /// It cannot be mapped.
    #[error("memory of another process: {0}")]
    System(#[from] io::Error),
}

/// Memory of another process, mapped for reading.
#[derive(Debug)]
pub struct PeerMemory {
    mapping: Mapping,
    _mapped: Share,
}

impl PeerMemory {
    /// Maps memory that another process has passed.
    ///
    /// # Errors
    /// [`PeerMemoryError`] if it is not shareable memory, or if this process has mapped too much.
    pub fn open(fd: &OwnedFd) -> Result<PeerMemory, PeerMemoryError> {
        // The seals are checked first: with them, the length and the number of blocks can no longer change.
        if !fcntl_get_seals(fd).map_err(io::Error::from)?.contains(SEALS) {
            return Err(PeerMemoryError::Unsealed);
        }
        let stat = fstat(fd).map_err(io::Error::from)?;
        let (len, allocated) = (stat.st_size as u64, (stat.st_blocks as u64).saturating_mul(BLOCK));
        // Reading a page that is not allocated would allocate it.
        if len <= HEADER as u64 || allocated < len {
            return Err(PeerMemoryError::Length { len, allocated });
        }
        let size = usize::try_from(len).ok().filter(|len| isize::try_from(*len).is_ok());
        let (Some(size), Some(mapped)) = (size, MAPPED.take(len, MAX_MAPPED)) else {
            return Err(PeerMemoryError::TooMuch { len });
        };
        // A page may be unreadable nevertheless, such as one in broken memory.
        install_fault_handler();
        let mapping = Mapping::new(fd, size, ProtFlags::READ)?;
        Ok(PeerMemory { mapping, _mapped: mapped })
    }

    /// Returns the `len` bytes at `offset`, for reading; `None` if they exceed the memory. The slice is valid
    /// as long as `self`.
    pub fn slice(&self, offset: u64, len: u32) -> Option<HostSlice> {
        let (offset, len) = (usize::try_from(offset).ok()?, len as usize);
        if self.mapping.data_len().checked_sub(offset)? < len {
            return None;
        }
        let start = self.mapping.data().addr().get();
        // SAFETY: the range is within the mapping, whose address is exposed. Nothing stores to slices that a
        // payload is copied from; such a store would fault, and be reported.
        Some(unsafe { HostSlice::from_raw(start + offset, len) })
    }

    /// Reports whether copies made until now are of payloads of the given epoch.
    #[inline]
    pub fn is_in(&self, epoch: u32) -> bool {
        // Pairs with the fence in `withdraw_payloads`: a copy that contains a byte changed since precedes a
        // load of the new epoch.
        fence(Ordering::Acquire);
        self.mapping.epoch().load(Ordering::Relaxed) == epoch
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
    use rustix::io::Errno;

    use super::*;
    use crate::memory::Buffer;

    const PAGE: u64 = 4096;

    fn memfd(len: u64, allocated: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        if allocated > 0 {
            fallocate(&fd, FallocateFlags::empty(), 0, allocated).unwrap();
        }
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn memory_that_its_owner_can_take_away_or_has_not_allocated_is_not_mapped() {
        let len = HEADER as u64 + PAGE;
        let open = |len, allocated, seals| PeerMemory::open(&memfd(len, allocated, seals)).map(drop);
        open(len, len, SEALS).unwrap();
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE] {
            let result = open(len, len, SEALS & !missing);
            assert!(matches!(result, Err(PeerMemoryError::Unsealed)), "{missing:?}");
        }
        for (len, allocated) in [(0, 0), (HEADER as u64, HEADER as u64), (len, 0), (len, len - PAGE)] {
            let result = open(len, allocated, SEALS);
            assert!(matches!(result, Err(PeerMemoryError::Length { .. })), "{allocated} of {len}");
        }
        let null = std::fs::File::open("/dev/null").unwrap().into();
        assert!(matches!(PeerMemory::open(&null), Err(PeerMemoryError::System(_))));
    }

    #[test]
    fn mapped_memory_is_that_of_its_owner_who_can_neither_shrink_it_nor_punch_holes() {
        let buffer = Buffer::shareable(5000).unwrap();
        buffer.write(4990, b"0123456789").unwrap();
        let all = all_shareable();
        let found = |memory: &&Arc<ShareableMemory>| memory.range().start == buffer.addr();
        let memory = all.iter().find(found).unwrap();
        let fd = memory.fd.try_clone().unwrap();
        let peer = PeerMemory::open(&fd).unwrap();
        let mut bytes = [0; 10];
        peer.slice(4990, 10).unwrap().load(&mut bytes).unwrap();
        assert_eq!(&bytes, b"0123456789");
        let len = memory.mapping.data_len() as u64;
        assert!(peer.slice(len - 1, 1).is_some() && peer.slice(len, 1).is_none());
        assert!(peer.slice(len - 1, 2).is_none() && peer.slice(u64::MAX, 1).is_none());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&fd, punch, 0, PAGE), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert!(Mapping::new(&fd, HEADER, ProtFlags::READ | ProtFlags::WRITE).is_err());
        // The memory outlives its owner's mapping.
        drop(buffer);
        drop(all);
        bytes.fill(0);
        peer.slice(4990, 10).unwrap().load(&mut bytes).unwrap();
        assert_eq!(&bytes, b"0123456789");
    }

    #[test]
    fn withdrawal_ends_the_epoch_of_memory_that_exists_and_that_is_allocated_later() {
        let buffers = [0, 1].map(|_| Buffer::shareable(1).unwrap());
        let open = |buffer: &Buffer| {
            let all = all_shareable();
            let memory = all.iter().find(|memory| memory.range().start == buffer.addr()).unwrap();
            PeerMemory::open(&memory.fd.try_clone().unwrap()).unwrap()
        };
        let peers = buffers.each_ref().map(open);
        let epoch = payload_epoch();
        withdraw_payloads();
        let later = open(&Buffer::shareable(1).unwrap());
        assert!(peers.iter().chain([&later]).all(|peer| !peer.is_in(epoch)));
        assert_ne!(payload_epoch(), epoch);
    }

    #[test]
    fn memory_beyond_the_limit_of_this_process_is_not_mapped() {
        assert!(
            MAPPED.take(MAX_MAPPED + 1, MAX_MAPPED).is_none() && MAPPED.take(u64::MAX, MAX_MAPPED).is_none()
        );
        let first = MAPPED.take(1, MAX_MAPPED).unwrap();
        assert!(MAPPED.take(MAX_MAPPED, MAX_MAPPED).is_none());
        drop(first);
    }
}

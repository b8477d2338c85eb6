//! A namespace: the blocks of a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FallocateFlags, fallocate};

use super::capsule::Status;
use super::request::Blocks;

/// A file or a block device, as an array of blocks.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    block_len: usize,
    blocks: u64,
    read_only: bool,
    /// Whether the write cache is on, so that a write may complete before its data is on the medium.
    write_cache: AtomicBool,
}

impl Namespace {
    /// Opens a file with blocks of `block_len` bytes, a power of two. Bytes after the last complete block are
    /// not accessible.
    ///
    /// # Errors
    /// If the file cannot be opened, or is shorter than one block.
    pub fn open(path: &Path, block_len: usize, read_only: bool) -> io::Result<Namespace> {
        let mut file = OpenOptions::new().read(true).write(!read_only).open(path)?;
        // The metadata of a block device do not contain its size.
        let blocks = file.seek(SeekFrom::End(0))? / block_len as u64;
        if blocks == 0 {
            return Err(io::Error::other(format!("the file is shorter than one block of {block_len} bytes")));
        }
        Ok(Namespace { file, block_len, blocks, read_only, write_cache: AtomicBool::new(true) })
    }

    /// Returns the block size in bytes.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reports whether hosts may only read the namespace.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Reports whether the write cache is on, so that data may stay in memory until a flush.
    pub fn has_write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    /// Turns the write cache on or off. Turning it off flushes it.
    ///
    /// # Errors
    /// [`Status::WriteFault`] if the data in memory could not be written.
    pub fn set_write_cache(&self, on: bool) -> Result<(), Status> {
        self.write_cache.store(on, Ordering::Relaxed);
        if on { Ok(()) } else { self.flush() }
    }

    /// Reads blocks into `data`, which must be exactly as long as the blocks.
    ///
    /// # Errors
    /// [`Status`].
    pub fn read(&self, blocks: Blocks, data: &mut [u8]) -> Result<(), Status> {
        let at = self.offset(blocks)?;
        self.file.read_exact_at(data, at).map_err(|_| Status::ReadError)
    }

    /// Writes blocks. If `fua` (force unit access) is set, returns only once they are on the medium.
    ///
    /// # Errors
    /// [`Status`].
    pub fn write(&self, blocks: Blocks, data: &[u8], fua: bool) -> Result<(), Status> {
        let at = self.writable_offset(blocks)?;
        self.file.write_all_at(data, at).map_err(|_| Status::WriteFault)?;
        self.flush_if_required(fua)
    }

    /// Fills blocks with zeros, and deallocates their space if the file system supports it.
    ///
    /// # Errors
    /// [`Status`].
    pub fn zero(&self, blocks: Blocks, fua: bool) -> Result<(), Status> {
        let at = self.writable_offset(blocks)?;
        let (mut at, end) = (at, at + blocks.count * self.block_len as u64);
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if at < end && fallocate(&self.file, hole, at as i64, (end - at) as i64).is_err() {
            let zeros = [0; 1 << 16];
            while at < end {
                let len = zeros.len().min((end - at) as usize);
                self.file.write_all_at(&zeros[..len], at).map_err(|_| Status::WriteFault)?;
                at += len as u64;
            }
        }
        self.flush_if_required(fua)
    }

    /// Writes all cached data to the medium.
    ///
    /// # Errors
    /// [`Status::WriteFault`].
    pub fn flush(&self) -> Result<(), Status> {
        self.file.sync_data().map_err(|_| Status::WriteFault)
    }

    /// Flushes the file after a write if `fua` is set or the write cache is off.
    fn flush_if_required(&self, fua: bool) -> Result<(), Status> {
        if fua || !self.has_write_cache() { self.flush() } else { Ok(()) }
    }

    fn writable_offset(&self, blocks: Blocks) -> Result<u64, Status> {
        if self.read_only { Err(Status::WriteProtected) } else { self.offset(blocks) }
    }

    /// Returns the byte offset in the file of the first block in `blocks`.
    fn offset(&self, blocks: Blocks) -> Result<u64, Status> {
        match blocks.first.checked_add(blocks.count) {
            Some(end) if end <= self.blocks => Ok(blocks.first * self.block_len as u64),
            _ => Err(Status::LbaOutOfRange),
        }
    }
}

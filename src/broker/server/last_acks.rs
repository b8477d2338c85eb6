//! Acknowledgements that processes have recorded and may not have sent before they ended.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::time::{ClockId, clock_gettime};

use super::served_address::ServedAddress;
use crate::transport::{Instant, LastAcks};

/// Reads the records of a process. The process may have changed the file, which therefore is not mapped.
pub fn read(records: &OwnedFd, shards: usize) -> Vec<u64> {
    let mut bytes = vec![0; shards * LastAcks::WORDS * size_of::<u64>()];
    let read = records.try_clone().is_ok_and(|fd| File::from(fd).read_exact_at(&mut bytes, 0).is_ok());
    let (words, _) = bytes.as_chunks();
    if read { words.iter().map(|word| u64::from_ne_bytes(*word)).collect() } else { Vec::new() }
}

/// Sends the recorded acknowledgements whose source is the address.
pub fn send(words: &[u64], served: &mut ServedAddress) {
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return };
    let now = Instant(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64);
    let ip = served.bind_addr.ip();
    let packets = LastAcks::packets(words, now).filter(|(flow, _)| ip.is_unspecified() || flow.src == ip);
    served.gsi_listener.send(packets);
}

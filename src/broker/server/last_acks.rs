//! Acknowledgements that processes have recorded and may not have sent before they ended.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::time::{ClockId, clock_gettime};
use rustix::fs::fcntl_get_seals;

use super::served_address::ServedAddress;
use crate::transport::{Instant, LastAcks};

/// Reads the records of a process; none if the descriptor is not that of a memfd with them. A process of
/// another user may have passed a file whose reads block, or truncate the file, which therefore is not
/// mapped.
pub fn read(records: &OwnedFd, shards: usize) -> Vec<u64> {
    let mut bytes = vec![0; shards * LastAcks::WORDS * size_of::<u64>()];
    let is_memory = fcntl_get_seals(records).is_ok();
    let file = records.try_clone().ok().filter(|_| is_memory).map(File::from);
    if file.is_none_or(|file| file.read_exact_at(&mut bytes, 0).is_err()) {
        return Vec::new();
    }
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Sends the recorded acknowledgements whose source is the address.
pub fn send(words: &[u64], served: &mut ServedAddress) {
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return };
    let now = Instant(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64);
    let ip = served.bind_addr.ip();
    let packets = LastAcks::packets(words, now).filter(|(flow, _)| ip.is_unspecified() || flow.src == ip);
    served.gsi_listener.send(packets);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;

    #[test]
    fn descriptor_without_records_has_none() {
        let (pipe, _writer) = nix::unistd::pipe().unwrap();
        let short = memfd::create("short", LastAcks::WORDS * 8 - 1).unwrap();
        assert!(read(&pipe, 1).is_empty() && read(&short, 1).is_empty());
        let records = memfd::create("records", LastAcks::WORDS * 8).unwrap();
        assert_eq!(read(&records, 1), [0; LastAcks::WORDS]);
        assert!(read(&records, 2).is_empty());
    }
}

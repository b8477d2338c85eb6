//! Compares the memory of both ends after a run of a perftest program.
//!
//! Each end has one region: the first half holds the data of SENDs and WRITEs and the
//! results of READs and atomics, the second half the received messages and the memory that the peer accesses.
//! A queue pair has a slot of max(size, 4096) bytes in each half. In a bandwidth test, messages of up to 2048
//! bytes follow one another in the slot, each at the next multiple of a cache line, and begin again at its
//! end; all others lie at the beginning of the slot.
//!
//! Both ends fill their memory with the same pseudo-random bytes, so each half differs from the other until
//! the data has arrived. Only `ib_write_lat` begins with zeros, and marks the last byte of a message.

use std::collections::BTreeMap;

/// Number of bytes that precede UD data in the second half of a region, because perftest aligns the end of
/// the GRH to a cache line.
const UD_ADDITION: usize = CACHE_LINE as usize;
/// Minimum size in bytes of a queue pair's slot, in which short messages follow one another (one page).
const CYCLE_BUFFER: u64 = 4096;
const CACHE_LINE: u64 = 64;

/// Traffic pattern of a perftest program: the operation, and the placement of messages in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// `ib_write_bw`.
    WriteBw,
    /// `ib_read_bw`.
    ReadBw,
    /// `ib_read_lat`.
    ReadLat,
    /// `ib_send_bw`.
    SendBw,
    /// `ib_atomic_bw` with FETCH_AND_ADD, which adds 1.
    AtomicBw,
    /// `ib_write_lat` and `ib_send_lat`, in which both ends send.
    PingPong,
    /// `ib_send_lat -c UD`.
    UdPingPong,
}

/// Parameters of the run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub traffic: Traffic,
    pub size: u32,
    /// Number of messages on each queue pair.
    pub iterations: u64,
    pub qps: u32,
}

/// One half of the client's or the server's region.
#[derive(Clone, Copy, Debug)]
enum Half {
    ClientsFirst,
    ClientsSecond,
    ServersFirst,
    ServersSecond,
}

use Half::{ClientsFirst, ClientsSecond, ServersFirst, ServersSecond};

impl Run {
    /// Returns the source and the destination of each data transfer.
    fn flows(&self) -> &'static [(Half, Half)] {
        match self.traffic {
            Traffic::WriteBw | Traffic::SendBw => &[(ClientsFirst, ServersSecond)],
            Traffic::ReadBw | Traffic::ReadLat | Traffic::AtomicBw => &[(ServersSecond, ClientsFirst)],
            Traffic::PingPong | Traffic::UdPingPong => {
                &[(ClientsFirst, ServersSecond), (ServersFirst, ClientsSecond)]
            }
        }
    }

    /// Returns the size in bytes of a queue pair's slot in each half.
    fn slot(&self) -> u64 {
        u64::from(self.size).max(CYCLE_BUFFER)
    }

    /// Returns the distance in bytes between message positions in a slot, and their number.
    fn positions(&self) -> (u64, u64) {
        let size = u64::from(self.size);
        let is_latency =
            !matches!(self.traffic, Traffic::WriteBw | Traffic::ReadBw | Traffic::SendBw | Traffic::AtomicBw);
        if is_latency || size > CYCLE_BUFFER / 2 {
            return (0, 1);
        }
        let stride = size.next_multiple_of(CACHE_LINE);
        (stride, CYCLE_BUFFER / stride)
    }

    /// Compares every message still in memory at its source and destination, and returns the number of bytes
    /// compared.
    pub fn compare(&self, client: &[u8], server: &[u8]) -> Result<usize, String> {
        let (stride, positions) = self.positions();
        let is_ud = self.traffic == Traffic::UdPingPong;
        let received_at = if is_ud { UD_ADDITION } else { 0 };
        let half = (self.slot() * u64::from(self.qps)) as usize;
        for (name, bytes) in [("client", client), ("server", server)] {
            let (got, expected) = (bytes.len(), 2 * half + received_at);
            if got != expected {
                return Err(format!("the {name} dumped {got} bytes of memory, expected {expected}"));
            }
        }
        let of = |h: Half| match h {
            ClientsFirst => &client[..half],
            ClientsSecond => &client[half..],
            ServersFirst => &server[..half],
            ServersSecond => &server[half..],
        };
        let mut compared = 0;
        for &(from, to) in self.flows() {
            for qp in 0..self.qps {
                let bytes = |n| {
                    let at = (u64::from(qp) * self.slot() + n % positions * stride) as usize;
                    at..at + self.size as usize
                };
                for (position, n) in self.last_messages(positions) {
                    let sent = self.expected(&of(from)[bytes(n)]);
                    let got = &of(to)[received_at..][bytes(position)];
                    if let Some(i) = (0..got.len()).find(|i| got[*i] != sent[*i]) {
                        return Err(format!(
                            "wrong data: QP {qp}, message {n}, byte {i} of {}: {:#04x} in {from:?}, \
                             {:#04x} in {to:?}",
                            self.size, sent[i], got[i]
                        ));
                    }
                    compared += got.len();
                }
            }
        }
        Ok(compared)
    }

    /// Returns the number of the last message stored at each position in the receiver's slot.
    fn last_messages(&self, positions: u64) -> BTreeMap<u64, u64> {
        // The receiver selects the position of a SEND: it posts 512 receives to consecutive positions, and
        // then one for each completion; after its first round of these it wraps one position too early.
        let wraps_early = self.traffic == Traffic::SendBw;
        let index = |n| n + u64::from(wraps_early && n >= 512 + positions - 1);
        (0..self.iterations).map(|n| (index(n) % positions, n)).collect()
    }

    /// Returns the bytes expected at the destination of a transfer: a copy of `sent`, or the old value of the
    /// word for a FETCH_AND_ADD.
    fn expected(&self, sent: &[u8]) -> Vec<u8> {
        match (self.traffic, <[u8; 8]>::try_from(sent)) {
            // The client keeps the result of its last FETCH_AND_ADD.
            (Traffic::AtomicBw, Ok(word)) => u64::from_le_bytes(word).wrapping_sub(1).to_le_bytes().to_vec(),
            _ => sent.to_vec(),
        }
    }
}

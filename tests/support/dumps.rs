//! Comparison of the memory of both sides after a run of perftest. The first half of a side's region is the
//! source of its SENDs and WRITEs and the sink of its READs; the second half holds received messages and is
//! the target of the peer's WRITEs and READs.

use std::collections::BTreeMap;
use urxe_cli::exchange::perftest::{Agreed, Layout, Test};

/// Parameters of the run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub test: Test,
    pub size: u32,
    /// Number of messages of each queue pair.
    pub iterations: u64,
    pub qps: u32,
    /// Whether the client is the stock program.
    pub stock_client: bool,
    /// Whether the server is the stock program.
    pub stock_server: bool,
}

/// A half of one side's region.
#[derive(Clone, Copy, Debug)]
enum Half {
    ClientsFirst,
    ClientsSecond,
    ServersFirst,
    ServersSecond,
}

use Half::{ClientsFirst, ClientsSecond, ServersFirst, ServersSecond};

impl Run {
    /// Returns source and destination of the data.
    fn flows(&self) -> &'static [(Half, Half)] {
        match self.test {
            Test::WriteBw | Test::SendBw => &[(ClientsFirst, ServersSecond)],
            Test::ReadBw | Test::AtomicBw => &[(ServersSecond, ClientsFirst)],
            Test::WriteLat | Test::SendLat => &[(ClientsFirst, ServersSecond), (ServersFirst, ClientsSecond)],
        }
    }

    /// Compares every message that is still in memory, and returns the number of compared bytes.
    pub fn compare(&self, client: &[u8], server: &[u8]) -> Result<usize, String> {
        let agreed = Agreed { mtu: 4096, cycle_buffer: 4096, cache_line: 64 };
        let layout = Layout::new(self.test, self.size, &agreed);
        let half = layout.region(self.qps) as usize;
        for (name, bytes) in [("client", client), ("server", server)] {
            if bytes.len() != 2 * half {
                return Err(format!(
                    "the {name} dumped {} bytes of memory, expected {}",
                    bytes.len(),
                    2 * half
                ));
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
                    let at = (u64::from(qp) * layout.slot + layout.offset(n)) as usize;
                    at..at + self.size as usize
                };
                for (position, n) in self.last_messages(layout.positions) {
                    let sent = self.expected(&of(from)[bytes(n)]);
                    let got = &of(to)[bytes(position)];
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

    /// Returns the last message at each position of the receiver.
    fn last_messages(&self, positions: u64) -> BTreeMap<u64, u64> {
        // The receiver selects the position of a SEND. The stock server posts 512 receives to consecutive
        // positions, and then one for each completion; after its first round of these it wraps one position
        // too early.
        let wraps_early = self.test == Test::SendBw && self.stock_server;
        let index = |n| n + u64::from(wraps_early && n >= 512 + positions - 1);
        (0..self.iterations).map(|n| (index(n) % positions, n)).collect()
    }

    /// Returns the bytes expected at the destination of `sent`: the same bytes, or the old value of a word
    /// that was added to.
    fn expected(&self, sent: &[u8]) -> Vec<u8> {
        match (self.test, <[u8; 8]>::try_from(sent)) {
            (Test::AtomicBw, Ok(word)) => {
                // The stock client keeps the result of its last FETCH ADD; urxe reads the word once more at
                // the end.
                let later = u64::from(self.stock_client);
                u64::from_le_bytes(word).wrapping_sub(later).to_le_bytes().to_vec()
            }
            _ => sent.to_vec(),
        }
    }
}

//! The memory of both sides after a run of perftest, held side by side. Each side sends from the first half of its
//! region (or READs into it) and is sent to, written and read in the second half.

use std::collections::BTreeMap;
use urxe::cli::exchange::perftest::{Agreed, Layout, Test};

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub test: Test,
    pub size: u32,
    /// Messages of each queue pair.
    pub iterations: u64,
    pub qps: u32,
    /// The client is the stock program.
    pub stock_client: bool,
    /// The server is.
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
    /// From where to where its data went.
    fn flows(&self) -> &'static [(Half, Half)] {
        match self.test {
            Test::WriteBw | Test::SendBw => &[(ClientsFirst, ServersSecond)],
            Test::ReadBw | Test::AtomicBw => &[(ServersSecond, ClientsFirst)],
            Test::WriteLat | Test::SendLat => &[(ClientsFirst, ServersSecond), (ServersFirst, ClientsSecond)],
        }
    }

    /// Every message that is still there must be the same on both sides. Returns how many bytes that were.
    pub fn compare(&self, client: &[u8], server: &[u8]) -> Result<usize, String> {
        let agreed = Agreed { mtu: 4096, cycle_buffer: 4096, cache_line: 64 };
        let layout = Layout::new(self.test, self.size, &agreed);
        let half = layout.region(self.qps) as usize;
        for (name, bytes) in [("client", client), ("server", server)] {
            if bytes.len() != 2 * half {
                return Err(format!("the {name} has {} bytes of memory, not {}", bytes.len(), 2 * half));
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
                for (place, n) in self.last_messages(layout.places) {
                    let sent = self.expected(&of(from)[bytes(n)]);
                    let got = &of(to)[bytes(place)];
                    if let Some(i) = (0..got.len()).find(|i| got[*i] != sent[*i]) {
                        return Err(format!(
                            "WRONG DATA: queue pair {qp}, message {n}, byte {i} of {}: {:#04x} in the {from:?} half, {:#04x} in the {to:?} half",
                            self.size, sent[i], got[i]
                        ));
                    }
                    compared += got.len();
                }
            }
        }
        Ok(compared)
    }

    /// What is left in each place of the receiver: its last message.
    fn last_messages(&self, places: u64) -> BTreeMap<u64, u64> {
        // Where a SEND goes is its receiver's business. The stock server posts 512 receives, place after place, and then
        // one for each completion; after its first round of those it turns back a place too early.
        let turns = self.test == Test::SendBw && self.stock_server;
        let place = |n| n + u64::from(turns && n >= 512 + places - 1);
        (0..self.iterations).map(|n| (place(n) % places, n)).collect()
    }

    /// What must be found where `sent` went: itself, or the old value of a word that was added to.
    fn expected(&self, sent: &[u8]) -> Vec<u8> {
        match (self.test, <[u8; 8]>::try_from(sent)) {
            (Test::AtomicBw, Ok(word)) => {
                // The stock client keeps what it had from its last addition, ours looks once more in the end.
                let later = u64::from(self.stock_client);
                u64::from_le_bytes(word).wrapping_sub(later).to_le_bytes().to_vec()
            }
            _ => sent.to_vec(),
        }
    }
}

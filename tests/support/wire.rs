//! A wire between two guests (or a guest and another endpoint) that records, drops, duplicates, reorders and
//! corrupts RoCEv2 frames.

use super::guest::Net;
use parking_lot::Mutex;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An end of the wire. A direction is named after the end that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    A,
    B,
}

/// Fault to be applied to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The frame is dropped.
    Drop,
    /// The frame arrives twice.
    Duplicate,
    /// The frame arrives after its successor.
    Reorder,
    /// A bit of the ICRC is inverted.
    Corrupt,
}

/// State of one direction.
#[derive(Default)]
struct Direction {
    /// Number of RoCEv2 frames sent since the faults were set.
    seen: usize,
    faults: BTreeMap<usize, Fault>,
    drop_every: usize,
    /// Drop rate per mille, and its random number generator.
    drop_randomly: Option<(u64, Pcg32)>,
    held_back: Option<Vec<u8>>,
    total: usize,
    dropped: usize,
}

impl Direction {
    fn fault(&mut self) -> Option<Fault> {
        self.seen += 1;
        self.total += 1;
        let random = self
            .drop_randomly
            .as_mut()
            .is_some_and(|(per_mille, random)| random.next_u64() % 1000 < *per_mille);
        let every = self.drop_every != 0 && self.seen.is_multiple_of(self.drop_every);
        if random || every { Some(Fault::Drop) } else { self.faults.get(&self.seen).copied() }
    }
}

#[derive(Default)]
struct State {
    directions: [Direction; 2],
    pcap: Option<File>,
}

/// A wire; two threads forward its frames until it is dropped.
pub struct Wire {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Starts the wire. The endpoints may be started later.
    pub fn start() -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("urxe-wire-").tempdir()?;
        let state = Arc::new(Mutex::new(State::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (i, from, to) in [(0, "from-a", "b"), (1, "from-b", "a")] {
            let socket = UnixDatagram::bind(dir.path().join(from))?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?; // interval of the checks of `stop`
            // The queue of a receiver may be as short as 10 frames, so the send waits for space, but not
            // forever: the receiver may have exited.
            socket.set_write_timeout(Some(Duration::from_millis(500)))?;
            let (state, stop, to) = (Arc::clone(&state), Arc::clone(&stop), dir.path().join(to));
            threads.push(std::thread::spawn(move || forward(i, &socket, &to, &state, &stop)));
        }
        Ok(Self { dir, state, stop, threads })
    }

    /// Returns the socket paths for one end: the path that it binds, and the path to which it sends.
    pub fn paths(&self, end: End) -> (PathBuf, PathBuf) {
        let (local, remote) = if end == End::A { ("a", "from-a") } else { ("b", "from-b") };
        (self.dir.path().join(local), self.dir.path().join(remote))
    }

    /// Returns the network configuration for a guest at the given end.
    pub fn net(&self, end: End) -> Net {
        let (local, remote) = self.paths(end);
        Net::Dgram { local, remote }
    }

    /// Starts to record RoCEv2 frames in both directions, including those that the wire drops, in a new pcap
    /// file (link type Ethernet, nanosecond timestamps).
    pub fn record(&self, file: &Path) -> io::Result<()> {
        let mut f = File::create(file)?;
        let head: [u32; 6] = [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 262_144, 1];
        f.write_all(&head.map(u32::to_le_bytes).concat())?;
        self.state.lock().pcap = Some(f);
        Ok(())
    }

    /// Ends the recording.
    pub fn stop_recording(&self) {
        self.state.lock().pcap = None;
    }

    fn set(&self, from: End, f: impl FnOnce(&mut Direction)) {
        let mut s = self.state.lock();
        let d = &mut s.directions[from as usize];
        (d.seen, d.drop_every, d.drop_randomly) = (0, 0, None);
        d.faults.clear();
        f(d);
    }

    /// Sets faults by frame number for the RoCEv2 frames that `from` sends; the next frame is number 1. This
    /// method and the next two replace all faults previously set for the direction.
    pub fn faults(&self, from: End, faults: &[(usize, Fault)]) {
        self.set(from, |d| d.faults.extend(faults.iter().copied()));
    }

    /// Drops every `n`th RoCEv2 frame that `from` sends.
    pub fn drop_every(&self, from: End, n: usize) {
        self.set(from, |d| d.drop_every = n);
    }

    /// Drops each RoCEv2 frame that `from` sends with a probability of `per_mille` in 1000; the same seed
    /// drops the same frames.
    pub fn drop_randomly(&self, from: End, per_mille: u64, seed: u64) {
        self.set(from, |d| d.drop_randomly = Some((per_mille, Pcg32::seed_from_u64(seed))));
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.faults(End::A, &[]);
        self.faults(End::B, &[]);
    }

    /// Returns the number of RoCEv2 frames that `from` has sent, and the number of its frames (of any
    /// protocol) that were dropped.
    pub fn count(&self, from: End) -> (usize, usize) {
        let s = self.state.lock();
        (s.directions[from as usize].total, s.directions[from as usize].dropped)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for t in self.threads.drain(..) {
            let _ = t.join(); // a panic has printed its message already
        }
    }
}

fn forward(direction: usize, socket: &UnixDatagram, to: &Path, state: &Mutex<State>, stop: &AtomicBool) {
    let mut buf = vec![0; 70_000];
    while !stop.load(Ordering::Relaxed) {
        let Ok(n) = socket.recv(&mut buf) else { continue }; // the receive timeout has expired
        let mut out = vec![buf[..n].to_vec()];
        {
            let mut s = state.lock();
            let State { directions, pcap } = &mut *s;
            let d = &mut directions[direction];
            if is_roce(&out[0]) {
                match d.fault() {
                    Some(Fault::Drop) => {
                        record(pcap, &out[0]);
                        d.dropped += 1;
                        continue;
                    }
                    Some(Fault::Duplicate) => out.push(out[0].clone()),
                    Some(Fault::Corrupt) => *out[0].last_mut().unwrap() ^= 0x40,
                    Some(Fault::Reorder) => {
                        d.held_back = out.pop();
                        continue;
                    }
                    None => {}
                }
            }
            out.extend(d.held_back.take());
            out.iter().filter(|f| is_roce(f)).for_each(|f| record(pcap, f));
        }
        for f in &out {
            if socket.send_to(f, to).is_err() {
                state.lock().directions[direction].dropped += 1; // no receiver
            }
        }
    }
}

fn record(pcap: &mut Option<File>, frame: &[u8]) {
    if let Some(f) = pcap {
        let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let n = frame.len() as u32;
        let head = [t.as_secs() as u32, t.subsec_nanos(), n, n].map(u32::to_le_bytes).concat();
        f.write_all(&head).and_then(|()| f.write_all(frame)).expect("write to the pcap file");
    }
}

/// Reports whether a frame is a UDP packet to port 4791.
pub fn is_roce(f: &[u8]) -> bool {
    let at = |i: usize, v: &[u8]| f.get(i..i + v.len()) == Some(v);
    let o = if at(12, &[0x81, 0]) { 18 } else { 14 };
    let ports = if at(o - 2, &[8, 0]) && at(o + 9, &[17]) {
        o + usize::from(f[o] & 15) * 4
    } else if at(o - 2, &[0x86, 0xdd]) && at(o + 6, &[17]) {
        o + 40
    } else {
        return false;
    };
    at(ports + 2, &4791u16.to_be_bytes())
}

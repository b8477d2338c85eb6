//! One end of a run: its memory, its queue pairs and the loops that drive their traffic.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::plan::Verb;
use crate::CliError;
use crate::spin::Spin;
use urxe::verbs::{
    Access, AtomicOp, Completion, Context, Cq, Mr, Qp, QpOptions, RecvCaps, RecvWr, RemoteAddr, SendCaps,
    SendFlags, SendWr, Sge, WcOpcode, WrOp,
};

/// Default of the signaling interval: every k-th work request is signaled, and its completion implies those
/// of the requests before it.
pub const CQ_MOD: u32 = 32;
/// Number of completions polled at once.
const BATCH: usize = 32;
/// Bit of `wr_id` that marks a receive; the low half is the index of the queue pair.
const RECV: u64 = 1 << 63;

/// Fill byte of memory into which nothing has been received yet. Not zero, because some of perftest's
/// messages consist of zeros.
const EMPTY: u8 = 0xa5;

/// Dimensions of a side.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of queue pairs.
    pub qps: usize,
    /// Bytes of memory per queue pair, allocated twice: to send from and to receive into.
    pub slot: usize,
    /// Work requests in flight per queue pair.
    pub depth: usize,
    /// Signaling interval: every k-th work request is signaled, or more often if fewer are in flight.
    pub cq_mod: u64,
    /// Receives kept posted per queue pair; 0 if nothing is received.
    pub receives: usize,
    /// Access rights of the peer.
    pub access: Access,
}

/// Messages of a run.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Operation.
    pub verb: Verb,
    /// Bytes per message.
    pub size: usize,
    /// Distance in bytes between the positions of two messages, the same on both sides.
    pub stride: u64,
    /// Number of positions, which are used cyclically.
    pub positions: u64,
    /// Operation of atomics.
    pub atomic: AtomicOp,
}

impl Work {
    /// Returns messages that all have the same position; atomics add 1.
    pub fn new(verb: Verb, size: usize) -> Work {
        Work { verb, size, stride: 0, positions: 1, atomic: AtomicOp::FetchAdd(1) }
    }

    /// Returns the offset of message `n` from the first one.
    fn offset(&self, n: u64) -> usize {
        (n % self.positions * self.stride) as usize
    }

    /// Returns the number of bytes from the position of the first message to the end of the last.
    fn extent(&self) -> usize {
        self.offset(self.positions - 1) + self.size
    }

    /// Returns the work request of message `n`, with its data at `sges`.
    fn request<'a>(&self, n: u64, sges: &'a [Sge], at: RemoteAddr, wr_id: u64, signaled: bool) -> SendWr<'a> {
        let (va, rkey) = (at.va + self.offset(n) as u64, at.rkey);
        let op = match self.verb {
            Verb::Send => WrOp::Send,
            Verb::Write => WrOp::Write { va, rkey },
            Verb::Read => WrOp::Read { va, rkey },
            Verb::Atomic => WrOp::Atomic { va, rkey, op: self.atomic },
        };
        SendWr { flags: SendFlags { signaled, ..SendFlags::default() }, ..SendWr::new(wr_id, op, sges) }
    }
}

/// A queue pair of a run.
pub struct PerfQp {
    /// The queue pair.
    pub qp: Qp,
    /// Memory of the peer.
    pub remote: RemoteAddr,
}

/// One end of a run.
pub struct Side {
    /// The NIC.
    pub context: Context,
    cq: Cq,
    mr: Mr,
    /// The queue pairs.
    pub qps: Vec<PerfQp>,
    shape: Shape,
}

impl Side {
    /// Creates the memory and the queue pairs, which are not connected yet.
    pub fn new(context: &Context, shape: Shape) -> Result<Side, CliError> {
        let slot = shape.slot.next_multiple_of(64);
        let shape = Shape { slot, ..shape };
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(shape.qps * (shape.depth + shape.receives) + 16)?;
        let mr = pd.reg_mr(2 * shape.qps * slot, shape.access | Access::LOCAL_WRITE)?;
        let options = QpOptions {
            send: SendCaps { max_wr: shape.depth as u32, max_sge: 1, max_inline: 0 },
            recv: RecvCaps { max_wr: shape.receives as u32, max_sge: 1 },
            ..QpOptions::default()
        };
        let qps: Result<_, CliError> = (0..shape.qps)
            .map(|_| Ok(PerfQp { qp: pd.create_qp(&cq, &cq, &options)?, remote: RemoteAddr::default() }))
            .collect();
        Ok(Side { context: context.clone(), cq, mr, qps: qps?, shape })
    }

    /// Returns the memory of a queue pair that the peer accesses by WRITE, READ and atomics, and that
    /// receives use.
    pub fn target(&self, index: usize) -> RemoteAddr {
        self.mr.remote(self.target_at(index))
    }

    fn target_at(&self, index: usize) -> usize {
        (self.shape.qps + index) * self.shape.slot
    }

    fn source_at(&self, index: usize) -> usize {
        index * self.shape.slot
    }

    /// Returns the scatter/gather list of message `n` in memory that begins at `base`.
    fn message(&self, work: &Work, base: usize, n: u64) -> [Sge; 1] {
        let at = base + work.offset(n);
        [self.mr.sge(at..at + work.size)]
    }

    /// Fills the memory for `work`: a pattern at the source of the data, another value at its destination,
    /// zeros if that is a counter.
    pub fn prepare(&self, work: &Work) -> Result<(), CliError> {
        let empty = vec![if work.verb == Verb::Atomic { 0 } else { EMPTY }; work.extent()];
        for index in 0..self.shape.qps {
            let (mut from, mut to) = (self.source_at(index), self.target_at(index));
            if work.verb == Verb::Read {
                (from, to) = (to, from);
            }
            self.mr.write(from, &pattern(work, index))?;
            self.mr.write(to, &empty)?;
        }
        Ok(())
    }

    /// Returns the contents of all memory: for each queue pair the area that data is sent from or READ into,
    /// then for each the area that the peer sends to, writes and reads.
    pub fn memory(&self) -> Vec<u8> {
        self.mr.to_vec()
    }

    /// Checks the data that arrived from the peer of each queue pair with `messages` messages of `work`, and
    /// describes the first wrong byte. With `is_latency` the last byte of a WRITE is a counter.
    pub fn check(&self, work: &Work, messages: u64, is_latency: bool) -> Result<Option<String>, CliError> {
        let mut got = vec![0; work.size];
        for index in 0..self.shape.qps {
            let mut expected = pattern(work, index);
            if is_latency && work.verb == Verb::Write {
                expected[work.size - 1] = messages as u8;
            }
            if work.verb == Verb::Atomic {
                expected = messages.to_ne_bytes().to_vec();
            }
            let at = if work.verb == Verb::Read { self.source_at(index) } else { self.target_at(index) };
            self.mr.read(at, &mut got)?;
            if let Some(i) = (0..work.size).find(|i| got[*i] != expected[*i]) {
                return Ok(Some(format!(
                    "byte {i} of {} on queue pair {index} is {:#04x}, expected {:#04x}",
                    work.size, got[i], expected[i]
                )));
            }
        }
        Ok(None)
    }

    /// Returns the sum of the words that the peer's atomics have modified.
    pub fn sum_of_words(&self, work: &Work) -> Result<u64, CliError> {
        let mut sum = 0u64;
        for index in 0..self.shape.qps {
            for position in 0..work.positions {
                let at = self.target_at(index) + work.offset(position);
                sum = sum.wrapping_add(self.mr.buffer().load_u64(at)?);
            }
        }
        Ok(sum)
    }

    /// Sends `n` messages on each queue pair, waits until all have completed and returns the time taken.
    pub fn send_all(&self, work: &Work, n: u64, spin: &mut Spin) -> Result<Duration, CliError> {
        let depth = self.shape.depth as u64;
        let interval = (depth / 2).clamp(1, self.shape.cq_mod);
        let messages =
            |index| (0..work.positions).map(|n| self.message(work, self.source_at(index), n)).collect();
        let sges: Vec<Vec<[Sge; 1]>> = (0..self.qps.len()).map(messages).collect();
        let (mut posted, mut done) = (vec![0u64; sges.len()], vec![0u64; sges.len()]);
        let mut list = Vec::with_capacity(interval as usize);
        let mut completions = Vec::with_capacity(BATCH);
        let mut remaining = sges.len();
        let begin = Instant::now();
        while remaining > 0 {
            for (i, entry) in self.qps.iter().enumerate() {
                while posted[i] < n && posted[i] - done[i] + interval <= depth {
                    let count = interval.min(n - posted[i]);
                    list.clear();
                    list.extend((1..=count).map(|k| {
                        let (number, id) = (posted[i] + k - 1, (i as u64) << 32 | count);
                        let sges = &sges[i][(number % work.positions) as usize];
                        work.request(number, sges, entry.remote, id, k == count)
                    }));
                    entry.qp.post_send_list(&list)?;
                    posted[i] += count;
                }
            }
            spin.poll(&self.cq, BATCH, &mut completions)?;
            for wc in &completions {
                let (i, count) = ((wc.wr_id >> 32) as usize, wc.wr_id & 0xffff_ffff);
                done[i] += count;
                if done[i] == n {
                    remaining -= 1;
                }
            }
        }
        Ok(begin.elapsed())
    }

    /// Posts receives for the first of `n` messages on each queue pair and returns the number posted on each.
    pub fn post_receives(&self, work: &Work, n: u64) -> Result<u64, CliError> {
        let count = n.min(self.shape.receives as u64);
        for index in 0..self.qps.len() {
            for n in 0..count {
                self.post_receive(work, index, n)?;
            }
        }
        Ok(count)
    }

    fn post_receive(&self, work: &Work, index: usize, n: u64) -> Result<(), CliError> {
        let to = self.message(work, self.target_at(index), n);
        Ok(self.qps[index].qp.post_recv(&RecvWr { wr_id: RECV | index as u64, sges: &to })?)
    }

    /// Receives `n` messages on each queue pair, where `posted` receives are posted already.
    pub fn receive_all(&self, work: &Work, n: u64, posted: u64, spin: &mut Spin) -> Result<(), CliError> {
        let mut posted = vec![posted; self.qps.len()];
        let mut remaining = n * self.qps.len() as u64;
        let mut completions = Vec::with_capacity(BATCH);
        while remaining > 0 {
            spin.poll(&self.cq, BATCH, &mut completions)?;
            for wc in &completions {
                check_length(wc, work)?;
                remaining -= 1;
                let index = (wc.wr_id & !RECV) as usize;
                if posted[index] < n {
                    self.post_receive(work, index, posted[index])?;
                    posted[index] += 1;
                }
            }
        }
        Ok(())
    }

    /// Exchanges SENDs in turns on the first queue pair, `n` each way; `first` says whether this side sends
    /// first. The receives must have been posted.
    pub fn pingpong_send(
        &self,
        work: &Work,
        n: u64,
        first: bool,
        mut posted: u64,
        spin: &mut Spin,
        mut times: Option<&mut Histogram<u64>>,
    ) -> Result<(), CliError> {
        let sges = self.message(work, self.source_at(0), 0);
        let mut state =
            PingpongState { unsignaled: 0, limit: self.signal_interval(), sent: 0, done: 0, total: n };
        let mut completions = Vec::with_capacity(BATCH);
        for _ in 0..n {
            let begin = Instant::now();
            if first {
                self.post_message(work, &sges, &mut state)?;
            }
            let mut has_received = false;
            while !has_received {
                spin.poll(&self.cq, 1, &mut completions)?;
                for wc in &completions {
                    if wc.opcode == WcOpcode::Recv {
                        check_length(wc, work)?;
                        has_received = true;
                    } else {
                        state.done = wc.wr_id;
                    }
                }
            }
            if let Some(times) = &mut times {
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            if !first {
                self.post_message(work, &sges, &mut state)?;
            }
            if posted < n {
                self.post_receive(work, 0, posted)?;
                posted += 1;
            }
        }
        self.drain(&state, spin)
    }

    /// Exchanges WRITEs in turns on the first queue pair, `n` each way. The last byte of a message is its
    /// number, counted from `before` + 1, modulo 256.
    pub fn pingpong_write(
        &self,
        work: &Work,
        before: u64,
        n: u64,
        first: bool,
        spin: &mut Spin,
        mut times: Option<&mut Histogram<u64>>,
    ) -> Result<(), CliError> {
        let source = self.source_at(0);
        let (counter, polled) = (source + work.size - 1, self.target_at(0) + work.size - 1);
        let sges = self.message(work, source, 0);
        let mut state =
            PingpongState { unsignaled: 0, limit: self.signal_interval(), sent: 0, done: 0, total: n };
        let buffer = self.mr.buffer();
        let mut completions = Vec::with_capacity(BATCH);
        for k in before + 1..=before + n {
            let begin = Instant::now();
            let value = k as u8;
            if first {
                self.mr.write(counter, &[value])?;
                self.post_message(work, &sges, &mut state)?;
            }
            spin.until(&self.context, || buffer.load_u8(polled) == Ok(value))?;
            if let Some(times) = &mut times {
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            if !first {
                self.mr.write(counter, &[value])?;
                self.post_message(work, &sges, &mut state)?;
            }
            if state.unsignaled == 0 {
                spin.try_poll(&self.cq, BATCH, &mut completions)?;
                if let Some(wc) = completions.last() {
                    state.done = wc.wr_id;
                }
            }
        }
        self.drain(&state, spin)
    }

    /// Performs `n` READs or atomics one at a time and records the time of each.
    pub fn measure_round_trips(
        &self,
        work: &Work,
        n: u64,
        spin: &mut Spin,
        times: &mut Histogram<u64>,
    ) -> Result<(), CliError> {
        let sges = self.message(work, self.source_at(0), 0);
        let entry = &self.qps[0];
        let mut completions = Vec::with_capacity(BATCH);
        for k in 0..n {
            let begin = Instant::now();
            entry.qp.post_send(&work.request(k, &sges, entry.remote, k, true))?;
            spin.poll(&self.cq, 1, &mut completions)?;
            times.saturating_record(begin.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// Fetches the current words at the peer that atomics modify, queue pair by queue pair.
    pub fn fetch_words(&self, work: &Work, spin: &mut Spin) -> Result<Vec<u64>, CliError> {
        let query = Work { atomic: AtomicOp::FetchAdd(0), ..*work };
        let mut words = Vec::new();
        let mut completions = Vec::with_capacity(BATCH);
        for (i, entry) in self.qps.iter().enumerate() {
            for position in 0..work.positions {
                let sges = self.message(work, self.source_at(i), position);
                entry.qp.post_send(&query.request(position, &sges, entry.remote, 0, true))?;
                spin.poll(&self.cq, 1, &mut completions)?;
                words.push(self.mr.buffer().load_u64(self.source_at(i) + work.offset(position))?);
            }
        }
        Ok(words)
    }

    fn signal_interval(&self) -> u64 {
        (self.shape.depth as u64 / 4).clamp(1, self.shape.cq_mod)
    }

    fn post_message(&self, work: &Work, sges: &[Sge], state: &mut PingpongState) -> Result<(), CliError> {
        let entry = &self.qps[0];
        state.sent += 1;
        state.unsignaled += 1;
        let signaled = state.unsignaled == state.limit || state.sent == state.total;
        if signaled {
            state.unsignaled = 0;
        }
        Ok(entry.qp.post_send(&work.request(state.sent - 1, sges, entry.remote, state.sent, signaled))?)
    }

    /// Waits until the last send has completed.
    fn drain(&self, state: &PingpongState, spin: &mut Spin) -> Result<(), CliError> {
        let mut completions: Vec<Completion> = Vec::with_capacity(BATCH);
        let mut done = state.done;
        while done < state.total {
            spin.poll(&self.cq, BATCH, &mut completions)?;
            done = completions.iter().filter(|wc| wc.opcode != WcOpcode::Recv).fold(done, |_, wc| wc.wr_id);
        }
        Ok(())
    }
}

/// State of the send queue of a side that sends in turns with its peer.
struct PingpongState {
    unsignaled: u64,
    limit: u64,
    sent: u64,
    done: u64,
    total: u64,
}

fn check_length(wc: &Completion, work: &Work) -> Result<(), CliError> {
    if wc.byte_len as usize == work.size {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "received message has {} bytes, expected {}: use the same --size on both sides",
        wc.byte_len, work.size
    )))
}

/// Returns the data of a queue pair's messages, position after position. It differs between sizes, positions
/// and queue pairs.
fn pattern(work: &Work, index: usize) -> Vec<u8> {
    let byte =
        |i: usize| (i.wrapping_mul(31) ^ (i >> 8) ^ (i >> 16) ^ work.size ^ index.wrapping_mul(59)) as u8;
    (0..work.extent()).map(byte).collect()
}

//! One end of a run: its memory, its queue pairs and the loops that drive their traffic.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::plan::Verb;
use crate::cli::CliError;
use crate::cli::spin::Spin;
use crate::verbs::{
    Access, AtomicOp, Completion, Context, Cq, Mr, Qp, QpOptions, RecvCaps, RecvWr, RemoteAddr, SendCaps,
    SendFlags, SendWr, Sge, WcOpcode, WrOp,
};

/// Default of the signaling interval: every k-th work request is signaled, and its completion implies those
/// of the requests before it.
pub const CQ_MOD: u32 = 32;
/// Number of completions polled at once.
const BATCH: usize = 32;
/// Bit of `wr_id` that marks a receive; the low half is the lane.
const RECV: u64 = 1 << 63;

/// Fill byte of memory where nothing has arrived yet. Not zero, because some of perftest's messages consist
/// of zeros.
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
    /// Receives kept posted per queue pair; 0 if nothing is to be received.
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
    /// Distance in bytes from one message's place to the next, on both sides alike.
    pub step: u64,
    /// Number of places, which are used cyclically.
    pub places: u64,
    /// Operation of atomics.
    pub atomic: AtomicOp,
}

impl Work {
    /// Returns messages that all go to the same place; atomics add 1.
    pub fn new(verb: Verb, size: usize) -> Work {
        Work { verb, size, step: 0, places: 1, atomic: AtomicOp::FetchAdd(1) }
    }

    /// Returns the offset of message `n` from the first one.
    fn offset(&self, n: u64) -> usize {
        (n % self.places * self.step) as usize
    }

    /// Returns the number of bytes from the first message's place to the end of the last one's.
    fn extent(&self) -> usize {
        self.offset(self.places - 1) + self.size
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
pub struct Lane {
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
    pub lanes: Vec<Lane>,
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
        let lanes: Result<_, CliError> = (0..shape.qps)
            .map(|_| Ok(Lane { qp: pd.create_qp(&cq, &cq, &options)?, remote: RemoteAddr::default() }))
            .collect();
        Ok(Side { context: context.clone(), cq, mr, lanes: lanes?, shape })
    }

    /// Returns the memory of a queue pair that its peer writes, reads and uses atomics on, and that receives
    /// go to.
    pub fn target(&self, lane: usize) -> RemoteAddr {
        self.mr.remote(self.target_at(lane))
    }

    fn target_at(&self, lane: usize) -> usize {
        (self.shape.qps + lane) * self.shape.slot
    }

    fn source_at(&self, lane: usize) -> usize {
        lane * self.shape.slot
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
        for lane in 0..self.shape.qps {
            let (mut from, mut to) = (self.source_at(lane), self.target_at(lane));
            if work.verb == Verb::Read {
                (from, to) = (to, from);
            }
            self.mr.write(from, &pattern(work, lane))?;
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
    /// describes the first wrong byte. With `turns` the last byte of a WRITE is a counter.
    pub fn check(&self, work: &Work, messages: u64, turns: bool) -> Result<Option<String>, CliError> {
        let mut got = vec![0; work.size];
        for lane in 0..self.shape.qps {
            let mut want = pattern(work, lane);
            if turns && work.verb == Verb::Write {
                want[work.size - 1] = messages as u8;
            }
            if work.verb == Verb::Atomic {
                want = messages.to_ne_bytes().to_vec();
            }
            let at = if work.verb == Verb::Read { self.source_at(lane) } else { self.target_at(lane) };
            self.mr.read(at, &mut got)?;
            if let Some(i) = (0..work.size).find(|i| got[*i] != want[*i]) {
                return Ok(Some(format!(
                    "byte {i} of {} on queue pair {lane} is {:#04x}, it should be {:#04x}",
                    work.size, got[i], want[i]
                )));
            }
        }
        Ok(None)
    }

    /// Returns the sum of the words that the peer's atomics went to.
    pub fn sum_of_words(&self, work: &Work) -> Result<u64, CliError> {
        let mut sum = 0u64;
        for lane in 0..self.shape.qps {
            for place in 0..work.places {
                let at = self.target_at(lane) + work.offset(place);
                sum = sum.wrapping_add(self.mr.buffer().load_u64(at)?);
            }
        }
        Ok(sum)
    }

    /// Sends `n` messages on each queue pair, waits until all have completed and returns the time taken.
    pub fn flood(&self, work: &Work, n: u64, spin: &mut Spin) -> Result<Duration, CliError> {
        let depth = self.shape.depth as u64;
        let every = (depth / 2).clamp(1, self.shape.cq_mod);
        let messages = |lane| (0..work.places).map(|n| self.message(work, self.source_at(lane), n)).collect();
        let sges: Vec<Vec<[Sge; 1]>> = (0..self.lanes.len()).map(messages).collect();
        let (mut posted, mut done) = (vec![0u64; sges.len()], vec![0u64; sges.len()]);
        let mut list = Vec::with_capacity(every as usize);
        let mut completions = Vec::with_capacity(BATCH);
        let mut left = sges.len();
        let begin = Instant::now();
        while left > 0 {
            for (i, lane) in self.lanes.iter().enumerate() {
                while posted[i] < n && posted[i] - done[i] + every <= depth {
                    let count = every.min(n - posted[i]);
                    list.clear();
                    list.extend((1..=count).map(|k| {
                        let (number, id) = (posted[i] + k - 1, (i as u64) << 32 | count);
                        let sges = &sges[i][(number % work.places) as usize];
                        work.request(number, sges, lane.remote, id, k == count)
                    }));
                    lane.qp.post_send_list(&list)?;
                    posted[i] += count;
                }
            }
            spin.poll(&self.cq, BATCH, &mut completions)?;
            for wc in &completions {
                let (i, count) = ((wc.wr_id >> 32) as usize, wc.wr_id & 0xffff_ffff);
                done[i] += count;
                if done[i] == n {
                    left -= 1;
                }
            }
        }
        Ok(begin.elapsed())
    }

    /// Posts receives for the first of `n` messages on each queue pair and returns the number posted on each.
    pub fn post_receives(&self, work: &Work, n: u64) -> Result<u64, CliError> {
        let count = n.min(self.shape.receives as u64);
        for lane in 0..self.lanes.len() {
            for n in 0..count {
                self.post_receive(work, lane, n)?;
            }
        }
        Ok(count)
    }

    fn post_receive(&self, work: &Work, lane: usize, n: u64) -> Result<(), CliError> {
        let to = self.message(work, self.target_at(lane), n);
        Ok(self.lanes[lane].qp.post_recv(&RecvWr { wr_id: RECV | lane as u64, sges: &to })?)
    }

    /// Receives `n` messages on each queue pair, where `posted` receives are posted already.
    pub fn absorb(&self, work: &Work, n: u64, posted: u64, spin: &mut Spin) -> Result<(), CliError> {
        let mut posted = vec![posted; self.lanes.len()];
        let mut left = n * self.lanes.len() as u64;
        let mut completions = Vec::with_capacity(BATCH);
        while left > 0 {
            spin.poll(&self.cq, BATCH, &mut completions)?;
            for wc in &completions {
                received(wc, work)?;
                left -= 1;
                let lane = (wc.wr_id & !RECV) as usize;
                if posted[lane] < n {
                    self.post_receive(work, lane, posted[lane])?;
                    posted[lane] += 1;
                }
            }
        }
        Ok(())
    }

    /// Exchanges SENDs in turns on the first queue pair, `n` each way; `first` says whether this side begins.
    /// The receives must have been posted.
    pub fn send_turns(
        &self,
        work: &Work,
        n: u64,
        first: bool,
        mut posted: u64,
        spin: &mut Spin,
        mut times: Option<&mut Histogram<u64>>,
    ) -> Result<(), CliError> {
        let sges = self.message(work, self.source_at(0), 0);
        let mut queue = Turns { unsignaled: 0, limit: self.signal_turns(), sent: 0, done: 0, total: n };
        let mut completions = Vec::with_capacity(BATCH);
        for _ in 0..n {
            let begin = Instant::now();
            if first {
                self.send_turn(work, &sges, &mut queue)?;
            }
            let mut came = false;
            while !came {
                spin.poll(&self.cq, 1, &mut completions)?;
                for wc in &completions {
                    if wc.opcode == WcOpcode::Recv {
                        received(wc, work)?;
                        came = true;
                    } else {
                        queue.done = wc.wr_id;
                    }
                }
            }
            if let Some(times) = &mut times {
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            if !first {
                self.send_turn(work, &sges, &mut queue)?;
            }
            if posted < n {
                self.post_receive(work, 0, posted)?;
                posted += 1;
            }
        }
        self.drain(&queue, spin)
    }

    /// Exchanges WRITEs in turns on the first queue pair, `n` each way. The last byte of a message is its
    /// number, counted from `before` + 1, modulo 256.
    pub fn write_turns(
        &self,
        work: &Work,
        before: u64,
        n: u64,
        first: bool,
        spin: &mut Spin,
        mut times: Option<&mut Histogram<u64>>,
    ) -> Result<(), CliError> {
        let source = self.source_at(0);
        let (mark, watch) = (source + work.size - 1, self.target_at(0) + work.size - 1);
        let sges = self.message(work, source, 0);
        let mut queue = Turns { unsignaled: 0, limit: self.signal_turns(), sent: 0, done: 0, total: n };
        let buffer = self.mr.buffer();
        let mut completions = Vec::with_capacity(BATCH);
        for k in before + 1..=before + n {
            let begin = Instant::now();
            let value = k as u8;
            if first {
                self.mr.write(mark, &[value])?;
                self.send_turn(work, &sges, &mut queue)?;
            }
            spin.until(&self.context, || buffer.load_u8(watch) == Ok(value))?;
            if let Some(times) = &mut times {
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            if !first {
                self.mr.write(mark, &[value])?;
                self.send_turn(work, &sges, &mut queue)?;
            }
            if queue.unsignaled == 0 {
                spin.try_poll(&self.cq, BATCH, &mut completions)?;
                if let Some(wc) = completions.last() {
                    queue.done = wc.wr_id;
                }
            }
        }
        self.drain(&queue, spin)
    }

    /// Performs `n` READs or atomics one at a time and records the time of each.
    pub fn probe(
        &self,
        work: &Work,
        n: u64,
        spin: &mut Spin,
        times: &mut Histogram<u64>,
    ) -> Result<(), CliError> {
        let sges = self.message(work, self.source_at(0), 0);
        let lane = &self.lanes[0];
        let mut completions = Vec::with_capacity(BATCH);
        for k in 0..n {
            let begin = Instant::now();
            lane.qp.post_send(&work.request(k, &sges, lane.remote, k, true))?;
            spin.poll(&self.cq, 1, &mut completions)?;
            times.saturating_record(begin.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// Fetches the current words that atomics go to at the peer, queue pair by queue pair.
    pub fn fetch_words(&self, work: &Work, spin: &mut Spin) -> Result<Vec<u64>, CliError> {
        let look = Work { atomic: AtomicOp::FetchAdd(0), ..*work };
        let mut words = Vec::new();
        let mut completions = Vec::with_capacity(BATCH);
        for (i, lane) in self.lanes.iter().enumerate() {
            for place in 0..work.places {
                let sges = self.message(work, self.source_at(i), place);
                lane.qp.post_send(&look.request(place, &sges, lane.remote, 0, true))?;
                spin.poll(&self.cq, 1, &mut completions)?;
                words.push(self.mr.buffer().load_u64(self.source_at(i) + work.offset(place))?);
            }
        }
        Ok(words)
    }

    fn signal_turns(&self) -> u64 {
        (self.shape.depth as u64 / 4).clamp(1, self.shape.cq_mod)
    }

    fn send_turn(&self, work: &Work, sges: &[Sge], queue: &mut Turns) -> Result<(), CliError> {
        let lane = &self.lanes[0];
        queue.sent += 1;
        queue.unsignaled += 1;
        let signaled = queue.unsignaled == queue.limit || queue.sent == queue.total;
        if signaled {
            queue.unsignaled = 0;
        }
        Ok(lane.qp.post_send(&work.request(queue.sent - 1, sges, lane.remote, queue.sent, signaled))?)
    }

    /// Waits until the last send has completed.
    fn drain(&self, queue: &Turns, spin: &mut Spin) -> Result<(), CliError> {
        let mut completions: Vec<Completion> = Vec::with_capacity(BATCH);
        let mut done = queue.done;
        while done < queue.total {
            spin.poll(&self.cq, BATCH, &mut completions)?;
            done = completions.iter().filter(|wc| wc.opcode != WcOpcode::Recv).fold(done, |_, wc| wc.wr_id);
        }
        Ok(())
    }
}

/// State of the send queue of a side that takes turns with its peer.
struct Turns {
    unsignaled: u64,
    limit: u64,
    sent: u64,
    done: u64,
    total: u64,
}

fn received(wc: &Completion, work: &Work) -> Result<(), CliError> {
    if wc.byte_len as usize == work.size {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "a message has {} bytes, not {}: give both sides the same size",
        wc.byte_len, work.size
    )))
}

/// Returns the data of a queue pair's messages, place after place. It differs between sizes, places and queue
/// pairs.
fn pattern(work: &Work, lane: usize) -> Vec<u8> {
    let byte =
        |i: usize| (i.wrapping_mul(31) ^ (i >> 8) ^ (i >> 16) ^ work.size ^ lane.wrapping_mul(59)) as u8;
    (0..work.extent()).map(byte).collect()
}

//! One end of a run: memory, queue pairs, and the loops that post work requests and poll completions.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::control::QpInfo;
use super::plan::{Measure, Params, Verb};
use crate::CliError;
use crate::spin::Spin;
use urxe::verbs::{
    Access, AtomicOp, Completion, ConnectOptions, Context, Cq, Endpoint, Gid, ListPolicy, Mr, Psn, Qp,
    QpOptions, Qpn, RKey, RecvCaps, RecvWr, RemoteAddr, SendCaps, SendFlags, SendWr, Sge, WcOpcode, WrOp,
};

/// Number of completions polled at once.
const BATCH: usize = 32;
/// Number of receives kept posted per queue pair in a SEND test.
const RECEIVES: usize = 512;
/// Bit of `wr_id` that marks a receive; the low 32 bits are the queue pair's index.
const RECV: u64 = 1 << 63;
/// Fill byte for memory where data will arrive.
const EMPTY: u8 = 0xa5;

/// A portion of the messages of one size. Between chunks, the client shows progress and may stop.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Bytes per message.
    pub size: usize,
    /// Number of messages per queue pair in earlier chunks.
    pub done: u64,
    /// Number of messages per queue pair in this chunk.
    pub messages: u64,
}

impl Chunk {
    /// Returns the number of receives that are posted on each queue pair before the first SEND.
    fn first_receives(&self) -> u64 {
        self.messages.min(RECEIVES as u64)
    }
}

/// A queue pair, and the peer's memory that it accesses.
struct PerfQp {
    qp: Qp,
    remote: RemoteAddr,
}

/// The queue pairs and the memory of one end of a run.
pub struct PerfEndpoint {
    context: Context,
    cq: Cq,
    /// Memory region with two slots per queue pair: first those that data is sent from or READ into, then
    /// those that the peer's SENDs, WRITEs, READs and atomics access.
    mr: Mr,
    slot: usize,
    qps: Vec<PerfQp>,
    pub params: Params,
}

impl PerfEndpoint {
    /// Creates the memory and the queue pairs, which are not yet connected.
    pub fn new(context: &Context, params: Params) -> Result<PerfEndpoint, CliError> {
        let slot = (params.max_size as usize).next_multiple_of(64);
        let receives = if params.verb == Verb::Send { RECEIVES } else { 0 };
        let (count, depth) = (params.qps as usize, params.depth as usize);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(count * (depth + receives) + 16)?;
        let mr = pd.reg_mr(2 * count * slot, Access::ALL)?;
        let options = QpOptions::default()
            .send(SendCaps { max_wr: params.depth, max_sge: 1, max_inline: 0 })
            .recv(RecvCaps { max_wr: receives as u32, max_sge: 1 });
        let create = |_| Ok(PerfQp { qp: pd.create_qp(&cq, &cq, &options)?, remote: RemoteAddr::default() });
        let qps = (0..count).map(create).collect::<Result<_, CliError>>()?;
        Ok(PerfEndpoint { context: context.clone(), cq, mr, slot, qps, params })
    }

    /// Returns the queue pair parameters that the peer needs.
    pub fn qp_infos(&self, gid: Gid) -> Vec<QpInfo> {
        let info = |(i, entry): (usize, &PerfQp)| {
            let (local, target) = (entry.qp.endpoint(), self.mr.remote(self.target_at(i)));
            let (qpn, psn, rkey) = (local.qpn.get(), local.psn.get(), target.rkey.0);
            QpInfo { gid: Ipv6Addr::from(gid.0), qpn, psn, va: target.va, rkey }
        };
        self.qps.iter().enumerate().map(info).collect()
    }

    /// Connects each queue pair to the peer's queue pair with the same index.
    pub fn connect(&mut self, peers: &[QpInfo], options: &ConnectOptions) -> Result<(), CliError> {
        let (got, expected) = (peers.len(), self.qps.len());
        if got != expected {
            return Err(CliError::Failed(format!("the peer has {got} queue pairs, this side {expected}")));
        }
        for (entry, peer) in self.qps.iter_mut().zip(peers) {
            let gid = Gid(peer.gid.octets());
            let to = Endpoint { gid, qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
            entry.qp.connect(&to, options)?;
            entry.remote = RemoteAddr { va: peer.va, rkey: RKey(peer.rkey) };
        }
        Ok(())
    }

    fn source_at(&self, index: usize) -> usize {
        index * self.slot
    }

    fn target_at(&self, index: usize) -> usize {
        (self.qps.len() + index) * self.slot
    }

    fn sges(&self, at: usize, size: usize) -> [Sge; 1] {
        [self.mr.sge(at..at + size)]
    }

    /// Initialises the memory for messages of `size` bytes: a pattern in the slots that data is sent or READ
    /// from, and `EMPTY` (for atomics: zeros) in the slots where data arrives.
    pub fn prepare(&self, size: usize) -> Result<(), CliError> {
        let empty = vec![if self.params.verb == Verb::Atomic { 0 } else { EMPTY }; size];
        for index in 0..self.qps.len() {
            let (mut from, mut to) = (self.source_at(index), self.target_at(index));
            if self.params.verb == Verb::Read {
                (from, to) = (to, from);
            }
            self.mr.write(from, &pattern(size, index))?;
            self.mr.write(to, &empty)?;
        }
        Ok(())
    }

    /// Checks the data that arrived on all queue pairs after `messages` messages of `size` bytes on each, and
    /// describes the first wrong byte, if any.
    pub fn check(&self, size: usize, messages: u64) -> Result<Option<String>, CliError> {
        let mut got = vec![0; size];
        for index in 0..self.qps.len() {
            let mut expected = pattern(size, index);
            match (self.params.verb, self.params.measure) {
                (Verb::Write, Measure::Lat) => expected[size - 1] = messages as u8,
                (Verb::Atomic, _) => expected = messages.to_ne_bytes().to_vec(),
                _ => {}
            }
            let is_read = self.params.verb == Verb::Read;
            self.mr.read(if is_read { self.source_at(index) } else { self.target_at(index) }, &mut got)?;
            if let Some(i) = (0..size).find(|i| got[*i] != expected[*i]) {
                return Ok(Some(format!(
                    "byte {i} of {size} on queue pair {index} is {:#04x}, expected {:#04x}",
                    got[i], expected[i]
                )));
            }
        }
        Ok(None)
    }

    /// Posts the first receives for a chunk of SENDs on each queue pair. Does nothing for other operations.
    pub fn post_receives(&self, chunk: &Chunk) -> Result<(), CliError> {
        if self.params.verb == Verb::Send {
            for index in 0..self.qps.len() {
                (0..chunk.first_receives()).try_for_each(|_| self.post_receive(chunk.size, index))?;
            }
        }
        Ok(())
    }

    fn post_receive(&self, size: usize, index: usize) -> Result<(), CliError> {
        let to = self.sges(self.target_at(index), size);
        Ok(self.qps[index].qp.post_recv(&RecvWr::new(RECV | index as u64, &to))?)
    }

    /// Performs the client's part of a chunk once both ends have posted their receives, and returns the time
    /// taken. Records latencies in `times`.
    pub fn run_client(
        &self,
        chunk: &Chunk,
        spin: &mut Spin<'_>,
        times: &mut Histogram<u64>,
    ) -> Result<Duration, CliError> {
        let begin = Instant::now();
        match self.params.measure {
            Measure::Bw => self.send_all(chunk, spin)?,
            Measure::Lat => self.take_turns(chunk, true, spin, Some(times))?,
        }
        Ok(begin.elapsed())
    }

    /// Performs the server's part of a chunk. Returns at once for one-sided operations, except for the WRITEs
    /// in a latency test, which both sides send.
    pub fn run_server(&self, chunk: &Chunk, spin: &mut Spin<'_>) -> Result<(), CliError> {
        match (self.params.measure, self.params.verb) {
            (Measure::Bw, Verb::Send) => self.receive_all(chunk, spin),
            (Measure::Lat, Verb::Send | Verb::Write) => self.take_turns(chunk, false, spin, None),
            _ => Ok(()),
        }
    }

    /// Returns the work request for one message.
    fn request<'a>(&self, entry: &PerfQp, sges: &'a [Sge], wr_id: u64, signaled: bool) -> SendWr<'a> {
        let RemoteAddr { va, rkey } = entry.remote;
        let op = match self.params.verb {
            Verb::Send => WrOp::Send,
            Verb::Write => WrOp::Write { va, rkey },
            Verb::Read => WrOp::Read { va, rkey },
            Verb::Atomic => WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) },
        };
        SendWr::new(wr_id, op, sges).flags(SendFlags { signaled, ..SendFlags::default() })
    }

    /// Sends a chunk of messages on each queue pair and waits for all of them to complete.
    fn send_all(&self, chunk: &Chunk, spin: &mut Spin<'_>) -> Result<(), CliError> {
        let (n, depth) = (chunk.messages, u64::from(self.params.depth));
        let interval = (depth / 2).clamp(1, self.params.cq_mod.into());
        let sges: Vec<[Sge; 1]> =
            (0..self.qps.len()).map(|index| self.sges(self.source_at(index), chunk.size)).collect();
        let (mut posted, mut done) = (vec![0u64; sges.len()], vec![0u64; sges.len()]);
        let mut list = Vec::with_capacity(interval as usize);
        let mut completions = Vec::with_capacity(BATCH);
        let mut remaining = sges.len();
        while remaining > 0 {
            for (i, entry) in self.qps.iter().enumerate() {
                while posted[i] < n && posted[i] - done[i] + interval <= depth {
                    let count = interval.min(n - posted[i]);
                    // The completion of the last message implies those of the others.
                    let id = (i as u64) << 32 | count;
                    list.clear();
                    list.extend((1..=count).map(|k| self.request(entry, &sges[i], id, k == count)));
                    entry.qp.post_send_list(&list, ListPolicy::UntilRejected)?;
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
        Ok(())
    }

    /// Receives a chunk of messages on each queue pair.
    fn receive_all(&self, chunk: &Chunk, spin: &mut Spin<'_>) -> Result<(), CliError> {
        let mut posted = vec![chunk.first_receives(); self.qps.len()];
        let mut remaining = chunk.messages * self.qps.len() as u64;
        let mut completions = Vec::with_capacity(BATCH);
        while remaining > 0 {
            spin.poll(&self.cq, BATCH, &mut completions)?;
            for wc in &completions {
                check_length(wc, chunk.size)?;
                remaining -= 1;
                let index = (wc.wr_id & !RECV) as usize;
                if posted[index] < chunk.messages {
                    self.post_receive(chunk.size, index)?;
                    posted[index] += 1;
                }
            }
        }
        Ok(())
    }

    /// Exchanges the messages of a chunk with the peer, in turns: SENDs or WRITEs of both sides, or READs or
    /// atomics and their responses. This side begins if `first` is set.
    fn take_turns(
        &self,
        chunk: &Chunk,
        first: bool,
        spin: &mut Spin<'_>,
        mut times: Option<&mut Histogram<u64>>,
    ) -> Result<(), CliError> {
        let (mut turns, mut posted) = (Turns::new(self, chunk), chunk.first_receives());
        for k in 1..=chunk.messages {
            let begin = Instant::now();
            if first {
                turns.send(k)?;
            }
            turns.receive(k, spin)?;
            if let Some(times) = &mut times {
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            if !first {
                turns.send(k)?;
            }
            match self.params.verb {
                Verb::Write => turns.poll_if_signaled(k, spin)?,
                Verb::Send if posted < chunk.messages => {
                    self.post_receive(chunk.size, 0)?;
                    posted += 1;
                }
                _ => {}
            }
        }
        turns.wait_for_completions(spin)
    }
}

/// Messages that the two sides send in turns on the first queue pair, or READs or atomics one at a time. The
/// last byte of a WRITE is the message number modulo 256; the receiver polls for it.
struct Turns<'a> {
    endpoint: &'a PerfEndpoint,
    chunk: &'a Chunk,
    sges: [Sge; 1],
    /// Number of messages from one signaled message to the next.
    interval: u64,
    /// Number of the last signaled message; `done` is the number of the last completed message.
    signaled: u64,
    done: u64,
    completions: Vec<Completion>,
}

impl Turns<'_> {
    fn new<'a>(endpoint: &'a PerfEndpoint, chunk: &'a Chunk) -> Turns<'a> {
        let sges = endpoint.sges(endpoint.source_at(0), chunk.size);
        let Params { depth, cq_mod, .. } = endpoint.params;
        let interval = u64::from(depth / 4).clamp(1, cq_mod.into());
        let completions = Vec::with_capacity(BATCH);
        Turns { endpoint, chunk, sges, interval, signaled: 0, done: 0, completions }
    }

    /// Returns the last byte of message `k` of the chunk, for a WRITE.
    fn marker(&self, k: u64) -> u8 {
        (self.chunk.done + k) as u8
    }

    fn is_write(&self) -> bool {
        self.endpoint.params.verb == Verb::Write
    }

    /// Posts message `k`.
    fn send(&mut self, k: u64) -> Result<(), CliError> {
        let endpoint = self.endpoint;
        if self.is_write() {
            let last = endpoint.source_at(0) + self.chunk.size - 1;
            endpoint.mr.write(last, &[self.marker(k)])?;
        }
        let is_due = k - self.signaled == self.interval || k == self.chunk.messages;
        let is_signaled = is_due || !endpoint.params.verb.is_pingpong();
        if is_signaled {
            self.signaled = k;
        }
        let entry = &endpoint.qps[0];
        Ok(entry.qp.post_send(&endpoint.request(entry, &self.sges, k, is_signaled))?)
    }

    /// Waits for message `k` from the peer, or for the response to it.
    fn receive(&mut self, k: u64, spin: &mut Spin<'_>) -> Result<(), CliError> {
        let (endpoint, size) = (self.endpoint, self.chunk.size);
        if self.is_write() {
            let (last, marker) = (endpoint.target_at(0) + size - 1, self.marker(k));
            let buffer = endpoint.mr.buffer();
            return spin.until(&endpoint.context, || buffer.load_u8(last) == Ok(marker));
        }
        loop {
            spin.poll(&endpoint.cq, 1, &mut self.completions)?;
            for wc in &self.completions {
                if wc.opcode == WcOpcode::Recv {
                    return check_length(wc, size);
                }
                self.done = wc.wr_id;
                if !endpoint.params.verb.is_pingpong() {
                    return Ok(());
                }
            }
        }
    }

    /// Polls the completions of WRITEs if message `k` was signaled.
    fn poll_if_signaled(&mut self, k: u64, spin: &mut Spin<'_>) -> Result<(), CliError> {
        if self.signaled == k {
            spin.try_poll(&self.endpoint.cq, BATCH, &mut self.completions)?;
            self.done = self.completions.last().map_or(self.done, |wc| wc.wr_id);
        }
        Ok(())
    }

    /// Waits for the last message to complete.
    fn wait_for_completions(&mut self, spin: &mut Spin<'_>) -> Result<(), CliError> {
        while self.done < self.chunk.messages {
            spin.poll(&self.endpoint.cq, BATCH, &mut self.completions)?;
            let sends = self.completions.iter().filter(|wc| wc.opcode != WcOpcode::Recv);
            self.done = sends.fold(self.done, |_, wc| wc.wr_id);
        }
        Ok(())
    }
}

fn check_length(wc: &Completion, size: usize) -> Result<(), CliError> {
    if wc.byte_len as usize == size {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "received message has {} bytes, expected {size}: use the same --size on both sides",
        wc.byte_len
    )))
}

/// Returns the message data of a queue pair, which differs between sizes and between queue pairs.
fn pattern(size: usize, index: usize) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_mul(31) ^ (i >> 8) ^ (i >> 16) ^ size ^ index.wrapping_mul(59)) as u8;
    (0..size).map(byte).collect()
}

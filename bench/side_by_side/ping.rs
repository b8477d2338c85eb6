//! Round trips of eight-byte messages, with busy polling at both ends.

use std::time::Instant;

use urxe::verbs::*;

use crate::Result;
use crate::control::Control;
use crate::job::{Job, LinkAddrs, Metrics, Op, Role};
use crate::nic::{self, ConnInfo, Nic};

/// Maximum number of warm-up rounds, of which there are no more than measured ones.
const WARM_UP: usize = 2000;
/// Number of polls after which a message counts as lost.
pub const MAX_POLLS: u64 = 1 << 26;
/// Percentiles to report.
pub const PERCENTILES: [(&str, f64); 11] = [
    ("p1", 1.0),
    ("p10", 10.0),
    ("p25", 25.0),
    ("p50", 50.0),
    ("p75", 75.0),
    ("p90", 90.0),
    ("p95", 95.0),
    ("p99", 99.0),
    ("p99.5", 99.5),
    ("p99.9", 99.9),
    ("p99.99", 99.99),
];

/// Measures round trips and returns percentiles of the half round-trip time, in nanoseconds. `round_trip` is
/// called with the round number, counting from 1.
pub fn time_round_trips(rounds: usize, mut round_trip: impl FnMut(u64) -> Result<()>) -> Result<Metrics> {
    let mut times = Vec::with_capacity(rounds);
    let warm_up = WARM_UP.min(rounds);
    for round in 1..=(warm_up + rounds) as u64 {
        let start = Instant::now();
        round_trip(round)?;
        let half = start.elapsed().as_nanos() as f64 / 2.0;
        if round > warm_up as u64 {
            times.push(half);
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |percent: f64| times[((times.len() as f64 * percent / 100.0) as usize).min(times.len() - 1)];
    Ok(PERCENTILES.iter().map(|(name, percent)| (name.to_string(), at(*percent))).collect())
}

/// One end of a ping-pong.
pub struct PingPongEnd<'a> {
    nic: &'a Nic,
    remote: RemoteAddr,
    op: Op,
    completions: Vec<Completion>,
}

impl<'a> PingPongEnd<'a> {
    pub fn new(nic: &'a Nic, peer: &ConnInfo, op: Op) -> Result<PingPongEnd<'a>> {
        let end = PingPongEnd { nic, remote: peer.remote(), op, completions: Vec::with_capacity(64) };
        nic.mr.buffer().store_u64(0, 0)?;
        if op == Op::Send {
            (0..64).try_for_each(|_| end.post_recv())?;
        }
        Ok(end)
    }

    fn post_recv(&self) -> Result<()> {
        let sges = [self.nic.mr.sge(0..8)];
        Ok(self.nic.qps[0].post_recv(&RecvWr::new(0, &sges))?)
    }

    pub fn send(&mut self, round: u64) -> Result<()> {
        let (bytes, wr_id) = (round.to_ne_bytes(), round);
        let wr = match self.op {
            Op::Send => SendWr::send(wr_id, &[]),
            _ => SendWr::write(wr_id, &[], self.remote),
        };
        let flags = SendFlags { signaled: round.is_multiple_of(64), ..SendFlags::default() };
        Ok(self.nic.qps[0].post_send(&wr.inline(&bytes).flags(flags))?)
    }

    /// Polls once and reports whether the other end's message of this round has arrived.
    pub fn poll_received(&mut self, round: u64) -> Result<bool> {
        let memory = self.nic.mr.buffer();
        if self.op == Op::Send {
            self.nic.poll_successful(&mut self.completions)?;
            let received = self.completions.iter().filter(|c| c.opcode == WcOpcode::Recv).count();
            (0..received).try_for_each(|_| self.post_recv())?;
            return Ok(received > 0);
        }
        if memory.load_u64(0)? == round {
            return Ok(true);
        }
        self.nic.context.poll();
        Ok(false)
    }

    /// Polls pending completions at the end of a round.
    pub fn poll_completions(&mut self) -> Result<()> {
        match self.op {
            // Polling here could consume the completion of a receive.
            Op::Send => Ok(()),
            _ => self.nic.poll_successful(&mut self.completions),
        }
    }

    fn timeout_error(&self, round: u64) -> Result<()> {
        Err(format!("round {round}: no message after {MAX_POLLS} polls: {}", self.nic.nonzero_counters())
            .into())
    }
}

/// Runs one end of a ping-pong between two processes.
pub fn run(job: &Job, control: &Control, link: &LinkAddrs, op: Op, rounds: usize) -> Result<Metrics> {
    let context = nic::open(link, job.role, None, &ContextOptions::default())?;
    let nic = Nic::new(context, QpType::Rc, 1, 4096, Access::ALL)?;
    let peer: ConnInfo = control.exchange(&nic.conn_info())?;
    nic.connect(&peer, 1024)?;
    let mut end = PingPongEnd::new(&nic, &peer, op)?;
    control.start()?;
    match job.role {
        Role::Active => time_round_trips(rounds, |round| {
            end.send(round)?;
            end.poll_completions()?;
            for _ in 0..MAX_POLLS {
                if end.poll_received(round)? {
                    return Ok(());
                }
            }
            end.timeout_error(round)
        }),
        Role::Passive => {
            let mut round = 1;
            while !control.is_stopped() {
                if end.poll_received(round)? {
                    end.send(round)?;
                    end.poll_completions()?;
                    round += 1;
                }
            }
            Ok(Metrics::new())
        }
    }
}

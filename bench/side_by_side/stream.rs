//! Sender and receiver of a stream of messages of one type and size.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use urxe::verbs::*;

use crate::Result;
use crate::control::Control;
use crate::job::{Job, LinkAddrs, Metrics, Op, Role, Stream};
use crate::nic::{self, ConnInfo, Nic, QKEY};
use crate::progress::{Meter, Progress, SendWindow};

/// Number of receives that the receiver keeps posted.
const RECV_DEPTH: usize = 1000;
/// Length in bytes of the GRH that precedes a received datagram's data.
const GRH: usize = 40;
/// Maximum lead of a datagram sender over the receiver's count, in bytes.
const MAX_AHEAD: usize = 1 << 20;

fn qp_type(op: Op) -> QpType {
    match op {
        Op::Write | Op::Read | Op::Send => QpType::Rc,
        Op::Datagram => QpType::Ud,
    }
}

/// Creates a NIC for a stream, with memory for one message.
pub fn nic(context: Context, s: &Stream) -> Result<Nic> {
    let region = MrOptions::new(Access::ALL).shareable(s.shareable);
    Nic::new(context, qp_type(s.op), s.qps, s.size + GRH, region)
}

pub fn context_options(s: &Stream) -> ContextOptions {
    let personality = if s.equal_packets { Personality::THROUGHPUT } else { Personality::DEFAULT };
    ContextOptions::default().elide_icrcs(!s.always_icrc).personality(personality)
}

pub fn connect(nic: &Nic, peer: &ConnInfo, s: &Stream) -> Result<()> {
    match s.op {
        Op::Datagram => Ok(nic.qps[0].activate(QKEY)?),
        _ => nic.connect(peer, s.mtu),
    }
}

/// Runs one end of a stream between two processes.
pub fn run(job: &Job, control: &Control, link: &LinkAddrs, s: &Stream) -> Result<Metrics> {
    let progress = Progress::map(&job.progress)?;
    let nic = nic(nic::open(link, job.role, s.loss, &context_options(s))?, s)?;
    let peer = control.exchange(&nic.conn_info())?;
    connect(&nic, &peer, s)?;
    let mut metrics = Metrics::new();
    match job.role {
        Role::Active => {
            control.start()?;
            metrics = send(&nic, &peer, s, job.seconds, || Ok(progress.get()))?;
        }
        Role::Passive if matches!(s.op, Op::Send | Op::Datagram) => {
            let mut receiver = Receiver::new(&nic)?;
            control.start()?;
            while !control.is_stopped() {
                match receiver.poll()? {
                    0 => thread::yield_now(),
                    n => progress.add(n),
                }
            }
        }
        Role::Passive => {
            control.start()?;
            while s.polled && !control.is_stopped() {
                nic.context.poll();
            }
            control.wait_until_stopped();
        }
    }
    metrics.extend(nic.error_counters(job.role));
    Ok(metrics)
}

/// Receiver of SENDs, which keeps `RECV_DEPTH` receives posted.
pub struct Receiver<'a> {
    nic: &'a Nic,
    completions: Vec<Completion>,
}

impl<'a> Receiver<'a> {
    pub fn new(nic: &'a Nic) -> Result<Receiver<'a>> {
        let receiver = Receiver { nic, completions: Vec::with_capacity(64) };
        (0..RECV_DEPTH).try_for_each(|_| receiver.post())?;
        Ok(receiver)
    }

    fn post(&self) -> Result<()> {
        let sges = [self.nic.mr.sge(0..self.nic.mr.len())];
        Ok(self.nic.qps[0].post_recv(&RecvWr::new(0, &sges))?)
    }

    /// Polls for received messages, reposts their receives, and returns the number of messages.
    pub fn poll(&mut self) -> Result<u64> {
        self.nic.poll_successful(&mut self.completions)?;
        (0..self.completions.len()).try_for_each(|_| self.post())?;
        Ok(self.completions.len() as u64)
    }
}

/// Keeps messages in flight, and measures the rate at which messages complete or, for datagrams, arrive.
/// `arrived` returns the number of messages that have arrived so far. It is called often, so it may also run
/// a receiver.
pub fn send(
    nic: &Nic,
    peer: &ConnInfo,
    s: &Stream,
    seconds: f64,
    mut arrived: impl FnMut() -> Result<u64>,
) -> Result<Metrics> {
    let sges = [nic.mr.sge(0..s.size)];
    let to = (s.op == Op::Datagram).then(|| nic.destination(peer)).transpose()?;
    let list = |qp: usize| -> Vec<SendWr<'_>> {
        let wr = |i| {
            let wr = match s.op {
                Op::Write => SendWr::write(qp as u64, &sges, peer.remote()),
                Op::Read => SendWr::read(qp as u64, &sges, peer.remote()),
                Op::Send | Op::Datagram => SendWr::send(qp as u64, &sges),
            };
            let signaled = i + 1 == s.list;
            wr.flags(SendFlags { signaled, ..SendFlags::default() }).to(to)
        };
        (0..s.list).map(wr).collect()
    };
    let lists: Vec<_> = (0..s.qps).map(list).collect();
    // One entry for each list that may be posted: the index of its queue pair.
    let slots = s.in_flight / s.list;
    let mut free_slots: VecDeque<usize> = (0..slots).map(|i| i % s.qps).collect();
    let mut send_window = SendWindow::new((MAX_AHEAD / s.size).min(RECV_DEPTH / 2) as u64);
    let (mut meter, mut done, mut completions) = (Meter::start(seconds), 0, Vec::with_capacity(64));
    let mut stopped_at = None;
    loop {
        let count = arrived()?;
        let may_send = to.is_none() || send_window.may_send(count);
        match free_slots.front() {
            Some(qp) if may_send && stopped_at.is_none() => {
                nic.qps[*qp].post_send_list(&lists[*qp], ListPolicy::UntilRejected)?;
                free_slots.pop_front();
                send_window.record_sent(s.list as u64);
            }
            _ => {
                nic.poll_successful(&mut completions)?;
                done += (completions.len() * s.list) as u64;
                free_slots.extend(completions.iter().map(|c| c.wr_id as usize));
                if completions.is_empty() {
                    // If the two ends share a core, the other end has to run now.
                    thread::yield_now();
                }
            }
        }
        if stopped_at.is_none() && !meter.record(if to.is_some() { count } else { done }) {
            stopped_at = Some(Instant::now());
        }
        if let Some(since) = stopped_at {
            if free_slots.len() == slots {
                break;
            }
            if since.elapsed() > Duration::from_secs(10) {
                return Err(format!(
                    "posted work requests did not complete within 10 s: {}",
                    nic.nonzero_counters()
                )
                .into());
            }
        }
    }
    let messages = meter.rate().map_err(|e| format!("{e}: {}", nic.nonzero_counters()))?;
    let mut metrics = Metrics::from([
        ("Gb/s".into(), messages * s.size as f64 * 8.0 / 1e9),
        ("M/s".into(), messages / 1e6),
    ]);
    if to.is_some() {
        metrics.insert("lost".into(), send_window.lost_share());
    }
    Ok(metrics)
}

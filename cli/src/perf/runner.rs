//! Client and server of a run between two `urxe perf`; the client determines its parameters.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::control::{Control, Message, QpInfo, VERSION, unexpected};
use super::plan::{Amount, Chunks, MAX_SIZE, Measure, Verb};
use super::report::{Outcome, Report, histogram};
use super::side::{Shape, Side, Work};
use crate::CliError;
use crate::interrupt::Interrupt;
use crate::link::LinkArgs;
use crate::spin::Spin;
use urxe::verbs::{Access, ConnectOptions, Context, Endpoint, Gid, Mtu, Psn, Qpn, RKey, RemoteAddr};

/// Number of receives kept posted in a run of SENDs.
const RECEIVES: usize = 512;
/// Largest number of queue pairs that a server accepts; `MAX_MEMORY` limits their memory in bytes.
const MAX_QPS: usize = 1024;
const MAX_MEMORY: usize = 8 << 30;

/// Parameters of a run, as the client requests it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Operation to measure.
    pub verb: Verb,
    /// Bandwidth or latency.
    pub measure: Measure,
    /// Message sizes in bytes.
    pub sizes: Vec<u32>,
    /// Amount of work for each size.
    pub amount: Amount,
    /// Number of queue pairs.
    pub qps: usize,
    /// Work requests in flight per queue pair.
    pub depth: usize,
    /// Largest number of messages per completion.
    pub cq_mod: u32,
    /// Whether the results are printed as JSON.
    pub json: bool,
}

/// Client or server of a run.
pub struct Runner<'a> {
    /// The NIC.
    pub context: &'a Context,
    /// Options that the NIC was opened with.
    pub link: &'a LinkArgs,
    /// Options that the queue pairs are connected with.
    pub connect: ConnectOptions,
    /// Flag that Ctrl-C sets.
    pub interrupt: &'a Interrupt,
    /// Timeout while waiting for the peer.
    pub timeout: Duration,
}

impl Runner<'_> {
    fn side(
        &self,
        verb: Verb,
        max_size: u32,
        qps: usize,
        depth: usize,
        cq_mod: u32,
    ) -> Result<Side, CliError> {
        let (slot, access) = ((max_size as usize).max(64), Access::ALL);
        let receives = if verb == Verb::Send { RECEIVES } else { 0 };
        let shape = Shape { qps, slot, depth, cq_mod: cq_mod.into(), receives, access };
        Side::new(self.context, shape)
    }

    fn qp_infos(&self, side: &Side, gid: Gid) -> Vec<QpInfo> {
        let info = |(i, entry): (usize, &super::side::PerfQp)| {
            let (endpoint, target) = (entry.qp.endpoint(), side.target(i));
            QpInfo {
                gid: Ipv6Addr::from(gid.0),
                qpn: endpoint.qpn.get(),
                psn: endpoint.psn.get(),
                va: target.va,
                rkey: target.rkey.0,
            }
        };
        side.qps.iter().enumerate().map(info).collect()
    }

    fn connect(&self, side: &mut Side, peers: &[QpInfo], sgid: u8, mtu: Mtu) -> Result<(), CliError> {
        if peers.len() != side.qps.len() {
            let (got, expected) = (peers.len(), side.qps.len());
            return Err(CliError::Failed(format!("the peer has {got} queue pairs, this side {expected}")));
        }
        let options = ConnectOptions { sgid_index: Some(sgid), mtu: Some(mtu), ..self.connect };
        for (entry, peer) in side.qps.iter_mut().zip(peers) {
            let gid = Gid(peer.gid.octets());
            let to = Endpoint { gid, qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
            entry.qp.connect(&to, &options)?;
            entry.remote = RemoteAddr { va: peer.va, rkey: RKey(peer.rkey) };
        }
        Ok(())
    }

    fn own_mtu(&self) -> Mtu {
        self.link.mtu.unwrap_or(self.context.query_port().active_mtu)
    }

    fn spin(&self) -> Spin {
        Spin::new(self.interrupt, self.timeout)
    }

    /// Runs the client.
    pub fn client(&self, control: &mut Control, plan: &Plan) -> Result<(), CliError> {
        let Plan { verb, measure, .. } = *plan;
        let max_size = plan.sizes.iter().copied().max().unwrap_or(1);
        let mut side = self.side(verb, max_size, plan.qps, plan.depth, plan.cq_mod)?;
        let (sgid, gid) = self.link.gid_for(self.context, None)?;
        control.send(&Message::Hello {
            version: VERSION,
            verb,
            measure,
            max_size,
            depth: plan.depth as u32,
            cq_mod: plan.cq_mod,
            mtu: self.own_mtu().bytes() as u32,
            qps: self.qp_infos(&side, gid),
        })?;
        let (mtu, peers) = match control.recv()? {
            Message::Accepted { mtu, qps } => (checked_mtu(mtu)?, qps),
            other => return Err(unexpected(&other)),
        };
        self.connect(&mut side, &peers, sgid, mtu)?;
        let name = &self.context.link_info().name;
        let mut report = Report::new(plan.json, verb, measure, name, plan.qps, mtu.bytes());
        for &size in &plan.sizes {
            if self.interrupt.is_set() {
                break;
            }
            match self.measure_size(control, plan, &side, size, &mut report) {
                Ok(outcome) => report.add(outcome),
                Err(e) => {
                    if self.interrupt.is_set() {
                        report.finish(self.link.fault_report());
                        // Ctrl-C may have ended the peer first, which then made this side fail.
                        return Err(CliError::Failed("interrupted during the measurement".into()));
                    }
                    return Err(e);
                }
            }
        }
        report.finish(self.link.fault_report());
        control.send(&Message::Finished)
    }

    /// Measures one message size, chunk by chunk.
    fn measure_size(
        &self,
        control: &mut Control,
        plan: &Plan,
        side: &Side,
        size: u32,
        report: &mut Report,
    ) -> Result<Outcome, CliError> {
        let work = Work::new(plan.verb, size as usize);
        let first = match plan.measure {
            Measure::Bw => (64 << 20) / u64::from(size).max(4096) / plan.qps as u64,
            Measure::Lat => (16 << 20) / u64::from(size).max(4096),
        };
        let mut chunks = Chunks::new(plan.amount, first.max(16));
        let (mut times, mut spin) = (histogram(), self.spin());
        let outcome = |chunks: &Chunks, times: &_| match plan.measure {
            Measure::Bw => Outcome::bandwidth(size, chunks.done() * plan.qps as u64, chunks.spent()),
            Measure::Lat => {
                Outcome::latency(size, times, chunks.spent(), if plan.verb.is_pingpong() { 2.0 } else { 1.0 })
            }
        };
        while let Some(n) = chunks.next().filter(|_| !self.interrupt.is_set() || chunks.done() == 0) {
            let fresh = chunks.done() == 0;
            if fresh {
                side.prepare(&work)?;
            }
            let is_send_latency = plan.measure == Measure::Lat && plan.verb == Verb::Send;
            let posted = if is_send_latency { side.post_receives(&work, n)? } else { 0 };
            control.send(&Message::Run { size, messages: n, fresh })?;
            match control.recv()? {
                Message::Ready => {}
                other => return Err(unexpected(&other)),
            }
            let begin = std::time::Instant::now();
            let elapsed = match (plan.measure, plan.verb) {
                (Measure::Bw, _) => side.send_all(&work, n, &mut spin),
                (Measure::Lat, Verb::Send) => side
                    .pingpong_send(&work, n, true, posted, &mut spin, Some(&mut times))
                    .map(|()| begin.elapsed()),
                (Measure::Lat, Verb::Write) => side
                    .pingpong_write(&work, chunks.done(), n, true, &mut spin, Some(&mut times))
                    .map(|()| begin.elapsed()),
                (Measure::Lat, Verb::Read | Verb::Atomic) => {
                    side.measure_round_trips(&work, n, &mut spin, &mut times).map(|()| begin.elapsed())
                }
            };
            if elapsed.is_err() && self.interrupt.is_set() && chunks.done() > 0 {
                report.add(outcome(&chunks, &times));
            }
            chunks.record(n, elapsed?);
            control.send(&Message::End)?;
            report.progress(size, chunks.fraction(), chunks.spent());
        }
        self.check(control, plan, side, &work, chunks.done())?;
        Ok(outcome(&chunks, &times))
    }

    /// Makes both sides check the data that arrived.
    fn check(
        &self,
        control: &mut Control,
        plan: &Plan,
        side: &Side,
        work: &Work,
        messages: u64,
    ) -> Result<(), CliError> {
        control.send(&Message::Check { size: work.size as u32, messages })?;
        let peer_mismatch = match control.recv()? {
            Message::Checked { mismatch } => mismatch,
            other => return Err(unexpected(&other)),
        };
        let is_latency = plan.measure == Measure::Lat;
        let own_mismatch = match plan.verb {
            Verb::Read => side.check(work, messages, false)?,
            Verb::Send | Verb::Write if is_latency => side.check(work, messages, true)?,
            _ => None,
        };
        match (own_mismatch, peer_mismatch) {
            (None, None) => Ok(()),
            (Some(m), _) => Err(CliError::Failed(format!("data mismatch at this side: {m}"))),
            (None, Some(m)) => Err(CliError::Failed(format!("data mismatch at the peer: {m}"))),
        }
    }

    /// Runs the server.
    pub fn server(&self, control: &mut Control) -> Result<(), CliError> {
        let Message::Hello { version, verb, measure, max_size, depth, cq_mod, mtu, qps } = control.recv()?
        else {
            return Err(CliError::Failed("the first message of the peer is not a hello".into()));
        };
        let result = self.accept(version, verb, max_size, (depth, cq_mod), mtu, &qps);
        let (side, reply) = match result {
            Ok(accepted) => accepted,
            Err(e) => {
                // The client may have disconnected already: the error is returned in any case.
                let _ = control.send(&Message::Rejected { reason: e.to_string() });
                return Err(e);
            }
        };
        control.send(&reply)?;
        let mut spin = self.spin();
        let mut done = 0;
        loop {
            match control.recv_without_timeout()? {
                Message::Run { size, messages: n, fresh } if (1..=max_size).contains(&size) => {
                    let work = Work::new(verb, size as usize);
                    if fresh {
                        side.prepare(&work)?;
                        done = 0;
                    }
                    let posted = if verb == Verb::Send { side.post_receives(&work, n)? } else { 0 };
                    control.send(&Message::Ready)?;
                    match (verb, measure) {
                        (Verb::Send, Measure::Bw) => side.receive_all(&work, n, posted, &mut spin)?,
                        (Verb::Send, Measure::Lat) => {
                            side.pingpong_send(&work, n, false, posted, &mut spin, None)?;
                        }
                        (Verb::Write, Measure::Lat) => {
                            side.pingpong_write(&work, done, n, false, &mut spin, None)?;
                        }
                        _ => {}
                    }
                    done += n;
                }
                Message::End => {}
                Message::Check { size, messages } if (1..=max_size).contains(&size) => {
                    let work = Work::new(verb, size as usize);
                    let mismatch = match verb {
                        Verb::Read => None,
                        _ => side.check(&work, messages, measure == Measure::Lat)?,
                    };
                    control.send(&Message::Checked { mismatch })?;
                }
                Message::Finished => return Ok(()),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Checks the client's request, and creates and connects the queue pairs.
    fn accept(
        &self,
        version: u32,
        verb: Verb,
        max_size: u32,
        (depth, cq_mod): (u32, u32),
        mtu: u32,
        peers: &[QpInfo],
    ) -> Result<(Side, Message), CliError> {
        if version != VERSION {
            return Err(CliError::Failed(format!(
                "protocol version {version} of the client differs from {VERSION} of the server: use the same \
                 urxe on both sides"
            )));
        }
        let Some(peer) = peers.first().filter(|_| peers.len() <= MAX_QPS) else {
            return Err(CliError::Failed(format!(
                "invalid number of queue pairs {}: the server accepts 1 to {MAX_QPS}",
                peers.len()
            )));
        };
        let memory = (max_size as usize).saturating_mul(2 * peers.len());
        if !(1..=MAX_SIZE).contains(&max_size) || memory > MAX_MEMORY || !(1..=32_768).contains(&depth) {
            return Err(CliError::Failed(format!(
                "{} queue pairs of depth {depth} with {max_size} bytes each exceed the limits of the server",
                peers.len()
            )));
        }
        let (sgid, gid) = self.link.gid_for(self.context, Some(Gid(peer.gid.octets()).ip()))?;
        let mtu = checked_mtu(mtu)?.min(self.own_mtu());
        let mut side = self.side(verb, max_size, peers.len(), depth as usize, cq_mod.max(1))?;
        self.connect(&mut side, peers, sgid, mtu)?;
        let qps = self.qp_infos(&side, gid);
        Ok((side, Message::Accepted { mtu: mtu.bytes() as u32, qps }))
    }
}

fn checked_mtu(bytes: u32) -> Result<Mtu, CliError> {
    Mtu::from_bytes(bytes as usize)
        .ok_or_else(|| CliError::Failed(format!("invalid path MTU {bytes} from the peer")))
}

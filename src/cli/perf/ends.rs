//! Both ends of a run between two `urxe perf`; the client determines its parameters.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::control::{Control, Lane, Message, VERSION, unexpected};
use super::plan::{Amount, MAX_SIZE, Measure, Pieces, Verb};
use super::report::{Outcome, Report, histogram};
use super::side::{Shape, Side, Work};
use crate::cli::CliError;
use crate::cli::interrupt::Interrupt;
use crate::cli::link::LinkArgs;
use crate::cli::spin::Spin;
use crate::verbs::{Access, ConnectOptions, Context, Endpoint, Gid, Mtu, Psn, Qpn, RKey, RemoteAddr};

/// Number of receives kept posted in a run of SENDs.
const RECEIVES: usize = 512;
/// Largest number of queue pairs that a server grants; `MAX_MEMORY` limits their memory in bytes.
const MAX_LANES: usize = 1024;
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

/// Environment of either end of a run.
pub struct End<'a> {
    /// The NIC.
    pub context: &'a Context,
    /// Options that the NIC was opened with.
    pub link: &'a LinkArgs,
    /// Options that the queue pairs are connected with.
    pub connect: ConnectOptions,
    /// Flag that Ctrl-C sets.
    pub interrupt: &'a Interrupt,
    /// Longest time that the peer may be silent.
    pub patience: Duration,
}

impl End<'_> {
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

    fn lanes(&self, side: &Side, gid: Gid) -> Vec<Lane> {
        let lane = |(i, lane): (usize, &super::side::Lane)| {
            let (own, target) = (lane.qp.endpoint(), side.target(i));
            Lane {
                gid: Ipv6Addr::from(gid.0),
                qpn: own.qpn.get(),
                psn: own.psn.get(),
                va: target.va,
                rkey: target.rkey.0,
            }
        };
        side.lanes.iter().enumerate().map(lane).collect()
    }

    fn connect(&self, side: &mut Side, peers: &[Lane], sgid: u8, mtu: Mtu) -> Result<(), CliError> {
        if peers.len() != side.lanes.len() {
            let (got, want) = (peers.len(), side.lanes.len());
            return Err(CliError::Failed(format!("the peer has {got} queue pairs, this side {want}")));
        }
        let options = ConnectOptions { sgid_index: Some(sgid), mtu: Some(mtu), ..self.connect };
        for (lane, peer) in side.lanes.iter_mut().zip(peers) {
            let gid = Gid(peer.gid.octets());
            let to = Endpoint { gid, qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
            lane.qp.connect(&to, &options)?;
            lane.remote = RemoteAddr { va: peer.va, rkey: RKey(peer.rkey) };
        }
        Ok(())
    }

    fn own_mtu(&self) -> Mtu {
        self.link.mtu.unwrap_or(self.context.query_port().active_mtu)
    }

    fn spin(&self) -> Spin {
        Spin::new(self.interrupt, self.patience)
    }

    /// Runs the client's end.
    pub fn client(&self, control: &mut Control, plan: &Plan) -> Result<(), CliError> {
        let Plan { verb, measure, .. } = *plan;
        let max_size = plan.sizes.iter().copied().max().unwrap_or(1);
        let mut side = self.side(verb, max_size, plan.qps, plan.depth, plan.cq_mod)?;
        let (sgid, gid) = self.link.gid_for(self.context, None)?;
        control.say(&Message::Hello {
            version: VERSION,
            verb,
            measure,
            max_size,
            depth: plan.depth as u32,
            cq_mod: plan.cq_mod,
            mtu: self.own_mtu().bytes() as u32,
            lanes: self.lanes(&side, gid),
        })?;
        let (mtu, lanes) = match control.hear()? {
            Message::Welcome { mtu, lanes } => (checked_mtu(mtu)?, lanes),
            other => return Err(unexpected(&other)),
        };
        self.connect(&mut side, &lanes, sgid, mtu)?;
        let name = &self.context.link_info().name;
        let mut report = Report::new(plan.json, verb, measure, name, plan.qps, mtu.bytes());
        for &size in &plan.sizes {
            if self.interrupt.is_set() {
                break;
            }
            match self.size(control, plan, &side, size, &mut report) {
                Ok(outcome) => report.add(outcome),
                Err(e) => {
                    if self.interrupt.is_set() {
                        report.finish(self.link.fault_report());
                        // Ctrl-C may have ended the peer first, which then made this side fail.
                        return Err(CliError::Failed("interrupted in the middle of a run".into()));
                    }
                    return Err(e);
                }
            }
        }
        report.finish(self.link.fault_report());
        control.say(&Message::Bye)
    }

    /// Measures one message size, piece by piece.
    fn size(
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
        let mut pieces = Pieces::new(plan.amount, first.max(16));
        let (mut times, mut spin) = (histogram(), self.spin());
        let outcome = |pieces: &Pieces, times: &_| match plan.measure {
            Measure::Bw => Outcome::bandwidth(size, pieces.done() * plan.qps as u64, pieces.spent()),
            Measure::Lat => {
                Outcome::latency(size, times, pieces.spent(), if plan.verb.has_turns() { 2.0 } else { 1.0 })
            }
        };
        while let Some(n) = pieces.next().filter(|_| !self.interrupt.is_set() || pieces.done() == 0) {
            let fresh = pieces.done() == 0;
            if fresh {
                side.prepare(&work)?;
            }
            let turns = plan.measure == Measure::Lat && plan.verb == Verb::Send;
            let posted = if turns { side.post_receives(&work, n)? } else { 0 };
            control.say(&Message::Run { size, messages: n, fresh })?;
            match control.hear()? {
                Message::Ready => {}
                other => return Err(unexpected(&other)),
            }
            let begin = std::time::Instant::now();
            let took = match (plan.measure, plan.verb) {
                (Measure::Bw, _) => side.flood(&work, n, &mut spin),
                (Measure::Lat, Verb::Send) => side
                    .send_turns(&work, n, true, posted, &mut spin, Some(&mut times))
                    .map(|()| begin.elapsed()),
                (Measure::Lat, Verb::Write) => side
                    .write_turns(&work, pieces.done(), n, true, &mut spin, Some(&mut times))
                    .map(|()| begin.elapsed()),
                (Measure::Lat, Verb::Read | Verb::Atomic) => {
                    side.probe(&work, n, &mut spin, &mut times).map(|()| begin.elapsed())
                }
            };
            if took.is_err() && self.interrupt.is_set() && pieces.done() > 0 {
                report.add(outcome(&pieces, &times));
            }
            pieces.did(n, took?);
            control.say(&Message::End)?;
            report.progress(size, pieces.share(), pieces.spent());
        }
        self.check(control, plan, side, &work, pieces.done())?;
        Ok(outcome(&pieces, &times))
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
        control.say(&Message::Check { size: work.size as u32, messages })?;
        let theirs = match control.hear()? {
            Message::Checked { wrong } => wrong,
            other => return Err(unexpected(&other)),
        };
        let turns = plan.measure == Measure::Lat;
        let ours = match plan.verb {
            Verb::Read => side.check(work, messages, false)?,
            Verb::Send | Verb::Write if turns => side.check(work, messages, true)?,
            _ => None,
        };
        match (ours, theirs) {
            (None, None) => Ok(()),
            (Some(wrong), _) => Err(CliError::Failed(format!("wrong data arrived here: {wrong}"))),
            (None, Some(wrong)) => Err(CliError::Failed(format!("wrong data arrived at the peer: {wrong}"))),
        }
    }

    /// Runs the server's end.
    pub fn server(&self, control: &mut Control) -> Result<(), CliError> {
        let Message::Hello { version, verb, measure, max_size, depth, cq_mod, mtu, lanes } =
            control.hear()?
        else {
            return Err(CliError::Failed("the peer did not begin with what it wants".into()));
        };
        let served = self.welcome(version, verb, max_size, (depth, cq_mod), mtu, &lanes);
        let (side, welcome) = match served {
            Ok(served) => served,
            Err(e) => {
                // The client may be gone already: the error is returned in any case.
                let _ = control.say(&Message::Refused { why: e.to_string() });
                return Err(e);
            }
        };
        control.say(&welcome)?;
        let mut spin = self.spin();
        let mut done = 0;
        loop {
            match control.hear_whenever()? {
                Message::Run { size, messages: n, fresh } if (1..=max_size).contains(&size) => {
                    let work = Work::new(verb, size as usize);
                    if fresh {
                        side.prepare(&work)?;
                        done = 0;
                    }
                    let posted = if verb == Verb::Send { side.post_receives(&work, n)? } else { 0 };
                    control.say(&Message::Ready)?;
                    match (verb, measure) {
                        (Verb::Send, Measure::Bw) => side.absorb(&work, n, posted, &mut spin)?,
                        (Verb::Send, Measure::Lat) => {
                            side.send_turns(&work, n, false, posted, &mut spin, None)?;
                        }
                        (Verb::Write, Measure::Lat) => {
                            side.write_turns(&work, done, n, false, &mut spin, None)?;
                        }
                        _ => {}
                    }
                    done += n;
                }
                Message::End => {}
                Message::Check { size, messages } if (1..=max_size).contains(&size) => {
                    let work = Work::new(verb, size as usize);
                    let wrong = match verb {
                        Verb::Read => None,
                        _ => side.check(&work, messages, measure == Measure::Lat)?,
                    };
                    control.say(&Message::Checked { wrong })?;
                }
                Message::Bye => return Ok(()),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Checks the client's request, and creates and connects the queue pairs.
    fn welcome(
        &self,
        version: u32,
        verb: Verb,
        max_size: u32,
        (depth, cq_mod): (u32, u32),
        mtu: u32,
        lanes: &[Lane],
    ) -> Result<(Side, Message), CliError> {
        if version != VERSION {
            return Err(CliError::Failed(format!(
                "the client speaks version {version} of this exchange, the server {VERSION}: use the same urxe on both sides"
            )));
        }
        let Some(peer) = lanes.first().filter(|_| lanes.len() <= MAX_LANES) else {
            return Err(CliError::Failed(format!(
                "1 to {MAX_LANES} queue pairs are possible, not {}",
                lanes.len()
            )));
        };
        let memory = (max_size as usize).saturating_mul(2 * lanes.len());
        if !(1..=MAX_SIZE).contains(&max_size) || memory > MAX_MEMORY || !(1..=32_768).contains(&depth) {
            return Err(CliError::Failed(format!(
                "{} queue pairs of depth {depth} with {max_size} bytes each are more than a server gives",
                lanes.len()
            )));
        }
        let (sgid, gid) = self.link.gid_for(self.context, Some(Gid(peer.gid.octets()).ip()))?;
        let mtu = checked_mtu(mtu)?.min(self.own_mtu());
        let mut side = self.side(verb, max_size, lanes.len(), depth as usize, cq_mod.max(1))?;
        self.connect(&mut side, lanes, sgid, mtu)?;
        let lanes = self.lanes(&side, gid);
        Ok((side, Message::Welcome { mtu: mtu.bytes() as u32, lanes }))
    }
}

fn checked_mtu(bytes: u32) -> Result<Mtu, CliError> {
    Mtu::from_bytes(bytes as usize)
        .ok_or_else(|| CliError::Failed(format!("the peer said path MTU {bytes}, and there is no such")))
}

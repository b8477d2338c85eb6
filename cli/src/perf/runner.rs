//! Client and server of a run. The client chooses the parameters.

use std::time::Duration;

use super::control::{Control, Message, QpInfo, VERSION, unexpected};
use super::endpoint::{Chunk, PerfEndpoint};
use super::plan::{Amount, Chunks, MAX_SIZE, Measure, Params, Verb};
use super::report::{Outcome, Report, histogram};
use crate::CliError;
use crate::interrupt::Interrupt;
use crate::link::LinkArgs;
use crate::spin::Spin;
use urxe::verbs::{ConnectOptions, Context, Gid, Mtu};

/// Maximum number of queue pairs that a server accepts; `MAX_MEMORY` limits the memory for them, in bytes.
const MAX_QPS: u32 = 1024;
const MAX_MEMORY: u64 = 8 << 30;

/// Measurements that a client requests.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Parameters of the run.
    pub params: Params,
    /// Message sizes in bytes.
    pub sizes: Vec<u32>,
    /// Amount of work per message size.
    pub amount: Amount,
    /// Whether the results are printed as JSON.
    pub json: bool,
}

/// Client or server of a run.
pub struct Runner<'a> {
    /// The NIC.
    pub context: &'a Context,
    /// Link options used to open the NIC.
    pub link: &'a LinkArgs,
    /// Flag that Ctrl-C sets.
    pub interrupt: &'a Interrupt,
    /// Timeout when waiting for the peer.
    pub timeout: Duration,
}

impl Runner<'_> {
    fn own_mtu(&self) -> Mtu {
        self.link.mtu.unwrap_or(self.context.query_port().active_mtu)
    }

    fn spin(&self) -> Spin<'_> {
        Spin::new(self.interrupt, self.timeout, &self.link.nic)
    }

    fn connect_options(&self, sgid_index: u8, mtu: Mtu) -> ConnectOptions {
        self.link.connect_options().sgid_index(sgid_index).mtu(mtu)
    }

    /// Runs the client.
    pub fn client(&self, control: &mut Control, plan: &Plan) -> Result<(), CliError> {
        let params = plan.params;
        let mut endpoint = PerfEndpoint::new(self.context, params)?;
        let (sgid_index, gid) = self.link.gid_for(self.context, None)?;
        let (mtu, qps) = (self.own_mtu().bytes() as u32, endpoint.qp_infos(gid));
        control.send(&Message::Hello { version: VERSION, params, mtu, qps })?;
        let (mtu, peers) = match control.recv()? {
            Message::Accepted { mtu, qps } => (checked_mtu(mtu)?, qps),
            other => return Err(unexpected(&other)),
        };
        endpoint.connect(&peers, &self.connect_options(sgid_index, mtu))?;
        match self.measure_sizes(control, plan, &endpoint, mtu) {
            // The server must not fail because this process cannot print the results.
            printed @ (Ok(()) | Err(CliError::Output(_))) => control.send(&Message::Finished).and(printed),
            failed => failed,
        }
    }

    /// Measures all message sizes and prints the results.
    fn measure_sizes(
        &self,
        control: &mut Control,
        plan: &Plan,
        endpoint: &PerfEndpoint,
        mtu: Mtu,
    ) -> Result<(), CliError> {
        let mut report = Report::new(plan.json, plan.params, &self.context.link_info().name, mtu.bytes())?;
        for &size in &plan.sizes {
            if self.interrupt.is_set() {
                break;
            }
            match self.measure_size(control, plan, endpoint, size, &mut report) {
                Ok(outcome) => report.add(outcome)?,
                Err(_) if self.interrupt.is_set() => {
                    report.finish(self.link.report(self.context))?;
                    // Ctrl-C may have ended the peer first, which then made this side fail.
                    return Err(CliError::Failed("interrupted during the measurement".into()));
                }
                Err(e) => return Err(e),
            }
        }
        report.finish(self.link.report(self.context))
    }

    /// Measures one message size, chunk by chunk, and checks the data that arrived.
    fn measure_size(
        &self,
        control: &mut Control,
        plan: &Plan,
        endpoint: &PerfEndpoint,
        size: u32,
        report: &mut Report,
    ) -> Result<Outcome, CliError> {
        let Params { verb, measure, qps, .. } = plan.params;
        let first = match measure {
            Measure::Bw => (64 << 20) / u64::from(size).max(4096) / u64::from(qps),
            Measure::Lat => (16 << 20) / u64::from(size).max(4096),
        };
        let mut chunks = Chunks::new(plan.amount, first.max(16));
        let (mut times, mut spin) = (histogram(), self.spin());
        let outcome = |chunks: &Chunks, times: &_| match measure {
            Measure::Bw => Outcome::bandwidth(size, chunks.done * u64::from(qps), chunks.spent),
            Measure::Lat => {
                Outcome::latency(size, times, chunks.spent, if verb.is_pingpong() { 2.0 } else { 1.0 })
            }
        };
        while let Some(n) = chunks.next().filter(|_| !self.interrupt.is_set() || chunks.done == 0) {
            let chunk = Chunk { size: size as usize, done: chunks.done, messages: n };
            let fresh = chunk.done == 0;
            if fresh {
                endpoint.prepare(chunk.size)?;
            }
            if measure == Measure::Lat {
                endpoint.post_receives(&chunk)?;
            }
            control.send(&Message::Run { size, messages: n, fresh })?;
            match control.recv()? {
                Message::Ready => {}
                other => return Err(unexpected(&other)),
            }
            let elapsed = endpoint.run_client(&chunk, &mut spin, &mut times);
            if elapsed.is_err() && self.interrupt.is_set() && chunks.done > 0 {
                report.add(outcome(&chunks, &times))?;
            }
            chunks.record(n, elapsed?);
            report.progress(size, chunks.fraction(), chunks.spent);
        }
        check(control, endpoint, size, chunks.done)?;
        Ok(outcome(&chunks, &times))
    }

    /// Accepts a client, and waits until it begins to measure or, because it cannot print, finishes.
    pub fn session(&self, mut control: Control) -> Result<Session<'_>, CliError> {
        let Message::Hello { version, params, mtu, qps } = control.recv()? else {
            return Err(CliError::Failed("the first message of the peer is not a hello".into()));
        };
        let (endpoint, reply) = match self.accept(version, params, mtu, &qps) {
            Ok(accepted) => accepted,
            Err(e) => {
                // The client may have disconnected already: the error is returned in any case.
                let _ = control.send(&Message::Rejected { reason: e.to_string() });
                return Err(e);
            }
        };
        control.send(&reply)?;
        match control.recv_within(None)? {
            next @ Message::Run { size, .. } if (1..=params.max_size).contains(&size) => {
                Ok(Session { runner: self, control, endpoint, next })
            }
            // Standard output of the client was closed before the heading.
            next @ Message::Finished => Ok(Session { runner: self, control, endpoint, next }),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks the client's parameters, then creates and connects the queue pairs.
    fn accept(
        &self,
        version: u32,
        params: Params,
        mtu: u32,
        peers: &[QpInfo],
    ) -> Result<(PerfEndpoint, Message), CliError> {
        if version != VERSION {
            return Err(CliError::Failed(format!(
                "protocol version {version} of the client differs from {VERSION} of the server: use the same \
                 urxe on both sides"
            )));
        }
        let Params { max_size, qps, depth, .. } = params;
        let peer = peers.first().filter(|_| (1..=MAX_QPS).contains(&qps)).ok_or_else(|| {
            let text = format!("invalid number of queue pairs {qps}: the server accepts 1 to {MAX_QPS}");
            CliError::Failed(text)
        })?;
        let memory = 2 * u64::from(max_size) * u64::from(qps);
        if !(1..=MAX_SIZE).contains(&max_size) || memory > MAX_MEMORY || !(1..=32_768).contains(&depth) {
            return Err(CliError::Failed(format!(
                "{qps} queue pairs of depth {depth} with {max_size} bytes each exceed the limits of the \
                 server"
            )));
        }
        let (sgid_index, gid) = self.link.gid_for(self.context, Some(Gid(peer.gid.octets()).ip()))?;
        let mtu = checked_mtu(mtu)?.min(self.own_mtu());
        let params = Params { cq_mod: params.cq_mod.max(1), ..params };
        let mut endpoint = PerfEndpoint::new(self.context, params)?;
        endpoint.connect(peers, &self.connect_options(sgid_index, mtu))?;
        let qps = endpoint.qp_infos(gid);
        Ok((endpoint, Message::Accepted { mtu: mtu.bytes() as u32, qps }))
    }
}

/// Server of a client that has begun to measure, or has finished without a measurement.
pub struct Session<'a> {
    runner: &'a Runner<'a>,
    control: Control,
    endpoint: PerfEndpoint,
    /// Message of the client that is handled next.
    next: Message,
}

impl Session<'_> {
    /// Runs until the client has finished.
    pub fn run(self) -> Result<(), CliError> {
        let Session { runner, mut control, endpoint, mut next } = self;
        let mut spin = runner.spin();
        let mut done = 0;
        let Params { verb, max_size, .. } = endpoint.params;
        let sizes = 1..=max_size;
        loop {
            match next {
                Message::Run { size, messages, fresh } if sizes.contains(&size) => {
                    if fresh {
                        endpoint.prepare(size as usize)?;
                        done = 0;
                    }
                    let chunk = Chunk { size: size as usize, done, messages };
                    endpoint.post_receives(&chunk)?;
                    control.send(&Message::Ready)?;
                    endpoint.run_server(&chunk, &mut spin)?;
                    done += messages;
                }
                Message::Check { size, messages } if sizes.contains(&size) => {
                    let mismatch =
                        if verb == Verb::Read { None } else { endpoint.check(size as usize, messages)? };
                    control.send(&Message::Checked { mismatch })?;
                }
                Message::Finished => return Ok(()),
                other => return Err(unexpected(&other)),
            }
            next = control.recv_within(None)?;
        }
    }
}

/// Has both sides check the data that arrived.
fn check(control: &mut Control, endpoint: &PerfEndpoint, size: u32, messages: u64) -> Result<(), CliError> {
    control.send(&Message::Check { size, messages })?;
    let peer_mismatch = match control.recv()? {
        Message::Checked { mismatch } => mismatch,
        other => return Err(unexpected(&other)),
    };
    let receives_data = match endpoint.params.verb {
        Verb::Read => true,
        Verb::Send | Verb::Write => endpoint.params.measure == Measure::Lat,
        Verb::Atomic => false,
    };
    if receives_data && let Some(m) = endpoint.check(size as usize, messages)? {
        return Err(CliError::Failed(format!("data mismatch at this side: {m}")));
    }
    peer_mismatch.map_or(Ok(()), |m| Err(CliError::Failed(format!("data mismatch at the peer: {m}"))))
}

fn checked_mtu(bytes: u32) -> Result<Mtu, CliError> {
    Mtu::from_bytes(bytes as usize)
        .ok_or_else(|| CliError::Failed(format!("invalid path MTU {bytes} from the peer")))
}

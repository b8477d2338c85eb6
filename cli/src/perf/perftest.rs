//! Measurements with a stock perftest program at the other end.

use std::path::Path;
use std::time::Duration;

use super::plan::{Amount, Measure, Verb};
use super::report::{Outcome, Report, histogram};
use super::runner::Runner;
use super::side::{CQ_MOD, Shape, Side, Work};
use crate::CliError;
use crate::exchange::perftest::{BwReport, Config, Destination, Exchange, Layout, Role, Test};
use crate::oob::{TimeoutStream, handshake_error};
use crate::spin::Spin;
use urxe::verbs::{Access, AtomicOp, ConnectOptions, Endpoint, Gid, Mtu, Psn, Qpn, RKey, RemoteAddr};

/// Number of receives posted, as in the stock program.
const RECEIVES: u64 = 512;
/// RDMA READs and atomics that this side serves at a time.
const OUT_READS: u16 = 16;
/// Time for which the QPs stay alive after the run, because the peer may not have received the last
/// acknowledgement.
const LINGER: Duration = Duration::from_millis(150);

/// Parameters of a run; the perftest program must be started with the same.
#[derive(Clone, Copy, Debug)]
pub struct PerftestPlan<'a> {
    /// Program at the other end.
    pub test: Test,
    /// Bytes per message.
    pub size: u32,
    /// Messages per queue pair.
    pub iterations: u64,
    /// Number of queue pairs.
    pub qps: usize,
    /// Work requests in flight per queue pair.
    pub depth: usize,
    /// Whether the results are printed as JSON.
    pub json: bool,
    /// File that this side's memory is written to at the end.
    pub dump: Option<&'a Path>,
}

/// Returns the perftest program for an operation and a measure.
pub fn test_of(verb: Verb, measure: Measure) -> Result<Test, CliError> {
    match (verb, measure) {
        (Verb::Write, Measure::Bw) => Ok(Test::WriteBw),
        (Verb::Read, Measure::Bw) => Ok(Test::ReadBw),
        (Verb::Send, Measure::Bw) => Ok(Test::SendBw),
        (Verb::Atomic, Measure::Bw) => Ok(Test::AtomicBw),
        (Verb::Write, Measure::Lat) => Ok(Test::WriteLat),
        (Verb::Send, Measure::Lat) => Ok(Test::SendLat),
        (verb, Measure::Lat) => Err(CliError::Usage(format!(
            "--perftest does not support the latency of {verb}: use write or send with --lat, or any \
             operation with --bw"
        ))),
    }
}

/// Returns the number of messages per queue pair for an amount.
pub fn iterations(amount: Option<Amount>, test: Test) -> Result<u64, CliError> {
    match amount {
        None => Ok(test.default_iterations()),
        Some(Amount::Iterations(n)) if n >= 5 => Ok(n),
        Some(Amount::Iterations(n)) => {
            Err(CliError::Usage(format!("-n {n}: perftest programs require at least 5 iterations")))
        }
        Some(Amount::Duration(_)) => Err(CliError::Usage(
            "--duration is not supported with --perftest: use -n, with the same value on both sides".into(),
        )),
    }
}

fn verb_of(test: Test) -> (Verb, Measure, Access) {
    match test {
        Test::WriteBw => (Verb::Write, Measure::Bw, Access::REMOTE_WRITE),
        Test::WriteLat => (Verb::Write, Measure::Lat, Access::REMOTE_WRITE),
        Test::ReadBw => (Verb::Read, Measure::Bw, Access::REMOTE_READ),
        Test::AtomicBw => (Verb::Atomic, Measure::Bw, Access::REMOTE_ATOMIC),
        Test::SendBw => (Verb::Send, Measure::Bw, Access::LOCAL_WRITE),
        Test::SendLat => (Verb::Send, Measure::Lat, Access::LOCAL_WRITE),
    }
}

/// Runs one side of the measurement.
pub fn run(
    runner: &Runner<'_>,
    plan: &PerftestPlan<'_>,
    stream: TimeoutStream,
    role: Role,
) -> Result<(), CliError> {
    let PerftestPlan { test, size, iterations: n, .. } = *plan;
    let (verb, measure, access) = verb_of(test);
    let own_mtu = runner.link.mtu.unwrap_or(runner.context.query_port().active_mtu);
    let config = Config::new(test, own_mtu.bytes() as u32);
    let opened = match role {
        Role::Client => Exchange::client(stream, &config),
        Role::Server => Exchange::server(stream, &config),
    };
    let sent = format!("version and path MTU ({})", own_mtu.bytes());
    let mut exchange = opened.map_err(|e| handshake_error(&sent, e))?;
    let agreed = *exchange.agreed();
    let layout = Layout::new(test, size, &agreed);
    let work = Work {
        verb,
        size: size as usize,
        stride: layout.stride,
        positions: layout.positions,
        atomic: AtomicOp::FetchAdd(1),
    };
    let receives = if verb == Verb::Send { n.min(RECEIVES).next_multiple_of(2) as usize } else { 0 };
    let (slot, cq_mod) = (layout.slot as usize, CQ_MOD.into());
    let shape = Shape { qps: plan.qps, slot, depth: plan.depth, cq_mod, receives, access };
    let mut side = Side::new(runner.context, shape)?;
    side.prepare(&work)?;

    let (sgid, gid) = runner.link.gid_for(runner.context, None)?;
    let local = destinations(&side, test, gid);
    let sent = format!("{} local queue pair(s), GID {}", local.len(), gid.ip());
    let remote = exchange.swap_destinations(&local).map_err(|e| handshake_error(&sent, e))?;
    connect(&mut side, runner, &remote, test, access, sgid, agreed.mtu)?;
    let has_receives = verb == Verb::Send && (role == Role::Server || measure == Measure::Lat);
    let posted = if has_receives { side.post_receives(&work, n)? } else { 0 };
    let mut spin = Spin::new(runner.interrupt, runner.timeout);
    exchange.start().map_err(|e| handshake_error(&sent, e))?;

    let name = &runner.context.link_info().name;
    let mut report = Report::new(plan.json, verb, measure, name, plan.qps, agreed.mtu as usize);
    if measure == Measure::Lat {
        report.add(run_latency(&side, &work, n, posted, role, &mut spin)?);
        exchange.stream().disable_timeout();
        exchange.finish(&BwReport::default())?;
        // The peer may not have received the last acknowledgement.
        std::thread::sleep(LINGER);
    } else if role == Role::Client {
        let outcome = run_bandwidth_client(&side, &work, plan, &mut spin)?;
        let local_report = BwReport {
            size: size.into(),
            iterations: outcome.messages,
            peak: outcome.mib_s(),
            average: outcome.mib_s(),
            msg_rate: outcome.mmsg_s.unwrap_or(0.0),
        };
        report.add(outcome);
        exchange.finish(&local_report)?;
    } else {
        run_bandwidth_server(&side, &work, plan, posted, exchange, &mut spin, &mut report)?;
    }
    report.finish(runner.link.fault_report());
    match plan.dump {
        None => Ok(()),
        Some(file) => std::fs::write(file, side.memory()).map_err(|source| CliError::Io {
            what: format!("cannot write --dump-memory {}", file.display()),
            source,
        }),
    }
}

fn destinations(side: &Side, test: Test, gid: Gid) -> Vec<Destination> {
    let destination = |(i, entry): (usize, &super::side::PerfQp)| {
        let (endpoint, target) = (entry.qp.endpoint(), side.target(i));
        Destination {
            lid: 0,
            out_reads: if test.has_out_reads() { OUT_READS } else { 1 },
            qpn: endpoint.qpn.get(),
            psn: endpoint.psn.get(),
            rkey: if matches!(test, Test::SendBw | Test::SendLat) { 0 } else { target.rkey.0 },
            vaddr: target.va,
            gid: gid.0,
            srqn: 0,
        }
    };
    side.qps.iter().enumerate().map(destination).collect()
}

fn connect(
    side: &mut Side,
    runner: &Runner<'_>,
    remote: &[Destination],
    test: Test,
    access: Access,
    sgid: u8,
    mtu: u32,
) -> Result<(), CliError> {
    for (entry, peer) in side.qps.iter_mut().zip(remote) {
        if Gid(peer.gid).is_unset() {
            return Err(CliError::Failed(
                "the peer sent no GID: start the perftest program with -x and a GID index".into(),
            ));
        }
        let options = ConnectOptions {
            access: access | Access::LOCAL_WRITE,
            sgid_index: Some(sgid),
            mtu: Mtu::from_bytes(mtu as usize),
            max_rd_atomic: peer.out_reads.clamp(1, 128) as u8,
            max_dest_rd_atomic: if test.has_out_reads() { OUT_READS as u8 } else { 1 },
            ..runner.connect
        };
        let to = Endpoint { gid: Gid(peer.gid), qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
        entry.qp.connect(&to, &options)?;
        entry.remote = RemoteAddr { va: peer.vaddr, rkey: RKey(peer.rkey) };
    }
    Ok(())
}

fn run_latency(
    side: &Side,
    work: &Work,
    n: u64,
    posted: u64,
    role: Role,
    spin: &mut Spin,
) -> Result<Outcome, CliError> {
    let mut times = histogram();
    let begin = std::time::Instant::now();
    match work.verb {
        Verb::Send => side.pingpong_send(work, n, role == Role::Client, posted, spin, Some(&mut times))?,
        // In `ib_write_lat` the server sends first.
        _ => side.pingpong_write(work, 0, n, role == Role::Server, spin, Some(&mut times))?,
    }
    Ok(Outcome::latency(work.size as u32, &times, begin.elapsed(), 2.0))
}

/// Runs the client's part of a bandwidth test.
fn run_bandwidth_client(
    side: &Side,
    work: &Work,
    plan: &PerftestPlan<'_>,
    spin: &mut Spin,
) -> Result<Outcome, CliError> {
    let n = plan.iterations;
    let before = if work.verb == Verb::Atomic { side.fetch_words(work, spin)? } else { Vec::new() };
    let elapsed = side.send_all(work, n, spin)?;
    if work.verb == Verb::Atomic {
        // The peer's words were arbitrary before the run, so only what was added to each is checked.
        let after = side.fetch_words(work, spin)?;
        for (i, (old, new)) in before.iter().zip(after).enumerate() {
            let position = i as u64 % work.positions;
            let expected = n / work.positions + u64::from(position < n % work.positions);
            let added = new.wrapping_sub(*old);
            if added != expected {
                return Err(CliError::Failed(format!(
                    "word {i} of the peer was incremented by {added}, expected {expected}"
                )));
            }
        }
    }
    Ok(Outcome::bandwidth(plan.size, n * plan.qps as u64, elapsed))
}

/// Runs the server's part of a bandwidth test.
fn run_bandwidth_server(
    side: &Side,
    work: &Work,
    plan: &PerftestPlan<'_>,
    posted: u64,
    exchange: Exchange<TimeoutStream>,
    spin: &mut Spin,
    report: &mut Report,
) -> Result<(), CliError> {
    let messages = plan.iterations * plan.qps as u64;
    if work.verb == Verb::Send {
        let begin = std::time::Instant::now();
        side.receive_all(work, plan.iterations, posted, spin)?;
        report.add(Outcome::bandwidth(plan.size, messages, begin.elapsed()));
        exchange.finish(&BwReport::default())?;
        return Ok(());
    }
    // The duration of the peer's run is not limited.
    exchange.stream().disable_timeout();
    let peer_report = exchange.finish(&BwReport::default())?.unwrap_or_default();
    if work.verb == Verb::Atomic {
        let sum = side.sum_of_words(work)?;
        if sum != messages {
            return Err(CliError::Failed(format!(
                "the words add up to {sum} after {messages} additions of 1 by the client; this check does \
                 not support -A CMP_AND_SWAP"
            )));
        }
    }
    let seconds = messages as f64 * 1e-6 / peer_report.msg_rate;
    let elapsed = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    report.add(Outcome::bandwidth(plan.size, messages, elapsed));
    Ok(())
}

//! Measurements with a stock perftest program at the other end.

use std::path::Path;
use std::time::Duration;

use super::ends::End;
use super::plan::{Amount, Measure, Verb};
use super::report::{Outcome, Report, histogram};
use super::side::{CQ_MOD, Shape, Side, Work};
use crate::cli::CliError;
use crate::cli::exchange::perftest::{BwReport, Config, Destination, Exchange, Layout, Role, Test};
use crate::cli::oob::{Patient, silent};
use crate::cli::spin::Spin;
use crate::verbs::{Access, AtomicOp, ConnectOptions, Endpoint, Gid, Mtu, Psn, Qpn, RKey, RemoteAddr};

/// Number of receives posted, as in the stock program.
const RECEIVES: u64 = 512;
/// RDMA READs and atomics that this side serves at a time.
const OUT_READS: u16 = 16;
/// Time for which the QPs stay alive after the run, because the peer may not have received the last
/// acknowledgement.
const LINGER: Duration = Duration::from_millis(150);

/// Parameters of a run; the stock program has to be started with the same.
#[derive(Clone, Copy, Debug)]
pub struct StockPlan<'a> {
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
            "--perftest knows no latency of {verb}: there are write and send with --lat, and all four with --bw"
        ))),
    }
}

/// Returns the number of messages per queue pair for an amount.
pub fn iterations(amount: Option<Amount>, test: Test) -> Result<u64, CliError> {
    match amount {
        None => Ok(test.default_iterations()),
        Some(Amount::Iterations(n)) if n >= 5 => Ok(n),
        Some(Amount::Iterations(n)) => {
            Err(CliError::Usage(format!("-n {n}: the stock programs do at least 5 iterations")))
        }
        Some(Amount::Duration(_)) => Err(CliError::Usage(
            "--duration does not go with --perftest: its exchange here is that of -n; give both sides the same -n".into(),
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
pub fn run(end: &End<'_>, plan: &StockPlan<'_>, stream: Patient, role: Role) -> Result<(), CliError> {
    let StockPlan { test, size, iterations: n, .. } = *plan;
    let (verb, measure, access) = verb_of(test);
    let own_mtu = end.link.mtu.unwrap_or(end.context.query_port().active_mtu);
    let config = Config::new(test, own_mtu.bytes() as u32);
    let opened = match role {
        Role::Client => Exchange::client(stream, &config),
        Role::Server => Exchange::server(stream, &config),
    };
    let said = format!("version and path MTU ({})", own_mtu.bytes());
    let mut exchange = opened.map_err(|e| silent(&said, e))?;
    let agreed = *exchange.agreed();
    let layout = Layout::new(test, size, &agreed);
    let work = Work {
        verb,
        size: size as usize,
        step: layout.step,
        places: layout.places,
        atomic: AtomicOp::FetchAdd(1),
    };
    let receives = if verb == Verb::Send { n.min(RECEIVES).next_multiple_of(2) as usize } else { 0 };
    let (slot, cq_mod) = (layout.slot as usize, CQ_MOD.into());
    let shape = Shape { qps: plan.qps, slot, depth: plan.depth, cq_mod, receives, access };
    let mut side = Side::new(end.context, shape)?;
    side.prepare(&work)?;

    let (sgid, gid) = end.link.gid_for(end.context, None)?;
    let local = destinations(&side, test, gid);
    let said = format!("our {} queue pair(s), GID {}", local.len(), gid.ip());
    let remote = exchange.swap_destinations(&local).map_err(|e| silent(&said, e))?;
    connect(&mut side, end, &remote, test, access, sgid, agreed.mtu)?;
    let receives_here = verb == Verb::Send && (role == Role::Server || measure == Measure::Lat);
    let posted = if receives_here { side.post_receives(&work, n)? } else { 0 };
    let mut spin = Spin::new(end.interrupt, end.patience);
    exchange.start().map_err(|e| silent(&said, e))?;

    let name = &end.context.link_info().name;
    let mut report = Report::new(plan.json, verb, measure, name, plan.qps, agreed.mtu as usize);
    if measure == Measure::Lat {
        report.add(latency(&side, &work, n, posted, role, &mut spin)?);
        exchange.stream().whenever();
        exchange.finish(&BwReport::default())?;
        // The peer may not have received the last acknowledgement.
        std::thread::sleep(LINGER);
    } else if role == Role::Client {
        let outcome = flood(&side, &work, plan, &mut spin)?;
        let ours = BwReport {
            size: size.into(),
            iterations: outcome.messages,
            peak: outcome.mib_s(),
            average: outcome.mib_s(),
            msg_rate: outcome.mmsg_s.unwrap_or(0.0),
        };
        report.add(outcome);
        exchange.finish(&ours)?;
    } else {
        serve(&side, &work, plan, posted, exchange, &mut spin, &mut report)?;
    }
    report.finish(end.link.fault_report());
    match plan.dump {
        None => Ok(()),
        Some(file) => std::fs::write(file, side.memory()).map_err(|source| CliError::Io {
            what: format!("cannot write --dump-memory {}", file.display()),
            source,
        }),
    }
}

fn destinations(side: &Side, test: Test, gid: Gid) -> Vec<Destination> {
    let one = |(i, lane): (usize, &super::side::Lane)| {
        let (own, target) = (lane.qp.endpoint(), side.target(i));
        Destination {
            lid: 0,
            out_reads: if test.has_out_reads() { OUT_READS } else { 1 },
            qpn: own.qpn.get(),
            psn: own.psn.get(),
            rkey: if matches!(test, Test::SendBw | Test::SendLat) { 0 } else { target.rkey.0 },
            vaddr: target.va,
            gid: gid.0,
            srqn: 0,
        }
    };
    side.lanes.iter().enumerate().map(one).collect()
}

fn connect(
    side: &mut Side,
    end: &End<'_>,
    remote: &[Destination],
    test: Test,
    access: Access,
    sgid: u8,
    mtu: u32,
) -> Result<(), CliError> {
    for (lane, peer) in side.lanes.iter_mut().zip(remote) {
        if Gid(peer.gid).is_unset() {
            return Err(CliError::Failed(
                "the peer announced no GID: give the stock program -x and the index of its GID".into(),
            ));
        }
        let options = ConnectOptions {
            access: access | Access::LOCAL_WRITE,
            sgid_index: Some(sgid),
            mtu: Mtu::from_bytes(mtu as usize),
            max_rd_atomic: peer.out_reads.clamp(1, 128) as u8,
            max_dest_rd_atomic: if test.has_out_reads() { OUT_READS as u8 } else { 1 },
            ..end.connect
        };
        let to = Endpoint { gid: Gid(peer.gid), qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
        lane.qp.connect(&to, &options)?;
        lane.remote = RemoteAddr { va: peer.vaddr, rkey: RKey(peer.rkey) };
    }
    Ok(())
}

fn latency(
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
        Verb::Send => side.send_turns(work, n, role == Role::Client, posted, spin, Some(&mut times))?,
        // In `ib_write_lat` the server begins.
        _ => side.write_turns(work, 0, n, role == Role::Server, spin, Some(&mut times))?,
    }
    Ok(Outcome::latency(work.size as u32, &times, begin.elapsed(), 2.0))
}

/// Runs the client's part of a bandwidth test.
fn flood(side: &Side, work: &Work, plan: &StockPlan<'_>, spin: &mut Spin) -> Result<Outcome, CliError> {
    let n = plan.iterations;
    let before = if work.verb == Verb::Atomic { side.fetch_words(work, spin)? } else { Vec::new() };
    let took = side.flood(work, n, spin)?;
    if work.verb == Verb::Atomic {
        // The peer's words were arbitrary before the run, so only what was added to each is checked.
        let after = side.fetch_words(work, spin)?;
        for (i, (was, is)) in before.iter().zip(after).enumerate() {
            let place = i as u64 % work.places;
            let want = n / work.places + u64::from(place < n % work.places);
            let added = is.wrapping_sub(*was);
            if added != want {
                return Err(CliError::Failed(format!(
                    "word {i} of the peer grew by {added} through {want} additions of 1"
                )));
            }
        }
    }
    Ok(Outcome::bandwidth(plan.size, n * plan.qps as u64, took))
}

/// Runs the server's part of a bandwidth test.
fn serve(
    side: &Side,
    work: &Work,
    plan: &StockPlan<'_>,
    posted: u64,
    exchange: Exchange<Patient>,
    spin: &mut Spin,
    report: &mut Report,
) -> Result<(), CliError> {
    let messages = plan.iterations * plan.qps as u64;
    if work.verb == Verb::Send {
        let begin = std::time::Instant::now();
        side.absorb(work, plan.iterations, posted, spin)?;
        report.add(Outcome::bandwidth(plan.size, messages, begin.elapsed()));
        exchange.finish(&BwReport::default())?;
        return Ok(());
    }
    // The peer's run may take any time.
    exchange.stream().whenever();
    let theirs = exchange.finish(&BwReport::default())?.unwrap_or_default();
    if work.verb == Verb::Atomic {
        let sum = side.sum_of_words(work)?;
        if sum != messages {
            return Err(CliError::Failed(format!(
                "the client's {messages} additions of 1 made {sum} here (with -A CMP_AND_SWAP there is nothing to check)"
            )));
        }
    }
    let seconds = messages as f64 * 1e-6 / theirs.msg_rate;
    let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    report.add(Outcome::bandwidth(plan.size, messages, took));
    Ok(())
}

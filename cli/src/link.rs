//! NIC of a command on its link, with capture and fault injection, and options of its connections.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use serde::Serialize;

use super::CliError;
use super::broker::sharing;
use super::nic_args::{Completed, NicArgs, STANDARD_OUTPUT};
use urxe::broker::SharedMemory;
use urxe::fabric::Fabric;
pub use urxe::link::LinkSpec;
use urxe::link::udp::UdpLinkError;
use urxe::link::{BindError, Link};
use urxe::middleware::Middleware;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::{Direction, FaultCounters, FaultCounts, FaultSeeds};
use urxe::middleware::qlog::{QlogError, QlogFile};
use urxe::verbs::Retransmissions;
use urxe::verbs::faults::{Fault, FaultCount};
use urxe::verbs::live::LiveServer;
use urxe::verbs::{AckTimeout, ConnectOptions, Context, ContextOptions, DeviceNames, Gid, Mtu, Personality};

/// Options of commands that open a NIC and connect its queue pairs.
#[derive(Args, Clone)]
#[command(next_help_heading = "NIC options")]
pub struct LinkArgs {
    /// Options that do not depend on the peer.
    #[command(flatten)]
    pub nic: NicArgs,
    /// Index of the local GID [default: by the address of the peer]
    ///
    /// `urxe devinfo` lists the GIDs.
    #[arg(long, value_name = "INDEX")]
    pub gid: Option<u8>,
    /// Path MTU, the same at both ends: 256, 512, 1024, 2048, 4096
    #[arg(long, value_name = "BYTES", value_parser = Completed::new(["256", "512", "1024", "2048", "4096"], parse_mtu),
        hide_possible_values = true)]
    pub mtu: Option<Mtu>,
    /// Local ACK timeout: 4.096 us x 2^N
    ///
    /// As -u of perftest.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: u8,
    /// State of the NICs opened with these options; clones share it.
    #[arg(skip)]
    opened: Arc<Mutex<Opened>>,
}

/// Maximum wait for the UDP port of an address that is in use.
const MAX_PORT_WAIT: Duration = Duration::from_secs(1);

/// State shared by all NICs opened with the same options.
#[derive(Default)]
struct Opened {
    nics: u64,
    capture: Option<CaptureFile>,
    qlog: Option<QlogFile>,
    faults: Vec<FaultCounters>,
    /// Seeds of random faults.
    seeds: Option<FaultSeeds>,
    /// Servers of the NICs' state for `urxe ps` and `urxe top`.
    live: Vec<LiveServer>,
    /// NICs with fault rules, whose retransmission counters the fault report includes.
    faulty: Vec<Context>,
}

impl Opened {
    /// Returns the seeds of random faults, which are derived from `seed` or drawn at the first call.
    fn fault_seeds(&mut self, seed: Option<u64>) -> &FaultSeeds {
        self.seeds.get_or_insert_with(|| FaultSeeds::new(seed))
    }
}

/// Counters of the `--fault` rules, printed at the end of a command.
#[derive(Serialize)]
pub struct FaultReport {
    /// Counters of each rule.
    rules: Vec<FaultCount>,
    /// Packets that this side retransmitted.
    retransmitted: Retransmissions,
    /// Seed of the rules with a probability, if there are any.
    seed: Option<u64>,
}

impl FaultReport {
    /// Returns the report as lines of text.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let packets = self.retransmitted.to_string();
        let seed = self.seed.map(|seed| format!("seed of random faults: {seed}"));
        self.rules.iter().map(FaultCount::to_string).chain([packets]).chain(seed)
    }

    /// Prints a warning to standard error for each rule that had no effect.
    pub fn warn(&self) {
        self.rules.iter().filter_map(FaultCount::warning).for_each(|warning| eprintln!("urxe: {warning}"));
    }
}

/// Last fields of the JSON document of a command that transfers data.
#[derive(Default, Serialize)]
pub struct TrafficReport {
    /// Whether packets passed through rings in shared memory; `None` with `--shared-memory off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory: Option<bool>,
    /// Counters of the `--fault` rules; `None` without `--fault`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultReport>,
}

impl TrafficReport {
    /// Returns a line that states whether packets passed through rings in shared memory, or `None` with
    /// `--shared-memory off`.
    pub fn rings_line(&self) -> Option<&'static str> {
        self.shared_memory.map(|has_used_rings| match has_used_rings {
            true => "packets took rings in shared memory",
            false => {
                "no packets took rings in shared memory: the peer is on another host, or without \
                 --shared-memory"
            }
        })
    }
}

/// Parses a path MTU given in bytes.
pub fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| format!("invalid path MTU '{text}': use 256, 512, 1024, 2048 or 4096"))
}

impl LinkArgs {
    /// Returns the link, UDP by default.
    pub fn link(&self) -> LinkSpec {
        self.nic.address.link().unwrap_or(LinkSpec::Udp(None))
    }

    /// Binds the link, wraps it in the capture and the fault rules, and opens a NIC on it. For a fabric link,
    /// creates a fabric with this NIC alone; use [`open_on`](Self::open_on) to add NICs to an existing
    /// fabric.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn open(&self) -> Result<Context, CliError> {
        let (link, shards, offload) = (self.link(), self.nic.shards.unwrap_or(1), !self.nic.no_offload);
        if link == LinkSpec::Fabric {
            return self.open_on(&Fabric::new(), "a");
        }
        self.check_options()?;
        let shared_memory = self.nic.shared_memory()?;
        self.create_files(Timestamps::Wall)?;
        let links = match shared_memory {
            SharedMemory::Off => bind_alone(&link, shards, offload)?,
            when => sharing(when, self.nic.any_user)?.bind(&link, shards, offload)?,
        };
        let links = self.wrap_all(links, &link.to_string());
        let context = self.checked(Context::open_shards(links, &self.context_options())?)?;
        self.serve_live(&context);
        Ok(context)
    }

    /// Serves the state of a NIC. The command works without that, if it is not possible.
    fn serve_live(&self, context: &Context) {
        let (opened, nic) = (Arc::downgrade(&self.opened), context.device_faults());
        let faults = move || {
            let packets = opened.upgrade().map(|opened| FaultCounters::sum(&opened.lock().faults));
            packets.unwrap_or_default().into_iter().chain(nic.counts()).collect()
        };
        let mut opened = self.opened.lock();
        let name = DeviceNames::default().name(opened.live.len());
        opened.live.extend(LiveServer::start(context, &name, faults).ok());
    }

    /// Opens a NIC on a new port of a fabric, with the configured capture and fault rules. `name` is the
    /// port's name in captures.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn open_on(&self, fabric: &Fabric, name: &str) -> Result<Context, CliError> {
        self.check_options()?;
        self.create_files(if fabric.is_virtual() { Timestamps::Virtual } else { Timestamps::Wall })?;
        let port = fabric.port(&fabric.auto_address())?;
        let wrap = |port| self.wrap_all(vec![Box::new(port)], name).pop().expect("one link per port");
        self.checked(Context::on_port(port, &self.context_options(), wrap)?)
    }

    /// Returns the options for opening the next NIC. Each NIC gets its own seed, because otherwise both ends
    /// of a connection would draw the same numbers.
    fn context_options(&self) -> ContextOptions {
        let mut opened = self.opened.lock();
        opened.nics += 1;
        // With random faults, the reported seed reproduces queue pair numbers and PSNs too.
        let seed = opened.fault_seeds(self.nic.seed).seed();
        let seed = self.nic.seed.or(self.has_random_faults().then_some(seed));
        let seed = seed.map(|s| s.wrapping_add(opened.nics - 1));
        let not_on_packets = self.nic.faults().filter(|fault| !matches!(fault, Fault::Packet(_)));
        ContextOptions::default()
            .seed(seed)
            .personality(self.nic.personality.unwrap_or(Personality::DEFAULT))
            .elide_icrcs(!self.nic.always_icrc)
            .min_ack_timeout(self.nic.min_ack_timeout())
            .congestion(self.nic.congestion.unwrap_or_default())
            .faults(not_on_packets.cloned())
    }

    /// Returns the options for connecting queue pairs.
    pub fn connect_options(&self) -> ConnectOptions {
        let timeout = AckTimeout::new(self.ack_timeout);
        ConnectOptions::default().mtu(self.mtu).sgid_index(self.gid).timeout(timeout)
    }

    /// Returns the local GID to announce to a peer, and its index: the GID specified by `--gid`, or the one
    /// selected by the peer's address.
    ///
    /// # Errors
    /// [`CliError::Usage`] if there is none, or none of the peer's IP version.
    pub fn gid_for(&self, context: &Context, peer: Option<IpAddr>) -> Result<(u8, Gid), CliError> {
        let gids = context.gids();
        let has_same_version = |g: &Gid| peer.is_none_or(|p| p.is_ipv4() == g.ip().is_ipv4());
        let index = match (self.gid, peer) {
            (Some(index), _) => {
                Some(index).filter(|i| gids.get(usize::from(*i)).is_some_and(has_same_version))
            }
            (None, Some(peer)) => context.gid_towards(peer.into()),
            (None, None) => context.main_gid(),
        };
        match (index, peer) {
            (Some(i), _) => Ok((i, gids[usize::from(i)])),
            (None, Some(peer)) => {
                let (link, available) =
                    (&context.link_info().name, if peer.is_ipv4() { "IPv6" } else { "IPv4" });
                Err(CliError::Usage(format!(
                    "the peer's address is {peer}, but {link} has {available} addresses only: choose a link \
                     of the same IP version"
                )))
            }
            (None, None) => Err(self.no_such_gid(context)),
        }
    }

    /// Flushes the capture and the event log, and returns any error from writing them. Call this at the end of a command.
    ///
    /// # Errors
    /// [`CliError::Call`].
    pub fn finish(&self) -> Result<(), CliError> {
        let opened = self.opened.lock();
        let captured = opened.capture.as_ref().map_or(Ok(()), CaptureFile::flush);
        let logged = opened.qlog.as_ref().map_or(Ok(()), QlogFile::flush);
        captured?;
        logged.map_err(failed)
    }

    /// Ends a command with this result: prints the fault report, except to the JSON document, and flushes the
    /// capture.
    ///
    /// # Errors
    /// That of the result, or [`CliError::Call`].
    pub fn conclude(&self, json: bool, result: Result<(), CliError>) -> Result<(), CliError> {
        let mut printed = Ok(());
        if let Some(faults) = self.fault_report() {
            if !json {
                printed = faults.lines().try_for_each(|line| writeln!(io::stdout(), "{line}"));
            }
            faults.warn();
        }
        self.finish().and(result).and_then(|()| Ok(printed?))
    }

    /// Returns the report about the traffic of a NIC.
    pub fn report(&self, context: &Context) -> TrafficReport {
        let is_on = self.nic.shared_memory().is_ok_and(|when| when != SharedMemory::Off);
        let shared_memory = is_on.then(|| context.has_used_rings());
        TrafficReport { shared_memory, faults: self.fault_report() }
    }

    /// Returns the current counters of the `--fault` rules, or `None` without `--fault`.
    fn fault_report(&self) -> Option<FaultReport> {
        let opened = self.opened.lock();
        let mut retransmitted = Retransmissions::default();
        opened.faulty.iter().for_each(|context| retransmitted += context.counters().into());
        let packet_rules = FaultCounters::sum(&opened.faults).into_iter();
        let seed = opened.seeds.as_ref().filter(|_| self.has_random_faults()).map(FaultSeeds::seed);
        let others = FaultCount::sum(opened.faulty.iter().flat_map(Context::fault_counts));
        (!self.nic.faults.is_empty()).then(|| FaultReport {
            rules: packet_rules.chain(others).collect(),
            retransmitted,
            seed,
        })
    }

    /// Returns the number of packets that `--fault` has affected so far, summed over all NICs.
    pub fn fault_counts(&self, direction: Direction) -> FaultCounts {
        let mut sum = FaultCounts::default();
        for counts in self.opened.lock().faults.iter().map(|f| f.get(direction)) {
            sum += counts;
        }
        sum
    }

    /// Creates the files for packets and events, unless they exist.
    fn create_files(&self, timestamps: Timestamps) -> Result<(), CliError> {
        let mut opened = self.opened.lock();
        if let (Some(path), None) = (&self.nic.capture.capture, &opened.capture) {
            let file = create_capture(path, timestamps)?;
            if let Some(rotation) = self.nic.capture.capture_rotate {
                file.rotate(rotation);
            }
            opened.capture = Some(file);
        }
        if let (Some(path), None) = (&self.nic.capture.qlog, &opened.qlog) {
            opened.qlog = Some(create_qlog(path, timestamps)?);
        }
        Ok(())
    }

    /// Rejects options that the link does not support.
    fn check_options(&self) -> Result<(), CliError> {
        let link = self.link();
        if self.nic.shards.is_some_and(|shards| shards > 1) && !link.has_shards() {
            let text = format!("--shards requires a udp or packet link, not {link}");
            return Err(CliError::Usage(text));
        }
        let is_udp = matches!(link, LinkSpec::Udp(_) | LinkSpec::UdpOn { .. });
        if self.nic.shared_memory == Some(SharedMemory::Require) && !is_udp {
            let text = format!("--shared-memory require needs a udp link, not {link}");
            return Err(CliError::Usage(text));
        }
        Ok(())
    }

    fn has_random_faults(&self) -> bool {
        self.nic.faults().any(Fault::is_random)
    }

    /// Wraps the links of one NIC in the capture and the fault rules.
    fn wrap_all(&self, links: Vec<Box<dyn Link>>, name: &str) -> Vec<Box<dyn Link>> {
        let mut opened = self.opened.lock();
        let (capture, qlog) = (opened.capture.clone(), opened.qlog.clone());
        let faults = Fault::packet_rules(self.nic.faults());
        let seeds = opened.fault_seeds(self.nic.seed).clone();
        let (links, counters) =
            Middleware { capture, captures_at_nic: false, qlog, faults, seeds }.wrap(links, name);
        opened.faults.extend(counters);
        links
    }

    /// Checks that the NIC supports the requested path MTU and has the requested GID.
    fn checked(&self, context: Context) -> Result<Context, CliError> {
        self.nic.watch(&context)?;
        if !self.nic.faults.is_empty() {
            self.opened.lock().faulty.push(context.clone());
        }
        let active = context.query_port().active_mtu;
        if let Some(mtu) = self.mtu.filter(|m| *m > active) {
            let (requested, link, active) = (mtu.bytes(), &context.link_info().name, active.bytes());
            return Err(CliError::Usage(format!(
                "path MTU {requested} exceeds that of {link}, {active}: use --mtu {active} or less"
            )));
        }
        if self.gid.is_some_and(|i| context.query_gid(i as usize).is_none()) {
            return Err(self.no_such_gid(&context));
        }
        Ok(context)
    }

    fn no_such_gid(&self, context: &Context) -> CliError {
        let (index, link) = (self.gid.unwrap_or(0), &context.link_info().name);
        let gids = context.gids().into_iter().enumerate().map(|(i, gid)| format!("{i} ({})", gid.ip()));
        let gids = gids.collect::<Vec<_>>().join(", ");
        CliError::Usage(format!("GID index {index} does not exist on {link}: the GID table contains {gids}"))
    }
}

/// Binds the link without sharing its addresses. Retries for up to [`MAX_PORT_WAIT`] while the port is in
/// use: a broker ends a few milliseconds after its last client.
fn bind_alone(link: &LinkSpec, shards: usize, offload: bool) -> Result<Vec<Box<dyn Link>>, BindError> {
    let begin = Instant::now();
    loop {
        match link.bind_with(shards, offload) {
            Err(BindError::Udp(UdpLinkError::InUse { .. })) if begin.elapsed() < MAX_PORT_WAIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => return bound,
        }
    }
}

/// Converts the error of an event log, which states its file.
fn failed(error: QlogError) -> CliError {
    CliError::Failed(error.to_string())
}

/// Creates the `--qlog` file. The first write error is printed when it occurs.
pub(super) fn create_qlog(path: &Path, timestamps: Timestamps) -> Result<QlogFile, CliError> {
    let file = QlogFile::create(path, timestamps).map_err(failed)?;
    file.on_failure(|e| eprintln!("urxe: {e}"));
    Ok(file)
}

/// Creates the `--capture` file. The first write error is printed when it occurs.
pub(super) fn create_capture(path: &Path, timestamps: Timestamps) -> Result<CaptureFile, CliError> {
    let file = match path.as_os_str() == STANDARD_OUTPUT {
        false => CaptureFile::create(path, timestamps)?,
        true => {
            let out = redirect_standard_output().map_err(CliError::io("--capture -"))?;
            let file = CaptureFile::to_writer(out, timestamps)?;
            file.flush_every(FLUSH_INTERVAL)?;
            file
        }
    };
    file.on_failure(|e| eprintln!("urxe: {e}"));
    Ok(file)
}

/// Interval at which a capture to standard output is flushed, so that its reader can show packets as they
/// arrive.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// Redirects standard output to standard error, and returns a handle to the original standard output.
fn redirect_standard_output() -> io::Result<File> {
    let mut stdout = io::stdout();
    stdout.flush()?;
    let out = stdout.as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdout(io::stderr())?;
    Ok(File::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_with_one_seed_get_different_psns_and_unavailable_options_are_rejected() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            link: LinkArgs,
        }
        let args = |words: &[&str]| {
            let words = ["urxe", "--link", "fabric"].iter().chain(words);
            <Cli as clap::Parser>::try_parse_from(words).map(|c| c.link)
        };
        let fabric = Fabric::new();
        let link = args(&["--seed", "7"]).unwrap();
        let qpn = |c: Context| {
            let cq = c.create_cq(1).unwrap();
            c.alloc_pd().unwrap().create_qp(&cq, &cq, &Default::default()).unwrap().endpoint()
        };
        let (a, b) = (qpn(link.open_on(&fabric, "a").unwrap()), qpn(link.open_on(&fabric, "b").unwrap()));
        assert_ne!(a.psn, b.psn);
        let error = |words: &[&str]| args(words).unwrap().open().unwrap_err().to_string();
        assert!(
            error(&["--gid", "9"])
                .starts_with("GID index 9 does not exist on fabric port 1: the GID table contains 0 (fd75:")
        );
        assert!(error(&["--shards", "2"]).contains("--shards requires a udp or packet link"));
        assert!(
            error(&["--shared-memory", "require"])
                .contains("--shared-memory require needs a udp link, not fabric")
        );
        assert!(args(&["--shared-memory", "on"]).is_err());
        assert!(args(&["--shards", "3"]).is_err());
        assert!(args(&["--mtu", "1500"]).is_err());
        assert!(args(&["--congestion", "dctcp"]).is_err());
        assert!(args(&["--fault", "lose=1"]).is_err());
    }
}

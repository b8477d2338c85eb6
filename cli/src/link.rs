//! `--link` and related options: a command's link, with capture and fault injection.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use super::CliError;
use super::oob::parse_seconds;
use urxe::broker::{SharedMemory, Sharing};
use urxe::fabric::Fabric;
pub use urxe::link::LinkSpec;
use urxe::link::udp::UdpLinkError;
use urxe::link::{BindError, Link};
use urxe::middleware::Middleware;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::{Direction, FaultCounters, FaultCounts, FaultSeeds, RuleCount, Rules};
use urxe::nic::ShardId;
use urxe::verbs::Retransmissions;
use urxe::verbs::faults::{Fault, FaultCount};
use urxe::verbs::{Congestion, ConnectOptions, Context, ContextOptions, Gid, Mtu, Personality};

/// Options common to all commands that open a NIC.
#[derive(Args, Clone)]
#[command(next_help_heading = "Link options")]
pub struct LinkArgs {
    /// Link of the NIC: `udp[:ADDR]`, `udp:IF`, `packet:IF[,ip=A/LEN,mac=M]`, `frames:…`, `fabric`
    ///
    /// udp            UDP port 4791 of this machine's first address; requires no privilege
    /// udp:ADDR       the same on this IPv4 or IPv6 address
    /// udp:IF         the same on all addresses of this interface, each a GID; udp:fe80::1%IF on one of them
    /// packet:IF      a packet socket on an interface, with its addresses; requires CAP_NET_RAW
    /// packet:IF,ip=10.77.0.9/24,mac=52:54:00:77:00:09
    ///                the same as a separate host, which responds to ARP, NDP and ping
    /// frames:dgram:LOCAL,REMOTE,ip=10.77.0.1/24
    ///                Ethernet frames over Unix sockets, in the format of QEMU's -netdev dgram
    /// frames:listen:PATH,ip=… and frames:connect:PATH,ip=…
    ///                the same over a stream, in the format of QEMU's -netdev stream
    /// fabric         in memory, within this process
    #[arg(long, value_name = "LINK", default_value = "udp", verbatim_doc_comment)]
    pub link: LinkSpec,
    /// Write the packets of both directions to this pcapng file; `-` writes to standard output, and redirects
    /// all other output to standard error
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Inject a fault: `[tx:|rx:]ACTION=WHEN[,KEY=VALUE]...`, or those of a file: `@FILE`; may be repeated
    ///
    /// ACTION: drop, dup (,copies=N), reorder, corrupt (,at=FIELD,xor=N,icrc=repair), mark (CE),
    ///         delay or replay (,by=2ms); answered in place of the destination: nak=CODE, rnr=TIMER,
    ///         cm:rej=REASON; on CM messages: cm:drop=rtu and the like; here @WHEN may follow (rnr=12@3)
    /// WHEN:   3 (the third), 3..7, 3.. (from the third), every:13 or p:0.01 (a probability), of the packets
    ///         that the filters match
    /// KEY:    filters opcode=NAME or NAME|NAME, psn=N or N..M, qp=N, from=ADDRESS, to=ADDRESS, ecn=ce,
    ///         cm=req|rep, time=2ms..5ms (since the link was opened)
    /// NAME:   an opcode: a number, one of these names, or a common prefix of several (send, read-response):
    ///         send-first send-middle send-last send-last-immediate send-last-invalidate
    ///         send-only send-only-immediate send-only-invalidate
    ///         write-first write-middle write-last write-last-immediate write-only write-only-immediate
    ///         read-request read-response-first read-response-middle read-response-last read-response-only
    ///         cmpswap fetchadd atomic-ack atomic-write flush ack resync cnp
    ///         The prefix rc-, uc-, ud-, xrc- or rd- restricts it to that service.
    /// On calls and objects of the NIC: call:ibv_reg_mr=ENOMEM@2, call:ibv_poll_cq=slow,by=2ms, qp:NUMBER=err@5ms,
    /// cq:NUMBER=overrun@5ms, mr:RKEY=revoke@5ms, port=down@5ms, gid:INDEX=ADDRESS@5ms, speed=25G@5ms,
    /// device=fatal@5ms, event:NAME@5ms[,qp=N]; docs/guide/faults.md describes them.
    /// The output ends with the numbers of packets that each rule matched and of retransmitted packets.
    #[arg(long = "fault", value_name = "RULE", verbatim_doc_comment)]
    pub faults: Vec<Rules<Fault>>,
    /// Seed of queue pair numbers, PSNs and random faults, for reproducible runs
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Index of the local GID, see `urxe devinfo` [default: selected by the address of the peer]
    #[arg(long, value_name = "INDEX")]
    pub gid: Option<u8>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; must be the same at both ends
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<Mtu>,
    /// Class of device to emulate: `default` (the specification, lenient about posted work requests),
    /// `strict` (the letter of the specification), `rxe` (Linux's soft-RoCE), `mlx5` (ConnectX), `throughput` (packets
    /// of equal length in long WRITEs and READs, for udp links);
    /// docs/guide/personalities.md lists the differences
    #[arg(long, value_name = "CLASS", value_parser = parse_personality)]
    pub personality: Option<Personality>,
    /// Congestion control: `none`, `loss-driven`, `dcqcn:connectx`, `dcqcn:sigcomm15` or `delay`, with changed
    /// parameters behind it: `dcqcn:connectx,rpg_ai_rate=50`; docs/guide/congestion.md lists them
    /// [default: loss-driven]
    #[arg(long, value_name = "CONTROL")]
    pub congestion: Option<Congestion>,
    /// Number of shards of the NIC, a power of two, each with its own socket, lock and thread, for programs
    /// that use several processors; requires a udp or packet link
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_shards)]
    pub shards: usize,
    /// Whether packets to other programs of this host and user take rings in shared memory instead of the UDP socket: `off`,
    /// `auto` (those of RC, where possible) or `require` (else they are dropped). With `auto` and `require`,
    /// the program shares its addresses with others, as those of `urxe run` do; otherwise it binds them exclusively. Both
    /// ends need the option
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = parse_shared_memory)]
    pub shared_memory: SharedMemory,
    /// Disable segmentation offload: tcpdump and Wireshark on the interface then show packets as they are on
    /// the wire, instead of super-packets of up to 64 KiB. Reduces throughput; not necessary for --capture
    #[arg(long)]
    pub no_offload: bool,
    /// Minimum local ACK timeout in seconds; it overrides shorter timeouts of queue pairs. By default a
    /// connection to a peer that does not respond fails after its timeout and retries, often in less than a
    /// second. This includes a process that is stopped (SIGSTOP, breakpoint), whose acknowledgements a
    /// hardware NIC would still send. With 60 at both ends a process may be stopped for a minute
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub min_ack_timeout: Option<Duration>,
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
    faults: Vec<FaultCounters>,
    /// Seeds of random faults.
    seeds: Option<FaultSeeds>,
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

/// Returns a line that says whether packets took rings in shared memory.
pub fn rings_line(has_used_rings: bool) -> &'static str {
    match has_used_rings {
        true => "packets took rings in shared memory",
        false => {
            "no packets took rings in shared memory: the peer is on another host, or without --shared-memory"
        }
    }
}

/// Parses a path MTU given in bytes.
pub fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| format!("invalid path MTU '{text}': use 256, 512, 1024, 2048 or 4096"))
}

/// Parses a number of shards, a power of two up to 64.
pub fn parse_shards(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|n| ShardId::new(0, *n).is_some());
    count.ok_or_else(|| format!("invalid number of shards '{text}': use 1, 2, 4, 8, 16, 32 or 64"))
}

/// Parses the name of a personality.
pub fn parse_personality(text: &str) -> Result<Personality, String> {
    Personality::named(text).ok_or_else(|| {
        let names = Personality::ALL.map(|p| p.name).join(", ");
        format!("unknown personality '{text}': use one of {names}")
    })
}

/// Parses whether rings in shared memory are used.
pub fn parse_shared_memory(text: &str) -> Result<SharedMemory, String> {
    SharedMemory::named(text).ok_or_else(|| {
        format!("'{text}' is none of {}", SharedMemory::ALL.map(SharedMemory::name).join(", "))
    })
}

/// Returns how to share addresses with other programs of this user, through a broker that this executable runs.
///
/// # Errors
/// [`CliError::Io`].
pub fn sharing(shared_memory: SharedMemory) -> Result<Sharing, CliError> {
    let what = "cannot determine the path of the urxe executable".into();
    let program = std::env::current_exe().map_err(|source| CliError::Io { what, source })?;
    Ok(Sharing { program, any_user: false, shared_memory })
}

impl LinkArgs {
    /// Rejects a fabric link, for commands whose peer is another process.
    ///
    /// # Errors
    /// [`CliError::Usage`].
    pub fn check_network(&self) -> Result<(), CliError> {
        if self.link == LinkSpec::Fabric {
            let text =
                "--link fabric connects NICs of this process only: choose a udp, packet or frames link";
            return Err(CliError::Usage(text.into()));
        }
        Ok(())
    }

    /// Binds the link, wraps it in the capture and the fault rules, and opens a NIC on it. For a fabric link,
    /// creates a fabric with this NIC alone; use [`open_on`](Self::open_on) to add NICs to an existing
    /// fabric.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn open(&self) -> Result<Context, CliError> {
        self.check_options()?;
        if self.link == LinkSpec::Fabric {
            return self.open_on(&Fabric::new(), "a");
        }
        self.create_capture(Timestamps::Wall)?;
        let links = match self.shared_memory {
            SharedMemory::Off => self.bind_alone()?,
            when => sharing(when)?.bind(&self.link, self.shards, !self.no_offload)?,
        };
        let links = self.wrap_all(links, &self.link.to_string());
        self.checked(Context::open_shards(links, &self.context_options())?)
    }

    /// Opens a NIC on a new port of a fabric, with the configured capture and fault rules. `name` is the
    /// port's name in captures.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn open_on(&self, fabric: &Fabric, name: &str) -> Result<Context, CliError> {
        self.check_options()?;
        self.create_capture(if fabric.is_virtual() { Timestamps::Virtual } else { Timestamps::Wall })?;
        let port = fabric.port(&fabric.auto_address())?;
        let wrap = |port| {
            let mut links = self.wrap_all(vec![Box::new(port)], name);
            links.pop().expect("one link per port")
        };
        self.checked(Context::on_port(port, &self.context_options(), wrap)?)
    }

    /// Returns the options for opening the next NIC. Each NIC gets its own seed, because otherwise both ends
    /// of a connection would draw the same numbers.
    fn context_options(&self) -> ContextOptions {
        let mut opened = self.opened();
        opened.nics += 1;
        // With random faults, the reported seed reproduces queue pair numbers and PSNs too.
        let seed = opened.fault_seeds(self.seed).seed();
        let seed = self.seed.or(self.has_random_faults().then_some(seed));
        let seed = seed.map(|s| s.wrapping_add(opened.nics - 1));
        let personality = self.personality.unwrap_or(Personality::DEFAULT);
        let not_on_packets = self.all_faults().filter(|fault| !matches!(fault, Fault::Packet(_)));
        ContextOptions::default()
            .seed(seed)
            .personality(personality)
            .min_ack_timeout(self.min_ack_timeout)
            .congestion(self.congestion.unwrap_or_default())
            .faults(not_on_packets.cloned())
    }

    /// Returns the options for connecting queue pairs.
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::default().mtu(self.mtu).sgid_index(self.gid)
    }

    /// Returns the local GID to announce to a peer, and its index: the GID specified by `--gid`, or the one
    /// selected by the peer's address.
    ///
    /// # Errors
    /// [`CliError::Family`] if there is none of the peer's IP version, [`CliError::NoSuchGid`] if there is
    /// none at all.
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
            (None, Some(peer)) => Err(CliError::Family {
                peer,
                link: context.link_info().name.clone(),
                available: if peer.is_ipv4() { "IPv6" } else { "IPv4" },
            }),
            (None, None) => Err(self.no_such_gid(context)),
        }
    }

    /// Flushes the capture, and returns any error from writing the file. Call this at the end of a command.
    ///
    /// # Errors
    /// [`CliError::Capture`].
    pub fn finish(&self) -> Result<(), CliError> {
        match &self.opened().capture {
            Some(file) => Ok(file.flush()?),
            None => Ok(()),
        }
    }

    /// Returns whether packets took rings in shared memory, or `None` with `--shared-memory off`.
    pub fn has_used_rings(&self, context: &Context) -> Option<bool> {
        (self.shared_memory != SharedMemory::Off).then(|| context.has_used_rings())
    }

    /// Returns the current counters of the `--fault` rules, or `None` without `--fault`.
    pub fn fault_report(&self) -> Option<FaultReport> {
        let opened = self.opened();
        let mut retransmitted = Retransmissions::default();
        opened.faulty.iter().for_each(|context| retransmitted += context.counters().into());
        let packet_rules = RuleCount::sum(&opened.faults).into_iter().map(FaultCount::from);
        let seed = opened.seeds.as_ref().filter(|_| self.has_random_faults()).map(FaultSeeds::seed);
        let others = FaultCount::sum(opened.faulty.iter().flat_map(Context::fault_counts));
        (!self.faults.is_empty()).then(|| FaultReport {
            rules: packet_rules.chain(others).collect(),
            retransmitted,
            seed,
        })
    }

    /// Returns the number of packets that `--fault` has affected so far, summed over all NICs.
    pub fn fault_counts(&self, direction: Direction) -> FaultCounts {
        let mut sum = FaultCounts::default();
        for counts in self.opened().faults.iter().map(|f| f.get(direction)) {
            sum += counts;
        }
        sum
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock()
    }

    fn create_capture(&self, timestamps: Timestamps) -> Result<(), CliError> {
        let mut opened = self.opened();
        if let (Some(path), None) = (&self.capture, &opened.capture) {
            opened.capture = Some(create_capture(path, timestamps)?);
        }
        Ok(())
    }

    /// Binds the link without sharing its addresses. Retries for up to [`MAX_PORT_WAIT`] while the port is in use: a broker
    /// ends a few milliseconds after its last client.
    fn bind_alone(&self) -> Result<Vec<Box<dyn Link>>, BindError> {
        let begin = Instant::now();
        loop {
            match self.link.bind_with(self.shards, !self.no_offload) {
                Err(BindError::Udp(UdpLinkError::InUse { .. })) if begin.elapsed() < MAX_PORT_WAIT => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                bound => return bound,
            }
        }
    }

    /// Rejects options that the link does not support.
    fn check_options(&self) -> Result<(), CliError> {
        if self.shards > 1 && !self.link.has_shards() {
            let text = format!("--shards requires a udp or packet link, not {}", self.link);
            return Err(CliError::Usage(text));
        }
        let is_udp = matches!(self.link, LinkSpec::Udp(_) | LinkSpec::UdpOn { .. });
        if self.shared_memory == SharedMemory::Require && !is_udp {
            let text = format!("--shared-memory require needs a udp link, not {}", self.link);
            return Err(CliError::Usage(text));
        }
        Ok(())
    }

    fn has_random_faults(&self) -> bool {
        self.all_faults().any(Fault::is_random)
    }

    fn all_faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().flat_map(|Rules(faults)| faults)
    }

    /// Wraps the links of one NIC in the capture and the fault rules.
    fn wrap_all(&self, links: Vec<Box<dyn Link>>, name: &str) -> Vec<Box<dyn Link>> {
        let mut opened = self.opened();
        let (capture, faults) = (opened.capture.clone(), Fault::packet_rules(self.all_faults()));
        let seeds = opened.fault_seeds(self.seed).clone();
        let (links, counters) = Middleware { capture, faults, seeds }.wrap(links, name);
        opened.faults.extend(counters);
        links
    }

    /// Checks that the NIC supports the requested path MTU and has the requested GID.
    fn checked(&self, context: Context) -> Result<Context, CliError> {
        if !self.faults.is_empty() {
            self.opened().faulty.push(context.clone());
        }
        let active = context.query_port().active_mtu;
        if let Some(mtu) = self.mtu.filter(|m| *m > active) {
            return Err(CliError::mtu(mtu, &context.link_info().name, active));
        }
        if self.gid.is_some_and(|i| context.query_gid(i as usize).is_none()) {
            return Err(self.no_such_gid(&context));
        }
        Ok(context)
    }

    fn no_such_gid(&self, context: &Context) -> CliError {
        CliError::NoSuchGid {
            index: self.gid.unwrap_or(0),
            link: context.link_info().name.clone(),
            gids: context.gids(),
        }
    }
}

/// Creates the `--capture` file. The first write error is printed when it occurs.
pub(super) fn create_capture(path: &Path, timestamps: Timestamps) -> Result<CaptureFile, CliError> {
    let file = match path.as_os_str() == STANDARD_OUTPUT {
        false => CaptureFile::create(path, timestamps)?,
        true => {
            let redirected = redirect_standard_output();
            let out = redirected.map_err(|source| CliError::Io { what: "--capture -".into(), source })?;
            let file = CaptureFile::to_writer(out, timestamps)?;
            file.flush_every(FLUSH_INTERVAL)?;
            file
        }
    };
    file.on_failure(|e| eprintln!("urxe: {e}"));
    Ok(file)
}

/// File name that selects standard output.
pub(super) const STANDARD_OUTPUT: &str = "-";

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

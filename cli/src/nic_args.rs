//! Options of all commands that open a NIC: link and address, sharing, faults, capture, event log, explanation,
//! timeouts, congestion control and class of device.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command, ValueHint};

use super::CliError;
use super::oob::parse_seconds;
use urxe::broker::SharedMemory;
use urxe::link::LinkSpec;
use urxe::middleware::capture::Rotation;
use urxe::middleware::faults::Rules;
use urxe::nic::ShardId;
use urxe::verbs::explain::Reporter;
use urxe::verbs::faults::Fault;
use urxe::verbs::{Completion, Congestion, Context, Cq, Personality};

/// Environment variable with the default of `--shared-memory`, so that all programs of a script or test run
/// can have the same.
pub const SHARED_MEMORY: &str = "URXE_SHARED_MEMORY";

/// File name that selects standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// Minimum local ACK timeout with `--patient`. A process may stay stopped for this long even if its peer's
/// retry count is 0.
const PATIENT_ACK_TIMEOUT: Duration = Duration::from_secs(600);

/// Beginnings of links, which a shell completes.
const LINKS: [&str; 7] =
    ["udp", "udp:", "packet:", "frames:dgram:", "frames:listen:", "frames:connect:", "fabric"];

/// Beginnings of faults, which a shell completes.
const FAULTS: [&str; 21] = [
    "drop=", "dup=", "replay=", "reorder=", "delay=", "mark=", "corrupt=", "nak=", "rnr=", "cm:", "tx:",
    "rx:", "call:", "qp:", "cq:", "mr:", "gid:", "port=", "speed=", "device=", "event:",
];

/// Congestion controls, which a shell completes.
const CONGESTION: [&str; 5] = ["none", "loss-driven", "dcqcn:connectx", "dcqcn:sigcomm15", "delay"];

/// Link and address of a NIC.
#[derive(Args, Clone, Default)]
pub struct AddressArgs {
    /// Link of the NIC, see `urxe help links`
    #[arg(long, value_name = "LINK", value_parser = Completed::new(LINKS, parse_link),
        hide_possible_values = true)]
    link: Option<String>,
    /// Shorthand for --link udp:ADDR
    #[arg(long, value_name = "ADDR", conflicts_with = "link")]
    ip: Option<IpAddr>,
}

/// Files for the packets and the events of a command.
#[derive(Args, Clone, Default)]
pub struct CaptureArgs {
    /// Write the packets to this pcapng file; `-` for standard output
    ///
    /// `-` redirects all other output to standard error. Under `urxe run`, the first process that opens a
    /// device writes to FILE, each later process to a separate file with its PID in the name
    /// (out-PID.pcapng); mergecap joins such files. `%p` in FILE is replaced by the PID, and `-` is for one
    /// process only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture: Option<PathBuf>,
    /// Begin a new capture file when the current one is large or old: size=100M,time=60,files=10
    ///
    /// size is in bytes, or with the suffix K, M or G; time is in seconds. The file is renamed to out-00001.pcapng, and FILE
    /// is always the current one. files is the number of renamed files that are kept.
    #[arg(long, value_name = "LIMITS", requires = "capture", hide_short_help = true)]
    pub capture_rotate: Option<Rotation>,
    /// Write the events of the NIC and its queue pairs to this qlog file
    ///
    /// Packets, work requests, NAKs, timeouts, retransmissions, rates, states: docs/guide/qlog.md lists them. Under
    /// `urxe run`, each process has a file, as with --capture. `urxe decode --perfetto` draws such a file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub qlog: Option<PathBuf>,
}

/// Options of all commands that open a NIC for traffic.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "NIC options")]
pub struct NicArgs {
    /// Link and address.
    #[command(flatten)]
    pub address: AddressArgs,
    /// Number of shards, a power of two up to 64 [default: 1]
    ///
    /// Each shard has its own socket, lock and thread, for programs whose threads have a completion queue
    /// each; the queue pairs of a completion queue are in one shard. Requires a udp or packet link.
    #[arg(long, value_name = "N", value_parser = Completed::new(["1", "2", "4", "8", "16", "32", "64"], parse_shards),
        hide_possible_values = true)]
    pub shards: Option<usize>,
    /// Disable segmentation offload
    ///
    /// tcpdump and Wireshark on the interface then show packets as they are on the wire, instead of
    /// super-packets of up to 64 KiB. Reduces throughput; not necessary for --capture.
    #[arg(long)]
    pub no_offload: bool,
    /// Rings in shared memory: off, auto or require
    ///
    /// Whether packets to other programs of this host and user take rings in shared memory instead of UDP
    /// sockets: `off`, `auto` (those of RC and XRC, where possible; the default of `urxe run` alone) or
    /// `require` (else they are dropped). Both ends need the option, or the variable URXE_SHARED_MEMORY.
    /// With `auto` and `require`, and always under `urxe run`, the program shares its addresses with
    /// others; otherwise it binds them exclusively. tcpdump and Wireshark on the interface do not show
    /// packets in rings, --capture does.
    #[arg(long, value_name = "WHEN", value_parser = Completed::new(SharedMemory::ALL.map(SharedMemory::name), parse_shared_memory),
        hide_possible_values = true)]
    pub shared_memory: Option<SharedMemory>,
    /// Share the addresses with programs of all users
    ///
    /// By default only programs of the same user share an address. The option of the first program applies.
    #[arg(long)]
    pub any_user: bool,
    /// Compute and verify ICRCs in shared memory too
    ///
    /// Packets in shared memory otherwise have none. Necessary at both ends.
    #[arg(long)]
    pub always_icrc: bool,
    /// Inject a fault, or those of @FILE, see `urxe help faults`
    ///
    /// May be repeated.
    #[arg(long = "fault", value_name = "RULE", value_parser = Completed::new(FAULTS, parse::<Rules<Fault>>),
        hide_possible_values = true)]
    pub faults: Vec<Rules<Fault>>,
    /// Seed of queue pair numbers, PSNs and random faults
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Capture.
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// Explain each failed work request and each refused request on standard error
    ///
    /// The report has the cause, transmissions, retries and the check that failed. A request of the peer that
    /// this end refuses is reported even if no receive completes with an error.
    #[arg(long)]
    pub explain: bool,
    /// Minimum local ACK timeout; overrides shorter ones
    ///
    /// By default a connection to a peer that does not respond fails after its timeout and retries, often in
    /// less than a second. This includes a process that is stopped (SIGSTOP, breakpoint), whose
    /// acknowledgements a hardware NIC would still send. With 60 at both ends a process may be stopped for a
    /// minute.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    min_ack_timeout: Option<Duration>,
    /// Shorthand for --min-ack-timeout 600, for debuggers
    ///
    /// Waits at least 10 minutes for a peer that does not respond, so that connections survive while a
    /// debugger or SIGSTOP stops a process. Necessary at both ends.
    #[arg(long, conflicts_with = "min_ack_timeout")]
    patient: bool,
    /// Congestion control: loss-driven (default), dcqcn, delay, none
    ///
    /// `dcqcn` stands for `dcqcn:connectx`; `dcqcn:sigcomm15` has other parameters. Changed parameters may
    /// follow: `dcqcn:connectx,rpg_ai_rate=50`. docs/guide/congestion.md lists them.
    #[arg(long, value_name = "CONTROL", value_parser = Completed::new(CONGESTION, parse::<Congestion>),
        hide_possible_values = true)]
    pub congestion: Option<Congestion>,
    /// Class of device: default, strict, rxe, mlx5 or throughput
    ///
    /// `default` is the specification, lenient about posted work requests, `strict` the letter of the
    /// specification, `rxe` Linux's soft-RoCE, `mlx5` ConnectX; `throughput` sends packets of equal length
    /// in WRITEs and READs of some KiB and more, for udp links. docs/guide/personalities.md lists the
    /// differences.
    #[arg(long, value_name = "CLASS", value_parser = Completed::new(Personality::ALL.map(|class| class.name), parse_personality),
        hide_possible_values = true)]
    pub personality: Option<Personality>,
}

impl AddressArgs {
    /// Returns the specified link.
    pub fn link(&self) -> Option<LinkSpec> {
        self.text().map(|text| text.parse().expect("the option's parser accepts links only"))
    }

    /// Returns the specified link as text.
    pub fn text(&self) -> Option<String> {
        self.link.clone().or(self.ip.map(|ip| format!("udp:{ip}")))
    }

    /// Rejects a fabric link, for commands whose peer is another process.
    ///
    /// # Errors
    /// [`CliError::Usage`].
    pub fn check_network(&self) -> Result<(), CliError> {
        if self.link() == Some(LinkSpec::Fabric) {
            let text = "a fabric connects NICs of one process only: choose a udp, packet or frames link";
            return Err(CliError::Usage(text.into()));
        }
        Ok(())
    }
}

impl CaptureArgs {
    /// Reports whether the packets are written to standard output.
    pub fn is_to_standard_output(&self) -> bool {
        self.capture.as_ref().is_some_and(|file| file.as_os_str() == STANDARD_OUTPUT)
    }
}

impl NicArgs {
    /// Returns the selected use of rings in shared memory, `off` if neither the option nor the variable is
    /// given.
    ///
    /// # Errors
    /// [`CliError::Usage`] if the variable is invalid.
    pub fn shared_memory(&self) -> Result<SharedMemory, CliError> {
        let variable = env::var(SHARED_MEMORY).ok().filter(|text| !text.is_empty());
        match (self.shared_memory, variable) {
            (Some(when), _) => Ok(when),
            (None, None) => Ok(SharedMemory::Off),
            (None, Some(text)) => {
                parse_shared_memory(&text).map_err(|e| CliError::Usage(format!("{SHARED_MEMORY}: {e}")))
            }
        }
    }

    /// Returns the faults of all rules.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().flat_map(|Rules(faults)| faults)
    }

    /// Returns the minimum local ACK timeout.
    pub fn min_ack_timeout(&self) -> Option<Duration> {
        self.min_ack_timeout.or(self.patient.then_some(PATIENT_ACK_TIMEOUT))
    }

    /// Prints the reports about requests that a NIC refuses to standard error, with `--explain`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn watch(&self, context: &Context) -> io::Result<()> {
        if self.explain { reporter().watch(context) } else { Ok(()) }
    }

    /// Prints the report about a failed work request to standard error, with `--explain`.
    pub fn explain(&self, cq: &Cq, failed: &Completion) {
        if self.explain {
            reporter().report_completion(cq, failed);
        }
    }
}

/// Returns the process's reporter of failures.
fn reporter() -> &'static Reporter {
    static REPORTER: OnceLock<Reporter> = OnceLock::new();
    // The reader of standard error may have closed it.
    REPORTER.get_or_init(|| Reporter::new(|report| drop(writeln!(io::stderr(), "{report}"))))
}

/// Prints the reports that are still to be printed, because the command ends.
pub(crate) fn finish_reports() {
    reporter().finish();
}

/// Checks that the text specifies a link. Returns the text, because commands also pass it to programs.
fn parse_link(text: &str) -> Result<String, String> {
    text.parse::<LinkSpec>().map(|_| text.to_owned())
}

/// Parses a number of shards, a power of two up to 64.
fn parse_shards(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|n| ShardId::new(0, *n).is_some());
    count.ok_or_else(|| format!("invalid number of shards '{text}': use 1, 2, 4, 8, 16, 32 or 64"))
}

/// Parses the name of a personality.
fn parse_personality(text: &str) -> Result<Personality, String> {
    Personality::named(text).ok_or_else(|| {
        let names = Personality::ALL.map(|p| p.name).join(", ");
        format!("unknown personality '{text}': use one of {names}")
    })
}

/// Parses whether rings in shared memory are used.
fn parse_shared_memory(text: &str) -> Result<SharedMemory, String> {
    SharedMemory::named(text).ok_or_else(|| {
        format!("'{text}' is none of {}", SharedMemory::ALL.map(SharedMemory::name).join(", "))
    })
}

fn parse<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

/// Parser of an option for which a shell completes these values, or beginnings of values.
#[derive(Clone)]
pub struct Completed<T> {
    values: Vec<&'static str>,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Completed<T> {
    /// Creates a parser that accepts what `parse` does.
    pub fn new(
        values: impl IntoIterator<Item = &'static str>,
        parse: fn(&str) -> Result<T, String>,
    ) -> Completed<T> {
        Completed { values: values.into_iter().collect(), parse }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Completed<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        TypedValueParser::parse_ref(&self.parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_values_are_valid_or_begin_valid_ones() {
        let is_known =
            |text: &str| parse::<Rules<Fault>>(text).err().is_none_or(|e| !e.contains("unknown action"));
        assert!(FAULTS.iter().all(|text| is_known(&format!("{text}1"))) && !is_known("lose=1"));
        let end = |text: &&str| match *text {
            "udp:" => "lo",
            "packet:" => "lo",
            "frames:dgram:" => "a,b,ip=10.77.0.1/24",
            text if text.ends_with(':') => "a,ip=10.77.0.1/24",
            _ => "",
        };
        assert!(LINKS.iter().all(|text| parse_link(&format!("{text}{}", end(text))).is_ok()));
        assert!(CONGESTION.iter().all(|text| parse::<Congestion>(text).is_ok()));
    }
}

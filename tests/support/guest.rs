//! Fixture that runs a Linux guest with the kernel's rxe as a test peer, in QEMU without KVM or root
//! privileges.
//!
//! `tests/rxe-guest/README.md` describes how the guest is built, what runs in it, and its limitations.

mod process;
mod qemu;
mod requester;
mod vsh;

pub use process::{GuestProcess, Output};
pub use requester::Requester;
pub use vsh::{Reply, Vsh, Wc, hash, pattern};

use process::Link;
use qemu::{Qemu, Snapshot};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TESTS: &str = concat!(env!("URXE_REPOSITORY"), "/tests/rxe-guest");
/// Time limit for a command that normally completes at once; long because the guest is emulated and the host
/// may be busy.
const SHORT: Duration = Duration::from_secs(30);
/// Time limit for a copy of a program into the guest.
const INSTALLATION: Duration = Duration::from_secs(120);
/// Text that [`Guest::state`] contains if rxe hangs because of its own defect (see `guest/requester.rs`).
pub const LOST_WAKEUP: &str = "rxe has lost a wake-up";

// ---- errors ----

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The host lacks QEMU, the guest image or another requirement; the message says how to install it.
    Missing,
    /// The guest did not boot.
    Boot,
    /// The guest or the command in it has terminated.
    Terminated,
    /// A deadline passed.
    Timeout,
    /// A command in the guest failed: its status was not 0, or `vsh` responded with `err`.
    Failed,
    /// Input or output on the host failed.
    Io,
}

/// Error of an operation on a guest, with the guest's last console output if that is relevant.
pub struct GuestError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Description, without the console output.
    pub message: String,
    /// Last lines of the guest's console and of QEMU's messages; may be empty.
    pub log: String,
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.log.is_empty() {
            write!(f, "\n--- end of the guest's log:\n{}\n---", self.log)?;
        }
        Ok(())
    }
}

/// Prints the same text as `Display`, so that the panic message of a failed `unwrap` is readable.
impl fmt::Debug for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for GuestError {}

/// Result of an operation on a guest.
pub type Result<T> = std::result::Result<T, GuestError>;

fn error<T>(kind: ErrorKind, message: impl Into<String>) -> Result<T> {
    Err(GuestError { kind, message: message.into(), log: String::new() })
}

fn temporary_directory() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("urxe-guest-").tempdir();
    dir.map_err(|e| io_error("creating a temporary directory", e))
}

fn io_error(operation: impl fmt::Display, e: io::Error) -> GuestError {
    GuestError { kind: ErrorKind::Io, message: format!("{operation}: {e}"), log: String::new() }
}

/// Returns the last 2000 bytes of each log file in `dir`.
fn log_tail(dir: &Path) -> String {
    let mut out = String::new();
    for name in ["console", "qemu.log"] {
        let text = std::fs::read(dir.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).replace('\r', "");
        out.push_str(text.trim());
        out.push('\n');
    }
    out.trim().to_string()
}

// ---- configuration ----

/// Transport of the guest's Ethernet frames (complete, without FCS).
#[derive(Clone, Debug)]
pub enum Net {
    /// Unix datagrams, one frame each: QEMU binds `local` and sends to `remote`. Neither socket need exist
    /// before. A receive queue holds `net.unix.max_dgram_qlen` frames, often 10, so the peer must send with a
    /// blocking socket, or frames are lost (QEMU itself waits).
    Dgram { local: PathBuf, remote: PathBuf },
    /// Unix stream socket on which QEMU listens. Each frame is preceded by its length as a 32-bit big-endian
    /// number.
    StreamListen { path: PathBuf },
    /// Unix stream socket to which QEMU connects, with the framing of `StreamListen`. The listener must
    /// already exist.
    StreamConnect { path: PathBuf },
    /// An existing tap device, in the network namespace `netns` if there is one. Needs root. The `oob` ports
    /// are in that namespace too, and need its `lo` to be up.
    Tap { ifname: String, netns: Option<String> },
}

/// Debian release of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12: Linux 6.1, rdma-core 44.
    Bookworm,
    /// Debian 13: Linux 6.12, rdma-core 56.
    Trixie,
}

impl Suite {
    /// Returns the release named by the environment variable `URXE_GUEST_SUITE`; Debian 12 if it is not set.
    pub fn from_env() -> Suite {
        match std::env::var("URXE_GUEST_SUITE").as_deref() {
            Err(_) | Ok("" | "bookworm") => Suite::Bookworm,
            Ok("trixie") => Suite::Trixie,
            Ok(other) => panic!("URXE_GUEST_SUITE is {other:?}, expected `bookworm` or `trixie`"),
        }
    }

    /// Returns the release's code name in Debian's archive.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
        }
    }
}

/// Configuration of a guest; see [`GuestConfig::new`] for the defaults.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Debian release; [`Suite::from_env`] by default.
    pub suite: Suite,
    /// Network.
    pub net: Net,
    /// IPv4 and IPv6 addresses with prefix lengths. The guest also has the link-local address derived from
    /// its MAC address.
    pub ips: Vec<String>,
    /// MAC address.
    pub mac: String,
    /// Interface MTU: 1500 gives an active path MTU of 1024, 4500 one of 4096.
    pub mtu: u16,
    /// Forwarded TCP ports (host, guest): connections to the host port on 127.0.0.1 are forwarded to the
    /// guest port. Host port 0 selects a free one, which [`Guest::host_port`] returns. The other direction
    /// needs no entry: 10.0.2.2 in the guest is the host's 127.0.0.1.
    pub oob: Vec<(u16, u16)>,
    /// Number of processors, one or two.
    pub cpus: u8,
    /// Pcap file for the guest's frames in both directions; `None` for no recording.
    pub pcap: Option<PathBuf>,
    /// Time limit for the start, which ends when `rxe0` is ACTIVE with all its GIDs. If there is no snapshot
    /// yet, also the limit for the boot and the snapshot before it.
    pub boot_timeout: Duration,
}

impl GuestConfig {
    /// Returns the configuration of guest number `n` (1 to 99): addresses 10.77.0.n/24 and fd77::n/64, MAC
    /// address 52:54:00:77:00:n, MTU 1500, one processor.
    pub fn new(net: Net, n: u8) -> Self {
        assert!(
            (1..=99).contains(&n),
            "guest number {n} is not in 1 to 99: it is used both as decimal and as hexadecimal digits"
        );
        Self {
            suite: Suite::from_env(),
            net,
            ips: vec![format!("10.77.0.{n}/24"), format!("fd77::{n}/64")],
            mac: format!("52:54:00:77:00:{n:02}"),
            mtu: 1500,
            oob: Vec::new(),
            cpus: 1,
            pcap: None,
            boot_timeout: Duration::from_secs(120),
        }
    }

    /// Returns the link-local IPv6 address derived from the MAC address.
    pub fn link_local(&self) -> Result<Ipv6Addr> {
        let mac: Vec<u8> = self.mac.split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        let &[a, b, c, d, e, f] = mac.as_slice() else {
            return error(ErrorKind::Io, format!("{:?} is not a MAC address", self.mac));
        };
        let w = |x: u8, y: u8| u16::from_be_bytes([x, y]);
        Ok(Ipv6Addr::new(0xfe80, 0, 0, 0, w(a ^ 2, b), w(c, 0xff), w(0xfe, d), w(e, f)))
    }
}

/// Returns the GID for the IP address `ip`.
fn gid_of(ip: &str) -> Result<Ipv6Addr> {
    match ip.parse() {
        Ok(IpAddr::V4(a)) => Ok(a.to_ipv6_mapped()),
        Ok(IpAddr::V6(a)) => Ok(a),
        Err(_) => error(ErrorKind::Io, format!("{ip:?} is not an IP address")),
    }
}

// ---- the guest ----

/// A running guest. QEMU is killed on drop, and also if the test process terminates without dropping the
/// guest.
pub struct Guest {
    link: Arc<Link>,
    qemu: Qemu,
    gids: BTreeMap<Ipv6Addr, u32>,
    link_local: Ipv6Addr,
    oob: Vec<(u16, u16)>,
    boot_time: Duration,
    // Declared last, so that the directory is removed last.
    _dir: tempfile::TempDir,
}

impl Guest {
    /// Starts a guest, and waits until `rxe0` is ACTIVE and has a GID for each address.
    pub fn start(config: GuestConfig) -> Result<Self> {
        let link_local = config.link_local()?;
        if let Net::StreamConnect { path } = &config.net
            && !path.exists()
        {
            // QEMU would run without a network
            return error(ErrorKind::Io, format!("no process listens on {}", path.display()));
        }
        let snapshot = Snapshot::open(config.suite, config.cpus, config.boot_timeout)?;
        let begin = Instant::now();
        let deadline = begin + config.boot_timeout;
        let dir = temporary_directory()?;
        let mut oob = config.oob.clone();
        for (host, _) in oob.iter_mut().filter(|p| p.0 == 0) {
            *host = super::tcp_port::unused();
        }
        let (qemu, link) = snapshot.restore(&config, &oob, dir.path())?;
        let gids = BTreeMap::new();
        let mut guest = Self { link, qemu, gids, link_local, oob, boot_time: Duration::ZERO, _dir: dir };
        if let Err(e) = guest.configure(&config) {
            return Err(guest.qemu.boot_error(e.message));
        }
        let mut expected = vec![link_local];
        for ip in &config.ips {
            expected.push(gid_of(ip.split('/').next().unwrap_or(ip))?);
        }
        guest.wait_for_gids(&expected, deadline)?;
        guest.boot_time = begin.elapsed();
        Ok(guest)
    }

    /// Sets the clock, which has stood still since the snapshot, gives `eth0` its addresses, and adds `rxe0`.
    fn configure(&self, config: &GuestConfig) -> Result<Output> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (mac, mtu) = (&config.mac, config.mtu);
        let mut cmd = format!("date -s @{now} && ip link set eth0 address {mac} mtu {mtu} up");
        for ip in &config.ips {
            cmd += &format!(" && ip addr add {ip} dev eth0");
        }
        self.check(&(cmd + " && rdma link add rxe0 type rxe netdev eth0"), config.boot_timeout)
    }

    fn wait_for_gids(&mut self, expected: &[Ipv6Addr], deadline: Instant) -> Result<()> {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let out = self.exec(
                "cd /sys/class/infiniband/rxe0/ports/1 && cat state && grep -H . gids/? gids/1?",
                remaining,
            )?;
            let mut lines = out.stdout.lines();
            let state = lines.next().unwrap_or("no rxe0").to_string();
            // Example: gids/1:0000:0000:0000:0000:0000:ffff:0a4d:0001
            self.gids = lines
                .filter_map(|l| l.strip_prefix("gids/")?.split_once(':'))
                .filter_map(|(i, g)| Some((g.parse::<Ipv6Addr>().ok()?, i.parse().ok()?)))
                .filter(|(g, _)| !g.is_unspecified())
                .collect();
            if state.contains("ACTIVE") && expected.iter().all(|g| self.gids.contains_key(g)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let message = format!("rxe0 is {state}; GIDs {:?}, expected {expected:?}", self.gids);
                return Err(GuestError { kind: ErrorKind::Boot, message, log: log_tail(&self.link.dir) });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Describes the state of the guest's device and queue pairs, for the diagnosis of a failed case.
    pub fn state(&self) -> String {
        // The values are read twice, to distinguish a hang from slow progress; frames and interrupts show
        // which queue of the NIC hangs.
        let cmd = "rdma res show qp; ip neigh; uptime; cd /sys/class/infiniband/rxe0/ports/1/hw_counters; \
                   for i in 1 2; do grep -v ^0 *; grep eth0 /proc/net/dev; grep virtio /proc/interrupts; \
                   sleep $((2 - i)); done";
        let counters = match self.exec(cmd, SHORT) {
            Ok(out) => format!("the guest's queue pairs and counters:\n{}", out.stdout),
            Err(e) => e.message,
        };
        let requesters = match self.lost_wakeups() {
            Ok((all, lost)) if lost.is_empty() => format!("requesters of rxe: {all:?}"),
            Ok((_, lost)) => format!("{LOST_WAKEUP}: {lost:?}"),
            Err(e) => e.message,
        };
        format!("{counters}{requesters}\n")
    }

    /// Runs `cmd` with `sh -c`, and waits for it to exit with any status. On timeout, kills it and returns an
    /// error.
    pub fn exec(&self, cmd: &str, timeout: Duration) -> Result<Output> {
        let mut p = self.spawn(cmd)?;
        p.close_stdin()?;
        p.wait(timeout)
    }

    /// Like [`exec`](Self::exec), but returns an error with the output if the status is not 0.
    pub fn check(&self, cmd: &str, timeout: Duration) -> Result<Output> {
        let o = self.exec(cmd, timeout)?;
        if o.status == 0 {
            return Ok(o);
        }
        let message = format!("`{cmd}` exited with status {}\n{}{}", o.status, o.stdout, o.stderr);
        Err(GuestError { kind: ErrorKind::Failed, message, log: log_tail(&self.link.dir) })
    }

    /// Returns the contents of a file in the guest, and removes the file.
    pub fn fetch_file(&self, path: &str) -> Result<Vec<u8>> {
        let (status, bytes) = self.spawn(&format!("cat {path} && rm {path}"))?.wait_raw(SHORT)?;
        match status {
            0 => Ok(bytes),
            _ => error(ErrorKind::Failed, format!("the guest has no file {path}")),
        }
    }

    /// Copies a program or library of the host to `path` in the guest, as an executable file and without
    /// symbols.
    pub fn install(&self, file: &Path, path: &str) -> Result<()> {
        let failed = |message| {
            error(ErrorKind::Failed, format!("cannot copy {} to the guest: {message}", file.display()))
        };
        // A file, because strip cannot write to a pipe.
        let stripped = self.link.dir.join("stripped");
        match Command::new("strip").arg("-o").arg(&stripped).arg(file).status() {
            Ok(status) if status.success() => {}
            Ok(status) => return failed(format!("strip: {status}")),
            Err(e) => return failed(format!("strip: {e} (apt-get install binutils)")),
        }
        let stripped = std::fs::read(stripped).map_err(|e| io_error("reading a stripped program", e))?;
        let mut copy =
            self.spawn(&format!("mkdir -p $(dirname {path}) && cat >{path} && chmod 755 {path}"))?;
        copy.write(&stripped)?;
        copy.close_stdin()?;
        match copy.wait(INSTALLATION)? {
            out if out.status == 0 => Ok(()),
            out => failed(out.stderr),
        }
    }

    /// Starts `cmd` with `sh -c`, without waiting for it.
    pub fn spawn(&self, cmd: &str) -> Result<GuestProcess> {
        self.link.spawn(cmd)
    }

    /// Waits until a program in the guest listens on `port`, with TCP or rdma_cm. The program's own message
    /// is no substitute: programs print that they are ready shortly before they listen.
    pub fn wait_listening(&self, port: u16, timeout: Duration) -> Result<()> {
        let cmd = format!(
            "until grep -qs ':{port:04X} [0:]* 0A ' /proc/net/tcp /proc/net/tcp6 ||
             rdma res show cm_id | grep LISTEN | grep -q ':{port} '; do usleep 20000; done"
        );
        match self.exec(&cmd, timeout) {
            Ok(_) => Ok(()),
            Err(e) => Err(GuestError {
                message: format!("no program in the guest listens on port {port}: {}", e.message),
                ..e
            }),
        }
    }

    /// Starts a verbs shell. Several may run at the same time.
    pub fn vsh(&self) -> Result<Vsh> {
        let mut v = Vsh(self.spawn("ulimit -l unlimited; exec vsh")?);
        v.cmd("device")?;
        Ok(v)
    }

    /// Returns the hardware counters of `rxe0`, as `rdma statistic` shows them.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        // The kernel reads them from the device only if its copy is older than `lifespan`, 12 ms.
        std::thread::sleep(Duration::from_millis(20));
        let o = self.check("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -H . *", SHORT)?;
        let pair =
            |l: &str| l.split_once(':').and_then(|(k, v)| Some((k.to_string(), v.trim().parse().ok()?)));
        Ok(o.stdout.lines().filter_map(pair).filter(|(k, _)| k != "lifespan").collect())
    }

    /// Returns the index of each GID in the GID table. The GID for an IPv4 address is `::ffff:a.b.c.d`.
    pub fn gids(&self) -> &BTreeMap<Ipv6Addr, u32> {
        &self.gids
    }

    /// Returns the index of the GID for the address `ip`: the value for the options `-g` and `-x` of
    /// programs, and for `sgid=` in the verbs shell.
    pub fn gid_index(&self, ip: &str) -> Result<u32> {
        match self.gids.get(&gid_of(ip)?) {
            Some(&i) => Ok(i),
            None => error(ErrorKind::Io, format!("rxe0 has no GID for {ip}, only {:?}", self.gids)),
        }
    }

    /// Returns the port on 127.0.0.1 that is forwarded to the guest's TCP port `guest_port`, which must be in
    /// [`GuestConfig::oob`].
    pub fn host_port(&self, guest_port: u16) -> Result<u16> {
        match self.oob.iter().find(|p| p.1 == guest_port) {
            Some(p) => Ok(p.0),
            None => {
                error(ErrorKind::Io, format!("port {guest_port} of the guest is not in `GuestConfig::oob`"))
            }
        }
    }

    /// Returns the link-local IPv6 address of the guest's interface.
    pub fn link_local(&self) -> Ipv6Addr {
        self.link_local
    }

    /// Returns the time that the guest took to start.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns QEMU's process ID.
    pub fn pid(&self) -> u32 {
        self.qemu.child.id()
    }

    /// Kills QEMU, as if the machine lost its power, and waits until the process has ended.
    pub fn kill(&mut self) {
        self.qemu.child.kill().unwrap();
        self.qemu.child.wait().unwrap();
    }

    /// Returns the last lines of the guest's console and of QEMU's messages.
    pub fn log(&self) -> String {
        log_tail(&self.link.dir)
    }
}

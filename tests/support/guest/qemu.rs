//! QEMU: the emulated machine, and snapshots of it. A snapshot holds a guest that has booted and has no
//! addresses and no rxe device yet. Each guest starts from one: 0.3 s of CPU time in place of the 2.0 s of a
//! boot.

use super::process::Link;
use super::{ErrorKind, GuestConfig, GuestError, Net, Result, Suite, TESTS, error, hash, io_error, log_tail};
use parking_lot::Mutex;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";

// ---- snapshots ----

/// State of a guest that has booted.
pub struct Snapshot {
    image: PathBuf,
    file: File,
    machine: Machine,
}

/// Machine of a snapshot. Only the same machine can restore the snapshot.
#[derive(Clone, Copy)]
struct Machine {
    /// Number of processors, one or two.
    cpus: u8,
    /// Time at which QEMU was installed: another version may not restore the snapshot.
    qemu_mtime: i64,
    /// Frequency of the time-stamp counter in kHz, 0 if there is none.
    tsc_khz: u64,
}

impl Machine {
    /// Returns the start of the names of snapshots that this machine may restore; the frequency follows.
    fn prefix(self) -> String {
        // The hash stands for the options of QEMU and of the guest's kernel.
        format!("snapshot-{}-{}-{:x}-", self.cpus, self.qemu_mtime, hash(include_bytes!("qemu.rs")))
    }

    /// Returns the machine of the snapshot with this file name, if this machine can restore it.
    fn restores(self, file_name: &str) -> Option<Self> {
        let tsc_khz: u64 = file_name.strip_prefix(&self.prefix())?.parse().ok()?;
        // Measurements differ by less than 0.01 %.
        (tsc_khz.abs_diff(self.tsc_khz) <= tsc_khz / 1000).then_some(Self { tsc_khz, ..self })
    }
}

impl Snapshot {
    /// Opens the snapshot of a guest with `cpus` processors; if there is none, boots a guest and takes it.
    pub fn open(suite: Suite, cpus: u8, boot_timeout: Duration) -> Result<Self> {
        let (image, qemu_mtime) = image(suite)?;
        let machine = Machine { cpus, qemu_mtime, tsc_khz: tsc_khz().unwrap_or(0) };
        if let Some(snapshot) = Self::find(&image, machine) {
            return Ok(snapshot);
        }
        let initrd = image.join("initrd");
        let locked = File::open(&initrd).and_then(|file| file.lock().map(|()| file));
        let _locked = locked.map_err(|e| io_error(initrd.display(), e))?;
        // The process that held the lock may have taken it.
        if let Some(snapshot) = Self::find(&image, machine) {
            return Ok(snapshot);
        }
        let path = image.join(format!("{}{}", machine.prefix(), machine.tsc_khz));
        take(&image, machine, &path, boot_timeout)?;
        let file = File::open(&path).map_err(|e| io_error(path.display(), e))?;
        Ok(Self { image, file, machine })
    }

    fn find(image: &Path, machine: Machine) -> Option<Self> {
        fs::read_dir(image).ok()?.flatten().find_map(|entry| {
            let machine = machine.restores(entry.file_name().to_str()?)?;
            let file = File::open(entry.path()).ok()?;
            Some(Self { image: image.into(), file, machine })
        })
    }

    /// Starts a guest from the snapshot. `oob` are the forwarded TCP ports, `dir` is for sockets and logs.
    pub fn restore(self, config: &GuestConfig, oob: &[(u16, u16)], dir: &Path) -> Result<(Qemu, Arc<Link>)> {
        let mut cmd = command(&self.image, self.machine, &config.net, oob, dir)?;
        if let Some(pcap) = &config.pcap {
            cmd.arg("-object");
            cmd.arg(format!("filter-dump,id=dump0,netdev=n0,file={},maxlen=65536", text(pcap)));
        }
        // Otherwise the guest announces its MAC address, as after a migration.
        cmd.args(["-global", "migration.announce-rounds=0"]);
        // The file is the standard input of QEMU. Not fd:0, which QEMU 9.1 deprecates for files.
        cmd.args(["-incoming", "exec:exec cat /proc/$PPID/fd/0"]).stdin(self.file);
        let (qemu, link) = Qemu::start(cmd, dir, Instant::now() + config.boot_timeout)?;
        // Otherwise all guests of a snapshot draw the same random numbers.
        link.reseed()?;
        Ok((qemu, link))
    }
}

/// Boots a guest, and writes its state to `path`.
fn take(image: &Path, machine: Machine, path: &Path, boot_timeout: Duration) -> Result<()> {
    let deadline = Instant::now() + boot_timeout;
    let remaining = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let temp = super::temporary_directory()?;
    let dir = temp.path();
    // QEMU connects to this socket twice: first with its monitor, later to send the state of the guest.
    let socket = dir.join("monitor");
    let listener = listen(&socket)?;
    let mut cmd = command(image, machine, &Net::StreamListen { path: dir.join("wire") }, &[], dir)?;
    cmd.arg("-monitor").arg(format!("unix:{}", text(&socket)));
    let (mut qemu, link) = Qemu::start(cmd, dir, deadline)?;
    let mut monitor = qemu.accept(&listener, deadline)?;
    if let Err(e) = link.spawn("true").and_then(|mut p| p.wait(remaining())) {
        return Err(qemu.boot_error(format!("the agent in the guest did not start: {}", e.message)));
    }
    // The guest is not stopped, because it would then be stopped after it is restored, too.
    let commands = format!(
        "migrate_set_parameter max-bandwidth 10G\nmigrate unix:{}\ninfo migrate\nquit\n",
        socket.display()
    );
    monitor.write_all(commands.as_bytes()).map_err(|e| io_error("writing to QEMU's monitor", e))?;
    let mut state = qemu.accept(&listener, deadline)?;
    let new = image.join("snapshot.new");
    let mut log = String::new();
    let copied = File::create(&new).and_then(|mut file| {
        state.set_read_timeout(Some(remaining()))?;
        io::copy(&mut state, &mut file)?;
        monitor.set_read_timeout(Some(remaining()))?;
        monitor.read_to_string(&mut log)
    });
    copied.map_err(|e| io_error(new.display(), e))?;
    if !log.contains("Migration status: completed") {
        return Err(qemu.boot_error(format!("QEMU took no snapshot: {log}")));
    }
    let prefix = format!("snapshot-{}-", machine.cpus);
    for outdated in fs::read_dir(image).into_iter().flatten().flatten() {
        if outdated.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(outdated.path()); // may be gone
        }
    }
    fs::rename(&new, path).map_err(|e| io_error(new.display(), e))
}

// ---- the process ----

/// QEMU process, killed on drop.
pub struct Qemu {
    pub child: Child,
    begin: Instant,
    /// Directory with its log.
    dir: PathBuf,
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill(); // fails if the process has exited
        let _ = self.child.wait();
    }
}

impl Qemu {
    /// Starts QEMU, and waits until it connects to the socket of the agent in `dir`.
    fn start(cmd: Command, dir: &Path, deadline: Instant) -> Result<(Self, Arc<Link>)> {
        let listener = listen(&dir.join("agent"))?;
        let begin = Instant::now();
        let child = spawn_with_parent_death_signal(cmd)
            .map_err(|e| io_error(format!("starting setpriv and {QEMU}"), e))?;
        let mut qemu = Self { child, begin, dir: dir.into() };
        let stream = qemu.accept(&listener, deadline)?;
        let link = Link::new(stream, dir.into()).map_err(|e| io_error("configuring the agent socket", e))?;
        Ok((qemu, link))
    }

    /// Waits until QEMU connects.
    fn accept(&mut self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream> {
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).map_err(|e| io_error("configuring a socket", e))?;
                return Ok(stream);
            }
            if Instant::now() > deadline || !matches!(self.child.try_wait(), Ok(None)) {
                return Err(self.boot_error("QEMU did not connect"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns an error with the state of the process and the end of its logs.
    pub fn boot_error(&mut self, message: impl fmt::Display) -> GuestError {
        let cause = match self.child.try_wait() {
            Ok(Some(status)) => format!("QEMU exited: {status}"),
            _ => format!("after {:.1} s", self.begin.elapsed().as_secs_f64()),
        };
        let message = format!("guest: {message} ({cause})");
        GuestError { kind: ErrorKind::Boot, message, log: log_tail(&self.dir) }
    }
}

/// Returns a listener whose `accept` does not block.
fn listen(path: &Path) -> Result<UnixListener> {
    let listener = UnixListener::bind(path).and_then(|l| l.set_nonblocking(true).map(|()| l));
    listener.map_err(|e| io_error(path.display(), e))
}

/// Returns the directory of the guest image, and when QEMU was installed. The error says how to build the
/// image or install QEMU.
fn image(suite: Suite) -> Result<(PathBuf, i64)> {
    let hint = "run tests/install guest (as root or a user with sudo)";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |tool: &str| {
        let found = std::env::split_paths(&path).find_map(|d| fs::metadata(d.join(tool)).ok());
        let message = format!("{tool} is not installed; guest tests need it: {hint}");
        found.map_or_else(|| error(ErrorKind::Missing, message), Ok)
    };
    find("setpriv")?;
    let qemu_mtime = find(QEMU)?.mtime();
    let mkimage = format!("{TESTS}/mkimage");
    let out =
        Command::new(&mkimage).args(["-n", suite.name()]).output().map_err(|e| io_error(&mkimage, e))?;
    let dir = String::from_utf8_lossy(&out.stdout).trim().to_string();
    if !out.status.success() {
        let message =
            format!("no image of the test guest in {dir}: {hint}, or only {mkimage} {}", suite.name());
        return error(ErrorKind::Missing, message);
    }
    Ok((dir.into(), qemu_mtime))
}

/// Formats a path for an option of QEMU, which separates options by commas and unescapes doubled ones.
fn text(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Returns the command that starts QEMU. Its options are the same for a guest that boots and for one that is
/// restored.
fn command(image: &Path, machine: Machine, net: &Net, oob: &[(u16, u16)], dir: &Path) -> Result<Command> {
    let (netdev, netns) = match net {
        Net::Dgram { local, remote } => {
            let (l, r) = (text(local), text(remote));
            (format!("dgram,id=n0,local.type=unix,local.path={l},remote.type=unix,remote.path={r}"), None)
        }
        Net::StreamListen { path } => {
            (format!("stream,id=n0,server=on,addr.type=unix,addr.path={}", text(path)), None)
        }
        Net::StreamConnect { path } => {
            (format!("stream,id=n0,server=off,addr.type=unix,addr.path={}", text(path)), None)
        }
        Net::Tap { ifname, netns } => {
            (format!("tap,id=n0,ifname={ifname},script=no,downscript=no,vnet_hdr=off"), netns.as_ref())
        }
    };
    let forwards: String = oob.iter().map(|(h, g)| format!(",hostfwd=tcp:127.0.0.1:{h}-:{g}")).collect();
    let mut append = String::from(
        "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests init_on_alloc=0 audit=0 lsm= \
         apparmor=0",
    );
    if machine.tsc_khz != 0 {
        // Under emulation the guest's calibration of the TSC fails in one boot of seven, and the guest then
        // hangs. Its processors share one counter, but with maxcpus=2 it finds their counters unsynchronized
        // and would fall back to jiffies.
        append += &format!(" tsc_early_khz={} tsc=reliable no_timer_check", machine.tsc_khz);
    }
    let log = std::fs::File::create(dir.join("qemu.log")).map_err(|e| io_error("creating qemu.log", e))?;
    let log2 = log.try_clone().map_err(|e| io_error("creating qemu.log", e))?;

    let mut c = Command::new("setpriv");
    c.args(["--pdeathsig", "KILL"]);
    if let Some(ns) = netns {
        c.args(["ip", "netns", "exec", ns]);
    }
    // maxcpus=2: for a machine with one CPU at most, QEMU translates locked instructions, the guest's memory
    // barriers, to plain loads and stores, although devices run concurrently with that CPU; a notification
    // lost in this way blocks a queue of the NIC permanently.
    c.args(
        "qemu-system-x86_64 -M microvm,acpi=on,rtc=on,pit=off,pic=off -accel tcg -cpu max -m 384".split(' '),
    );
    c.arg("-smp").arg(format!("{},maxcpus=2", machine.cpus));
    c.args(
        "-nodefaults -no-user-config -display none -no-reboot -global virtio-mmio.force-legacy=false"
            .split(' '),
    );
    c.arg("-serial").arg(format!("file:{}", text(&dir.join("console"))));
    c.arg("-kernel").arg(image.join("vmlinux"));
    c.arg("-initrd").arg(image.join("initrd"));
    // status=off: otherwise IPv6 is ready 0.6 s later
    c.arg("-netdev").arg(netdev);
    c.arg("-device").arg("virtio-net-device,netdev=n0,mac=52:54:00:77:00:01,status=off");
    c.arg("-netdev").arg(format!("user,id=n1{forwards}"));
    c.arg("-device").arg("virtio-net-device,netdev=n1,mac=52:54:00:77:ff:01,status=off");
    c.args(["-device", "virtio-serial-device"]);
    c.arg("-chardev").arg(format!("socket,id=agent,path={},server=off", text(&dir.join("agent"))));
    c.args(["-device", "virtserialport,chardev=agent,nr=1,name=agent"]);
    c.arg("-append").arg(append);
    c.stdin(Stdio::null()).stdout(log).stderr(log2);
    Ok(c)
}

/// Starts a process whose command uses `setpriv --pdeathsig`, so that the process is killed when this one
/// terminates. The kernel sends that signal when the *thread* that started the process exits, and a test's
/// thread may exit before its guests. Therefore a thread that never exits starts all of them.
fn spawn_with_parent_death_signal(cmd: Command) -> io::Result<Child> {
    type Request = (Command, Sender<io::Result<Child>>);
    static TO_SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let to_spawner = TO_SPAWNER.get_or_init(|| {
        let (tx, rx) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut cmd, reply) in rx {
                let _ = reply.send(cmd.spawn());
            }
        });
        Mutex::new(tx)
    });
    let (tx, rx) = mpsc::channel();
    to_spawner.lock().send((cmd, tx)).map_err(io::Error::other)?;
    rx.recv().map_err(io::Error::other)?
}

/// Returns the frequency of this machine's time-stamp counter in kHz. The emulated counter has the same
/// frequency.
#[cfg(target_arch = "x86_64")]
fn tsc_khz() -> Option<u64> {
    // The fastest of ten readings.
    fn sample() -> (Instant, u64) {
        let one = || {
            let before = Instant::now();
            // SAFETY: every x86_64 processor has the instruction, and it accesses no memory.
            let tsc = unsafe { std::arch::x86_64::_rdtsc() };
            (before.elapsed(), before, tsc)
        };
        let (_, at, tsc) = (0..10).map(|_| one()).min_by_key(|s| s.0).unwrap();
        (at, tsc)
    }
    let a = sample();
    std::thread::sleep(Duration::from_millis(10));
    let b = sample();
    let ns = b.0.duration_since(a.0).as_nanos() as u64;
    Some((b.1 - a.1) * 1_000_000 / ns)
}

/// Returns `None`, because only x86_64 has a time-stamp counter.
#[cfg(not(target_arch = "x86_64"))]
fn tsc_khz() -> Option<u64> {
    None
}

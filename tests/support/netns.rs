//! Network namespaces for tests and measurements. Needs root and iproute2.
#![allow(dead_code, reason = "each target uses its part")]

#[allow(clippy::duplicate_mod, reason = "several fixtures of a target may use it")]
#[path = "requirement.rs"]
pub mod requirement;

use std::ffi::OsStr;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const REQUIREMENT: &str =
    "network namespaces require root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2 (tests/install netns)";

/// Directory in which iproute2 creates a file for each named namespace.
const DIRECTORY: &str = "/run/netns";

/// Reports whether this process can create namespaces. If not, prints the reason, bypassing the test
/// harness's output capture; panics if `CI=true`.
pub fn is_available() -> bool {
    requirement::is_met(nix::unistd::geteuid().is_root(), REQUIREMENT)
}

/// A network namespace in which `lo` is up; removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace.
    ///
    /// # Panics
    /// If the user is not root, or iproute2 is missing.
    pub fn new() -> Netns {
        Netns::try_new().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Like [`new`](Self::new), but returns an error with the reason instead of panicking.
    pub fn try_new() -> Result<Netns, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err(REQUIREMENT.into());
        }
        remove_stale();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("urxe-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"))?;
        let netns = Netns { name };
        netns.try_ip("link set lo up")?;
        Ok(netns)
    }

    /// Returns the namespace's name in iproute2.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in the namespace; panics if it fails.
    pub fn ip(&self, args: &str) {
        self.try_ip(args).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Like [`ip`](Self::ip), but returns an error with the reason if `ip` fails.
    pub fn try_ip(&self, args: &str) -> Result<(), String> {
        ip(&format!("-n {} {args}", self.name))
    }

    /// Returns a command that runs `program` in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Moves this thread into the namespace permanently.
    pub fn enter(&self) {
        enter(&self.name);
    }

    /// Runs `f` in the namespace on a new thread, so that the calling thread stays in its own namespace.
    /// Sockets belong to the namespace of the thread that opens them.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            let run = move || {
                self.enter();
                f()
            };
            match s.spawn(run).join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Reports whether the interface is up and has a carrier.
    pub fn is_up(&self, device: &str) -> bool {
        let out = Command::new("ip").args(["-n", &self.name, "-o", "link", "show", device]).output();
        String::from_utf8_lossy(&out.expect("`ip` was run before").stdout).contains("state UP")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(e) = ip(&format!("netns del {}", self.name)) {
            eprintln!("{e}");
        }
    }
}

/// Two namespaces joined by a veth pair: `v0` with 10.77.0.1 and fd77::1 in the first, `v1` with 10.77.0.2
/// and fd77::2 in the second.
pub struct Veth {
    pub sides: [Netns; 2],
}

impl Veth {
    /// Names of the interfaces.
    pub const DEVICES: [&str; 2] = ["v0", "v1"];

    /// Creates the namespaces and the veth pair, with the given interface MTU.
    ///
    /// # Panics
    /// Like [`Netns::new`].
    pub fn new(mtu: usize) -> Veth {
        let net = Veth { sides: [Netns::new(), Netns::new()] };
        net.join(Veth::DEVICES, mtu).unwrap_or_else(|e| panic!("{e}"));
        for (n, (side, device)) in (1..).zip(net.sides.iter().zip(Veth::DEVICES)) {
            side.ip(&format!("addr add 10.77.0.{n}/24 dev {device}"));
            side.ip(&format!("addr add fd77::{n}/64 dev {device} nodad"));
        }
        net.wait_until_up();
        net
    }

    /// Adds a veth pair with the given interface names between the two namespaces.
    pub fn join(&self, devices: [&str; 2], mtu: usize) -> Result<(), String> {
        let ([a, b], [own, peer]) = (&self.sides, devices);
        a.try_ip(&format!("link add {own} mtu {mtu} type veth peer name {peer} mtu {mtu} netns {}", b.name))?;
        a.try_ip(&format!("link set {own} up"))?;
        b.try_ip(&format!("link set {peer} up"))
    }

    /// Waits until both interfaces are up. Before that, the kernel silently drops packets.
    pub fn wait_until_up(&self) {
        while !self.sides.iter().zip(Veth::DEVICES).all(|(side, device)| side.is_up(device)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Moves this thread into the namespace with the given name.
pub fn enter(name: &str) {
    let file = File::open(format!("{DIRECTORY}/{name}")).expect("the namespace does not exist");
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect(REQUIREMENT);
}

/// Returns the command that runs a shell script in a new network namespace for at most five minutes. The
/// script runs as root of a new user namespace, which needs no privilege where user namespaces are allowed.
pub fn unprivileged(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-Urn", "timeout", "300", "sh", "-c", script]);
    command
}

/// Runs iproute2's `ip`; the error contains its error message.
fn ip(args: &str) -> Result<(), String> {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.map_err(|e| format!("{REQUIREMENT}; `ip` cannot be run: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {args}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}

/// Removes namespaces left behind by test processes that were killed.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else {
        return; // no namespace was ever created
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix("urxe-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|id| !std::path::Path::new(&format!("/proc/{id}")).exists()) {
            let _ = ip(&format!("netns del {name}")); // another process may have removed it
        }
    }
}

//! Two network namespaces joined by a veth pair, for tests and measurements of packet links. Needs root.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Two namespaces: `v0` with 10.77.0.1 and fd77::1 in one, `v1` with 10.77.0.2 and fd77::2 in the other.
pub struct Veth {
    pub names: [String; 2],
}

/// Runs `ip` of iproute2.
pub fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.unwrap_or_else(|e| panic!("`ip` cannot be run; install iproute2: {e}"));
    assert!(
        out.status.success(),
        "creating network namespaces needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): ip {args}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

impl Veth {
    pub fn new(mtu: usize) -> Veth {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Veth { names: ["a", "b"].map(|side| format!("urxe-{id}-{side}")) };
        let [a, b] = &net.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("-n {a} link add v0 mtu {mtu} type veth peer name v1 mtu {mtu} netns {b}"));
        for (name, dev, n) in [(a, "v0", 1), (b, "v1", 2)] {
            ip(&format!("-n {name} addr add 10.77.0.{n}/24 dev {dev}"));
            ip(&format!("-n {name} addr add fd77::{n}/64 dev {dev} nodad"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set {dev} up"));
        }
        net.wait_until_up();
        net
    }

    /// Waits until both interfaces are up: until then the kernel silently drops packets.
    pub fn wait_until_up(&self) {
        let up = |side: usize, dev| {
            let args = ["-n", &self.names[side], "-o", "link", "show", dev];
            let out = Command::new("ip").args(args).output().expect("`ip` cannot be run");
            String::from_utf8_lossy(&out.stdout).contains("state UP")
        };
        while !(up(0, "v0") && up(1, "v1")) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `f` in a namespace, on a new thread, so that the calling thread remains in its namespace.
    pub fn run_in<T: Send>(&self, side: usize, f: impl FnOnce() -> T + Send) -> T {
        let name = &self.names[side];
        std::thread::scope(|s| {
            let run = move || {
                enter(name);
                f()
            };
            s.spawn(run).join().expect("the thread in the namespace panicked")
        })
    }
}

/// Moves this thread into the namespace `name`.
pub fn enter(name: &str) {
    let ns = File::open(format!("/run/netns/{name}")).expect("the namespace does not exist");
    nix::sched::setns(ns, nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("entering a network namespace needs root (CAP_SYS_ADMIN)");
}

impl Drop for Veth {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

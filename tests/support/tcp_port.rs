//! TCP ports of servers that tests start, by the kernel's tables of sockets.
//!
//! To find a port by binding a listener to it would be unreliable: a program that another thread starts at
//! that moment has a copy of the listener until it executes, so the port seems to have a server already.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// State of a listener in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Returns a port that no socket uses, and that no earlier call in this process has returned. It is below the
/// ephemeral range, so that no outgoing connection takes it before the server does.
pub fn unused() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = || {
        // Processes that run at the same time begin at different ports.
        let n = std::process::id().wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        20_000 + (n % 12_000) as u16
    };
    std::iter::repeat_with(next).find(|port| states(*port).is_empty()).expect("the iterator does not end")
}

/// Waits until a server listens on a port.
///
/// # Panics
/// If there is none after a minute.
pub fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !states(port).iter().any(|state| state == LISTEN) {
        assert!(Instant::now() < deadline, "no server listens on port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the states of all sockets with this local port.
fn states(port: u16) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    let tcp = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    // Missing without IPv6.
    let tables = [tcp, std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default()];
    let lines = tables.iter().flat_map(|table| table.lines());
    let state = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().take(4).collect();
        let [_, local, _, state] = fields[..] else { return None };
        local.ends_with(&suffix).then(|| state.to_owned())
    };
    lines.filter_map(state).collect()
}

//! `--wait-port`: waits until the server listens, before the client starts.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::CliError;

/// Maximum time to wait.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until a socket of this network namespace listens on the TCP port, or a program on urxe listens on
/// this port of the connection manager.
///
/// # Errors
/// [`CliError::Failed`] if nothing listens within a minute.
pub fn wait_for_port(port: u16) -> Result<(), CliError> {
    let deadline = Instant::now() + TIMEOUT;
    while !has_tcp_listener(port) && !has_service(port) {
        if Instant::now() > deadline {
            let text = format!("nothing listens on port {port} after {} s (--wait-port)", TIMEOUT.as_secs());
            return Err(CliError::Failed(text));
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}

fn has_tcp_listener(port: u16) -> bool {
    let local = format!(":{port:04X}");
    let is_listener = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, state) = (fields.next(), fields.nth(1));
        address.is_some_and(|address| address.ends_with(&local)) && state == Some("0A")
    };
    // The second file is missing without IPv6.
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().any(|table| table.lines().any(is_listener))
}

/// Reports whether a program has claimed the service of this port in any port space. The name of the Unix
/// socket of a claimed service ends with the service ID, whose low 16 bits are the port.
fn has_service(port: u16) -> bool {
    let end = format!("{port:04x}");
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.contains("urxe-service") && line.ends_with(&end))
}

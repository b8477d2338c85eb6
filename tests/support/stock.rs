//! Runs programs at both ends of a testbed: stock programs in the guest, and on the host the `urxe` command
//! or programs on urxe. Prints a table of results.

use super::artifacts;
use super::guest::LOST_WAKEUP;
use super::testbed::{HOST, Ip, LinkKind, PORT, Testbed};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

impl Testbed {
    /// Returns the `--link` argument that makes urxe use the host's address of the given IP version (0: IPv4,
    /// 1: IPv6).
    pub fn link_arg(&self, via: LinkKind, version: usize) -> String {
        self.link_spec_with(via, Ip::VERSIONS[version], &format!("ip={}/24,ip={}/64", HOST[0], HOST[1]))
    }

    /// Returns the index of the local GID of the given IP version on a link of the given kind.
    pub fn gid(&self, via: LinkKind, version: usize) -> usize {
        match via {
            LinkKind::Udp => 0,
            // The first GID is the link-local address of the interface.
            LinkKind::Packet => 1 + version,
            LinkKind::Dgram | LinkKind::Stream | LinkKind::PacketHostStack => version,
        }
    }

    /// Starts the `urxe` command in the network namespace from which the guest is reachable.
    pub fn urxe(&self, args: &[&str]) -> Urxe {
        let mut command = self.command(artifacts::urxe_program());
        command.args(args);
        Urxe::spawn(command)
    }

    /// Waits until a process on the host listens on `port`; fails if `server` exits first.
    fn wait_listening(&self, port: &str, server: &mut Urxe) -> Result<(), String> {
        let listening = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.is_running() && Instant::now() < deadline {
            let mut list = self.command("cat");
            let list = list.args(["/proc/net/tcp", "/proc/net/tcp6"]).output().map_err(|e| e.to_string())?;
            let list = String::from_utf8_lossy(&list.stdout);
            if list.lines().any(|line| line.contains(&listening) && line.contains(" 0A ")) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("no process on the host listens on TCP port {port}"))
    }

    /// Makes servers in the guest that bind to the unspecified address prefer `::`, as [`PREFER_IPV6`] does
    /// on the host.
    pub fn prefer_ipv6(&self) {
        let mut copy = self.guest.spawn("cat >/etc/gai.conf").unwrap();
        copy.write(include_bytes!("gai.conf")).unwrap();
        copy.close_stdin().unwrap();
        assert_eq!(copy.wait(Duration::from_secs(15)).unwrap().status, 0);
    }

    /// Returns a TCP port that no socket of the host uses.
    pub fn free_port(&self) -> u16 {
        super::tcp_port::unused()
    }

    /// Runs the command `stock` in the guest as the server, and urxe as its client. Returns the output of
    /// both.
    pub fn stock_server(&self, stock: &str, urxe: &[&str], limit: Duration) -> Result<String, String> {
        retry_on_lost_wakeup(|| {
            self.serve_in_guest(stock, limit, |port| self.urxe(&[urxe, &["-p", port, "127.0.0.1"]].concat()))
        })
    }

    /// Like [`stock_server`](Self::stock_server), but with any program as the client; `client` starts it with
    /// the server's port on 127.0.0.1. Does not repeat failed runs.
    pub fn serve_in_guest(
        &self,
        stock: &str,
        limit: Duration,
        client: impl FnOnce(&str) -> Urxe,
    ) -> Result<String, String> {
        let text = |e: super::guest::GuestError| e.to_string();
        let mut server = self.guest.spawn(stock).map_err(text)?;
        let begin = Instant::now();
        self.guest.wait_listening(PORT, Duration::from_secs(20)).map_err(text)?;
        let port = self.guest.host_port(PORT).map_err(text)?.to_string();
        let client = client(&port).finish(limit).map_err(|e| e + &self.guest.state());
        let remaining = match &client {
            Ok(_) => limit.saturating_sub(begin.elapsed()).max(Duration::from_secs(5)),
            Err(_) => Duration::from_millis(500),
        };
        let guest_result = match server.wait(remaining) {
            Ok(out) if out.status == 0 => Ok(out.stdout),
            Ok(out) => Err(format!("stock server: status {}\n{}{}", out.status, out.stdout, out.stderr)),
            Err(e) => Err(format!("stock server: {}", e.message)),
        };
        merge(client, guest_result)
    }

    /// Runs urxe as the server and the command `stock` in the guest as its client. Returns the output of
    /// both.
    pub fn stock_client(&self, stock: &str, urxe: &[&str], limit: Duration) -> Result<String, String> {
        retry_on_lost_wakeup(|| {
            let port = self.free_port().to_string();
            let mut server = self.urxe(&[urxe, &["-p", &port, "--server-bind", "127.0.0.1"]].concat());
            server.wait_for("waiting for a client", Duration::from_secs(10))?;
            self.connect_stock(server, stock, &port, limit)
        })
    }

    /// Like [`stock_client`](Self::stock_client), but with any program as the server; `server` starts it on
    /// the given TCP port. Does not repeat failed runs.
    pub fn serve_on_host(
        &self,
        stock: &str,
        limit: Duration,
        server: impl FnOnce(&str) -> Urxe,
    ) -> Result<String, String> {
        let port = self.free_port().to_string();
        let mut server = server(&port);
        if let Err(e) = self.wait_listening(&port, &mut server) {
            return Err(format!("{e}: {}", server.finish(Duration::ZERO).unwrap_or_else(|e| e)));
        }
        self.connect_stock(server, stock, &port, limit)
    }

    fn connect_stock(
        &self,
        mut server: Urxe,
        stock: &str,
        port: &str,
        limit: Duration,
    ) -> Result<String, String> {
        let text = |e: super::guest::GuestError| e.to_string();
        let mut client = self.guest.spawn(&format!("{stock} -p {port} 10.0.2.2")).map_err(text)?;
        client.close_stdin().map_err(text)?;
        let deadline = Instant::now() + limit;
        // If urxe exited, the client would wait forever.
        while !client.has_ended() && server.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let guest_result = match client.wait(Duration::from_secs(10)) {
            Ok(out) if out.status == 0 => Ok(out.stdout),
            Ok(out) => Err(format!("stock client: status {}\n{}{}", out.status, out.stdout, out.stderr)),
            Err(e) => Err(format!("stock client: {}", e.message)),
        };
        let guest_result = guest_result.map_err(|e| e + &self.guest.state());
        let remaining = Duration::from_secs(if guest_result.is_ok() { 10 } else { 1 });
        merge(server.finish(remaining), guest_result)
    }
}

/// Runs a case, and repeats it up to twice if it failed because rxe lost a wake-up (see
/// `guest/requester.rs`).
pub fn retry_on_lost_wakeup(run: impl Fn() -> Result<String, String>) -> Result<String, String> {
    for _ in 0..2 {
        match run() {
            Err(e) if e.contains(LOST_WAKEUP) => eprintln!("repeating the case: {e}"),
            result => return result,
        }
    }
    run()
}

fn merge(urxe: Result<String, String>, stock: Result<String, String>) -> Result<String, String> {
    match (urxe, stock) {
        (Ok(a), Ok(b)) => Ok(format!("{a}{b}")),
        (a, b) => {
            let text = |r: Result<String, String>| r.unwrap_or_else(|e| e);
            Err(format!("urxe: {}\nstock: {}", text(a).trim(), text(b).trim()))
        }
    }
}

/// Returns a prefix that makes a command run with files mounted over system files. Each pair is a file and
/// the path at which it is mounted. Needs no privilege where user namespaces are allowed.
pub fn with_files(files: &[(&str, &str)]) -> Vec<String> {
    let mounts: String = files.iter().map(|(file, at)| format!("mount --bind '{file}' {at} && ")).collect();
    let words = ["unshare", "-rm", "sh", "-c", &format!("{mounts}exec \"$@\""), "sh"];
    words.map(str::to_owned).to_vec()
}

/// An address selection table (gai.conf) that makes servers prefer IPv6 addresses, and the path from which
/// programs read it.
pub const PREFER_IPV6: (&str, &str) =
    (concat!(env!("URXE_REPOSITORY"), "/tests/support/gai.conf"), "/etc/gai.conf");

/// A running `urxe` command, or a program on urxe; killed on drop.
pub struct Urxe {
    child: Child,
    stderr: Receiver<String>,
    output: String,
    stdout: Option<std::thread::JoinHandle<String>>,
}

impl Urxe {
    pub fn spawn(mut command: Command) -> Urxe {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (tx, stderr) = mpsc::channel();
        let from = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let _ = tx.send(line); // the receiver is dropped when the test ends
            }
        });
        let mut from = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = from.read_to_end(&mut all); // a read error keeps the output read before it
            String::from_utf8_lossy(&all).into_owned()
        });
        Urxe { child, stderr, output: String::new(), stdout: Some(stdout) }
    }

    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process prints a line that contains `text` on standard error.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.stderr.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let _ = writeln!(self.output, "{line}");
                    if line.contains(text) {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "urxe printed no line with {text:?} within {limit:?}: {}",
                        self.output
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(format!("urxe exited: {}", self.output)),
            }
        }
    }

    /// Waits for the process to exit, and returns its standard output. If it fails or `limit` passes, the
    /// error contains standard output and standard error.
    pub fn finish(mut self, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        let status: Option<ExitStatus> = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() > deadline => break None,
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => return Err(e.to_string()),
            }
        };
        if status.is_none() {
            let _ = self.child.kill(); // fails if the process has just exited
        }
        let out = self.stdout.take().map(|t| t.join().unwrap_or_default()).unwrap_or_default();
        while let Ok(line) = self.stderr.recv_timeout(Duration::from_millis(200)) {
            let _ = writeln!(self.output, "{line}");
        }
        match status {
            Some(s) if s.success() => Ok(out),
            Some(s) => Err(format!("{s}\n{out}{}", self.output)),
            None => Err(format!("still running after {limit:?}\n{out}{}", self.output)),
        }
    }
}

impl Drop for Urxe {
    fn drop(&mut self) {
        let _ = self.child.kill(); // fails if the process has exited
        let _ = self.child.wait();
    }
}

/// Results of the cases run so far.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
    failures: Vec<String>,
}

struct Row {
    key: [String; 4],
    cases: Vec<String>,
    passed: usize,
    took: Duration,
}

impl Table {
    /// Runs a case, prints its result, and counts it in the table row `key` (program, direction, link, IP
    /// version).
    pub fn case(&mut self, key: [&str; 4], case: String, run: impl FnOnce() -> Result<String, String>) {
        let begin = Instant::now();
        let result = run();
        let took = begin.elapsed();
        let name = format!("{}, {case}", key.join(", "));
        let key = key.map(String::from);
        let at = self.rows.iter().position(|r| r.key == key).unwrap_or_else(|| {
            self.rows.push(Row { key, cases: Vec::new(), passed: 0, took: Duration::ZERO });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.took += took;
        match result {
            Ok(output) => {
                eprintln!("ok      {name} ({:.2} s): {output}", took.as_secs_f64());
                row.passed += 1;
            }
            Err(e) => {
                eprintln!("FAILED  {name} ({:.2} s): {e}", took.as_secs_f64());
                self.failures.push(format!("{name}: {e}"));
            }
        }
        row.cases.push(case);
    }

    /// Prints the table, and panics if a case failed.
    pub fn finish(self) {
        let mut out =
            String::from("| program | stock side | link | IP | result | s |\n|---|---|---|---|---|---|\n");
        for r in &self.rows {
            let all = r.cases.len();
            let result = if r.passed == all {
                format!("{all} of {all} pass")
            } else {
                format!("{} of {all} FAIL", all - r.passed)
            };
            let _ = writeln!(out, "| {} | {result} | {:.1} |", r.key.join(" | "), r.took.as_secs_f64());
        }
        eprintln!("{out}");
        assert!(self.failures.is_empty(), "{} failed:\n{}", self.failures.len(), self.failures.join("\n\n"));
    }
}

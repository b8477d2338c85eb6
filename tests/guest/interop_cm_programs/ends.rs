//! Runs a program at both ends: on the host with the drop-in library, in the guest with rxe.

use std::time::{Duration, Instant};

use urxe_test_support::guest::{GuestProcess, Output};
use urxe_test_support::programs;
use urxe_test_support::stock::{PREFER_IPV6, Urxe, with_files};
use urxe_test_support::testbed::{GUEST, HOST, LinkKind, Testbed};

/// Time limit for a client to exit; `SHORT_LIMIT` is the limit for the other end to exit afterwards.
pub const LIMIT: Duration = Duration::from_secs(40);
pub const SHORT_LIMIT: Duration = Duration::from_secs(15);
/// Maximum number of runs of a case that fails by a race of the program itself: a client that does not wait
/// for its server, or [`CLOSED_CHANNEL`].
const ATTEMPTS: usize = 4;
/// Options of `urxe run` that delay every connection manager message, for clients that do not wait for their
/// server.
const CM_DELAY: [&str; 2] = ["--fault", "tx:delay=every:1,by=400ms,qp=1"];
/// Messages printed by a client that connected before its server listened, in spite of the delay.
const TOO_EARLY: [&str; 3] = ["REJECTED; error: 8", "UNREACHABLE; error: 1", "Event rejected"];

/// Message of an rping whose thread for events was not scheduled between the last event and the end of the
/// main thread, which destroys the channel that the thread reads from. Seen in the guest, with the kernel and
/// rdma-core, beside load.
const CLOSED_CHANNEL: &str = "rdma_get_cm_event: Bad file descriptor";

/// Condition that a server meets once it is ready.
#[derive(Clone, Copy)]
pub enum Ready {
    /// The server listens with the connection manager.
    Service,
    /// The server listens with TCP.
    Tcp,
    /// The server has joined the given multicast group.
    Group(&'static str),
}

/// Command lines of a server and its client. The placeholders `{server}` and `{client}` are replaced with the
/// addresses of the two ends, `{port}` with the server's port.
pub struct Program {
    pub server: String,
    pub client: String,
    /// Fixed port of the server; `None` selects a free port.
    pub port: Option<u16>,
    /// Text that a successful client prints.
    pub expected_output: &'static str,
    pub ready: Ready,
    /// Whether the server runs until it is killed.
    pub runs_forever: bool,
    /// Whether the client may connect before the server listens, because the server announces itself over
    /// another channel.
    pub connects_early: bool,
}

impl Program {
    pub fn new(server: &str, client: &str) -> Program {
        let (server, client) = (server.into(), client.into());
        Program {
            server,
            client,
            port: None,
            expected_output: "",
            ready: Ready::Service,
            runs_forever: false,
            connects_early: false,
        }
    }

    /// Returns a program that takes the same arguments at both ends, and the addresses as `-b` and `-s`.
    pub fn bound(program: &str, args: &str) -> Program {
        let server = format!("{program} {args} -b {{server}}");
        Program::new(&server, &format!("{program} {args} -b {{client}} -s {{server}}"))
    }

    pub fn with_output(self, expected_output: &'static str) -> Program {
        Program { expected_output, ..self }
    }

    fn evaluate(
        &self,
        client: Result<String, String>,
        server: Result<String, String>,
    ) -> Result<String, String> {
        // Programs print the name of an event only if it is unexpected.
        let is_success =
            |output: &str| output.contains(self.expected_output) && !output.contains("RDMA_CM_EVENT");
        match (client, server) {
            (Ok(client), Ok(_)) if is_success(&client) => Ok(self.expected_output.into()),
            (client, server) => {
                let text = |r: Result<String, String>| r.unwrap_or_else(|e| e);
                Err(format!("client: {}\nserver: {}", text(client).trim(), text(server).trim()))
            }
        }
    }

    /// Calls `run`, and repeats it while it fails by a race of the program.
    fn attempt(&self, run: impl Fn() -> Result<String, String>) -> Result<String, String> {
        let mut result = run();
        for _ in 1..ATTEMPTS {
            match &result {
                Err(e)
                    if e.contains(CLOSED_CHANNEL)
                        || self.connects_early && TOO_EARLY.iter().any(|text| e.contains(text)) =>
                {
                    result = run()
                }
                _ => break,
            }
        }
        result
    }
}

fn substitute(args: &str, server: &str, client: &str, port: u16) -> String {
    args.replace("{server}", server).replace("{client}", client).replace("{port}", &port.to_string())
}

/// Returns the time limit for one end to exit after the other; it is short if the other has failed.
fn exit_timeout(first: &Result<String, String>) -> Duration {
    if first.is_ok() { SHORT_LIMIT } else { Duration::from_millis(500) }
}

/// A testbed, and the IP version over which the programs at its ends communicate.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    pub testbed: &'a Testbed,
    pub version: usize,
}

impl Ends<'_> {
    pub fn guest(&self) -> &'static str {
        GUEST[self.version]
    }

    pub fn host(&self) -> &'static str {
        HOST[self.version]
    }

    pub fn free_port(&self) -> u16 {
        self.testbed.free_port()
    }

    /// Starts a program on the host, with the drop-in librdmacm.
    pub fn spawn_on_host(&self, args: &str, options: &[&str]) -> Urxe {
        let mut before = with_files(&[PREFER_IPV6]);
        before.push(env!("CARGO_BIN_EXE_urxe").to_owned());
        let mut command = self.testbed.command(&before[0]);
        command.args(&before[1..]);
        let link = self.testbed.link_arg(LinkKind::Udp, self.version);
        command.args(["run", "--link", &link]).args(options).arg("--").args(args.split_whitespace());
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        Urxe::spawn(command)
    }

    /// Starts a program in the guest.
    pub fn spawn_in_guest(&self, args: &str) -> Result<GuestProcess, String> {
        let mut process = self.testbed.guest.spawn(&format!("exec {args}")).map_err(|e| e.to_string())?;
        process.close_stdin().map_err(|e| e.to_string())?;
        Ok(process)
    }

    /// Waits for a program in the guest to exit, and returns its output. If its status is not 0, the error
    /// contains the output.
    pub fn wait_success(mut program: GuestProcess, limit: Duration) -> Result<String, String> {
        match program.wait(limit) {
            Ok(Output { status: 0, stdout, stderr }) => Ok(stdout + &stderr),
            Ok(out) => Err(format!("status {}\n{}{}", out.status, out.stdout, out.stderr)),
            Err(e) => Err(e.message),
        }
    }

    /// Waits until one of the given files in the host's `/proc/net` contains a line for which `matches`
    /// returns true.
    fn wait_for_line(&self, files: &[&str], matches: impl Fn(&str) -> bool) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < SHORT_LIMIT {
            let paths = files.iter().map(|file| format!("/proc/net/{file}"));
            let text = self.testbed.command("cat").args(paths).output().map_err(|e| e.to_string())?;
            if String::from_utf8_lossy(&text.stdout).lines().any(&matches) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("the local program is not ready: no matching entry in {files:?} of /proc/net"))
    }

    /// Waits until a local program listens on `port` with the connection manager.
    pub fn wait_for_service(&self, port: u16) -> Result<(), String> {
        let services = [programs::TCP_PORTS, programs::UDP_PORTS]
            .map(|space| format!("{:016x}", u64::from(space) << 16 | u64::from(port)));
        let is_service = |line: &str| services.iter().any(|service| line.ends_with(service));
        self.wait_for_line(&["unix"], |line| line.contains("urxe-service") && is_service(line))
    }

    fn wait_until_ready_on_host(&self, ready: Ready, port: u16) -> Result<(), String> {
        match ready {
            Ready::Service => self.wait_for_service(port),
            Ready::Tcp => {
                let listening = format!(":{port:04X} ");
                self.wait_for_line(&["tcp", "tcp6"], |line| {
                    line.contains(&listening) && line.contains(" 0A ")
                })
            }
            Ready::Group(group) => {
                let group = igmp_notation(group);
                self.wait_for_line(&["igmp"], |line| line.contains(&group))
            }
        }
    }

    fn wait_until_ready_in_guest(&self, ready: Ready, port: u16) -> Result<(), String> {
        let guest = &self.testbed.guest;
        match ready {
            Ready::Service | Ready::Tcp => guest.wait_listening(port, SHORT_LIMIT).map_err(|e| e.to_string()),
            Ready::Group(group) => {
                let wait =
                    format!("until grep -q {} /proc/net/igmp; do usleep 20000; done", igmp_notation(group));
                guest.check(&wait, SHORT_LIMIT).map(drop).map_err(|e| e.to_string())
            }
        }
    }

    /// Runs the server in the guest and the client on the host.
    pub fn guest_serves(&self, program: &Program) -> Result<String, String> {
        program.attempt(|| {
            let port = program.port.unwrap_or_else(|| self.free_port());
            let substitute_args = |args: &str| substitute(args, self.guest(), self.host(), port);
            let mut server = self.spawn_in_guest(&substitute_args(&program.server))?;
            self.wait_until_ready_in_guest(program.ready, port)?;
            let delay = if program.connects_early { &CM_DELAY[..] } else { &[] };
            let client = self.spawn_on_host(&substitute_args(&program.client), delay).finish(LIMIT);
            let server = match program.runs_forever {
                true => server.kill().map(|_| String::new()).map_err(|e| e.to_string()),
                false => Ends::wait_success(server, exit_timeout(&client)),
            };
            program.evaluate(client, server)
        })
    }

    /// Runs the server on the host and the client in the guest.
    pub fn guest_connects(&self, program: &Program) -> Result<String, String> {
        program.attempt(|| {
            let port = program.port.unwrap_or_else(|| self.free_port());
            let substitute_args = |args: &str| substitute(args, self.host(), self.guest(), port);
            let server = self.spawn_on_host(&substitute_args(&program.server), &[]);
            if let Err(error) = self.wait_until_ready_on_host(program.ready, port) {
                let output = server.finish(Duration::ZERO).unwrap_or_else(|output| output);
                return Err(format!("{error}; output of the server: {output}"));
            }
            let client = Ends::wait_success(self.spawn_in_guest(&substitute_args(&program.client))?, LIMIT);
            let client = client.map_err(|e| e + &self.testbed.guest.state());
            let server = match program.runs_forever {
                true => Ok(String::new()),
                false => server.finish(exit_timeout(&client)),
            };
            program.evaluate(client, server)
        })
    }
}

/// Returns the address of a multicast group in the notation of `/proc/net/igmp`.
fn igmp_notation(group: &str) -> String {
    let group: std::net::Ipv4Addr = group.parse().expect("the group is an IPv4 address");
    format!("{:08X}", u32::from_ne_bytes(group.octets()))
}

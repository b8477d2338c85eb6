//! A program at both ends: on the drop-in library on the host, on rxe in the guest.

use std::time::{Duration, Instant};

use crate::guest::{GuestProcess, Output};
use crate::programs;
use crate::stand::{ANY_IS_V6, GUEST, HOST, Stand, Urxe, Via, with_files};

/// Time limit of a client; `SOON` is that of the other end when one has ended.
pub const LIMIT: Duration = Duration::from_secs(40);
pub const SOON: Duration = Duration::from_secs(15);
/// Number of attempts with a client that does not wait for its server.
const TRIES: usize = 4;
/// Delay for such a client: each of its messages to the connection manager is held back.
const HOLD_UP: [&str; 2] = ["--fault", "tx:delay=every:1,by=400ms,qp=1"];
/// Output of a client that was too early nevertheless.
const TOO_EARLY: [&str; 3] = ["REJECTED; error: 8", "UNREACHABLE; error: 1", "Event rejected"];

/// Condition under which a server is ready.
#[derive(Clone, Copy)]
pub enum Ready {
    /// It listens with the connection manager.
    Service,
    /// It listens with TCP.
    Tcp,
    /// It is a member of this group.
    Group(&'static str),
}

/// A program at both ends. In its arguments `{server}` and `{client}` are replaced by their addresses,
/// `{port}` by the server's port.
pub struct Program {
    pub server: String,
    pub client: String,
    /// Port of the server, if it cannot be configured.
    pub port: Option<u16>,
    /// Output of a client that has succeeded.
    pub told: &'static str,
    pub ready: Ready,
    /// Whether the server runs for ever.
    pub stays: bool,
    /// Whether the client connects as soon as the server has announced, by other means, that it is about to
    /// listen.
    pub hurries: bool,
}

impl Program {
    pub fn new(server: &str, client: &str) -> Program {
        let (server, client) = (server.into(), client.into());
        Program { server, client, port: None, told: "", ready: Ready::Service, stays: false, hurries: false }
    }

    /// Returns a program with the same arguments at both ends, with addresses in the notation of librdmacm's
    /// examples.
    pub fn bound(program: &str, words: &str) -> Program {
        let server = format!("{program} {words} -b {{server}}");
        Program::new(&server, &format!("{program} {words} -b {{client}} -s {{server}}"))
    }

    pub fn telling(self, told: &'static str) -> Program {
        Program { told, ..self }
    }

    fn judge(
        &self,
        client: Result<String, String>,
        server: Result<String, String>,
    ) -> Result<String, String> {
        // Programs print the name of an event only if it is unexpected.
        let is_well = |said: &str| said.contains(self.told) && !said.contains("RDMA_CM_EVENT");
        match (client, server) {
            (Ok(client), Ok(_)) if is_well(&client) => Ok(self.told.into()),
            (client, server) => {
                let text = |r: Result<String, String>| r.unwrap_or_else(|e| e);
                Err(format!("client: {}\nserver: {}", text(client).trim(), text(server).trim()))
            }
        }
    }

    /// Repeats the run while the client is too early.
    fn attempt(&self, run: impl Fn() -> Result<String, String>) -> Result<String, String> {
        let mut result = run();
        for _ in 1..TRIES {
            match &result {
                Err(e) if self.hurries && TOO_EARLY.iter().any(|told| e.contains(told)) => result = run(),
                _ => break,
            }
        }
        result
    }
}

fn filled(words: &str, server: &str, client: &str, port: u16) -> String {
    words.replace("{server}", server).replace("{client}", client).replace("{port}", &port.to_string())
}

/// Returns the time that the other end has to exit after one has ended, successfully or not.
fn patience(one: &Result<String, String>) -> Duration {
    if one.is_ok() { SOON } else { Duration::from_millis(500) }
}

/// Both ends, and the addresses of one IP version.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    pub stand: &'a Stand,
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
        self.stand.free_port()
    }

    /// Starts a program on the drop-in library.
    pub fn ours(&self, words: &str, options: &[&str]) -> Urxe {
        let mut before = with_files(&[ANY_IS_V6]);
        before.push(env!("CARGO_BIN_EXE_urxe").to_owned());
        let mut command = self.stand.command(&before[0]);
        command.args(&before[1..]);
        let link = self.stand.link(Via::Udp, self.version);
        command.args(["run", "--link", &link]).args(options).arg("--").args(words.split_whitespace());
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        Urxe::spawn(command)
    }

    /// Starts a program in the guest.
    pub fn theirs(&self, words: &str) -> Result<GuestProcess, String> {
        let mut process = self.stand.guest.spawn(&format!("exec {words}")).map_err(|e| e.to_string())?;
        process.close_stdin().map_err(|e| e.to_string())?;
        Ok(process)
    }

    /// Waits for the end of a program in the guest, and returns its output or its error.
    pub fn ended(mut program: GuestProcess, limit: Duration) -> Result<String, String> {
        match program.wait(limit) {
            Ok(Output { status: 0, stdout, stderr }) => Ok(stdout + &stderr),
            Ok(out) => Err(format!("status {}\n{}{}", out.status, out.stdout, out.stderr)),
            Err(e) => Err(e.what),
        }
    }

    /// Waits until one of these local files of `/proc/net` has such a line.
    fn wait_for_line(&self, files: &[&str], is: impl Fn(&str) -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < SOON {
            let paths = files.iter().map(|file| format!("/proc/net/{file}"));
            let text = self.stand.command("cat").args(paths).output().map_err(|e| e.to_string())?;
            if String::from_utf8_lossy(&text.stdout).lines().any(&is) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("the program here is not ready: {files:?}"))
    }

    /// Waits until a local program listens with the connection manager on this port.
    pub fn wait_for_service(&self, port: u16) -> Result<(), String> {
        let services = [programs::TCP_PORTS, programs::UDP_PORTS]
            .map(|space| format!("{:016x}", u64::from(space) << 16 | u64::from(port)));
        let is_one = |line: &str| services.iter().any(|service| line.ends_with(service));
        self.wait_for_line(&["unix"], |line| line.contains("urxe-service") && is_one(line))
    }

    fn wait_until_ready_here(&self, ready: Ready, port: u16) -> Result<(), String> {
        match ready {
            Ready::Service => self.wait_for_service(port),
            Ready::Tcp => {
                let listening = format!(":{port:04X} ");
                self.wait_for_line(&["tcp", "tcp6"], |line| {
                    line.contains(&listening) && line.contains(" 0A ")
                })
            }
            Ready::Group(group) => {
                let group = in_igmp(group);
                self.wait_for_line(&["igmp"], |line| line.contains(&group))
            }
        }
    }

    fn wait_until_ready_there(&self, ready: Ready, port: u16) -> Result<(), String> {
        let guest = &self.stand.guest;
        match ready {
            Ready::Service | Ready::Tcp => guest.wait_listening(port, SOON).map_err(|e| e.to_string()),
            Ready::Group(group) => {
                let wait = format!("until grep -q {} /proc/net/igmp; do usleep 20000; done", in_igmp(group));
                guest.check(&wait, SOON).map(drop).map_err(|e| e.to_string())
            }
        }
    }

    /// Runs the server in the guest.
    pub fn guest_serves(&self, program: &Program) -> Result<String, String> {
        program.attempt(|| {
            let port = program.port.unwrap_or_else(|| self.free_port());
            let fill = |words: &str| filled(words, self.guest(), self.host(), port);
            let mut server = self.theirs(&fill(&program.server))?;
            self.wait_until_ready_there(program.ready, port)?;
            let held_up = if program.hurries { &HOLD_UP[..] } else { &[] };
            let client = self.ours(&fill(&program.client), held_up).finish(LIMIT);
            let server = match program.stays {
                true => server.kill().map(|_| String::new()).map_err(|e| e.to_string()),
                false => Ends::ended(server, patience(&client)),
            };
            program.judge(client, server)
        })
    }

    /// Runs the client in the guest.
    pub fn guest_connects(&self, program: &Program) -> Result<String, String> {
        program.attempt(|| {
            let port = program.port.unwrap_or_else(|| self.free_port());
            let fill = |words: &str| filled(words, self.host(), self.guest(), port);
            let server = self.ours(&fill(&program.server), &[]);
            if let Err(why) = self.wait_until_ready_here(program.ready, port) {
                let said = server.finish(Duration::ZERO).unwrap_or_else(|said| said);
                return Err(format!("{why}; its output: {said}"));
            }
            let client = Ends::ended(self.theirs(&fill(&program.client))?, LIMIT);
            let client = client.map_err(|e| e + &self.stand.guest.state());
            let server = match program.stays {
                true => Ok(String::new()),
                false => server.finish(patience(&client)),
            };
            program.judge(client, server)
        })
    }
}

/// Returns a group in the notation of `/proc/net/igmp`.
fn in_igmp(group: &str) -> String {
    let group: std::net::Ipv4Addr = group.parse().expect("an IPv4 address");
    format!("{:08X}", u32::from_ne_bytes(group.octets()))
}

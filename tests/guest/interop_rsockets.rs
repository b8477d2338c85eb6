//! Tests of Debian's unmodified rsocket programs at both ends. The host uses the drop-in librdmacm through
//! `urxe run`, the guest uses Debian's library and the kernel's rxe. Either side is the server, over IPv4 and
//! IPv6. `rcopy` listens on IPv6 and resolves names to IPv6 addresses if the system's address selection
//! prefers them.
//!
//! For datagrams, Debian's library requests a path to itself without a GID, which exists over InfiniBand but
//! not over Ethernet. In the guest, a preloaded library (`own_path.c`) provides such a path.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use urxe_test_support::guest::{self, GuestProcess};
use urxe_test_support::programs;
use urxe_test_support::stock::{self, Table, Urxe};
use urxe_test_support::testbed::{GUEST, HOST, LinkKind, Testbed};

/// Time limit for a client to exit. On a busy host, the guest manages only a few round trips per second.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a server to listen, and to exit after its client.
const SHORT_LIMIT: Duration = Duration::from_secs(15);
/// Size in bytes of the copied file.
const FILE: usize = 1 << 20;

/// Programs and arguments that run only with the server in the guest. With Debian's client these runs fail
/// now and then, even between two guests: `rpoll` reports the end of the stream together with the last bytes;
/// the client takes that for an error before it has read the bytes, and exits with status 16 (`POLLHUP`).
const STREAMS_TO_GUEST: [(&str, &str); 3] = [
    ("rstream", "-S 64 -C 10 -I 2 -T a -T v"),
    ("rstream", "-S 64 -C 1000 -I 1 -T a -T v"),
    ("rstream", "-S 100000 -C 5 -I 2 -T a -T v"),
];

/// Hosts file that names the IPv6 addresses of host and guest, because `rcopy` takes everything after the
/// first colon for a file name.
const NAMES: &str = "127.0.0.1 localhost\nfd77::1 guest\nfd77::2 host\n";

/// Programs and their arguments, the same at both ends. With `-T v` the programs verify the data that they
/// receive.
const STREAMS: [(&str, &str); 6] = [
    ("rstream", "-S 64 -C 1 -I 20 -T v"),
    ("rstream", "-S 1000 -C 500 -I 1 -T v"),
    ("rstream", "-S 200000 -C 5 -I 2 -T v -T b"),
    ("rstream", "-S 30000 -C 5 -I 2 -B 8192 -T v -T n"),
    ("riostream", "-S 64 -C 20 -I 2 -T v"),
    ("riostream", "-S 100000 -C 5 -I 2 -T v"),
];

/// Arguments of `udpong` at both ends. With `-T e`, the server sends each datagram back.
const DATAGRAMS: [&str; 5] = [
    "-S 64 -C 200 -T e",
    "-S 2000 -C 50 -T e -T b",
    "-S 1000 -C 50 -T e -T n",
    "-S 1000 -C 50 -T e -T a",
    "-S 1000 -C 200",
];

struct Ends {
    testbed: Testbed,
    link: String,
    /// Contains [`NAMES`].
    names: tempfile::NamedTempFile,
}

impl Ends {
    fn new(testbed: Testbed, link: String) -> Ends {
        let mut names = tempfile::NamedTempFile::new().unwrap();
        names.write_all(NAMES.as_bytes()).unwrap();
        Ends { testbed, link, names }
    }

    fn with_names() -> Ends {
        let testbed = Testbed::start(LinkKind::Dgram);
        let link = testbed.link_arg(LinkKind::Dgram, 0);
        let ends = Ends::new(testbed, link);
        ends.testbed.prefer_ipv6();
        ends.testbed.guest.check(&format!("printf '{NAMES}' >/etc/hosts"), SHORT_LIMIT).unwrap();
        ends
    }

    /// Returns the files that replace system files for programs on the host, each with the path that it
    /// replaces.
    fn files(&self) -> [(&str, &str); 2] {
        [(self.names.path().to_str().unwrap(), "/etc/hosts"), stock::PREFER_IPV6]
    }

    fn spawn_on_host(&self, words: &str) -> Urxe {
        self.spawn_on_host_with(stock::with_files(&self.files()), &self.link, words)
    }

    /// Starts a program on the host over `link`, with `prefix` before the command.
    fn spawn_on_host_with(&self, mut prefix: Vec<String>, link: &str, words: &str) -> Urxe {
        prefix.push(env!("CARGO_BIN_EXE_urxe").to_owned());
        let mut command = self.testbed.command(&prefix[0]);
        command.args(&prefix[1..]).args(["run", "--link", link, "--"]).args(words.split(' '));
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        Urxe::spawn(command)
    }

    fn spawn_in_guest(&self, words: &str) -> Result<GuestProcess, String> {
        self.testbed.guest.spawn(words).map_err(|e| e.to_string())
    }

    fn wait_success(mut program: GuestProcess, limit: Duration) -> Result<String, String> {
        let out = program.wait(limit).map_err(|e| e.to_string())?;
        match out.status {
            0 => Ok(out.stdout),
            status => Err(format!("status {status}: {}{}", out.stdout, out.stderr)),
        }
    }

    fn guest_serves(&self, port: u16, server: &str, client: &str) -> Result<[String; 2], String> {
        let server = self.spawn_in_guest(server)?;
        self.wait_listening(port)?;
        let client = self.spawn_on_host(client).finish(LIMIT)?;
        Ok([Ends::wait_success(server, SHORT_LIMIT)?, client])
    }

    fn wait_listening(&self, port: u16) -> Result<(), String> {
        self.testbed.guest.wait_listening(port, SHORT_LIMIT).map_err(|e| e.to_string())
    }

    fn guest_connects(&self, server: &str, client: &str) -> Result<[String; 2], String> {
        let server = self.spawn_on_host(server);
        match self.retry_until_listening(client) {
            Ok(client) => Ok([server.finish(SHORT_LIMIT)?, client]),
            Err(e) => Err(format!("{e}\n{}", server.finish(Duration::ZERO).unwrap_or_else(|e| e))),
        }
    }

    /// Runs a client in the guest, and runs it again while the local server refuses the connection.
    fn retry_until_listening(&self, client: &str) -> Result<String, String> {
        let start = Instant::now();
        loop {
            match Ends::wait_success(self.spawn_in_guest(client)?, LIMIT) {
                Err(e) if e.contains("refused") && start.elapsed() < SHORT_LIMIT => {}
                other => return other,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn streams(&self, table: &mut Table, version: usize) {
        let family = ["ip", "ipv6"][version];
        let to_guest = STREAMS_TO_GUEST.map(|(program, words)| (program, words, false));
        for (program, words, both_roles) in
            STREAMS.map(|(program, words)| (program, words, true)).into_iter().chain(to_guest)
        {
            let port = self.testbed.free_port();
            let same = format!("{program} -f {family} -p {port} {words}");
            let check_output =
                |[server, client]: [String; 2]| match (server.lines().nth(1), client.lines().nth(1)) {
                    (Some(line), Some(_)) if client.contains("custom") => Ok(line.to_owned()),
                    _ => Err(format!("server:\n{server}client:\n{client}")),
                };
            table.case([program, "server", "frames", family], words.into(), || {
                let at = GUEST[version];
                self.guest_serves(port, &format!("{same} -b {at}"), &format!("{same} -s {at}"))
                    .and_then(check_output)
            });
            if !both_roles {
                continue;
            }
            table.case([program, "client", "frames", family], words.into(), || {
                let at = HOST[version];
                self.guest_connects(&format!("{same} -b {at}"), &format!("{same} -s {at}"))
                    .and_then(check_output)
            });
        }
    }

    /// Copies a file to the guest, and another from it. The servers run until they are killed.
    fn copies(&self, table: &mut Table, version: usize) {
        let (family, guest, host) = [("ip", GUEST[0], HOST[0]), ("ipv6", "guest", "host")][version];
        let dir = tempfile::tempdir().unwrap();
        let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name));
        let bytes = guest::pattern(FILE, 7);
        std::fs::write(&source, &bytes).unwrap();
        let same = |copied: Vec<u8>| match copied == bytes {
            true => Ok(format!("{FILE} bytes are the same")),
            false => Err(format!("received {} bytes, which differ from the {FILE} bytes sent", copied.len())),
        };
        let port = self.testbed.free_port();
        let server = format!("rcopy -p {port}");
        table.case(["rcopy", "server", "frames", family], format!("{FILE} bytes"), || {
            let mut serving = self.spawn_in_guest(&server)?;
            let client = format!("rcopy {} {guest}:/tmp/copy -p {port}", source.display());
            self.wait_listening(port)?;
            self.spawn_on_host(&client).finish(LIMIT)?;
            serving.kill().map_err(|e| e.to_string())?;
            self.testbed.guest.fetch_file("/tmp/copy").map_err(|e| e.to_string()).and_then(same)
        });
        table.case(["rcopy", "client", "frames", family], format!("{FILE} bytes"), || {
            let mut source = self.spawn_in_guest("cat >/tmp/source")?;
            source.write(&bytes).and_then(|()| source.close_stdin()).map_err(|e| e.to_string())?;
            Ends::wait_success(source, SHORT_LIMIT)?;
            let serving = self.spawn_on_host(&server);
            let client = format!("rcopy /tmp/source {host}:{} -p {port}", copy.display());
            self.retry_until_listening(&client)
                .map_err(|e| format!("{e}\n{}", serving.finish(Duration::ZERO).unwrap_or_else(|e| e)))?;
            let copied = std::fs::read(&copy).map_err(|e| e.to_string());
            std::fs::remove_file(&copy).map_err(|e| e.to_string())?;
            copied.and_then(same)
        });
    }

    /// Checks that each end can still receive after it has shut down its sending direction. Both ends run
    /// `half_close.c`.
    fn half_close(&self, table: &mut Table) {
        let program = format!("/tmp/urxe-half-close-{}", std::process::id());
        build(&program, "tests/guest/interop_rsockets/half_close.c", &[]);
        self.testbed.guest.install(Path::new(&program), &program).unwrap();
        let port = self.testbed.free_port();
        let [theirs, ours] = [GUEST[1], HOST[1]]
            .map(|at| ["server", "client"].map(|role| format!("{program} {role} {at} {port}")));
        let check_output = |outputs: [String; 2]| match outputs.iter().all(|outputs| outputs == "ok\n") {
            true => Ok("ok".to_owned()),
            false => Err(format!("{outputs:?}")),
        };
        table.case(["rshutdown", "server", "frames", "ipv6"], "both ends".into(), || {
            self.guest_serves(port, &theirs[0], &theirs[1]).and_then(check_output)
        });
        table.case(["rshutdown", "client", "frames", "ipv6"], "both ends".into(), || {
            self.guest_connects(&ours[0], &ours[1]).and_then(check_output)
        });
        let _ = std::fs::remove_file(program);
    }
}

/// Fixture for datagram rsockets, which resolve their peers through a UDP socket. On the host that is a
/// kernel socket on a tap device.
struct Datagrams {
    ends: Ends,
    program: String,
    own_path: String,
    rpoll_timeout: String,
}

impl Datagrams {
    fn start() -> Datagrams {
        // Each case uses its own link.
        let ends = Ends::new(Testbed::start(LinkKind::Udp), String::new());
        let [program, own_path, rpoll_timeout] = ["datagrams", "own-path.so", "rpoll-timeout.so"]
            .map(|name| format!("/tmp/urxe-{name}-{}", std::process::id()));
        build(&program, "tests/c/datagrams.c", &["-pthread"]);
        build(&own_path, "tests/guest/interop_rsockets/own_path.c", &["-shared", "-fPIC"]);
        build(&rpoll_timeout, "tests/c/rpoll_timeout.c", &["-shared", "-fPIC"]);
        for file in [&program, &own_path, &rpoll_timeout] {
            ends.testbed.guest.install(Path::new(file), file).unwrap();
        }
        Datagrams { ends, program, own_path, rpoll_timeout }
    }

    fn spawn_in_guest(&self, words: &str) -> Result<GuestProcess, String> {
        let Datagrams { own_path, rpoll_timeout, .. } = self;
        // `exec` replaces the shell, which would otherwise be the process that is killed.
        self.ends.spawn_in_guest(&format!(
            "export LD_PRELOAD=\"$LD_PRELOAD:{own_path}:{rpoll_timeout}\"; exec {words}"
        ))
    }

    /// Waits until a server is bound to its UDP port; `list_sockets` returns the contents of `/proc/net/udp`
    /// and `/proc/net/udp6`.
    fn wait_for_udp_port(port: u16, mut list_sockets: impl FnMut() -> String) -> Result<(), String> {
        let (start, hex) = (Instant::now(), format!(":{port:04X} "));
        while start.elapsed() < SHORT_LIMIT {
            if list_sockets().contains(&hex) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("no socket is bound to UDP port {port}"))
    }

    /// Runs a client on the host against a server in the guest, and then kills the server.
    fn guest_serves(&self, port: u16, link: &str, server: &str, client: &str) -> Result<String, String> {
        const LIST_SOCKETS: &str = "cat /proc/net/udp /proc/net/udp6";
        let mut serving = self.spawn_in_guest(server)?;
        let list_sockets = || {
            self.ends.testbed.guest.exec(LIST_SOCKETS, SHORT_LIMIT).map_or(String::new(), |out| out.stdout)
        };
        Datagrams::wait_for_udp_port(port, list_sockets)?;
        let prefix = ["env".to_owned(), format!("LD_PRELOAD={}", self.rpoll_timeout)];
        let client = self.ends.spawn_on_host_with(prefix.into(), link, client).finish(LIMIT);
        serving.kill().map_err(|e| e.to_string())?;
        client
    }

    /// Runs a client in the guest against a server on the host.
    fn guest_connects(&self, port: u16, link: &str, server: &str, client: &str) -> Result<String, String> {
        let serving = self.ends.spawn_on_host_with(Vec::new(), link, server);
        let list_sockets = || {
            let mut cat = self.ends.testbed.command("cat");
            let out = cat.args(["/proc/net/udp", "/proc/net/udp6"]).output();
            out.map_or(String::new(), |out| programs::text(&out))
        };
        Datagrams::wait_for_udp_port(port, list_sockets)?;
        let client = Ends::wait_success(self.spawn_in_guest(client)?, LIMIT);
        client.map_err(|e| format!("{e}\n{}", serving.finish(Duration::ZERO).unwrap_or_else(|e| e)))
    }

    fn all(&self, table: &mut Table, via: LinkKind, version: usize) {
        let family = ["ip", "ipv6"][version];
        let link = self.ends.testbed.link_arg(via, version);
        let [theirs, ours] = [GUEST[version], HOST[version]];
        for words in DATAGRAMS {
            let port = self.ends.testbed.free_port();
            let same = format!("udpong -p {port} {words}");
            let check_output = |outputs: String| match outputs.lines().nth(1) {
                Some(line) if line.starts_with("custom") => Ok(line.to_owned()),
                _ => Err(outputs),
            };
            table.case(["udpong", "server", &via.to_string(), family], words.into(), || {
                let (server, client) = (format!("{same} -b {theirs}"), format!("{same} -s {theirs}"));
                self.guest_serves(port, &link, &server, &client).and_then(check_output)
            });
            table.case(["udpong", "client", &via.to_string(), family], words.into(), || {
                let (server, client) = (format!("{same} -b {ours}"), format!("{same} -s {ours}"));
                self.guest_connects(port, &link, &server, &client).and_then(check_output)
            });
        }
        let program = &self.program;
        for case in ["sizes", "connected", "pieces", "waiting", "many", "again"] {
            let port = self.ends.testbed.free_port();
            table.case(["datagrams", "server", &via.to_string(), family], case.into(), || {
                let server = format!("{program} serve {theirs} {port}");
                self.guest_serves(port, &link, &server, &format!("{program} {case} {theirs} {port} {ours}"))
            });
        }
        // librdmacm 44 does not support other corner cases of sockets: a send to an unreachable address ends
        // its program, and so does a message of several pieces; SOCK_NONBLOCK is refused, and a restarted
        // peer is not reachable any more.
        for case in ["sizes", "many"] {
            let port = self.ends.testbed.free_port();
            table.case(["datagrams", "client", &via.to_string(), family], case.into(), || {
                let server = format!("{program} serve {ours} {port}");
                self.guest_connects(port, &link, &server, &format!("{program} {case} {ours} {port} {theirs}"))
            });
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        for file in [&self.program, &self.own_path, &self.rpoll_timeout] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Builds a program or library that runs on the host and in the guest, which has the same libraries.
fn build(program: &str, source: &str, options: &[&str]) {
    let source = format!("{}/{source}", env!("URXE_REPOSITORY"));
    let mut cc = Command::new("cc");
    cc.args(options).args(["-O1", "-s", "-Wall", "-Werror", "-o", program, &source, "-lrdmacm", "-libverbs"]);
    let out = cc.output().expect("this test needs a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install librdmacm-dev)", programs::text(&out));
}

#[test]
fn rsocket_stream_programs_interoperate_with_rxe() {
    let ends = Ends::with_names();
    let mut table = Table::default();
    for version in 0..2 {
        ends.streams(&mut table, version);
        ends.copies(&mut table, version);
    }
    ends.half_close(&mut table);
    table.finish();
}

#[test]
fn rsocket_datagram_programs_interoperate_with_rxe() {
    let datagrams = Datagrams::start();
    let mut table = Table::default();
    for (via, version) in
        [(LinkKind::Packet, 0), (LinkKind::Packet, 1), (LinkKind::Udp, 0), (LinkKind::Udp, 1)]
    {
        datagrams.all(&mut table, via, version);
    }
    table.finish();
}

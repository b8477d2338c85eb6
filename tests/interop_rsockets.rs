//! Debian's rsocket programs, unmodified, at both ends: on the host on the drop-in librdmacm through `urxe
//! run`, in the guest on Debian's own library and the kernel's rxe; with either side as the server, over IPv4
//! and IPv6. `rcopy` uses IPv6 where the system's address selection prefers it for listeners, and for names.
//!
//! For datagrams Debian's library asks rxe for a path to itself without a GID, which exists over InfiniBand
//! and not over Ethernet; in the guest a preloaded library (`own_path.c`) provides such a path. The rest is
//! Debian's.

#[path = "support/guest.rs"]
mod guest;
#[path = "../ibverbs/tests/support/mod.rs"]
mod programs;
#[path = "support/stand.rs"]
mod stand;

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use guest::GuestProcess;
use stand::{GUEST, HOST, Stand, Table, Urxe, Via};

/// Time limit of a client. A busy host starves the guest to a few round trips per second.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a server to listen; clients retry until then.
const SOON: Duration = Duration::from_secs(15);
/// Size in bytes of the file that is copied.
const FILE: usize = 1 << 20;

/// Runs that Debian's client does not complete reliably with its own library either, guest to guest: it
/// treats the end of the stream, which its `rpoll` reports together with the last bytes, as an error before
/// it has read those, and exits with status 16 (`POLLHUP`).
const STREAMS_TO_GUEST: [(&str, &str); 3] = [
    ("rstream", "-S 64 -C 10 -I 2 -T a -T v"),
    ("rstream", "-S 64 -C 1000 -I 1 -T a -T v"),
    ("rstream", "-S 100000 -C 5 -I 2 -T a -T v"),
];

/// Names for the addresses of host and guest: `rcopy` takes the text after the first colon for the file.
const NAMES: &str = "127.0.0.1 localhost\nfd77::1 guest\nfd77::2 host\n";

/// Arguments of both ends. The programs check their data themselves (`-T v`).
const STREAMS: [(&str, &str); 6] = [
    ("rstream", "-S 64 -C 1 -I 20 -T v"),
    ("rstream", "-S 1000 -C 500 -I 1 -T v"),
    ("rstream", "-S 200000 -C 5 -I 2 -T v -T b"),
    ("rstream", "-S 30000 -C 5 -I 2 -B 8192 -T v -T n"),
    ("riostream", "-S 64 -C 20 -I 2 -T v"),
    ("riostream", "-S 100000 -C 5 -I 2 -T v"),
];

/// Arguments of udpong at both ends. `-T e`: each datagram is sent back.
const DATAGRAMS: [&str; 5] = [
    "-S 64 -C 200 -T e",
    "-S 2000 -C 50 -T e -T b",
    "-S 1000 -C 50 -T e -T n",
    "-S 1000 -C 50 -T e -T a",
    "-S 1000 -C 200",
];

struct Ends {
    stand: Stand,
    link: String,
    /// Contains [`NAMES`].
    names: tempfile::NamedTempFile,
}

impl Ends {
    fn new(stand: Stand, link: String) -> Ends {
        let mut names = tempfile::NamedTempFile::new().unwrap();
        names.write_all(NAMES.as_bytes()).unwrap();
        Ends { stand, link, names }
    }

    fn with_names() -> Ends {
        let stand = Stand::frames();
        let link = stand.link(Via::Frames, 0);
        let ends = Ends::new(stand, link);
        ends.stand.any_is_v6();
        ends.stand.guest.check(&format!("printf '{NAMES}' >/etc/hosts"), SOON).unwrap();
        ends
    }

    /// Returns the files that replace the system's for programs on the host.
    fn files(&self) -> [(&str, &str); 2] {
        [(self.names.path().to_str().unwrap(), "/etc/hosts"), stand::ANY_IS_V6]
    }

    fn ours(&self, words: &str) -> Urxe {
        self.ours_by(stand::with_files(&self.files()), &self.link, words)
    }

    /// As `ours`, with a prefix of the command.
    fn ours_by(&self, mut before: Vec<String>, link: &str, words: &str) -> Urxe {
        before.push(env!("CARGO_BIN_EXE_urxe").to_owned());
        let mut command = self.stand.command(&before[0]);
        command.args(&before[1..]).args(["run", "--link", link, "--"]).args(words.split(' '));
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        Urxe::spawn(command)
    }

    fn theirs(&self, words: &str) -> Result<GuestProcess, String> {
        self.stand.guest.spawn(words).map_err(|e| e.to_string())
    }

    fn ended(mut program: GuestProcess, limit: Duration) -> Result<String, String> {
        let out = program.wait(limit).map_err(|e| e.to_string())?;
        match out.status {
            0 => Ok(out.stdout),
            status => Err(format!("status {status}: {}{}", out.stdout, out.stderr)),
        }
    }

    fn guest_serves(&self, port: u16, server: &str, client: &str) -> Result<[String; 2], String> {
        let server = self.theirs(server)?;
        self.wait_listening(port)?;
        let client = self.ours(client).finish(LIMIT)?;
        Ok([Ends::ended(server, SOON)?, client])
    }

    fn wait_listening(&self, port: u16) -> Result<(), String> {
        self.stand.guest.wait_listening(port, SOON).map_err(|e| e.to_string())
    }

    fn guest_connects(&self, server: &str, client: &str) -> Result<[String; 2], String> {
        let server = self.ours(server);
        match self.until_we_listen(client) {
            Ok(client) => Ok([server.finish(SOON)?, client]),
            Err(e) => Err(format!("{e}\n{}", server.finish(Duration::ZERO).unwrap_or_else(|e| e))),
        }
    }

    /// Runs a client in the guest repeatedly until the local server listens.
    fn until_we_listen(&self, client: &str) -> Result<String, String> {
        let begin = Instant::now();
        loop {
            match Ends::ended(self.theirs(client)?, LIMIT) {
                Err(e) if e.contains("refused") && begin.elapsed() < SOON => {}
                other => return other,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn streams(&self, table: &mut Table, version: usize) {
        let family = ["ip", "ipv6"][version];
        let to_guest = STREAMS_TO_GUEST.map(|(program, words)| (program, words, false));
        for (program, words, back) in
            STREAMS.map(|(program, words)| (program, words, true)).into_iter().chain(to_guest)
        {
            let port = self.stand.free_port();
            let same = format!("{program} -f {family} -p {port} {words}");
            let well = |[server, client]: [String; 2]| match (server.lines().nth(1), client.lines().nth(1)) {
                (Some(line), Some(_)) if client.contains("custom") => Ok(line.to_owned()),
                _ => Err(format!("server:\n{server}client:\n{client}")),
            };
            table.case([program, "server", "frames", family], words.into(), || {
                let at = GUEST[version];
                self.guest_serves(port, &format!("{same} -b {at}"), &format!("{same} -s {at}")).and_then(well)
            });
            if !back {
                continue;
            }
            table.case([program, "client", "frames", family], words.into(), || {
                let at = HOST[version];
                self.guest_connects(&format!("{same} -b {at}"), &format!("{same} -s {at}")).and_then(well)
            });
        }
    }

    /// Copies a file to the guest, and one from it. The servers run for ever.
    fn copies(&self, table: &mut Table, version: usize) {
        let (family, guest, host) = [("ip", GUEST[0], HOST[0]), ("ipv6", "guest", "host")][version];
        let dir = tempfile::tempdir().unwrap();
        let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name));
        let bytes = guest::pattern(FILE, 7);
        std::fs::write(&source, &bytes).unwrap();
        let same = |copied: Vec<u8>| match copied == bytes {
            true => Ok(format!("{FILE} bytes are the same")),
            false => Err(format!("{} bytes of which some differ from {FILE}", copied.len())),
        };
        let port = self.stand.free_port();
        let server = format!("rcopy -p {port}");
        table.case(["rcopy", "server", "frames", family], format!("{FILE} bytes"), || {
            let mut serving = self.theirs(&server)?;
            let client = format!("rcopy {} {guest}:/tmp/copy -p {port}", source.display());
            self.wait_listening(port)?;
            self.ours(&client).finish(LIMIT)?;
            serving.kill().map_err(|e| e.to_string())?;
            self.stand.guest.take_file("/tmp/copy").map_err(|e| e.to_string()).and_then(same)
        });
        table.case(["rcopy", "client", "frames", family], format!("{FILE} bytes"), || {
            let mut source = self.theirs("cat >/tmp/source")?;
            source.write(&bytes).and_then(|()| source.close_stdin()).map_err(|e| e.to_string())?;
            Ends::ended(source, SOON)?;
            let serving = self.ours(&server);
            let client = format!("rcopy /tmp/source {host}:{} -p {port}", copy.display());
            self.until_we_listen(&client)
                .map_err(|e| format!("{e}\n{}", serving.finish(Duration::ZERO).unwrap_or_else(|e| e)))?;
            let copied = std::fs::read(&copy).map_err(|e| e.to_string());
            std::fs::remove_file(&copy).map_err(|e| e.to_string())?;
            copied.and_then(same)
        });
    }

    /// Copies a program into the guest.
    fn copy(&self, program: &str) {
        let bytes = std::fs::read(program).unwrap();
        let copied = |mut copy: GuestProcess| {
            copy.write(&bytes).and_then(|()| copy.close_stdin()).map_err(|e| e.to_string())?;
            Ends::ended(copy, SOON)
        };
        self.theirs(&format!("cat >{program} && chmod +x {program}")).and_then(copied).unwrap();
    }

    /// Each end shuts down its sending direction while it still receives: a program of the test's own, the
    /// same at both ends.
    fn half_close(&self, table: &mut Table) {
        let program = format!("/tmp/urxe-half-close-{}", std::process::id());
        build(&program, "tests/interop_rsockets/half_close.c", &[]);
        self.copy(&program);
        let port = self.stand.free_port();
        let [theirs, ours] = [GUEST[1], HOST[1]]
            .map(|at| ["server", "client"].map(|role| format!("{program} {role} {at} {port}")));
        let well = |told: [String; 2]| match told.iter().all(|told| told == "well\n") {
            true => Ok("well".to_owned()),
            false => Err(format!("{told:?}")),
        };
        table.case(["rshutdown", "server", "frames", "ipv6"], "both ends".into(), || {
            self.guest_serves(port, &theirs[0], &theirs[1]).and_then(well)
        });
        table.case(["rshutdown", "client", "frames", "ipv6"], "both ends".into(), || {
            self.guest_connects(&ours[0], &ours[1]).and_then(well)
        });
        let _ = std::fs::remove_file(program);
    }
}

/// Datagram sockets, whose peers find each other by UDP: on the host it is the kernel's, on a tap device.
struct Datagrams {
    ends: Ends,
    program: String,
    own_path: String,
    patience: String,
}

impl Datagrams {
    fn start() -> Datagrams {
        // Each case has a link of its own.
        let ends = Ends::new(Stand::tap("dgram"), String::new());
        let [program, own_path, patience] = ["datagrams", "own-path.so", "patience.so"]
            .map(|name| format!("/tmp/urxe-{name}-{}", std::process::id()));
        build(&program, "ibverbs/tests/c/datagrams.c", &["-pthread"]);
        build(&own_path, "tests/interop_rsockets/own_path.c", &["-shared", "-fPIC"]);
        build(&patience, "tests/interop_rsockets/patience.c", &["-shared", "-fPIC"]);
        for file in [&program, &own_path, &patience] {
            ends.copy(file);
        }
        Datagrams { ends, program, own_path, patience }
    }

    fn theirs(&self, words: &str) -> Result<GuestProcess, String> {
        let Datagrams { own_path, patience, .. } = self;
        // `exec` replaces the shell, which would otherwise be the process that is killed.
        self.ends.theirs(&format!("export LD_PRELOAD=\"$LD_PRELOAD:{own_path}:{patience}\"; exec {words}"))
    }

    /// Waits until a server has its UDP port: `lists` prints the sockets in use.
    fn wait_for_udp(port: u16, mut lists: impl FnMut() -> String) -> Result<(), String> {
        let (begin, hex) = (Instant::now(), format!(":{port:04X} "));
        while begin.elapsed() < SOON {
            if lists().contains(&hex) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("nobody has UDP port {port}"))
    }

    /// Runs a local client of a server in the guest, which runs for ever.
    fn guest_serves(&self, port: u16, link: &str, server: &str, client: &str) -> Result<String, String> {
        const LISTS: &str = "cat /proc/net/udp /proc/net/udp6";
        let mut serving = self.theirs(server)?;
        let lists = || self.ends.stand.guest.exec(LISTS, SOON).map_or(String::new(), |out| out.stdout);
        Datagrams::wait_for_udp(port, lists)?;
        let before = ["env".to_owned(), format!("LD_PRELOAD={}", self.patience)];
        let client = self.ends.ours_by(before.into(), link, client).finish(LIMIT);
        serving.kill().map_err(|e| e.to_string())?;
        client
    }

    /// Runs a client in the guest of a local server.
    fn guest_asks(&self, port: u16, link: &str, server: &str, client: &str) -> Result<String, String> {
        let serving = self.ends.ours_by(Vec::new(), link, server);
        let lists = || {
            let mut cat = self.ends.stand.command("cat");
            let out = cat.args(["/proc/net/udp", "/proc/net/udp6"]).output();
            out.map_or(String::new(), |out| programs::text(&out))
        };
        Datagrams::wait_for_udp(port, lists)?;
        let client = Ends::ended(self.theirs(client)?, LIMIT);
        client.map_err(|e| format!("{e}\n{}", serving.finish(Duration::ZERO).unwrap_or_else(|e| e)))
    }

    fn all(&self, table: &mut Table, via: Via, version: usize) {
        let family = ["ip", "ipv6"][version];
        let link = self.ends.stand.link(via, version);
        let [theirs, ours] = [GUEST[version], HOST[version]];
        for words in DATAGRAMS {
            let port = self.ends.stand.free_port();
            let same = format!("udpong -p {port} {words}");
            let well = |told: String| match told.lines().nth(1) {
                Some(line) if line.starts_with("custom") => Ok(line.to_owned()),
                _ => Err(told),
            };
            table.case(["udpong", "server", via.name(), family], words.into(), || {
                let (server, client) = (format!("{same} -b {theirs}"), format!("{same} -s {theirs}"));
                self.guest_serves(port, &link, &server, &client).and_then(well)
            });
            table.case(["udpong", "client", via.name(), family], words.into(), || {
                let (server, client) = (format!("{same} -b {ours}"), format!("{same} -s {ours}"));
                self.guest_asks(port, &link, &server, &client).and_then(well)
            });
        }
        let program = &self.program;
        for corner in ["sizes", "connected", "pieces", "waiting", "many", "again"] {
            let port = self.ends.stand.free_port();
            table.case(["datagrams", "server", via.name(), family], corner.into(), || {
                let server = format!("{program} serve {theirs} {port}");
                self.guest_serves(port, &link, &server, &format!("{program} {corner} {theirs} {port} {ours}"))
            });
        }
        // librdmacm 44 does not support other corner cases of sockets: a send to an unreachable address ends
        // its program, and so does a message of several pieces; SOCK_NONBLOCK is refused, and a restarted
        // peer is not reachable any more.
        for corner in ["sizes", "many"] {
            let port = self.ends.stand.free_port();
            table.case(["datagrams", "client", via.name(), family], corner.into(), || {
                let server = format!("{program} serve {ours} {port}");
                self.guest_asks(port, &link, &server, &format!("{program} {corner} {ours} {port} {theirs}"))
            });
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        for file in [&self.program, &self.own_path, &self.patience] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Builds a program for the host and for the guest, which has the same libraries.
fn build(program: &str, source: &str, options: &[&str]) {
    let source = format!("{}/{source}", env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new("cc");
    cc.args(options).args(["-O1", "-s", "-Wall", "-Werror", "-o", program, &source, "-lrdmacm", "-libverbs"]);
    let out = cc.output().expect("a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install librdmacm-dev)", programs::text(&out));
}

#[test]
fn rsocket_stream_programs_interoperate() {
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
fn rsocket_datagram_programs_interoperate() {
    let datagrams = Datagrams::start();
    let mut table = Table::default();
    for (via, version) in [(Via::Packet, 0), (Via::Packet, 1), (Via::Udp, 0), (Via::Udp, 1)] {
        datagrams.all(&mut table, via, version);
    }
    table.finish();
}

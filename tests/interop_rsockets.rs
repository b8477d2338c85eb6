//! Rsockets: Debian's programs of them, unmodified, at both ends; here on the drop-in librdmacm by `urxe run`, in the guest on
//! Debian's own and the kernel's rxe; both ways round, over IPv4 and IPv6. `rcopy` speaks IPv6 where the system, which it asks, prefers that for who
//! listens, and to names.

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

const LIMIT: Duration = Duration::from_secs(40);
/// How long a server may take to listen: clients try until then.
const SOON: Duration = Duration::from_secs(15);
/// Bytes of the file that is copied.
const FILE: usize = 1 << 20;

/// What Debian's client does not do reliably with its own library either, guest against guest: it takes the end, which its
/// `rpoll` tells of beside the last bytes, for an error before it has read those, and ends with status 16 (`POLLHUP`).
const STREAMS_TO_GUEST: [(&str, &str); 3] = [
    ("rstream", "-S 64 -C 10 -I 2 -T a -T v"),
    ("rstream", "-S 64 -C 1000 -I 1 -T a -T v"),
    ("rstream", "-S 100000 -C 5 -I 2 -T a -T v"),
];

/// Names for our addresses and the guest's: `rcopy` takes what is behind the first colon for the file.
const NAMES: &str = "127.0.0.1 localhost\nfd77::1 guest\nfd77::2 host\n";

/// What both ends are told. They check their data themselves (`-T v`).
const STREAMS: [(&str, &str); 6] = [
    ("rstream", "-S 64 -C 1 -I 20 -T v"),
    ("rstream", "-S 1000 -C 500 -I 1 -T v"),
    ("rstream", "-S 200000 -C 5 -I 2 -T v -T b"),
    ("rstream", "-S 30000 -C 5 -I 2 -B 8192 -T v -T n"),
    ("riostream", "-S 64 -C 20 -I 2 -T v"),
    ("riostream", "-S 100000 -C 5 -I 2 -T v"),
];

struct Ends {
    stand: Stand,
    link: String,
    /// Has [`NAMES`].
    names: tempfile::NamedTempFile,
}

impl Ends {
    fn new() -> Ends {
        let stand = Stand::frames();
        let mut names = tempfile::NamedTempFile::new().unwrap();
        names.write_all(NAMES.as_bytes()).unwrap();
        stand.any_is_v6();
        stand.guest.check(&format!("printf '{NAMES}' >/etc/hosts"), SOON).unwrap();
        Ends { link: stand.link(Via::Frames, 0), stand, names }
    }

    /// What is to be in place of the system's, for programs here.
    fn files(&self) -> [(&str, &str); 2] {
        [(self.names.path().to_str().unwrap(), "/etc/hosts"), stand::ANY_IS_V6]
    }

    fn ours(&self, words: &str) -> Urxe {
        let mut before = stand::with_files(&self.files());
        before.push(env!("CARGO_BIN_EXE_urxe").to_owned());
        let mut command = self.stand.command(&before[0]);
        command.args(&before[1..]).args(["run", "--link", &self.link, "--"]).args(words.split(' '));
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

    /// A client in the guest, again and again until the server here listens.
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

    /// Copies a file to the guest, and one from there. The servers serve for ever.
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

    /// Each end says that it sends no more while it still receives: a program of the test's own, the same at both ends.
    fn half_close(&self, table: &mut Table) {
        let program = format!("/tmp/urxe-half-close-{}", std::process::id());
        build(&program);
        let bytes = std::fs::read(&program).unwrap();
        let copied = |mut copy: GuestProcess| {
            copy.write(&bytes).and_then(|()| copy.close_stdin()).map_err(|e| e.to_string())?;
            Ends::ended(copy, SOON)
        };
        self.theirs(&format!("cat >{program} && chmod +x {program}")).and_then(copied).unwrap();
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

/// Builds it, for here and for the guest, which has the same libraries.
fn build(program: &str) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop_rsockets/half_close.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-s", "-Wall", "-Werror", "-o", program, source, "-lrdmacm", "-libverbs"]);
    let out = cc.output().expect("a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install librdmacm-dev)", programs::text(&out));
}

#[test]
fn programs_of_rsockets() {
    let ends = Ends::new();
    let mut table = Table::default();
    for version in 0..2 {
        ends.streams(&mut table, version);
        ends.copies(&mut table, version);
    }
    ends.half_close(&mut table);
    table.finish();
}

//! Interoperation of the drop-in library: the same unmodified programs at both ends, on the host on urxe
//! through `urxe run`, in the guest on the kernel's rxe, with either side as the server.
//!
//! perftest checks only completions. So both ends write their memory to a file (`tests/guest/mrdump.c`), and
//! the data sent by one side must be in the memory of the other; `ibv_rc_pingpong` checks its data itself
//! (`-c`).
//!
//! The ACK timeout is one second (18), as in `interop_perftest`: a busy host starves the emulated guest.

#[path = "support/dumps.rs"]
mod dumps;
#[path = "support/guest.rs"]
mod guest;
#[path = "../ibverbs/tests/support/mod.rs"]
mod programs;
#[path = "support/stand.rs"]
mod stand;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dumps::Run;
use stand::{GUEST, Stand, Table, Urxe, Via};
use urxe::cli::exchange::perftest::Test;

const LIMIT: Duration = Duration::from_secs(60);
/// File in the guest to which a program writes its memory, and the library that makes it do so.
const MEMORY: &str = "/tmp/memory";
const MRDUMP: &str = "/lib/mrdump.so";

/// A program, the pattern of its traffic, and (size, iterations, queue pairs).
const PROGRAMS: [(&str, Test, u32, u64, u32); 6] = [
    ("ib_write_bw", Test::WriteBw, 4096, 200, 2),
    ("ib_read_bw", Test::ReadBw, 4096, 200, 1),
    ("ib_send_bw", Test::SendBw, 4096, 200, 1),
    ("ib_write_lat", Test::WriteLat, 64, 100, 1),
    ("ib_send_lat", Test::SendLat, 4096, 50, 1),
    ("ib_atomic_bw", Test::AtomicBw, 8, 200, 1),
];

/// Builds `mrdump.c` for programs on the host.
fn mrdump(dir: &Path) -> PathBuf {
    let library = dir.join("mrdump.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/mrdump.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let out = cc.output().expect("a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install libibverbs-dev)", programs::text(&out));
    library
}

/// The local device: a link, the index of its GID, the guest's, and files for the programs' memory.
struct Device<'a> {
    stand: &'a Stand,
    link: String,
    gid: usize,
    guest_gid: u32,
    mrdump: PathBuf,
    memory: PathBuf,
}

impl Device<'_> {
    /// Starts a program on the drop-in library.
    fn program(&self, words: &str, more: &[&str]) -> Urxe {
        let mut command = self.stand.command(env!("CARGO_BIN_EXE_urxe"));
        command.args(["run", "--link", &self.link, "--"]).args(words.split(' ')).args(more);
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        command.env("LD_PRELOAD", &self.mrdump).env("MR_DUMP", &self.memory);
        Urxe::spawn(command)
    }

    fn guest_serves(&self, theirs: &str, ours: &str) -> Result<String, String> {
        self.stand.serve(theirs, LIMIT, |port| self.program(ours, &["-p", port, "127.0.0.1"]))
    }

    fn guest_connects(&self, theirs: &str, ours: &str) -> Result<String, String> {
        self.stand.serve_here(theirs, LIMIT, |port| self.program(ours, &["-p", port]))
    }

    /// Returns the memory of both programs after their end: the local one's, and the guest's.
    fn memory(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let ours = std::fs::read(&self.memory).map_err(|e| format!("{}: {e}", self.memory.display()))?;
        std::fs::remove_file(&self.memory).map_err(|e| e.to_string())?;
        Ok((ours, self.stand.guest.take_file(MEMORY).map_err(|e| e.to_string())?))
    }
}

fn perftest(table: &mut Table, device: &Device, words: [&str; 2]) {
    for (program, test, size, iterations, qps) in PROGRAMS {
        // Programs refuse arguments that they do not use.
        let mut same = format!("-F -u 18 -n {iterations}");
        if test != Test::AtomicBw {
            same += &format!(" -s {size}");
        }
        if qps > 1 {
            same += &format!(" -q {qps}");
        }
        let theirs = format!(
            "rm -f {MEMORY}; LD_PRELOAD=$LD_PRELOAD:{MRDUMP} MR_DUMP={MEMORY} {program} -d rxe0 -x {} {same}",
            device.guest_gid
        );
        let ours = format!("{program} -d urxe0 -x {} {same}", device.gid);
        let run = Run { test, size, iterations, qps, stock_client: true, stock_server: true };
        let what = format!("{size} bytes, {iterations} iterations, {qps} queue pair(s)");
        let equal = |n| format!("{n} bytes equal at both ends");
        let [link, ip] = words;
        table.case([program, "server", link, ip], what.clone(), || {
            device.guest_serves(&theirs, &ours)?;
            let (client, server) = device.memory()?;
            run.compare(&client, &server).map(equal)
        });
        table.case([program, "client", link, ip], what, || {
            device.guest_connects(&theirs, &ours)?;
            let (server, client) = device.memory()?;
            run.compare(&client, &server).map(equal)
        });
    }
}

fn pingpong(table: &mut Table, device: &Device, words: [&str; 2]) {
    const PROGRAM: &str = "ibv_rc_pingpong";
    let same = "-m 1024 -s 4096 -n 200 -c";
    let theirs = format!("{PROGRAM} -d rxe0 -g {} {same}", device.guest_gid);
    let ours = format!("{PROGRAM} -d urxe0 -g {} {same}", device.gid);
    let checked = |said: String| match said.contains("invalid data") || !said.contains("200 iters in") {
        true => Err(said),
        false => Ok("no invalid data".to_owned()),
    };
    let [link, ip] = words;
    let what = "4096 bytes, 200 iterations".to_owned();
    table.case([PROGRAM, "server", link, ip], what.clone(), || {
        device.guest_serves(&theirs, &ours).and_then(checked)
    });
    table.case([PROGRAM, "client", link, ip], what, || {
        device.guest_connects(&theirs, &ours).and_then(checked)
    });
}

fn all(stand: &Stand, via: Via) {
    let dir = tempfile::tempdir().unwrap();
    let mut table = Table::default();
    for version in 0..2 {
        let device = Device {
            stand,
            link: stand.link(via, version),
            gid: stand.gid(via, version),
            guest_gid: stand.guest.gid_index(GUEST[version]).unwrap(),
            mrdump: mrdump(dir.path()),
            memory: dir.path().join("memory"),
        };
        let words = [via.name(), ["IPv4", "IPv6"][version]];
        perftest(&mut table, &device, words);
        pingpong(&mut table, &device, words);
    }
    table.finish();
}

#[test]
fn unmodified_programs_interoperate_over_frames() {
    all(&Stand::frames(), Via::Frames);
}

#[test]
fn unmodified_programs_interoperate_over_a_tap() {
    all(&Stand::tap("dp"), Via::Udp);
}

//! Interoperability of the drop-in library: the same unmodified program runs on urxe on the host (`urxe run`)
//! and on the kernel's rxe in the guest, with either side as the server.
//!
//! perftest checks only completions and the marks of `ib_write_lat`. So both ends write their memory to a
//! file (`tests/rxe-guest/mrdump.c`), and the data sent by one side must be in the memory of the other. The
//! ping-pongs of rdma-core check their data themselves (`-c`).
//!
//! The ACK timeout is one second (18): a busy host starves the emulated guest for longer than the usual 67
//! ms.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urxe_test_support::dumps::{Run, Traffic};
use urxe_test_support::programs;
use urxe_test_support::stock::{Table, Urxe, retry_on_lost_wakeup};
use urxe_test_support::testbed::{GUEST, LinkKind, Testbed};

const LIMIT: Duration = Duration::from_secs(120);
/// File in the guest to which a program dumps its memory regions; `MRDUMP` is the preloaded library that
/// writes it.
const MEMORY: &str = "/tmp/memory";
const MRDUMP: &str = "/lib/mrdump.so";

/// A program with arguments, its traffic pattern, and (size, iterations, queue pairs) for each run. Over
/// IPv6, only the first run is made. The guest transfers a few MB per second.
type Program = (&'static str, Traffic, &'static [(u32, u64, u32)]);
const PROGRAMS: [Program; 14] = [
    ("ib_write_bw", Traffic::WriteBw, &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_read_bw", Traffic::ReadBw, &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_send_bw", Traffic::SendBw, &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_atomic_bw", Traffic::AtomicBw, &[(8, 1000, 1), (8, 333, 2)]),
    // More than 256 messages, after which the marks of `ib_write_lat` repeat.
    ("ib_write_lat", Traffic::PingPong, &[(1, 300, 1), (4096, 100, 1)]),
    ("ib_send_lat", Traffic::PingPong, &[(1, 300, 1), (4096, 100, 1)]),
    ("ib_read_lat", Traffic::ReadLat, &[(4096, 100, 1)]),
    // Of the unreliable services, those with one message in flight: the guest drops packets that arrive
    // faster than it can process them.
    ("ib_write_lat -c UC", Traffic::PingPong, &[(4096, 100, 1)]),
    ("ib_send_lat -c UC", Traffic::PingPong, &[(4096, 100, 1)]),
    ("ib_send_lat -c UD", Traffic::UdPingPong, &[(1024, 100, 1)]),
    // Path MTUs below that of the link.
    ("ib_write_bw -m 256", Traffic::WriteBw, &[(65_536, 10, 1)]),
    ("ib_read_bw -m 512", Traffic::ReadBw, &[(65_536, 10, 1)]),
    ("ib_send_bw -m 1024", Traffic::SendBw, &[(65_536, 10, 1)]),
    ("ib_send_bw -m 2048", Traffic::SendBw, &[(65_536, 10, 1)]),
];

/// Builds the preloaded library `mrdump.c` for programs on the host.
fn mrdump(dir: &Path) -> PathBuf {
    let library = dir.join("mrdump.so");
    let source = concat!(env!("URXE_REPOSITORY"), "/tests/rxe-guest/mrdump.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let out = cc.output().expect("this test needs a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install libibverbs-dev)", programs::text(&out));
    library
}

/// The local device: its link, the GID indices of host and guest, the library that dumps a program's memory,
/// and the file that the library writes.
struct Device<'a> {
    testbed: &'a Testbed,
    link: String,
    gid: usize,
    guest_gid: u32,
    mrdump: PathBuf,
    memory: PathBuf,
}

impl Device<'_> {
    /// Starts a program on the host, with the drop-in library.
    fn program(&self, words: &str, extra_args: &[&str]) -> Urxe {
        let mut command = self.testbed.command(env!("CARGO_BIN_EXE_urxe"));
        command.args(["run", "--link", &self.link, "--"]).args(words.split(' ')).args(extra_args);
        command.env("URXE_LIBRARY", programs::library()).env("URXE_PRELOAD", programs::preload());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        command.env("LD_PRELOAD", &self.mrdump).env("MR_DUMP", &self.memory);
        Urxe::spawn(command)
    }

    fn guest_serves(&self, guest_args: &str, host_args: &str) -> Result<String, String> {
        retry_on_lost_wakeup(|| {
            let program = |port: &str| self.program(host_args, &["-p", port, "127.0.0.1"]);
            self.testbed.serve_in_guest(guest_args, LIMIT, program)
        })
    }

    fn guest_connects(&self, guest_args: &str, host_args: &str) -> Result<String, String> {
        retry_on_lost_wakeup(|| {
            self.testbed.serve_on_host(guest_args, LIMIT, |port| self.program(host_args, &["-p", port]))
        })
    }

    /// Returns the memory dumped on exit by the local program and by the program in the guest.
    fn memory(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let host = std::fs::read(&self.memory).map_err(|e| format!("{}: {e}", self.memory.display()))?;
        std::fs::remove_file(&self.memory).map_err(|e| e.to_string())?;
        Ok((host, self.testbed.guest.fetch_file(MEMORY).map_err(|e| e.to_string())?))
    }
}

fn perftest(table: &mut Table, device: &Device, words: [&str; 2]) {
    for (program, traffic, runs) in PROGRAMS {
        for &(size, iterations, qps) in if words[1] == "IPv6" { &runs[..1] } else { runs } {
            // The programs reject arguments that they do not use.
            let mut common = format!("-F -u 18 -n {iterations}");
            if traffic != Traffic::AtomicBw {
                common += &format!(" -s {size}");
            }
            if qps > 1 {
                common += &format!(" -q {qps}");
            }
            let guest_args = format!(
                "rm -f {MEMORY}; LD_PRELOAD=$LD_PRELOAD:{MRDUMP} MR_DUMP={MEMORY} \
                 {program} -d rxe0 -x {} {common}",
                device.guest_gid
            );
            let host_args = format!("{program} -d urxe0 -x {} {common}", device.gid);
            let run = Run { traffic, size, iterations, qps };
            let parameters = format!("{size} bytes, {iterations} iterations, {qps} queue pair(s)");
            let equal = |n| format!("{n} bytes equal at both ends");
            let [link, ip] = words;
            table.case([program, "server", link, ip], parameters.clone(), || {
                device.guest_serves(&guest_args, &host_args)?;
                let (client, server) = device.memory()?;
                run.compare(&client, &server).map(equal)
            });
            table.case([program, "client", link, ip], parameters, || {
                device.guest_connects(&guest_args, &host_args)?;
                let (server, client) = device.memory()?;
                run.compare(&client, &server).map(equal)
            });
        }
    }
}

fn pingpong(table: &mut Table, device: &Device, words: [&str; 2]) {
    for program in ["ibv_rc_pingpong -m 1024", "ibv_uc_pingpong -m 1024", "ibv_ud_pingpong"] {
        let common = "-s 4096 -n 200 -c";
        let guest_args = format!("{program} -d rxe0 -g {} {common}", device.guest_gid);
        let host_args = format!("{program} -d urxe0 -g {} {common}", device.gid);
        let check_output =
            |output: String| match output.contains("invalid data") || !output.contains("200 iters in") {
                true => Err(output),
                false => Ok("no invalid data".to_owned()),
            };
        let [link, ip] = words;
        let parameters = "4096 bytes, 200 iterations".to_owned();
        table.case([program, "server", link, ip], parameters.clone(), || {
            device.guest_serves(&guest_args, &host_args).and_then(check_output)
        });
        table.case([program, "client", link, ip], parameters, || {
            device.guest_connects(&guest_args, &host_args).and_then(check_output)
        });
    }
}

fn run_all(via: LinkKind) {
    let testbed = &Testbed::start(via);
    let dir = tempfile::tempdir().unwrap();
    let mut table = Table::default();
    for version in 0..2 {
        let device = Device {
            testbed,
            link: testbed.link_arg(via, version),
            gid: testbed.gid(via, version),
            guest_gid: testbed.guest.gid_index(GUEST[version]).unwrap(),
            mrdump: mrdump(dir.path()),
            memory: dir.path().join("memory"),
        };
        let words = [&via.to_string(), ["IPv4", "IPv6"][version]];
        perftest(&mut table, &device, words);
        pingpong(&mut table, &device, words);
    }
    table.finish();
}

#[test]
fn unmodified_programs_interoperate_over_frames() {
    run_all(LinkKind::Dgram);
}

#[test]
fn unmodified_programs_interoperate_over_a_packet_socket_on_a_tap() {
    run_all(LinkKind::Packet);
}

#[test]
fn unmodified_programs_interoperate_over_a_udp_socket_on_a_tap() {
    run_all(LinkKind::Udp);
}

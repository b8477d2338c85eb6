//! `urxe perf --perftest` and six programs of perftest in a guest with the kernel's rxe, with either side as
//! the server.
//!
//! The ACK timeout is one second (18): a busy host starves the emulated guest for longer than the usual 67
//! ms.
//!
//! perftest itself checks only completions and the marks of `ib_write_lat`. So both sides' memory is saved
//! after each run (`--dump-memory` on the host, `mrdump.so` in the guest), and the data sent by one side must
//! be in the memory of the other.

#[path = "../support/dumps.rs"]
mod dumps;
#[path = "../support/guest.rs"]
mod guest;
#[path = "../support/testbed.rs"]
mod testbed;

use dumps::Run;
use std::time::Duration;
use testbed::{GUEST, LinkKind, Table, Testbed};
use urxe_cli::exchange::perftest::Test;

const LIMIT: Duration = Duration::from_secs(120);
/// File in the guest to which the stock program writes its memory.
const MEMORY: &str = "/tmp/memory";

/// A stock program, the arguments of urxe as its peer, and (size, iterations, queue pairs) of each run. The
/// guest transfers a few MB per second.
type Program = (&'static str, Test, &'static str, &'static [(u32, u64, u32)]);
const PROGRAMS: [Program; 6] = [
    ("ib_write_bw", Test::WriteBw, "write --bw", &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_read_bw", Test::ReadBw, "read --bw", &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_send_bw", Test::SendBw, "send --bw", &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_atomic_bw", Test::AtomicBw, "atomic --bw", &[(8, 1000, 1), (8, 333, 2)]),
    ("ib_write_lat", Test::WriteLat, "write --lat", &[(1, 1000, 1), (4096, 100, 1)]),
    ("ib_send_lat", Test::SendLat, "send --lat", &[(1, 1000, 1), (4096, 100, 1)]),
];

/// Runs a program with this IP version, with the stock program as the server and as the client.
fn run_both_roles(table: &mut Table, testbed: &Testbed, via: LinkKind, version: usize, program: Program) {
    let (program, test, verb, runs) = program;
    let ip = ["IPv4", "IPv6"][version];
    let (link, gid) = (testbed.link(via, version), testbed.gid(via, version));
    let index = testbed.guest.gid_index(GUEST[version]).unwrap();
    let dump = tempfile::NamedTempFile::new().unwrap();
    let memory = || {
        let ours = std::fs::read(dump.path()).map_err(|e| e.to_string())?;
        let theirs = testbed.guest.fetch_file(MEMORY).map_err(|e| e.to_string())?;
        Ok::<_, String>((ours, theirs))
    };
    for &(size, iterations, qps) in runs {
        // Arguments of both sides; the stock programs refuse those that they do not use.
        let mut common = format!("-n {iterations}");
        if test != Test::AtomicBw {
            common += &format!(" -s {size}");
        }
        if qps > 1 {
            common += &format!(" -q {qps}");
        }
        let stock = format!(
            "rm -f {MEMORY}; LD_PRELOAD=$LD_PRELOAD:/lib/mrdump.so MR_DUMP={MEMORY} \
             {program} -d rxe0 -x {index} -F -u 18 {common}"
        );
        let urxe = format!(
            "perf {verb} --perftest --link {link} --gid {gid} --ack-timeout 18 --timeout 60 \
             --dump-memory {} {common}",
            dump.path().display()
        );
        let urxe: Vec<&str> = urxe.split(' ').collect();
        let run = |stock_server: bool| Run {
            test,
            size,
            iterations,
            qps,
            stock_client: !stock_server,
            stock_server,
        };
        let parameters = format!("{size} bytes, {iterations} iterations, {qps} queue pair(s)");
        let equal = |n| format!("{n} bytes equal on both sides");
        table.case([program, "server", via.name(), ip], parameters.clone(), || {
            testbed.stock_server(&stock, &urxe, LIMIT)?;
            let (client, server) = memory()?;
            run(true).compare(&client, &server).map(equal)
        });
        table.case([program, "client", via.name(), ip], parameters, || {
            testbed.stock_client(&stock, &urxe, LIMIT)?;
            let (server, client) = memory()?;
            run(false).compare(&client, &server).map(equal)
        });
    }
}

fn run_all(testbed: &Testbed, links: &[LinkKind]) {
    let mut table = Table::default();
    for &via in links {
        for version in 0..2 {
            for program in PROGRAMS {
                run_both_roles(&mut table, testbed, via, version, program);
            }
        }
    }
    table.finish();
}

#[test]
fn perftest_data_matches_over_frames() {
    run_all(&Testbed::frames(), &[LinkKind::Frames]);
}

#[test]
fn perftest_data_matches_over_a_tap() {
    run_all(&Testbed::tap("pt"), &[LinkKind::Packet, LinkKind::Udp]);
}

//! `urxe perf --perftest` and six programs of perftest in a guest with the kernel's rxe, both ways round.
//!
//! The ACK timeout is one second (18): a busy host starves the emulated guest for longer than the usual 67 ms.
//!
//! urxe checks what it can see of the data: the marks of `ib_write_lat`, the lengths of SENDs, and that additions of
//! 1 add up, whichever side has the words. perftest itself looks at nothing but completions and those marks.

#[path = "support/guest.rs"]
mod guest;
#[path = "support/stand.rs"]
mod stand;

use stand::{GUEST, Stand, Table, Via};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Program, urxe's arguments, and (size, iterations, queue pairs) of each run. The guest moves a few MB a second.
type Runs = &'static [(u32, u32, u32)];
const PROGRAMS: [(&str, [&str; 2], Runs); 6] = [
    ("ib_write_bw", ["write", "--bw"], &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_read_bw", ["read", "--bw"], &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_send_bw", ["send", "--bw"], &[(2, 1000, 1), (4096, 250, 2), (65_536, 50, 1)]),
    ("ib_atomic_bw", ["atomic", "--bw"], &[(8, 1000, 1), (8, 333, 2)]),
    ("ib_write_lat", ["write", "--lat"], &[(1, 1000, 1), (4096, 100, 1)]),
    ("ib_send_lat", ["send", "--lat"], &[(1, 1000, 1), (4096, 100, 1)]),
];

fn all(stand: &Stand, links: &[Via]) {
    let mut table = Table::default();
    for &via in links {
        for version in 0..2 {
            let (ip, link) = (["IPv4", "IPv6"][version], stand.link(via, version));
            let gid = stand.gid(via, version).to_string();
            let index = stand.guest.gid_index(GUEST[version]).unwrap();
            for (program, args, runs) in PROGRAMS {
                for (size, n, qps) in runs {
                    let (s, n, q) = (size.to_string(), n.to_string(), qps.to_string());
                    let size_of = if program == "ib_atomic_bw" { String::new() } else { format!("-s {s}") };
                    let many = if *qps > 1 { format!("-q {q}") } else { String::new() };
                    let stock = format!("{program} -d rxe0 -x {index} -F -u 18 {size_of} -n {n} {many}");
                    let urxe = ["perf", args[0], args[1], "--perftest", "--link", &link, "--gid", &gid]
                        .into_iter()
                        .chain([
                            "--ack-timeout",
                            "18",
                            "--timeout",
                            "60",
                            "-s",
                            s.as_str(),
                            "-n",
                            &n,
                            "-q",
                            &q,
                        ])
                        .collect::<Vec<_>>();
                    let what = format!("{s} bytes, {n} iterations, {q} queue pair(s)");
                    table.case([program, "server", via.name(), ip], what.clone(), || {
                        stand.stock_server(&stock, &urxe, LIMIT)
                    });
                    table.case([program, "client", via.name(), ip], what, || {
                        stand.stock_client(&stock, &urxe, LIMIT)
                    });
                }
            }
        }
    }
    table.finish();
}

#[test]
fn over_frames() {
    all(&Stand::frames(), &[Via::Frames]);
}

#[test]
fn over_a_tap() {
    all(&Stand::tap("pt"), &[Via::Packet, Via::Udp]);
}

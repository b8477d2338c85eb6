//! UC and UD: `urxe pingpong` and the stock `ibv_uc_pingpong` and `ibv_ud_pingpong` of a guest with the kernel's rxe,
//! both ways round. Both sides check every byte.

#[path = "support/guest.rs"]
mod guest;
#[path = "support/stand.rs"]
mod stand;

use stand::{GUEST, Stand, Table, Via};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Service, size, path MTU (as UC has one), iterations. Nothing is sent again, so messages of several packets are few:
/// the guest drops what comes faster than it works.
const RUNS: [(&str, u32, u32, u32); 7] = [
    ("uc", 1, 256, 1000),
    ("uc", 1024, 1024, 1000),
    ("uc", 4096, 1024, 1000),
    ("uc", 65_536, 4096, 100),
    ("ud", 1, 4096, 1000),
    ("ud", 1024, 4096, 1000),
    ("ud", 4096, 4096, 1000),
];

fn matrix(stand: &Stand, via: Via) {
    let mut table = Table::default();
    for version in 0..2 {
        let ip = ["IPv4", "IPv6"][version];
        let (link, gid) = (stand.link(via, version), stand.gid(via, version).to_string());
        let index = stand.guest.gid_index(GUEST[version]).unwrap();
        for (service, size, mtu, n) in RUNS {
            let program = format!("ibv_{service}_pingpong");
            let path = if service == "uc" { format!("-m {mtu}") } else { String::new() };
            let stock = format!("{program} -d rxe0 -g {index} -s {size} -n {n} -c {path}");
            let (s, n, m) = (size.to_string(), n.to_string(), mtu.to_string());
            let mut urxe = vec!["pingpong", "--service", service, "--link", &link, "--gid", &gid];
            urxe.extend(["--mtu", &m, "-s", &s, "-n", &n, "--check", "--timeout", "20"]);
            let what = format!("{size} bytes, MTU {mtu}, {n} iterations");
            table.case([&program, "server", via.name(), ip], what.clone(), || {
                let said = stand.stock_server(&stock, &urxe, LIMIT)?;
                if said.contains("invalid data") { Err(said) } else { Ok("no invalid data".into()) }
            });
            table.case([&program, "client", via.name(), ip], what, || {
                stand.stock_client(&stock, &urxe, LIMIT).map(|_| "no invalid data".into())
            });
        }
    }
    table.finish();
}

#[test]
fn over_frames() {
    matrix(&Stand::frames(), Via::Frames);
}

#[test]
fn over_a_tap_packet() {
    matrix(&Stand::tap("sp"), Via::Packet);
}

#[test]
fn over_a_tap_udp() {
    matrix(&Stand::tap("su"), Via::Udp);
}

//! Tests of `urxe pingpong` against the stock `ibv_rc_pingpong` on the kernel's rxe in a guest, with either
//! side as the server.
//!
//! The emulated guest transfers a few MB per second. `.ci/nightly` makes a thousand round trips of each case,
//! and a hundred of 1 MiB (4096 packets each at an MTU of 256), with `URXE_LONG=1`. A busy host starves the
//! guest for longer than the default of 67 ms, so urxe's ACK timeout is one second (18).

use std::time::Duration;
use urxe_test_support::stock::Table;
use urxe_test_support::testbed::{GUEST, LinkKind, Testbed};

const SIZES: [u32; 5] = [1, 1024, 4096, 65_536, 1 << 20];
/// Time in seconds after which urxe fails if no message arrives.
const URXE_TIMEOUT: &str = "60";
const MTUS: [u32; 3] = [256, 1024, 4096];

/// Returns the number of round trips and the time limit for a message size. With six to twenty other busy
/// processes on two cores, 20 runs of 1000 round trips of 65,536 bytes at an MTU of 256 took 32 to 164 s
/// each. A stalled run ends before that limit: urxe fails after [`URXE_TIMEOUT`] without a message.
fn iterations(size: u32) -> (u32, Duration) {
    if std::env::var_os("URXE_LONG").is_some() {
        return (if size <= 65_536 { 1000 } else { 100 }, Duration::from_secs(3600));
    }
    let n = match size {
        0..=4096 => 100,
        4097..=65_536 => 30,
        _ => 3,
    };
    (n, Duration::from_secs(900))
}

fn run_both_roles(table: &mut Table, testbed: &Testbed, via: LinkKind, version: usize, size: u32, mtu: u32) {
    let ((n, limit), ip) = (iterations(size), ["IPv4", "IPv6"][version]);
    let link = testbed.link_arg(via, version);
    let gid = testbed.gid(via, version).to_string();
    let index = testbed.guest.gid_index(GUEST[version]).unwrap();
    let stock = format!("ibv_rc_pingpong -d rxe0 -g {index} -m {mtu} -s {size} -n {n} -c");
    let (s, n, m) = (size.to_string(), n.to_string(), mtu.to_string());
    // Retries of 12 s in total. A guest that gets little CPU time sends more retransmissions than it can
    // receive: beside 20 busy processes on two cores, 4 of 140 runs of 65,536 bytes made no progress for 3
    // s. rxe retries without limit.
    let urxe = [
        "pingpong",
        "--link",
        &link,
        "--gid",
        &gid,
        "--mtu",
        &m,
        "-s",
        &s,
        "-n",
        &n,
        "--check",
        "--ack-timeout",
        "18",
        "--timeout",
        URXE_TIMEOUT,
    ];
    let parameters = format!("{size} bytes, MTU {mtu}, {n} iterations");
    table.case(["ibv_rc_pingpong", "server", &via.to_string(), ip], parameters.clone(), || {
        let output = testbed.stock_server(&stock, &urxe, limit)?;
        if output.contains("invalid data") { Err(output) } else { Ok("no invalid data".into()) }
    });
    table.case(["ibv_rc_pingpong", "client", &via.to_string(), ip], parameters, || {
        testbed.stock_client(&stock, &urxe, limit).map(|_| "no invalid data".into())
    });
}

fn matrix(testbed: &Testbed, links: &[LinkKind]) {
    let mut table = Table::default();
    for &via in links {
        for version in 0..2 {
            for size in SIZES {
                for mtu in MTUS {
                    run_both_roles(&mut table, testbed, via, version, size, mtu);
                }
            }
        }
    }
    table.finish();
}

#[test]
fn rc_pingpong_interoperates_over_frames() {
    matrix(&Testbed::start(LinkKind::Dgram), &[LinkKind::Dgram]);
}

#[test]
fn rc_pingpong_interoperates_over_a_packet_socket_on_a_tap() {
    matrix(&Testbed::start(LinkKind::Packet), &[LinkKind::Packet]);
}

#[test]
fn rc_pingpong_interoperates_over_a_udp_socket_on_a_tap() {
    matrix(&Testbed::start(LinkKind::Udp), &[LinkKind::Udp]);
}

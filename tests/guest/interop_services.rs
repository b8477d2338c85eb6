//! Tests of `urxe pingpong` over UC, UD and shared receive queues against the stock `ibv_uc_pingpong`,
//! `ibv_ud_pingpong` and `ibv_srq_pingpong` on the kernel's rxe in a guest, with either side as the server.
//! Both sides check every byte, except for `ibv_srq_pingpong`, which cannot.

use std::time::Duration;
use urxe_test_support::stock::Table;
use urxe_test_support::testbed::{GUEST, LinkKind, Testbed};

const LIMIT: Duration = Duration::from_secs(120);

/// Service, message size, path MTU (ignored for UD), iterations with `URXE_LONG=1`, of which a quarter is run
/// by default, queue pairs. UC and UD do not retransmit,
/// and the guest drops packets that arrive faster than it can process them, so messages of several packets
/// are few.
const RUNS: [(&str, u32, u32, u32, u32); 11] = [
    ("uc", 1, 256, 1000, 1),
    ("uc", 1024, 1024, 1000, 1),
    ("uc", 4096, 1024, 1000, 1),
    ("uc", 65_536, 4096, 100, 1),
    ("ud", 1, 4096, 1000, 1),
    ("ud", 1024, 4096, 1000, 1),
    ("ud", 4096, 4096, 1000, 1),
    ("srq", 1, 1024, 1000, 16),
    ("srq", 4096, 1024, 1000, 16),
    ("srq", 65_536, 4096, 100, 4),
    ("srq", 5000, 256, 200, 40),
];

fn matrix(testbed: &Testbed, via: LinkKind) {
    let mut table = Table::default();
    for version in 0..2 {
        let ip = ["IPv4", "IPv6"][version];
        let (link, gid) = (testbed.link_arg(via, version), testbed.gid(via, version).to_string());
        let index = testbed.guest.gid_index(GUEST[version]).unwrap();
        for (service, size, mtu, iterations, qps) in RUNS {
            let n = if std::env::var_os("URXE_LONG").is_some() { iterations } else { iterations / 4 };
            let program = format!("ibv_{service}_pingpong");
            let extra_args = match service {
                "uc" => format!("-c -m {mtu}"),
                "ud" => "-c".into(),
                _ => format!("-m {mtu} -q {qps}"),
            };
            let stock = format!("{program} -d rxe0 -g {index} -s {size} -n {n} {extra_args}");
            let (s, n, m, q) = (size.to_string(), n.to_string(), mtu.to_string(), qps.to_string());
            let mut urxe = vec!["pingpong", "--service", service, "--link", &link, "--gid", &gid];
            urxe.extend(["--mtu", &m, "-s", &s, "-n", &n, "--check", "--timeout", "20", "-q", &q]);
            if service == "srq" {
                // A busy host starves the guest for longer than the usual 67 ms.
                urxe.extend(["--ack-timeout", "16"]);
            }
            let parameters = format!("{size} bytes, MTU {mtu}, {n} iterations, {qps} QPs");
            table.case([&program, "server", &via.to_string(), ip], parameters.clone(), || {
                let output = testbed.stock_server(&stock, &urxe, LIMIT)?;
                if output.contains("invalid data") { Err(output) } else { Ok("no invalid data".into()) }
            });
            table.case([&program, "client", &via.to_string(), ip], parameters, || {
                testbed.stock_client(&stock, &urxe, LIMIT).map(|_| "no invalid data".into())
            });
        }
    }
    table.finish();
}

#[test]
fn uc_ud_and_srq_pingpong_interoperate_over_frames() {
    matrix(&Testbed::start(LinkKind::Dgram), LinkKind::Dgram);
}

#[test]
fn uc_ud_and_srq_pingpong_interoperate_over_a_packet_socket_on_a_tap() {
    matrix(&Testbed::start(LinkKind::Packet), LinkKind::Packet);
}

#[test]
fn uc_ud_and_srq_pingpong_interoperate_over_a_udp_socket_on_a_tap() {
    matrix(&Testbed::start(LinkKind::Udp), LinkKind::Udp);
}

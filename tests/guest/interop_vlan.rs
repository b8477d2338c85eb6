//! Tests of urxe with its own host stack on a VLAN, against the kernel's rxe on a VLAN interface in the test
//! guest. The tap link needs root.
//!
//! Repeated with Linux 6.12.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use urxe::verbs::*;
use urxe_test_support::guest::{self, pattern};
use urxe_test_support::nic;
use urxe_test_support::peer::{self, REGION, Side, TIMEOUT};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

const LEN: usize = 100_000;

/// Returns the GID that corresponds to an IP address.
fn gid(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn check_vlan(via: LinkKind) {
    let setup = Testbed::start(via);
    let up = "modprobe 8021q && ip link add link eth0 name eth0.5 type vlan id 5 && ip link set eth0.5 up &&
              ip addr add 10.78.0.1/24 dev eth0.5 && ip addr add fd78::1/64 dev eth0.5";
    setup.guest.check(up, Duration::from_secs(30)).unwrap();
    let link = setup.link_with(Ip::V4, "ip=10.78.0.9/24,ip=fd78::9/64,vlan=5,pcp=3");
    assert_eq!(link.info().vlan, Some(5));
    let side = Side::new(nic::open([link]), REGION);
    let mut shell = setup.shell(LEN);
    for (ours, theirs) in [("10.78.0.9", "10.78.0.1"), ("fd78::9", "fd78::1")] {
        let (ours, theirs): (IpAddr, IpAddr) = (ours.parse().unwrap(), theirs.parse().unwrap());
        // rxe gets the addresses of the VLAN interface a moment later.
        let index = (0..100)
            .find_map(|_| {
                let table = shell.vsh.raw("gid").unwrap();
                let mut entries = table.split_whitespace().filter_map(|word| word.split_once('='));
                let found = entries.find(|(_, g)| g.parse() == Ok(gid(theirs))).map(|(i, _)| i.to_owned());
                if found.is_none() {
                    shell.vsh.cmd("sleep 100").unwrap();
                }
                found
            })
            .expect("rxe has no GID of its VLAN interface after 10 s");
        let qp = side.pd.create_qp(&side.cq, &side.cq, &QpOptions::default()).unwrap();
        let at = qp.endpoint();
        // In the first round there is no QP to destroy.
        let _ = shell.vsh.raw("destroy q").unwrap();
        let qpn = shell.vsh.cmd("qp q rc").unwrap().num("qpn") as u32;
        let (our_gid, our_qpn, our_psn) = (gid(ours), at.qpn.get(), at.psn.get());
        let line = format!(
            "connect q qpn={our_qpn} gid={our_gid} sgid={index} mtu=1024 rq_psn={our_psn} sq_psn=7 timeout=17"
        );
        shell.vsh.cmd(&line).unwrap();
        let peer = Endpoint { gid: Gid::from(theirs), qpn: Qpn::new(qpn), psn: Psn::new(7) };
        let options = ConnectOptions::default()
            .mtu(Mtu::from_bytes(1024))
            .sgid_index(side.gid_index(ours))
            .timeout(AckTimeout::new(17));
        qp.connect(&peer, &options).unwrap();

        let data = pattern(LEN, 3);
        side.mr.write(0, &data).unwrap();
        qp.post_send(&SendWr::write(1, &[side.mr.sge(0..LEN)], shell.at(0))).unwrap();
        assert_eq!(side.one().unwrap().status, WcStatus::Success);
        assert_eq!(shell.vsh.cmd(&format!("hash m 0 {LEN}")).unwrap().num("hash"), guest::hash(&data));
        let back = LEN..2 * LEN;
        let to = peer::remote_args(side.mr.remote(back.start));
        shell.vsh.cmd(&format!("write q m 0 {LEN} {to}")).unwrap();
        assert_eq!(shell.vsh.poll(1, TIMEOUT).unwrap()[0].status, "SUCCESS");
        let mut got = vec![0; LEN];
        side.mr.read(back.start, &mut got).unwrap();
        assert!(got == data, "{theirs}: the data that rxe wrote differs");
    }
    // The guest has sent and received tagged frames: its VLAN interface has counted them.
    let packets =
        setup.guest.check("cat /sys/class/net/eth0.5/statistics/rx_packets", Duration::from_secs(10));
    assert!(packets.unwrap().stdout.trim().parse::<u64>().unwrap() > 0);
}

#[test]
fn rxe_in_a_vlan_is_reached_over_frames() {
    check_vlan(LinkKind::Dgram);
}

#[test]
fn rxe_in_a_vlan_is_reached_over_a_packet_socket_with_own_stack() {
    check_vlan(LinkKind::PacketHostStack);
}

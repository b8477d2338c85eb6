//! Datagrams without effect.

use urxe::verbs::*;

use super::hosts::{Hosts, LIMIT, Setup};
use super::shot::Shot;
use super::{Case, ENDS, Source};

pub const CASES: &[Case] = &[Case {
    name: "datagram-wrong-pkey",
    diagnosis: "datagram-dropped",
    files: ENDS,
    source: Source::Computed(wrong_pkey),
    shown: &[
        (0, |s| s.packet().is_some_and(|p| p.bth().pkey != PKey::DEFAULT)),
        (1, |s| s.packet().is_some_and(|p| p.bth().pkey != PKey::DEFAULT)),
    ],
    text: "The server answers each datagram (UD SEND) of its clients. A queue pair of the client that uses P_Key 0xffff gets \
           answers; then its partition table is changed to 0x8001, and its datagrams with this P_Key arrive at the server \
           without an answer: the server's packets carry 0xffff.",
}];

const QKEY: QKey = QKey(0x0bad_cafe);

/// Sends a datagram of 64 bytes from one host to another.
fn datagram(pd: &Pd, mr: &Mr, from: &Qp, to: (Gid, Qpn)) {
    let ah = pd.create_ah(&AddressVector::to(to.0)).expect("a known address");
    from.post_send(&SendWr::send(1, &[mr.sge(0..64)]).to(ah.to(to.1, QKEY))).expect("room");
}

fn wrong_pkey(seed: u64) -> Vec<Vec<Shot>> {
    let hosts: Hosts = Setup::new(seed).open();
    let (x, y) = (hosts.a.qp(QpType::Ud), hosts.b.qp(QpType::Ud));
    [&x, &y].into_iter().for_each(|qp| qp.activate(QKEY).expect("a new queue pair"));
    let [to_client, to_server] = [(&hosts.a, &x), (&hosts.b, &y)]
        .map(|(nic, qp)| (nic.context.query_gid(0).expect("a GID"), qp.qpn()));
    for n in 0..7 {
        if n == 3 {
            hosts.a.context.set_pkeys(&[PKey(0x8001)]).expect("room in the table");
        }
        hosts.receives(&y, 1);
        datagram(&hosts.a.pd, &hosts.a.mr, &x, to_server);
        hosts.done(1);
        hosts.micros(200);
        if n < 3 {
            hosts.b.cq.wait(LIMIT).expect("the datagram");
            x.post_recv(&RecvWr::new(9, &[hosts.a.mr.sge(4096..8192)])).expect("room for the receive");
            datagram(&hosts.b.pd, &hosts.b.mr, &y, to_client);
            hosts.b.cq.wait(LIMIT).expect("success");
            hosts.done(1);
        }
        hosts.micros(700);
    }
    hosts.both()
}

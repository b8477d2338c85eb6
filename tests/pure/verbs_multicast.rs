//! Tests of multicast through the verbs API, mostly over the in-memory fabric.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use urxe::link::{Instant, Link, LinkInfo, RxBurst, TxQueue};
use urxe::verbs::errors::{AttachError, MulticastError, WaitError};
use urxe::verbs::*;
use urxe::wire::Flow;
use urxe_test_support::nic::on_udp;

const TIMEOUT: Duration = Duration::from_secs(5);
const QKEY: QKey = QKey(0x1234);

/// A NIC with a UD QP on which a receive of 1000 bytes is posted.
struct Member {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

fn member(context: Context) -> Member {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let qp = ud_qp(&pd, &cq);
    let mr = pd.reg_mr(4096, Access::ALL).unwrap();
    let member = Member { context, pd, cq, mr, qp };
    member.recv(1);
    member
}

fn ud_qp(pd: &Pd, cq: &Cq) -> Qp {
    let qp = pd.create_qp(cq, cq, &QpOptions::default().qp_type(QpType::Ud)).unwrap();
    qp.activate(QKEY).unwrap();
    qp
}

impl Member {
    fn recv(&self, wr_id: u64) {
        self.qp.post_recv(&RecvWr::new(wr_id, &[self.mr.sge(0..1000)])).unwrap();
    }

    /// Sends `text` to a multicast group, and waits for the send completion.
    fn send(&self, group: Gid, text: &[u8]) {
        let v4 = group.ip().is_ipv4();
        let index = self.context.gids().iter().position(|g| g.ip().is_ipv4() == v4).unwrap() as u8;
        let ah = self.pd.create_ah(&AddressVector::to(group).sgid_index(index).hop_limit(5)).unwrap();
        self.mr.write(2000, text).unwrap();
        let sge = [self.mr.sge(2000..2000 + text.len())];
        self.qp.post_send(&SendWr::send(7, &sge).to(ah.to(Qpn::MULTICAST, QKEY))).unwrap();
        assert_eq!(self.next(7).opcode, WcOpcode::Send);
    }

    /// Waits for the next completion, which must be that of work request `wr_id`.
    fn next(&self, wr_id: u64) -> Completion {
        let wc = self.cq.wait(TIMEOUT).unwrap_or_else(|e| panic!("{wr_id} of {:?}: {e}", self.context));
        assert_eq!(wc.wr_id, wr_id);
        wc
    }

    /// Waits for the next datagram, and returns its completion, the flow from its GRH, and its text.
    fn receive(&self) -> (Completion, Flow, Vec<u8>) {
        let wc = self.next(1);
        let mut bytes = vec![0; wc.byte_len as usize];
        self.mr.read(0, &mut bytes).unwrap();
        let flow = grh::flow(bytes[..grh::LEN].try_into().unwrap()).unwrap();
        self.recv(1);
        (wc, flow, bytes.split_off(grh::LEN))
    }

    fn assert_no_completion(&self) {
        let mut out = Vec::new();
        assert_eq!((self.cq.poll(1, &mut out), out), (Ok(0), Vec::new()));
    }
}

fn gid(ip: &str) -> Gid {
    Gid::from(ip.parse::<IpAddr>().unwrap())
}

const GROUPS: [&str; 2] = ["239.7.7.7", "ff15::77"];

fn members(fabric: &Fabric) -> [Member; 3] {
    [0; 3].map(|_| member(Context::on_fabric(fabric).unwrap()))
}

fn check_on_fabric(fabric: &Fabric) {
    for group in GROUPS.map(gid) {
        let [a, b, c] = members(fabric);
        b.qp.attach_mcast(group).unwrap();
        c.qp.attach_mcast(group).unwrap();
        a.send(group, b"all of you");
        for m in [&b, &c] {
            let (wc, flow, text) = m.receive();
            assert_eq!((wc.src_qpn, text), (a.qp.qpn(), b"all of you".to_vec()));
            assert_eq!((flow.dst, flow.hop_limit), (group.ip(), 5));
            assert!(a.context.gids().contains(&Gid::from(flow.src)));
        }
        a.assert_no_completion();

        // The GRH yields a path to the sender, from the local unicast address.
        let (wc, header) = {
            a.send(group, b"who?");
            let wc = b.next(1);
            let mut header = [0; grh::LEN];
            b.mr.read(0, &mut header).unwrap();
            (wc, header)
        };
        c.receive();
        let back = b.pd.create_ah_from_wc(&wc, &header).unwrap();
        b.mr.write(3000, b"me").unwrap();
        let sge = [b.mr.sge(3000..3002)];
        b.qp.post_send(&SendWr::send(8, &sge).to(back.to(wc.src_qpn, QKEY))).unwrap();
        b.next(8);
        let (_, flow, text) = a.receive();
        assert_eq!((text, flow.dst.is_multicast()), (b"me".to_vec(), false));
        b.recv(1);

        // A detached member receives no more datagrams; an attached sender also receives its own.
        b.qp.detach_mcast(group).unwrap();
        c.send(group, b"and now?");
        assert_eq!(c.receive().2, b"and now?");
        b.assert_no_completion();
        assert_eq!(b.qp.detach_mcast(group), Err(MulticastError::NotAttached(group)));
        assert_eq!(b.context.counters().rx_unknown_group, 0, "the link has left the group too");
    }
}

#[test]
fn multicast_reaches_members_in_real_time() {
    check_on_fabric(&Fabric::new());
}

#[test]
fn multicast_reaches_members_in_virtual_time() {
    check_on_fabric(&Fabric::virtual_time(FabricConfig::default()).unwrap());
}

#[test]
fn each_member_of_one_nic_receives_a_copy() {
    let [a, b, _] = members(&Fabric::new());
    let group = gid(GROUPS[1]);
    let other = ud_qp(&b.pd, &b.cq);
    other.post_recv(&RecvWr::new(2, &[b.mr.sge(1000..2000)])).unwrap();
    b.qp.attach_mcast(group).unwrap();
    b.qp.attach_mcast(group).unwrap();
    other.attach_mcast(group).unwrap();
    a.send(group, b"one");
    b.next(1);
    b.next(2);
    b.assert_no_completion();
    // The NIC stays in the group until its last member is destroyed.
    drop(other);
    b.recv(1);
    a.send(group, b"two");
    assert_eq!(b.receive().2, b"two");
    drop(b.qp);
    let before = b.context.counters().rcvd_pkts;
    a.send(group, b"three");
    b.context.poll();
    assert_eq!(b.context.counters().rcvd_pkts, before, "the link has left the group");
}

/// Checks that blocking multicast loopback on a queue pair suppresses only the copies of its own messages.
#[test]
fn qp_with_blocked_multicast_loopback_receives_only_messages_of_others() {
    let [a, b, _] = members(&Fabric::new());
    let group = gid(GROUPS[1]);
    let other = ud_qp(&a.pd, &a.cq);
    other.post_recv(&RecvWr::new(2, &[a.mr.sge(1000..2000)])).unwrap();
    for qp in [&a.qp, &b.qp, &other] {
        qp.attach_mcast(group).unwrap();
    }
    a.qp.block_multicast_loopback();
    a.send(group, b"own");
    // The other queue pair of the same NIC receives a copy, and so does the other NIC.
    a.next(2);
    assert_eq!(b.receive().2, b"own");
    a.assert_no_completion();
    b.send(group, b"other's");
    assert_eq!(a.receive().2, b"other's");
}

/// Checks that copies to different members are lost independently, and that losses are reproducible with the
/// same seed.
#[test]
fn multicast_copies_are_lost_independently() {
    let run = |seed| {
        let config = FabricConfig::default().loss(0.3).seed(seed);
        let fabric = Fabric::virtual_time(config).unwrap();
        let [a, b, c] = members(&fabric);
        let group = gid(GROUPS[0]);
        b.qp.attach_mcast(group).unwrap();
        c.qp.attach_mcast(group).unwrap();
        let receives = |m: &Member| match m.cq.wait(TIMEOUT) {
            Ok(_) => {
                m.recv(1);
                true
            }
            Err(e) => {
                assert_eq!(e, WaitError::Idle);
                false
            }
        };
        (0..200)
            .map(|_| {
                a.send(group, b"x");
                (receives(&b), receives(&c))
            })
            .collect::<Vec<_>>()
    };
    let first = run(5);
    let count = |of: fn(&(bool, bool)) -> bool| first.iter().filter(|r| of(r)).count();
    for (received, name) in [(count(|r| r.0), "b"), (count(|r| r.1), "c")] {
        assert!((110..170).contains(&received), "{name} received {received} of 200 datagrams");
    }
    assert!(count(|r| r.0 != r.1) > 40, "the losses of the two members are independent");
    assert_eq!(first, run(5));
    assert_ne!(first, run(6));
}

#[test]
fn invalid_attach_fails_with_the_reason() {
    let fabric = Fabric::new();
    let [a, ..] = members(&fabric);
    let attach_error = |qp: &Qp, group: &str| qp.attach_mcast(gid(group)).unwrap_err().to_string();
    assert!(attach_error(&a.qp, "10.0.0.1").contains("no multicast GID"));
    let rc = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).unwrap();
    assert_eq!(attach_error(&rc, GROUPS[0]), "a Rc QP cannot be in a multicast group: only UD can");
    let limits = a.context.query_device().limits;
    for n in 0..limits.max_mcast_grp {
        let group = std::net::Ipv4Addr::from_bits(0xef00_0000 + n);
        a.qp.attach_mcast(group.into()).unwrap();
    }
    let refused = a.qp.attach_mcast(gid("ff15::1")).unwrap_err();
    assert!(matches!(refused, AttachError::Multicast(MulticastError::TooManyGroups(8192))), "{refused}");
    // A QP is not attached if the link refuses to join the group.
    let v4_only = member(on_udp("127.30.9.1", 1));
    let refused = v4_only.qp.attach_mcast(gid("ff15::1")).unwrap_err();
    assert!(matches!(refused, AttachError::Join(JoinError::NoAddress(_))), "{refused}");
    assert_eq!(v4_only.qp.detach_mcast(gid("ff15::1")), Err(MulticastError::NotAttached(gid("ff15::1"))));
}

/// Link that carries no packets and implements only the required methods.
struct MinimalLink(LinkInfo);

impl Link for MinimalLink {
    fn info(&self) -> &LinkInfo {
        &self.0
    }
    fn transmit(&mut self, _: Instant, _: &TxQueue) -> io::Result<()> {
        Ok(())
    }
    fn receive(&mut self, _: Instant, _: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        Ok(0)
    }
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

#[test]
fn groups_are_refused_on_a_link_without_multicast_whose_port_is_up_nevertheless() {
    let info = LinkInfo::new("minimal", vec!["192.0.2.1".parse().unwrap()]);
    let a = member(Context::open(Box::new(MinimalLink(info)), &ContextOptions::default()).unwrap());
    let refused = a.qp.attach_mcast(gid(GROUPS[0])).unwrap_err();
    assert_eq!(refused.to_string(), "cannot join 239.7.7.7: the link has no multicast");
    assert_eq!(a.qp.detach_mcast(gid(GROUPS[0])), Err(MulticastError::NotAttached(gid(GROUPS[0]))));
    assert!(a.context.query_port().active);
}

/// Uses three NICs on UDP sockets, each with its own loopback address.
#[test]
fn multicast_reaches_members_over_udp() {
    let [a, b, c] = ["127.30.0.1", "127.30.0.2", "127.30.0.3"].map(|ip| member(on_udp(ip, 1)));
    let group = gid("239.30.0.1");
    for m in [&a, &b, &c] {
        m.qp.attach_mcast(group).unwrap();
    }
    for (i, from) in [&a, &b].into_iter().enumerate() {
        let text = [i as u8; 500];
        let v4 = AddressVector::to(group).hop_limit(1);
        let ah = from.pd.create_ah(&v4).unwrap();
        from.mr.write(2000, &text).unwrap();
        let sge = [from.mr.sge(2000..2500)];
        from.qp.post_send(&SendWr::send(7, &sge).to(ah.to(Qpn::MULTICAST, QKEY))).unwrap();
        for m in [&a, &b, &c] {
            // The sender receives a copy too, before or after its send completion.
            let mut ids: Vec<u64> = (0..1 + usize::from(std::ptr::eq(m, from)))
                .map(|_| m.cq.wait(TIMEOUT).unwrap().wr_id)
                .collect();
            ids.sort_unstable();
            assert_eq!(ids[0], 1);
            let mut got = [0; 540];
            m.mr.read(0, &mut got).unwrap();
            let flow = grh::flow(got[..40].try_into().unwrap()).unwrap();
            assert_eq!((flow.dst, Gid::from(flow.src)), (group.ip(), from.context.query_gid(0).unwrap()));
            assert_eq!(got[40..], text);
            m.recv(1);
        }
    }
    c.qp.detach_mcast(group).unwrap();
    a.mr.write(2000, b"bye").unwrap();
    let ah = a.pd.create_ah(&AddressVector::to(group)).unwrap();
    let sge = [a.mr.sge(2000..2003)];
    a.qp.post_send(&SendWr::send(7, &sge).to(ah.to(Qpn::MULTICAST, QKEY))).unwrap();
    assert_eq!(b.next(1).byte_len, 43);
    std::thread::sleep(Duration::from_millis(50));
    c.assert_no_completion();
    let counters = [&a, &b, &c].map(|m| (m.context.counters().rx_icrc_err, m.context.link_state().0));
    assert_eq!(counters, [(0, Default::default()); 3]);
}

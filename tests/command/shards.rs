//! Tests of NICs with several shards over UDP sockets on the loopback interface: every queue pair must
//! receive its packets, whatever its shard and whichever socket they arrive on.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use pcap_file::pcapng::{Block, PcapNgReader};
use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use urxe::middleware::capture::{CaptureFile, CaptureHandle, Timestamps};
use urxe::transport::{BurstLimits, TxQueue};
use urxe::verbs::errors::{AttachError, CreateError, MulticastError, PKeyTableSize};
use urxe::verbs::*;
use urxe::wire::{Bth, Deth, Flow, Headers, Opcode, ROCE_PORT};
use urxe_test_support::addresses::address;
use urxe_test_support::nic::{SpreadNic, connect, on_udp, open};

const TIMEOUT: Duration = Duration::from_secs(20);
const KEY: QKey = QKey(0x77);
const SHARDS: usize = 4;

/// Length of a piece in bytes; the region of a NIC has 64 pieces.
const LEN: usize = 64 << 10;

fn nic_with_shards(shards: usize) -> SpreadNic {
    SpreadNic::new(on_udp(&address().to_string(), shards), 64 * LEN)
}

/// Objects of a NIC from [`nic_with_shards`].
trait Pieces {
    fn nic(&self) -> &SpreadNic;

    fn ip(&self) -> IpAddr {
        self.nic().context.link_info().addresses[0]
    }

    fn ud_qp(&self) -> Qp {
        let qp = self.nic().qp(QpType::Ud);
        qp.activate(KEY).unwrap();
        qp
    }

    /// Returns an SGE for the first `len` bytes of piece `i` of the region.
    fn piece(&self, i: usize, len: usize) -> Sge {
        self.nic().mr.sge(i * LEN..i * LEN + len)
    }
}

impl Pieces for SpreadNic {
    fn nic(&self) -> &SpreadNic {
        self
    }
}

fn shard_of(qpn: Qpn) -> usize {
    qpn.get() as usize % SHARDS
}

fn pattern(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + i * 31 + at / 251) as u8).collect()
}

/// Runs a SEND, a WRITE and a READ on every connection at once, with a different data pattern for each
/// connection.
fn exchange(a: &SpreadNic, b: &SpreadNic, pairs: &[(Qp, Qp)]) {
    let len = LEN - 40;
    for (i, (x, y)) in pairs.iter().enumerate() {
        a.mr.write(i * LEN, &pattern(i, len)).unwrap();
        b.mr.write((16 + i) * LEN, &pattern(16 + i, len)).unwrap();
        y.post_recv(&RecvWr::new(i as u64, &[b.piece(32 + i, len)])).unwrap();
        x.post_send(&SendWr::send(i as u64, &[a.piece(i, len)])).unwrap();
        x.post_send(&SendWr::write(i as u64, &[a.piece(i, len)], b.mr.remote(i * LEN))).unwrap();
        x.post_send(&SendWr::read(i as u64, &[a.piece(16 + i, len)], b.mr.remote((16 + i) * LEN))).unwrap();
    }
    b.completions(pairs.len());
    a.completions(3 * pairs.len());
    let mut got = vec![0; len];
    for i in 0..pairs.len() {
        for (mr, place, expected) in [(&b.mr, i, i), (&b.mr, 32 + i, i), (&a.mr, 16 + i, 16 + i)] {
            mr.read(place * LEN, &mut got).unwrap();
            assert!(got == pattern(expected, len), "wrong data in piece {place} of connection {i}");
        }
    }
}

#[test]
fn qps_with_a_completion_queue_each_are_spread_over_shards_by_their_numbers() {
    let nic = nic_with_shards(SHARDS);
    let qps: Vec<Qp> = (0..16).map(|_| nic.qp(QpType::Rc)).collect();
    let shards: Vec<usize> = qps.iter().map(|qp| shard_of(qp.qpn())).collect();
    assert_eq!(shards, [0, 1, 2, 3].repeat(4));
}

#[test]
fn qps_of_one_completion_queue_are_in_one_shard_until_the_queue_is_unused() {
    let nic = nic_with_shards(SHARDS);
    let [one, two] = [(); 2].map(|()| nic.context.create_cq(16).unwrap());
    let create = |cq: &Cq| nic.pd.create_qp(cq, cq, &QpOptions::default()).unwrap();
    let qps = [&one, &two, &one, &two].map(create);
    assert_eq!(qps.each_ref().map(|qp| shard_of(qp.qpn())), [0, 1, 0, 1]);
    drop(qps);
    assert_eq!(shard_of(create(&one).qpn()), 2);
}

#[test]
fn sixteen_connections_over_four_shards_transfer_data() {
    for (shards_a, shards_b) in [(SHARDS, SHARDS), (1, SHARDS), (2, SHARDS)] {
        let (a, b) = (nic_with_shards(shards_a), nic_with_shards(shards_b));
        let pairs: Vec<(Qp, Qp)> = (0..16).map(|_| (a.qp(QpType::Rc), b.qp(QpType::Rc))).collect();
        pairs.iter().for_each(|(x, y)| connect(x, y));
        for _ in 0..4 {
            exchange(&a, &b, &pairs);
        }
        let counted = b.context.counters();
        assert_eq!((counted.rx_unknown_qp, counted.rx_icrc_err), (0, 0), "{shards_a} and {shards_b} shards");
    }
}

#[test]
fn connections_between_shards_of_one_nic_transfer_data() {
    let a = nic_with_shards(SHARDS);
    let qps: Vec<Qp> = (0..5).map(|_| a.qp(QpType::Rc)).collect();
    // To the next shard, and from the last to the first.
    connect(&qps[0], &qps[1]);
    connect(&qps[2], &qps[3]);
    a.mr.write(0, &pattern(3, 5000)).unwrap();
    for (i, qp) in [&qps[0], &qps[3]].into_iter().enumerate() {
        let to = a.mr.remote((1 + i) * LEN);
        qp.post_send(&SendWr::write(i as u64, &[a.piece(0, 5000)], to)).unwrap();
    }
    a.completions(2);
    let mut got = vec![0; 5000];
    for i in [1, 2] {
        a.mr.read(i * LEN, &mut got).unwrap();
        assert_eq!(got, pattern(3, 5000));
    }
}

#[test]
fn idle_peer_responds_on_every_shard_without_polling() {
    let (a, b) = (nic_with_shards(SHARDS), nic_with_shards(SHARDS));
    let pairs: Vec<(Qp, Qp)> = (0..4).map(|_| (a.qp(QpType::Rc), b.qp(QpType::Rc))).collect();
    for (i, (x, y)) in pairs.iter().enumerate() {
        connect(x, y);
        let to = b.mr.remote(i * LEN);
        x.post_send(&SendWr::write(i as u64, &[a.piece(0, LEN)], to)).unwrap();
        assert_eq!(a.completions(1)[0].wr_id, i as u64);
    }
}

#[test]
fn qps_on_an_srq_are_assigned_to_its_shard() {
    let (a, b) = (nic_with_shards(SHARDS), nic_with_shards(SHARDS));
    let caps = RecvCaps { max_wr: 64, max_sge: 1 };
    let srqs: Vec<Srq> = (0..2).map(|_| b.pd.create_srq(caps).unwrap()).collect();
    let mut pairs = Vec::new();
    for i in 0..8 {
        let (x, srq) = (a.qp(QpType::Rc), &srqs[i % 2]);
        let y = b.pd.create_qp(&b.cq, &b.cq, &QpOptions::default().srq(srq)).unwrap();
        assert_eq!(shard_of(y.qpn()), srq.id().0 as usize % SHARDS);
        connect(&x, &y);
        pairs.push((x, y));
    }
    assert_ne!(srqs[0].id().0 as usize % SHARDS, srqs[1].id().0 as usize % SHARDS);
    for (i, srq) in srqs.iter().enumerate() {
        (0..4).for_each(|n| {
            srq.post_recv(&RecvWr::new(n, &[b.piece(4 * i + n as usize, 3000)])).unwrap();
        });
    }
    pairs.iter().for_each(|(x, _)| x.post_send(&SendWr::send(1, &[a.piece(0, 3000)])).unwrap());
    a.completions(8);
    let mut from: Vec<Qpn> = b.completions(8).iter().map(|wc| wc.qpn).collect();
    let mut expected: Vec<Qpn> = pairs.iter().map(|(_, y)| y.qpn()).collect();
    from.sort_unstable();
    expected.sort_unstable();
    assert_eq!(from, expected);
}

#[test]
fn all_xrc_objects_are_assigned_to_one_shard() {
    let (a, b) = (nic_with_shards(SHARDS), nic_with_shards(SHARDS));
    let domain = b.context.open_xrcd().unwrap();
    let caps = RecvCaps { max_wr: 8, max_sge: 1 };
    let srqs = [(); 3].map(|()| b.pd.create_srq(SrqOptions::new(caps).xrc(&domain, &b.cq)).unwrap());
    for round in 0..3 {
        let x = a.qp(QpType::XrcSend);
        let y = domain.create_target_qp().unwrap();
        assert_eq!([x.qpn(), y.qpn()].map(shard_of), [0, 0]);
        connect(&x, &y);
        for (i, srq) in srqs.iter().enumerate() {
            srq.post_recv(&RecvWr::new(i as u64, &[b.piece(i, 100)])).unwrap();
            x.post_send(&SendWr::send(round, &[a.piece(0, 100)]).to_srq(srq.id())).unwrap();
        }
        a.completions(3);
        let mut ids: Vec<u64> = b.completions(3).iter().map(|wc| wc.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2]);
    }
}

#[test]
fn unicast_and_multicast_datagrams_reach_every_shard() {
    let (a, b) = (nic_with_shards(2), nic_with_shards(SHARDS));
    let sender = a.ud_qp();
    let members: Vec<Qp> = (0..6).map(|_| b.ud_qp()).collect();
    let group: Gid = Ipv4Addr::new(239, 94, 0, 1).to_ipv6_mapped().into();
    for (i, qp) in members.iter().enumerate() {
        qp.attach_mcast(group).unwrap();
        for wr_id in [0, 1] {
            qp.post_recv(&RecvWr::new(wr_id, &[b.piece(2 * i + wr_id as usize, 1000)])).unwrap();
        }
    }
    let path = AddressVector::to(b.context.query_gid(0).unwrap());
    let ah = a.pd.create_ah(&path).unwrap();
    for qp in &members {
        let to = Some(ah.to(qp.qpn(), KEY));
        sender.post_send(&SendWr::send(1, &[a.piece(0, 900)]).to(to)).unwrap();
    }
    a.completions(members.len());
    let assert_all_received = |got: Vec<Completion>| {
        let mut got: Vec<Qpn> = got.iter().map(|wc| wc.qpn).collect();
        got.sort_unstable();
        let mut expected: Vec<Qpn> = members.iter().map(Qp::qpn).collect();
        expected.sort_unstable();
        assert_eq!(got, expected);
    };
    assert_all_received(b.completions(members.len()));
    let ah = a.pd.create_ah(&AddressVector::to(group)).unwrap();
    let to = Some(ah.to(Qpn::MULTICAST, KEY));
    sender.post_send(&SendWr::send(2, &[a.piece(0, 900)]).to(to)).unwrap();
    assert_all_received(b.completions(members.len()));
    a.completions(1);
    // Members of one shard detach; the others remain.
    for qp in members.iter().filter(|qp| shard_of(qp.qpn()) == 1) {
        qp.detach_mcast(group).unwrap();
        assert_eq!(qp.detach_mcast(group), Err(MulticastError::NotAttached(group)));
    }
    let rest: Vec<&Qp> = members.iter().filter(|qp| shard_of(qp.qpn()) != 1).collect();
    for qp in &rest {
        qp.post_recv(&RecvWr::new(3, &[b.piece(20, 1000)])).unwrap();
    }
    sender.post_send(&SendWr::send(2, &[a.piece(0, 900)]).to(to)).unwrap();
    let got = b.completions(rest.len());
    assert!(got.iter().all(|wc| shard_of(wc.qpn) != 1), "{got:?}");
}

#[test]
fn object_limits_apply_to_all_shards_together() {
    let limits = Personality::STRICT.limits.max_qp(5).max_srq(3).max_mcast_grp(2).max_mcast_qp_attach(3);
    let links = UdpLink::bind_shards(address(), &UdpOptions::default(), SHARDS).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    let personality = Personality::STRICT.limits(limits);
    let context = Context::open_shards(links, &ContextOptions::default().personality(personality)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let create = || {
        let cq = context.create_cq(16).unwrap();
        pd.create_qp(&cq, &cq, &QpOptions::default().qp_type(QpType::Ud))
    };
    let mut qps: Vec<Qp> = (0..5).map(|_| create().unwrap()).collect();
    let full = CreateError::Exhausted { kind: "QPs", max: 5 };
    assert_eq!(create().unwrap_err(), full);
    qps.truncate(4);
    qps.push(create().unwrap());
    let caps = RecvCaps { max_wr: 1, max_sge: 1 };
    let srqs: Vec<Srq> = (0..3).map(|_| pd.create_srq(caps).unwrap()).collect();
    assert_eq!(pd.create_srq(caps).unwrap_err(), CreateError::Exhausted { kind: "SRQs", max: 3 });
    drop(srqs);
    pd.create_srq(caps).unwrap();
    let group = |n: u8| Gid::from(IpAddr::from(Ipv4Addr::new(239, 94, 1, n)));
    qps[..3].iter().for_each(|qp| qp.attach_mcast(group(1)).unwrap());
    assert!(matches!(
        qps[3].attach_mcast(group(1)),
        Err(AttachError::Multicast(MulticastError::GroupFull(3)))
    ));
    qps[3].attach_mcast(group(2)).unwrap();
    let result = qps[4].attach_mcast(group(3));
    assert!(matches!(result, Err(AttachError::Multicast(MulticastError::TooManyGroups(2)))), "{result:?}");
    qps.remove(0);
    qps[2].attach_mcast(group(1)).unwrap();
}

#[test]
fn qps_can_be_created_and_destroyed_under_traffic() {
    let (a, b) = (nic_with_shards(SHARDS), nic_with_shards(SHARDS));
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2 {
            let (a, b, done) = (&a, &b, &done);
            s.spawn(move || {
                let cq = a.context.create_cq(64).unwrap();
                for round in 0..30 {
                    let x = a.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
                    let y = b.qp(QpType::Rc);
                    connect(&x, &y);
                    // Memory ranges that the other transfers do not use.
                    let (sge, to) = ([a.piece(60 + t, LEN)], b.mr.remote((60 + t) * LEN));
                    for wr_id in 0..8 {
                        x.post_send(&SendWr::write(wr_id, &sge, to)).unwrap();
                    }
                    // In the other rounds the queue pairs are destroyed while WRITEs are in flight.
                    if round % 2 == 0 {
                        for _ in 0..8 {
                            cq.wait(TIMEOUT).unwrap();
                        }
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let pairs: Vec<(Qp, Qp)> = (0..4).map(|_| (a.qp(QpType::Rc), b.qp(QpType::Rc))).collect();
        pairs.iter().for_each(|(x, y)| connect(x, y));
        while !done.load(Ordering::Relaxed) {
            exchange(&a, &b, &pairs);
        }
    });
}

/// Sends packets as consecutive datagrams in one GSO send from a plain socket. The kernel delivers them
/// coalesced, as it may do with datagrams from the network.
fn send_segmented(from: &UdpSocket, to: IpAddr, segment: usize, packets: &[u8]) {
    setsockopt(from, sockopt::UdpGsoSegment, &(segment as i32)).unwrap();
    assert_eq!(from.send_to(packets, (to, ROCE_PORT)).unwrap(), packets.len());
}

#[test]
fn coalesced_datagram_delivers_its_packets_to_all_shards() {
    let b = nic_with_shards(SHARDS);
    let qps: Vec<Qp> = (0..SHARDS).map(|_| b.ud_qp()).collect();
    let own = address();
    let from = UdpSocket::bind((own, ROCE_PORT)).unwrap();
    let before = b.context.counters();
    for round in 0..50 {
        let order = [0, 2, 2, 1, 3, 3, 0, 1];
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        for (i, to) in order.iter().enumerate() {
            let bth = Bth {
                opcode: Opcode(0x64),
                dest_qp: qps[*to].qpn(),
                pkey: PKey::DEFAULT,
                psn: Psn::new(round * 8 + i as u32),
                ..Bth::default()
            };
            let deth = Deth { qkey: KEY, src_qp: Qpn::new(7) };
            let headers = Headers { bth, deth, ..Headers::default() };
            queue.push(&Flow::new(own, b.ip(), ROCE_PORT), headers, &[i as u8; 64]);
            qps[*to].post_recv(&RecvWr::new(i as u64, &[b.piece(i, 200)])).unwrap();
        }
        assert_eq!(queue.bursts().len(), 1, "the packets form one burst");
        for burst in queue.bursts() {
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            send_segmented(&from, b.ip(), burst.segment, &bytes);
        }
        let got = b.completions(order.len());
        for wc in got {
            assert_eq!(wc.qpn, qps[order[wc.wr_id as usize]].qpn());
            let mut text = [0; 64];
            b.mr.read(wc.wr_id as usize * LEN + grh::LEN, &mut text).unwrap();
            assert_eq!(text, [wc.wr_id as u8; 64]);
        }
    }
    let counted = b.context.counters();
    assert_eq!(counted.rcvd_pkts - before.rcvd_pkts, 400, "number of received packets");
    // All packets but those of the first packet's shard.
    assert_eq!(counted.rx_handed_over, 300);
    assert_eq!((counted.rx_icrc_err, counted.rx_unknown_qp), (0, 0));
}

#[test]
fn second_bind_of_the_port_fails_with_any_shard_count() {
    let ip = address();
    let several = on_udp(&ip.to_string(), SHARDS);
    for count in [1, SHARDS] {
        let error = UdpLink::bind_shards(ip, &UdpOptions::default(), count).err().unwrap();
        assert!(matches!(error, UdpLinkError::InUse { .. }), "{error}");
        let name = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&name), "{error}");
    }
    assert_eq!(UdpSocket::bind((ip, ROCE_PORT)).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(several);
    let one = on_udp(&ip.to_string(), 1);
    assert!(UdpLink::bind_shards(ip, &UdpOptions::default(), SHARDS).is_err());
    drop(one);
    on_udp(&ip.to_string(), SHARDS);
}

#[test]
fn bind_of_the_port_in_another_process_fails() {
    let ip = address();
    let _nic = on_udp(&ip.to_string(), SHARDS);
    for shards in ["1", "2"] {
        let link = format!("udp:{ip}");
        let out = Command::new(env!("CARGO_BIN_EXE_urxe"))
            .args(["serve", "--link", &link, "--shards", shards])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && stderr.contains("is in use by process"), "{stderr}");
    }
}

#[test]
fn nic_events_are_raised_once_for_all_shards() {
    let nic = nic_with_shards(SHARDS);
    let mut qps: Vec<Qp> = (0..SHARDS).map(|_| nic.qp(QpType::Rc)).collect();
    let (first, other) = (nic.context.query_gid(0).unwrap(), Gid::from(IpAddr::from([127, 94, 9, 9])));
    nic.context.set_gids(&[first, other]);
    assert_eq!(nic.context.next_event(), Some(AsyncEvent::GidChange));
    let pkey = PKey(0x8123);
    nic.context.set_pkeys(&[PKey::DEFAULT, pkey]).unwrap();
    assert_eq!(nic.context.next_event(), Some(AsyncEvent::PKeyChange));
    assert_eq!(nic.context.next_event(), None);
    for qp in &qps {
        // Every shard has the new entries.
        let peer = Endpoint { gid: other, ..qp.endpoint() };
        qp.enter_init(Access::ALL).unwrap();
        let options = ConnectOptions::default().sgid_index(1);
        qp.modify(&QpAttr::new(QpState::Init).pkey_index(1)).unwrap();
        qp.enter_rtr(&peer, &options).unwrap();
    }
    // While a QP of the last shard refers to the P_Key, it remains in the table of every shard.
    qps.drain(..SHARDS - 1);
    let error = PKeyTableSize { given: 1, needed: 2, max: 128 };
    assert_eq!(nic.context.set_pkeys(&[PKey::DEFAULT]), Err(error));
    assert_eq!(nic.context.query_pkey(1), Some(pkey));
    drop(qps);
    assert_eq!(nic.context.set_pkeys(&[PKey::DEFAULT]), Ok(()));
}

#[test]
fn shard_count_must_be_a_power_of_two() {
    let links = UdpLink::bind_shards(address(), &UdpOptions::default(), 3).unwrap();
    assert_eq!(links.len(), 4, "the shard count is rounded up to a power of two");
    let three = links.into_iter().take(3).map(|link| Box::new(link) as Box<dyn Link>).collect();
    let error = Context::open_shards(three, &ContextOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "a NIC has 1, 2, 4, 8, 16, 32 or 64 shards, not 3");
}

#[test]
fn capture_contains_packets_of_all_shards_as_one_interface() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let capture = CaptureFile::create(file.path(), Timestamps::Wall).unwrap();
    let links = UdpLink::bind_shards(address(), &UdpOptions::default(), SHARDS).unwrap();
    let mut interface: Option<CaptureHandle> = None;
    let links = links.into_iter().map(|link| {
        let link = match &interface {
            Some(interface) => interface.capture(link),
            None => capture.capture(link, "nic"),
        };
        interface = Some(link.handle());
        link
    });
    let nic = SpreadNic::new(open(links), 1024);
    let peer = nic_with_shards(1);
    let pairs: Vec<(Qp, Qp)> = (0..8).map(|_| (nic.qp(QpType::Rc), peer.qp(QpType::Rc))).collect();
    for (x, y) in &pairs {
        connect(x, y);
        x.post_send(&SendWr::write(1, &[nic.mr.sge(0..512)], peer.mr.remote(0))).unwrap();
    }
    nic.completions(pairs.len());
    let numbers: Vec<(Qpn, Qpn)> = pairs.iter().map(|(x, y)| (x.qpn(), y.qpn())).collect();
    // A packet is written to the capture after it was forwarded; when the NIC is dropped, all are written.
    let own = nic.ip();
    drop((pairs, nic));
    capture.flush().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut interfaces, mut sent, mut received) = (0, Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(_) => interfaces += 1,
            // After 20 bytes of IPv4 and 8 of UDP, bytes 5 to 7 contain a packet's destination QP.
            Block::EnhancedPacket(b) => {
                assert_eq!(b.interface_id, 0);
                let to = Qpn::new(u32::from_be_bytes([0, b.data[33], b.data[34], b.data[35]]));
                let is_received = IpAddr::from([b.data[16], b.data[17], b.data[18], b.data[19]]) == own;
                if is_received { received.push(to) } else { sent.push(to) }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(interfaces, 1);
    for (x, y) in numbers {
        assert!(received.contains(&x) && sent.contains(&y), "{x}");
    }
}

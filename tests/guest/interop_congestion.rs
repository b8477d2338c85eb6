//! Tests of congestion control against the kernel's rxe, which sends no congestion notification packets
//! (CNPs) for marked packets and ignores those that it receives: every transfer completes with the right data
//! and without errors. Needs the test guest, tshark and Python; UDP needs root.
//!
//! Repeated with Linux 6.12.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use urxe::middleware::faults::Rule;
use urxe::verbs::*;
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{CNP_PAYLOAD_LEN, Ecn, Flow, Opcode, Operation, Packet, icrc};
use urxe_test_support::cnp::CnpSender;
use urxe_test_support::guest::{hash, pattern};
use urxe_test_support::peer::{ConnectParams, REGION, Shell, Side, remote_args};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

/// Time limit for a step, because the guest is emulated and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
const MTU: usize = 1024;
/// Length of a message, ten packets.
const LEN: usize = 10_000;
/// Number of messages of a transfer.
const COUNT: usize = 12;
/// Offset of the messages received; those to send are at the beginning of the region.
const DST: usize = 1 << 20;
/// DSCP of CNPs.
const CNP_DSCP: u8 = 48;
/// rxe's counters of failures, which never increase.
const FAILURES: [&str; 4] = ["retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "link_downed"];
/// rxe's counters of lost packets, which increase only on wires that lose packets.
const LOSSES: [&str; 2] = ["out_of_seq_request", "rcvd_seq_err"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    Send,
    Read,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Urxe,
    Rxe,
}

/// Transfers whose data urxe sends, and their requesters.
const FROM_URXE: [(Kind, Role); 3] =
    [(Kind::Write, Role::Urxe), (Kind::Send, Role::Urxe), (Kind::Read, Role::Rxe)];
/// Transfers whose data rxe sends, and their requesters.
const FROM_RXE: [(Kind, Role); 3] =
    [(Kind::Write, Role::Rxe), (Kind::Send, Role::Rxe), (Kind::Read, Role::Urxe)];

/// A connection between urxe and rxe.
struct Peers<'a> {
    setup: &'a Testbed,
    side: Side,
    shell: Shell,
    qp: Qp,
    /// Queue pairs of the guest to which the link is to send a CNP.
    cnps: Arc<Mutex<Vec<Qpn>>>,
    /// rxe's counters before the first transfer.
    before: BTreeMap<String, u64>,
    seed: u8,
}

impl<'a> Peers<'a> {
    /// Connects the queue pairs. `rule` says which packets urxe's link marks. rxe's packets are ECN-capable.
    fn connect(setup: &'a Testbed, ip: Ip, control: &str, rule: &str) -> Peers<'a> {
        let (cnps, inner) = (Arc::default(), setup.link(ip));
        let src_port = inner.info().src_port.unwrap_or(0xc000);
        let flow = Flow { traffic_class: CNP_DSCP << 2, ..Flow::new(ip.of(setup.host), ip.of(1), src_port) };
        let link = CnpSender { inner, qpns: Arc::clone(&cnps), flow };
        let rule: Rule = rule.parse().unwrap();
        let options = ContextOptions::default().congestion(control.parse().unwrap()).faults([rule]);
        let side = Side::new(Context::open_shards(vec![Box::new(link)], &options).unwrap(), REGION);
        let mut shell = setup.shell(REGION);
        let mut params = ConnectParams::new(ip, MTU);
        // Eight seconds, so that rxe retransmits nothing because the machine is busy.
        params.ours = params.ours.timeout(AckTimeout::new(21));
        params.theirs = "timeout=21 tc=2".into();
        let qp = setup.connect(&side, &mut shell, &params);
        let before = setup.guest.counters().unwrap();
        Peers { setup, side, shell, qp, cnps, before, seed: 0 }
    }

    /// Returns rxe's queue pair number.
    fn theirs(&self) -> Qpn {
        self.qp.query().dest_qpn.unwrap()
    }

    /// Transfers messages, and checks their completions and data.
    fn transfer(&mut self, (kind, requester): (Kind, Role)) {
        let (what, total) = (format!("{kind:?} by {requester:?}"), COUNT * LEN);
        self.seed = self.seed.wrapping_add(50);
        let (vsh, mr) = (&mut self.shell.vsh, &self.side.mr);
        let sender_is_rxe = (kind == Kind::Read) == (requester == Role::Urxe);
        match sender_is_rxe {
            true => drop(vsh.cmd(&format!("pattern m 0 {total} {}", self.seed)).unwrap()),
            false => mr.write(0, &pattern(total, self.seed)).unwrap(),
        }
        for i in 0..COUNT {
            let (id, src, dst) = (i as u64, i * LEN, DST + i * LEN);
            let [from, to] = [src, dst].map(|at| [mr.sge(at..at + LEN)]);
            let [their_src, their_dst] =
                [src, dst].map(|at| RemoteAddr { va: self.shell.to.va + at as u64, ..self.shell.to });
            if requester == Role::Urxe {
                let wr = match kind {
                    Kind::Write => SendWr::write(id, &from, their_dst),
                    Kind::Read => SendWr::read(id, &to, their_src),
                    Kind::Send => {
                        vsh.cmd(&format!("recv q m {dst} {LEN} id={i}")).unwrap();
                        SendWr::send(id, &from)
                    }
                };
                self.qp.post_send(&wr).unwrap();
            } else {
                let line = match kind {
                    Kind::Write => format!("write q m {src} {LEN} {}", remote_args(mr.remote(dst))),
                    Kind::Read => format!("read q m {dst} {LEN} {}", remote_args(mr.remote(src))),
                    Kind::Send => {
                        self.qp.post_recv(&RecvWr::new(id, &to)).unwrap();
                        format!("send q m {src} {LEN}")
                    }
                };
                vsh.cmd(&format!("{line} id={i}")).unwrap();
            }
        }
        let all = |status: &str| (0..COUNT as u64).map(|id| (id, status.to_owned())).collect::<Vec<_>>();
        if kind == Kind::Send || requester == Role::Urxe {
            let got: Vec<_> = self
                .side
                .poll(COUNT, LIMIT)
                .iter()
                .map(|wc| (wc.wr_id, format!("{:?}", wc.status)))
                .collect();
            assert_eq!(got, all("Success"), "{what}: completions of urxe; {:?}", self.side.counters());
        }
        if kind == Kind::Send || requester == Role::Rxe {
            let got = self.shell.vsh.poll(COUNT, LIMIT).unwrap();
            let got: Vec<_> = got.into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
            let state = || format!("{:?}, {}", self.side.counters(), self.setup.guest.state());
            assert_eq!(got, all("SUCCESS"), "{what}: completions of rxe; {}", state());
        }
        let got = match sender_is_rxe {
            true => hash(&self.side.mr.read_vec(DST..DST + total).unwrap()),
            false => self.shell.vsh.cmd(&format!("hash m {DST} {total}")).unwrap().num("hash"),
        };
        assert_eq!(got, hash(&pattern(total, self.seed)), "{what}: the data differs");
    }

    /// Reports whether the wire may lose packets: the kernel drops some of those that wait for the guest's
    /// MAC address.
    fn loses_packets(&self) -> bool {
        self.setup.via != LinkKind::Dgram
    }

    /// Returns the number of packets that are recorded at least if urxe has sent `sent` of them.
    fn recorded_of(&self, sent: u64) -> u64 {
        if self.loses_packets() { 1 } else { sent }
    }

    /// Returns the number of packets that the fault rule has marked.
    fn marked(&self) -> u64 {
        self.side.context.fault_counts()[0].struck
    }

    /// Returns the recorded packets to rxe's queue pair once `is_complete` applies to them.
    fn recorded(&self, is_complete: impl Fn(&[Recorded]) -> bool) -> Vec<Recorded> {
        let begin = Instant::now();
        loop {
            let mut packets = recording(self.setup);
            packets.retain(|p| p.packet().bth().dest_qp == self.theirs());
            if is_complete(&packets) {
                return packets;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "{} recorded packets; {:?}",
                packets.len(),
                self.side.counters()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that both queue pairs are in RTS, that there are no more completions and no asynchronous
    /// events, and that rxe has counted no errors. Returns the counters of rxe that have increased.
    fn check_health(&mut self) -> BTreeMap<String, u64> {
        assert_eq!((self.qp.state(), self.shell.state("q").as_str()), (QpState::Rts, "RTS"));
        assert_eq!(self.side.poll(1, Duration::ZERO), []);
        assert_eq!(self.shell.vsh.poll(1, Duration::ZERO).unwrap(), []);
        assert_eq!(self.shell.vsh.raw("async 0").unwrap().trim(), "ok", "asynchronous events of rxe");
        let mut grown = self.setup.guest.counters().unwrap();
        grown.iter_mut().for_each(|(name, n)| *n -= self.before.get(name).unwrap_or(&0));
        grown.retain(|_, n| *n > 0);
        let errors = FAILURES.iter().chain(LOSSES.iter().filter(|_| !self.loses_packets()));
        let errors: Vec<_> = errors.filter(|name| grown.contains_key(**name)).collect();
        assert!(errors.is_empty(), "{errors:?} of rxe's counters {grown:?}");
        grown
    }
}

/// A RoCEv2 packet on the wire to the guest.
struct Recorded {
    frame: Vec<u8>,
    roce: frame::RoceFrame,
}

impl Recorded {
    fn data(&self) -> &[u8] {
        &self.frame[self.roce.payload.clone()]
    }

    fn packet(&self) -> Packet<'_> {
        Packet::parse(self.data()).unwrap()
    }

    fn is_cnp(&self) -> bool {
        self.packet().bth().opcode == Opcode::CNP
    }
}

/// Returns the packets that the guest has sent and received.
fn recording(setup: &Testbed) -> Vec<Recorded> {
    let mut reader = PcapReader::new(File::open(setup.recording().unwrap()).unwrap()).unwrap();
    let mut packets = Vec::new();
    // QEMU may be writing the last record.
    while let Some(Ok(record)) = reader.next_packet() {
        let Ok(parsed) = frame::parse(&record.data, Checksums::Trust) else { continue };
        if let Content::Roce(roce) = parsed.content {
            packets.push(Recorded { frame: record.data.into_owned(), roce });
        }
    }
    packets
}

/// Asserts that a packet is a CNP as annex A17.9 specifies it.
fn check_cnp(cnp: &Recorded) {
    let (flow, packet) = (cnp.roce.flow, cnp.packet());
    let bth = packet.bth();
    assert_eq!((flow.traffic_class >> 2, flow.ecn()), (CNP_DSCP, Ecn::NotEct), "{packet:?}");
    assert_eq!((bth.opcode.0, bth.becn, bth.fecn, bth.psn.get()), (0x81, true, false, 0), "{packet:?}");
    assert!(!bth.solicited && !bth.ack_req && bth.pkey.0 == 0xffff, "{packet:?}");
    assert_eq!(packet.payload(), [0; CNP_PAYLOAD_LEN], "{packet:?}");
    assert!(icrc::verify(&flow, cnp.roce.ident, 0, cnp.data()), "ICRC of {packet:?}");
}

/// Checks CNPs with tshark and with an ICRC that is computed independently of urxe.
fn check_by_others(cnps: &[&Recorded]) {
    let file = tempfile::Builder::new().prefix("urxe-cnps-").suffix(".pcap").tempfile().unwrap();
    let mut writer = PcapWriter::new(file.reopen().unwrap()).unwrap();
    for cnp in cnps {
        let (orig_len, data) = (cnp.frame.len() as u32, Cow::Borrowed(&cnp.frame[..]));
        writer.write_packet(&PcapPacket { timestamp: Duration::ZERO, orig_len, data }).unwrap();
    }
    drop(writer);
    let run = |command: &mut Command| {
        let out = command.output().unwrap_or_else(|e| panic!("{command:?} (run tests/install): {e}"));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
        text
    };
    let script = concat!(env!("URXE_REPOSITORY"), "/tests/rxe-guest/icrc.py");
    run(Command::new("python3").arg(script).arg(file.path()));
    let fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "ip.dsfield.dscp", "ipv6.tclass.dscp"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-E", "separator=,", "-e", "_ws.malformed", "-r"]).arg(file.path());
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let decoded = run(&mut tshark);
    let expected = cnps.iter().map(|cnp| {
        let qpn = cnp.packet().bth().dest_qp.get();
        let dscps = if cnp.roce.flow.dst.is_ipv4() { "48," } else { ",48" };
        format!(",129,{qpn:#08x},{dscps}")
    });
    assert_eq!(decoded.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// urxe sends data, some of it marked.
fn check_marks_from_urxe(setup: &Testbed, ip: Ip, control: &str) {
    let mut peers = Peers::connect(setup, ip, control, "tx:mark=every:2,ecn=ect0");
    FROM_URXE.into_iter().for_each(|transfer| peers.transfer(transfer));
    let marked = peers.marked();
    assert!(marked > 0);
    let grown = peers.check_health();
    // rxe's answers to all marked packets have arrived.
    let c = peers.side.counters();
    let counts =
        [c.rp_cnp_handled, c.rp_cnp_ignored, c.np_ecn_marked_roce_packets, c.np_cnp_sent, c.rx_unknown_qp];
    assert_eq!(counts, [0; 5], "{c:?}");
    let of = |packets: &[Recorded], ecn| packets.iter().filter(|p| p.roce.flow.ecn() == ecn).count();
    let expected = peers.recorded_of(marked);
    let packets = peers.recorded(|packets| of(packets, Ecn::Ce) as u64 >= expected);
    for p in &packets {
        let row = p.packet().row();
        let carries_data = row.operation.is_request() || row.operation == Operation::ReadResponse;
        assert_eq!(p.roce.flow.ecn() != Ecn::NotEct, carries_data, "{:?}", p.packet());
    }
    println!(
        "{} {ip} {control}, sent by urxe: {} packets ECT(0), {} CE; rxe: {grown:?}",
        setup.via,
        of(&packets, Ecn::Ect0),
        of(&packets, Ecn::Ce)
    );
}

/// rxe sends data, some of it marked, so that urxe sends CNPs.
fn check_cnps_to_rxe(setup: &Testbed, ip: Ip, control: &str) {
    let mut peers = Peers::connect(setup, ip, control, "rx:mark=every:2,ecn=ect0");
    FROM_RXE.into_iter().for_each(|transfer| peers.transfer(transfer));
    let sent = peers.side.counters().np_cnp_sent;
    assert!(sent > 0, "{:?}", peers.side.counters());
    // The other direction works as well.
    FROM_URXE.into_iter().for_each(|transfer| peers.transfer(transfer));
    let c = peers.side.counters();
    assert_eq!(c.np_ecn_marked_roce_packets, peers.marked());
    assert!((sent..=peers.marked()).contains(&c.np_cnp_sent), "{c:?}");
    assert_eq!((c.rp_cnp_handled, c.rp_cnp_ignored), (0, 0));
    let cnps = |packets: &[Recorded]| packets.iter().filter(|p| p.is_cnp()).count() as u64;
    let expected = peers.recorded_of(c.np_cnp_sent);
    let mut packets = peers.recorded(|packets| cnps(packets) >= expected);
    packets.retain(Recorded::is_cnp);
    assert!(
        (expected..=c.np_cnp_sent).contains(&(packets.len() as u64)),
        "{} recorded; {c:?}",
        packets.len()
    );
    packets.iter().for_each(check_cnp);
    check_by_others(&packets.iter().collect::<Vec<_>>());
    let grown = peers.check_health();
    println!(
        "{} {ip} {control}, sent by rxe: {} packets CE, {} CNPs; rxe: {grown:?}",
        setup.via, c.np_ecn_marked_roce_packets, c.np_cnp_sent
    );
}

/// Sends CNPs to queue pairs of all types and states, and to numbers of none.
fn check_cnps_to_any_queue_pair(setup: &Testbed, ip: Ip) {
    let mut peers = Peers::connect(setup, ip, "dcqcn", "rx:mark=every:2,ecn=ect0");
    let sgid = setup.guest.gid_index(&ip.of(1).to_string()).unwrap();
    let path = format!("qpn=0x123456 gid={} sgid={sgid}", ip.gid(setup.host));
    let queue_pairs: [(&str, &str, &[&str], &str); 7] = [
        ("a", "rc", &[], "RESET"),
        ("b", "rc", &["init"], "INIT"),
        ("c", "rc", &["init", "rtr"], "RTR"),
        ("d", "rc", &["connect"], "RTS"),
        ("e", "rc", &["connect", "err"], "ERR"),
        ("f", "uc", &["connect"], "RTS"),
        ("g", "ud", &["connect"], "RTS"),
    ];
    let mut qpns = vec![peers.theirs()];
    for (name, service, steps, _) in queue_pairs {
        let qpn = peers.shell.vsh.cmd(&format!("qp {name} {service}")).unwrap().num("qpn");
        qpns.push(Qpn::new(qpn as u32));
        for step in steps {
            peers.shell.vsh.cmd(&format!("{step} {name} {path}")).unwrap();
        }
    }
    let destroyed = peers.shell.vsh.cmd("qp h rc").unwrap().num("qpn") as u32;
    peers.shell.vsh.cmd("destroy h").unwrap();
    qpns.extend([destroyed, 0, 1, 0xab_cdef, 0xff_ffff].map(Qpn::new));

    // The link has its first packets from a transfer, so it knows the guest's MAC address.
    peers.transfer((Kind::Write, Role::Urxe));
    peers.cnps.lock().extend(&qpns);
    // The link sends the CNPs during the first transfer, so rxe receives them before the packets of the
    // second.
    peers.transfer((Kind::Write, Role::Urxe));
    peers.transfer((Kind::Write, Role::Urxe));
    assert!(peers.cnps.lock().is_empty());
    let recorded: Vec<_> = recording(setup).into_iter().filter(Recorded::is_cnp).collect();
    for qpn in &qpns {
        let last = recorded.iter().rfind(|cnp| cnp.packet().bth().dest_qp == *qpn);
        check_cnp(last.unwrap_or_else(|| panic!("the wire had no CNP for {qpn:?}")));
    }
    for (name, service, _, state) in queue_pairs {
        assert_eq!(peers.shell.state(name), state, "state of a queue pair of {service} after a CNP");
    }
    FROM_RXE.into_iter().chain(FROM_URXE).for_each(|transfer| peers.transfer(transfer));
    let grown = peers.check_health();
    println!("{} {ip}, CNPs for any queue pair: {} sent; rxe: {grown:?}", setup.via, qpns.len());
}

/// Returns what the guest's kernel has logged about rxe and about its own errors.
fn kernel_log(setup: &Testbed) -> String {
    let log = setup.guest.exec("dmesg | grep -E 'rxe|BUG|WARNING|Oops|Call Trace'", LIMIT);
    log.unwrap().stdout
}

fn check(via: LinkKind) {
    let setup = Testbed::start_recorded(via);
    let before = kernel_log(&setup);
    for (ip, control) in [(Ip::V4, "dcqcn:connectx"), (Ip::Ula, "dcqcn:sigcomm15")] {
        check_marks_from_urxe(&setup, ip, control);
        check_cnps_to_rxe(&setup, ip, control);
    }
    check_cnps_to_any_queue_pair(&setup, Ip::V4);
    let is_from_rxe = |p: &Recorded| Ip::VERSIONS.map(|ip| ip.of(1)).contains(&p.roce.flow.src);
    let from_rxe: Vec<_> = recording(&setup).into_iter().filter(is_from_rxe).collect();
    assert!(!from_rxe.is_empty() && !from_rxe.iter().any(Recorded::is_cnp), "rxe has sent a CNP");
    assert_eq!(kernel_log(&setup), before);
}

#[test]
fn transfers_complete_although_rxe_sends_no_cnps_and_ignores_those_it_gets_over_frames() {
    check(LinkKind::Dgram);
}

#[test]
fn transfers_complete_although_rxe_sends_no_cnps_and_ignores_those_it_gets_over_udp() {
    check(LinkKind::Udp);
}

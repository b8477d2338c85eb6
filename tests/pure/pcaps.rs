//! Tests that replay captures. Every packet in `pcaps/`, most of them sent by the kernel's rxe, is decoded,
//! compared with the opcode table, and encoded again to the same bytes with the same ICRC. The captures in
//! `pcaps/own/` contain urxe's own packets, for features that rxe lacks, and must not change. `URXE_BLESS=1`
//! rewrites `pcaps/own/`: check the difference with Wireshark before committing it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use urxe::cm::{Cm, CmConfig, ConnId, Event, LocalQp, Path, Request, State};
use urxe::transport::{AddressVector, Instant};
use urxe::wire::frame::{self, Checksums, Content, RoceFrame};
use urxe::wire::mad::ip::{self, IpHeader, PortSpace};
use urxe::wire::mad::{CommId, Mad, Message, MessageKind, RejReason, Rep};
use urxe::wire::opcode::PayloadRule;
use urxe::wire::{
    ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Mtu, Opcode, Operation, PKey, Packet, Position, Psn, Qpn, Syndrome,
    Transport, icrc, pad_count,
};
use urxe_test_support::urxe_traffic;

fn capture_dir() -> PathBuf {
    std::path::Path::new(env!("URXE_REPOSITORY")).join("pcaps")
}

/// Returns the path MTU of every capture from its section in `pcaps/README.md`: the value after `mtu=`, or
/// 1024 if the section says that the interface MTU is 1500.
fn path_mtus() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(capture_dir().join("README.md")).unwrap();
    let sections = text.split("\n## ").skip(1);
    let parse = |section: &str| -> (String, usize) {
        let (name, rest) = section.split_once('\n').unwrap();
        let mtu = rest.split("mtu=").nth(1).map(|s| s.split_whitespace().next().unwrap().parse().unwrap());
        assert!(
            mtu.is_some() || rest.contains("Interface MTU 1500"),
            "pcaps/README.md has no MTU for {name}"
        );
        (name.trim().to_owned(), mtu.unwrap_or(1024))
    };
    sections.map(parse).collect()
}

/// Returns the frames of a capture, each with its decoded RoCEv2 headers.
fn packets(path: &std::path::Path) -> Vec<(Vec<u8>, RoceFrame)> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let bytes = packet.unwrap().data.into_owned();
        let frame = frame::parse(&bytes, Checksums::Verify).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let Content::Roce(roce) = frame.content else { panic!("{path:?}: not a RoCEv2 packet: {frame:?}") };
        found.push((bytes, roce));
    }
    found
}

/// Decodes a packet, encodes it again from the decoded fields, checks that the bytes are the same, and
/// returns the opcode.
fn replay(frame: &[u8], roce: &RoceFrame) -> Opcode {
    let bytes = &frame[roce.payload.clone()];
    let packet = Packet::parse(bytes).unwrap();

    assert!(icrc::verify(&roce.flow, roce.ident, 0, bytes), "ICRC with known IP identification");
    assert!(icrc::verify(&roce.flow, IpIdent::Unknown, 0, bytes), "ICRC with unknown IP identification");
    if let IpIdent::Exact { id, flags } = roce.ident {
        assert_eq!(icrc::identify(&roce.flow, 0, bytes), Some((id, flags)));
    }

    assert_eq!(packet.padding().len(), pad_count(packet.payload().len()));
    let mut encoded = vec![0; MAX_HEADERS_LEN];
    let len = packet.headers().emit(&mut encoded);
    encoded.truncate(len);
    encoded.extend_from_slice(packet.payload());
    encoded.extend_from_slice(packet.padding());
    encoded.extend_from_slice(&[0; ICRC_LEN]);
    let (id, flags) = match roce.ident {
        IpIdent::Exact { id, flags } => (id, flags),
        IpIdent::Unknown | IpIdent::Elided => (0, 0),
    };
    let sum = icrc::compute(&roce.flow, id, flags, &encoded);
    let end = encoded.len() - ICRC_LEN;
    encoded[end..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(encoded, bytes);
    packet.bth().opcode
}

#[test]
fn every_capture_is_reencoded_to_the_same_bytes() {
    let mtus = path_mtus();
    let mut files: Vec<PathBuf> = fs::read_dir(capture_dir()).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "pcap"));
    files.sort();
    assert!(files.len() >= 60, "expected 60 captures or more, found {}", files.len());

    let mut seen: BTreeMap<u8, usize> = BTreeMap::new();
    let (mut total, mut v6) = (0, 0);
    for path in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mtu = *mtus.get(name).unwrap_or_else(|| panic!("{name} is not in pcaps/README.md"));
        assert!(Mtu::from_bytes(mtu).is_some(), "{name}: path MTU {mtu}");
        for (frame, roce) in packets(path) {
            let opcode = replay(&frame, &roce);
            let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
            let (row, len) = (packet.row(), packet.payload().len());
            assert!(row.payload.allows(len, mtu), "{name}: {opcode} with {len} bytes at path MTU {mtu}");
            *seen.entry(opcode.0).or_default() += 1;
            total += 1;
            v6 += roce.flow.dst.is_ipv6() as usize;
        }
    }
    println!("{} files, {total} packets, {v6} of them over IPv6", files.len());
    for (opcode, count) in &seen {
        println!("{count:6} {}", Opcode(*opcode));
    }

    // Every opcode of RC must occur, so that each of its table rows is verified with a packet of another
    // implementation.
    let expected = (0..=0x14).map(Opcode);
    let missing: Vec<Opcode> = expected.filter(|o| !seen.contains_key(&o.0)).collect();
    assert!(missing.is_empty(), "no capture contains {missing:?}");
}

/// Checks that messages from the kernel's connection manager can be decoded, and encoded again to the same
/// bytes.
#[test]
fn kernel_cm_messages_are_reencoded_to_the_same_bytes() {
    let mut seen: BTreeMap<MessageKind, usize> = BTreeMap::new();
    for path in fs::read_dir(capture_dir()).unwrap().map(|e| e.unwrap().path()) {
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        for (frame, roce) in packets(&path) {
            let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
            if packet.bth().dest_qp != Qpn::GSI {
                continue;
            }
            let mad = Mad::parse(packet.payload()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(mad.bytes(), packet.payload(), "{path:?}: {mad:?}");
            *seen.entry(mad.message.kind()).or_default() += 1;

            // Addresses occur three times: in the IP header, as GIDs of the path and, for the program, in the
            // private data.
            let (service, private_data) = match &mad.message {
                Message::Req(req) => {
                    assert_eq!(req.primary.local_gid, roce.flow.src.into());
                    assert_eq!(req.primary.remote_gid, roce.flow.dst.into());
                    assert_eq!((req.mtu, req.pkey), (Some(Mtu::Mtu1024), PKey::DEFAULT));
                    (req.service, &req.private_data[..])
                }
                Message::SidrReq(req) => (req.service, &req.private_data[..]),
                Message::Rej(rej) => {
                    assert_eq!(rej.reason, RejReason::InvalidServiceId, "{path:?}");
                    continue;
                }
                _ => continue,
            };
            let (space, port) = service.ip_port().unwrap();
            assert!(matches!(space, PortSpace::Tcp | PortSpace::Udp) && port != 0, "{path:?}: {service}");
            let header = IpHeader::parse(private_data).unwrap();
            assert_eq!((header.source.ip(), header.destination), (roce.flow.src, roce.flow.dst), "{path:?}");
            assert_eq!(header.bytes(), private_data[..ip::HEADER_LEN]);
        }
    }
    use MessageKind as K;
    let kinds = [K::Req, K::Rep, K::Rtu, K::Rej, K::Dreq, K::Drep, K::SidrReq, K::SidrRep];
    assert!(kinds.iter().all(|k| seen.contains_key(k)), "{seen:?}");
}

/// Returns the connection manager messages of a capture, each with its sender.
fn messages(name: &str) -> Vec<(IpAddr, Mad)> {
    let management = |(frame, roce): (Vec<u8>, RoceFrame)| {
        let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
        (packet.bth().dest_qp == Qpn::GSI).then(|| (roce.flow.src, Mad::parse(packet.payload()).unwrap()))
    };
    packets(&capture_dir().join(name)).into_iter().filter_map(management).collect()
}

/// Replaces the kernel's connection manager by urxe's, first at the client and then at the server, with the
/// parameters that the recorded program passed. Checks that urxe sends the kernel's messages, except for
/// communication and transaction IDs, which it selects itself.
#[test]
fn urxe_sends_the_same_cm_messages_as_the_kernel() {
    for name in ["cm_rping.pcap", "cm_rping_v6.pcap", "cm_rstream.pcap", "cm_ucmatose.pcap"] {
        let recorded = messages(name);
        let (Message::Req(req), Message::Rep(rep)) = (recorded[0].1.message, recorded[1].1.message) else {
            panic!("{name} does not begin with REQ and REP")
        };
        let (client, server) = (recorded[0].0, recorded[1].0);

        // The client.
        let mut cm = Cm::new(CmConfig::new(req.ca_guid, vec![client.into()]), 1);
        let av = AddressVector::to(server.into()).flow_label(req.primary.flow_label);
        let qp = LocalQp { qpn: req.qpn, psn: req.psn, srq: req.srq };
        let request = Request {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ..Request::new(req.service, qp, Path::to(av, Mtu::Mtu1024), &req.private_data)
        };
        let id = cm.connect(Instant(0), &request).unwrap();
        replay_cm(name, &mut cm, id, client, &recorded, &req.local);

        // The server.
        let mut cm = Cm::new(CmConfig::new(rep.ca_guid, vec![server.into()]), 1);
        cm.listen(req.service).unwrap();
        let source = AddressVector::to(client.into());
        cm.handle_mad(Instant(0), &source, Qpn::GSI, &recorded[0].1.bytes());
        let Some((id, Event::Requested(requested))) = cm.poll_event() else {
            panic!("{name}: no connection request")
        };
        assert_eq!((requested.info.qp_num, requested.path.packet_life.code()), (req.qpn, 18));
        let reply = Rep {
            qpn: rep.qpn,
            psn: rep.psn,
            srq: rep.srq,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            private_data: rep.private_data,
            ..Rep::default()
        };
        cm.accept(Instant(0), id, &reply, 0).unwrap();
        replay_cm(name, &mut cm, id, server, &recorded[1..], &rep.local);
    }
}

/// Returns the PSN of the first RC request sent by one end of a recorded connection.
fn first_request(name: &str, is_sender: impl Fn(IpAddr) -> bool) -> Psn {
    let psn = |(frame, roce): &(Vec<u8>, RoceFrame)| {
        let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
        let is_request = packet.row().transport == Transport::Rc && packet.row().operation.is_request();
        (is_request && is_sender(roce.flow.src)).then_some(packet.bth().psn)
    };
    packets(&capture_dir().join(name)).iter().find_map(psn).unwrap()
}

/// Replays a recorded exchange at the end `local`: delivers the other end's messages, and checks that urxe
/// sends the messages that this end sent.
fn replay_cm(
    name: &str,
    cm: &mut Cm,
    id: ConnId,
    local: IpAddr,
    recorded: &[(IpAddr, Mad)],
    kernel_id: &CommId,
) {
    // The kernel's communication ID is replaced by the local one; the transaction ID of a DREQ is the
    // sender's choice as well.
    let normalized = |mad: &Mad| {
        let mut bytes = mad.bytes();
        for word in bytes[24..32].chunks_exact_mut(4) {
            if word == kernel_id.0.to_be_bytes() {
                word.copy_from_slice(&id.0.0.to_be_bytes());
            }
        }
        if matches!(mad.message, Message::Req(_) | Message::Rtu(_) | Message::Dreq(_)) {
            bytes[8..16].fill(0);
        }
        bytes
    };
    for (sender, mad) in recorded {
        if let Message::Rtu(_) = mad.message {
            // Each end begins with the PSN that the other has announced.
            let first = |is_local: bool| first_request(name, |sender| (sender == local) == is_local);
            let (rtr, rts) = (cm.rtr(id).unwrap(), cm.rts(id).unwrap());
            assert_eq!((rts.sq_psn, rtr.rq_psn), (Some(first(true)), Some(first(false))), "{name}");
        }
        if *sender != local {
            let source = AddressVector::to((*sender).into());
            let mut bytes = normalized(mad);
            bytes[8..16].copy_from_slice(&mad.transaction.to_be_bytes());
            cm.handle_mad(Instant(0), &source, Qpn::GSI, &bytes);
            continue;
        }
        match mad.message {
            Message::Rtu(_) => cm.ready(id).unwrap(),
            Message::Dreq(_) | Message::Drep(_) => cm.disconnect(Instant(0), id).unwrap(),
            _ => {}
        }
        let (_, sent) =
            cm.poll_transmit().unwrap_or_else(|| panic!("{name}: urxe sent nothing, the kernel {mad:?}"));
        assert_eq!(normalized(&Mad::parse(&sent).unwrap()), normalized(mad), "{name}: {mad:?}");
    }
    assert_eq!((cm.poll_transmit(), cm.state(id)), (None, Some(State::TimeWait)), "{name}");
}

/// Replays the captures of traffic between rxe (host 1) and urxe.
#[test]
fn captures_of_rxe_and_urxe_are_reencoded_to_the_same_bytes() {
    let mixed = capture_dir().join("mixed");
    let readme = fs::read_to_string(mixed.join("README.md")).unwrap();
    let mut seen: BTreeMap<(bool, u8), usize> = BTreeMap::new();
    let (mut files, mut rnr) = (0, [0, 0]);
    for path in fs::read_dir(&mixed).unwrap().map(|e| e.unwrap().path()) {
        if path.extension().is_none_or(|e| e != "pcapng") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(readme.contains(&format!("\n## {name}\n")), "{name} is not in pcaps/README.md");
        files += 1;
        for (frame, roce) in own_packets(&fs::read(&path).unwrap()) {
            let opcode = replay(&frame, &roce);
            let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
            assert!(packet.row().payload.allows(packet.payload().len(), 1024), "{name}: {opcode}");
            let rxe = matches!(roce.flow.src.to_string().as_str(), "10.77.0.1" | "fd77::1");
            *seen.entry((rxe, opcode.0)).or_default() += 1;
            if let Some(Syndrome::RnrNak(_)) = packet.aeth().map(|a| a.syndrome) {
                rnr[usize::from(rxe)] += 1;
            }
        }
    }
    assert!(files >= 4, "expected 4 captures or more, found {files}");
    // SEND with invalidate and accesses through windows, by either side; empty shared receive queues.
    for opcode in [0x04, 0x06, 0x0a, 0x0c, 0x13, 0x14, 0x16, 0x17] {
        for rxe in [false, true] {
            assert!(
                seen.contains_key(&(rxe, opcode)),
                "no capture contains {} sent by {}",
                Opcode(opcode),
                if rxe { "rxe" } else { "urxe" }
            );
        }
    }
    assert!(rnr[0] > 0 && rnr[1] > 0, "{rnr:?}");
}

/// Returns the packets of a capture written by urxe. Such a capture has no Ethernet headers, so an empty one
/// is prepended to each packet.
fn own_packets(bytes: &[u8]) -> Vec<(Vec<u8>, RoceFrame)> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(block) = block.unwrap() else { continue };
        let mut frame = vec![0; 12];
        frame.extend_from_slice(if block.data[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] });
        frame.extend_from_slice(&block.data);
        let Content::Roce(roce) = frame::parse(&frame, Checksums::Verify).unwrap().content else {
            panic!("not a RoCEv2 packet")
        };
        found.push((frame, roce));
    }
    found
}

#[test]
fn packets_of_urxe_match_the_stored_captures() {
    let own = capture_dir().join("own");
    let mut seen: BTreeMap<u8, usize> = BTreeMap::new();
    let mut credits = std::collections::BTreeSet::new();
    let mut readme = String::from(urxe_traffic::README);
    for traffic in &urxe_traffic::ALL {
        readme += &format!("\n## {0}_v4.pcapng, {0}_v6.pcapng\n\n{1}.\n", traffic.name, traffic.description);
        for v6 in [false, true] {
            let (path, now) = (own.join(traffic.file(v6)), traffic.record(v6));
            assert!(now == traffic.record(v6), "{}: two recordings differ", traffic.file(v6));
            if std::env::var_os("URXE_BLESS").is_some() {
                fs::write(&path, &now).unwrap();
            }
            let golden = fs::read(&path).unwrap_or_default();
            let (expected, actual) = (own_packets(&golden), own_packets(&now));
            let first = expected.iter().zip(&actual).position(|(a, b)| a.0 != b.0);
            assert!(
                golden == now,
                "{path:?} has {} packets, the new recording {}; the first different one is {first:?} (from 0). \
                 If the change is intended, rewrite the file with URXE_BLESS=1",
                expected.len(),
                actual.len()
            );
            for (frame, roce) in &actual {
                *seen.entry(replay(frame, roce).0).or_default() += 1;
                let packet = Packet::parse(&frame[roce.payload.clone()]).unwrap();
                assert!(
                    packet
                        .row()
                        .payload
                        .allows(packet.payload().len(), urxe_traffic::mtu(packet.row().transport))
                );
                if let Some(Syndrome::Ack { credits: n }) = packet.aeth().map(|a| a.syndrome) {
                    credits.insert(n);
                }
            }
        }
    }
    if std::env::var_os("URXE_BLESS").is_some() {
        fs::write(own.join("README.md"), &readme).unwrap();
    }
    assert_eq!(fs::read_to_string(own.join("README.md")).unwrap(), readme);
    // Every opcode of UC, UD and XRC, and the opcodes of RC that no other capture contains.
    let all = (0..=255u8).map(Opcode).filter(|o| o.row().is_valid());
    let missing: Vec<Opcode> = all
        .filter(|o| matches!(o.row().transport, Transport::Uc | Transport::Ud | Transport::Xrc))
        .chain([0x16, 0x17, 0x1c, 0x1d].map(Opcode))
        .filter(|o| !seen.contains_key(&o.0))
        .collect();
    assert!(missing.is_empty(), "no capture contains {missing:?}");
    assert!(credits.len() > 1, "the acknowledgements contain no different end-to-end credits: {credits:?}");
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Replays an Ethernet frame given in hexadecimal. Returns its UDP payload and the decoded headers.
fn golden(text: &str) -> (Vec<u8>, RoceFrame) {
    let frame = hex(text);
    let Content::Roce(roce) = frame::parse(&frame, Checksums::Verify).unwrap().content else {
        panic!("not a RoCEv2 packet")
    };
    replay(&frame, &roce);
    let payload = frame[roce.payload.clone()].to_vec();
    (payload, roce)
}

/// Replays a packet captured on a ConnectX-4 Lx and published in the tests of Scapy's RoCE layer.
#[test]
fn cnp_from_connectx_4_lx_is_reencoded_to_the_same_bytes() {
    let (bytes, roce) = golden(
        "e41d 2dab 2bc2 7cfe 9064 3b32 0800 45c2 003c 718c 4000 4011 9161 0a00 1101 0a00
         1201 0000 12b7 0028 0000 8100 ffff 4000 0118 0000 0000 0000 0000 0000 0000 0000
         0000 0000 0000 82fd 002a",
    );
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((roce.flow.traffic_class, roce.flow.src_port), (0xc2, 0));
    assert_eq!(packet.bth().opcode, Opcode::CNP);
    assert!(packet.bth().becn && !packet.bth().fecn);
    assert_eq!(packet.bth().dest_qp, Qpn::new(0x118));
    assert_eq!(packet.payload(), [0; 16]);
    assert_eq!(packet.row().payload, PayloadRule::Exactly(16));
}

/// Replays a UC SEND with two bytes of padding and ECN-capable transport, also published in Scapy's tests.
/// The published frame lacks the original UDP checksum, which the ICRC does not cover.
#[test]
fn uc_send_of_a_connectx_is_reencoded_to_the_same_bytes() {
    let (bytes, roce) = golden(
        "248a 07a8 fa22 248a 07a8 fa22 0800 4501 0040 0478 4000 4011 b4d5 c0a8 0007 c0a8
         0007 c000 12b7 002c 0000 2460 ffff 0000 00d3 00cf 1710 4630 818b e289 35d9 0e9a
         9550 5401 be88 5e50 0000 78f3 53f3",
    );
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(roce.ident, IpIdent::Exact { id: 1144, flags: IpIdent::DONT_FRAGMENT });
    let row = packet.row();
    assert_eq!(
        (row.transport, row.operation, row.position),
        (Transport::Uc, Operation::Send, Position::Only)
    );
    assert_eq!((packet.payload().len(), packet.padding()), (18, &[0, 0][..]));
    assert_eq!(packet.bth().psn.get(), 13_571_856);
}

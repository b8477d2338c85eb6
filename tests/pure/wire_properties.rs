//! Property tests of the packet format: encoding and decoding are inverse operations, and no bytes make the
//! parser panic.

use proptest::prelude::*;
use urxe::wire::frame::{Checksums, Content, FrameError, PauseFrame, parse};
use urxe::wire::opcode::HeaderSet;
use urxe::wire::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Flow, Headers, ICRC_LEN, IpIdent,
    MAX_HEADERS_LEN, Mac, Opcode, PKey, Packet, Psn, QKey, Qpn, RKey, Reth, Syndrome, WireError, icrc,
    pad_count,
};

fn valid_opcodes() -> Vec<Opcode> {
    (0..=255).map(Opcode).filter(|o| o.row().is_valid()).collect()
}

fn bth() -> impl Strategy<Value = Bth> {
    let flags = any::<[bool; 5]>();
    let numbers = (any::<u16>(), 0..64u8, any::<u32>(), 0..128u8, any::<u32>());
    (prop::sample::select(valid_opcodes()), flags, numbers).prop_map(
        |(opcode, [solicited, mig_req, fecn, becn, ack_req], (pkey, resv6, qp, resv7, psn))| Bth {
            opcode,
            solicited,
            mig_req,
            pad: 0,
            version: 0,
            pkey: PKey(pkey),
            fecn,
            becn,
            resv6,
            dest_qp: Qpn::new(qp),
            ack_req,
            resv7,
            psn: Psn::new(psn),
        },
    )
}

prop_compose! {
    /// Generates headers with random values in every field, including the fields of headers that the opcode
    /// does not have.
    fn headers()(
        bth in bth(),
        n in any::<[u32; 9]>(),
        m in any::<[u64; 5]>(),
        syndrome in any::<u8>(),
    ) -> Headers {
        Headers {
            bth,
            rdeth: n[0] & 0xff_ffff,
            deth: Deth { qkey: QKey(n[1]), src_qp: Qpn::new(n[2]) },
            xrceth: n[3] & 0xff_ffff,
            feth: Feth(n[4]),
            reth: Reth { va: m[0], rkey: RKey(n[5]), dma_len: n[6] },
            atomic: AtomicEth { va: m[1], rkey: RKey(n[5]), swap_or_add: m[2], compare: m[3] },
            aeth: Aeth { syndrome: Syndrome::from_byte(syndrome), msn: n[7] & 0xff_ffff },
            atomic_ack: AtomicAckEth { original: m[4] },
            imm: n[8],
            ieth: RKey(n[0]),
        }
    }
}

/// Clears the headers that, according to the opcode table, are absent from packets with the opcode.
fn clear_absent_headers(h: &Headers) -> Headers {
    let set = h.bth.opcode.row().headers;
    fn keep<T: Default>(set: HeaderSet, header: HeaderSet, value: T) -> T {
        if set.contains(header) { value } else { T::default() }
    }
    Headers {
        bth: h.bth,
        rdeth: keep(set, HeaderSet::RDETH, h.rdeth),
        deth: keep(set, HeaderSet::DETH, h.deth),
        xrceth: keep(set, HeaderSet::XRCETH, h.xrceth),
        feth: keep(set, HeaderSet::FETH, h.feth),
        reth: keep(set, HeaderSet::RETH, h.reth),
        atomic: keep(set, HeaderSet::ATOMIC, h.atomic),
        aeth: keep(set, HeaderSet::AETH, h.aeth),
        atomic_ack: keep(set, HeaderSet::ATOMIC_ACK, h.atomic_ack),
        imm: keep(set, HeaderSet::IMMDT, h.imm),
        ieth: keep(set, HeaderSet::IETH, h.ieth),
    }
}

/// Encodes a packet from headers, payload, padding bytes and ICRC.
fn emit(headers: &Headers, payload: &[u8], padding: u8, icrc: u32) -> Vec<u8> {
    let mut buf = [0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut buf);
    let mut bytes = buf[..len].to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + headers.bth.pad as usize, padding);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    bytes
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..300)
}

/// Calls all methods of a parsed packet, and returns the total length of its payload and padding.
fn call_all_methods(packet: &Packet<'_>) -> usize {
    packet.headers();
    packet.row();
    packet.icrc();
    packet.payload().len() + packet.padding().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pause_frames_round_trip_and_are_rejected_if_truncated(
        times in any::<[Option<u16>; 8]>(),
        src in any::<[u8; 6]>(),
        len in 14..60usize,
    ) {
        let pause = PauseFrame { times };
        let mut frame = Vec::new();
        pause.append(&mut frame, Mac(src));
        let decoded = parse(&frame, Checksums::Verify).unwrap();
        prop_assert_eq!((decoded.dst, decoded.src), (PauseFrame::DESTINATION, Mac(src)));
        prop_assert_eq!(decoded.content, Content::Pause(pause));
        match parse(&frame[..len], Checksums::Verify) {
            Ok(decoded) => prop_assert!(len >= 34 && decoded.content == Content::Pause(pause)),
            Err(FrameError::Truncated { .. }) => prop_assert!(len < 34),
            Err(e) => prop_assert!(false, "{e}"),
        }
    }

    #[test]
    fn arbitrary_mac_control_frames_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut frame = PauseFrame::DESTINATION.0.to_vec();
        frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0x08]);
        frame.extend(bytes);
        let _ = parse(&frame, Checksums::Verify);
    }

    #[test]
    fn parsing_restores_emitted_headers(mut h in headers(), payload in payload(), padding: u8, icrc: u32) {
        h.bth.pad = pad_count(payload.len()) as u8;
        let bytes = emit(&h, &payload, padding, icrc);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.headers(), clear_absent_headers(&h));
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.padding(), &vec![padding; h.bth.pad as usize][..]);
        prop_assert_eq!(packet.icrc(), icrc);
        prop_assert_eq!(h.len(), BTH_LEN + h.bth.opcode.row().headers.wire_len());
    }

    #[test]
    fn emitting_restores_parsed_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 16..200),
        opcode in prop::sample::select(valid_opcodes()),
        pad in 0..4u8,
    ) {
        bytes.truncate(bytes.len() & !3);
        bytes[0] = opcode.0;
        bytes[1] = bytes[1] & 0xc0 | pad << 4;
        let Ok(packet) = Packet::parse(&bytes) else { return Ok(()) };
        let emitted = {
            let mut buf = [0; MAX_HEADERS_LEN];
            let len = packet.headers().emit(&mut buf);
            [&buf[..len], packet.payload(), packet.padding(), &packet.icrc().to_le_bytes()].concat()
        };
        // Reserved bits of headers are not preserved: compare the decoded values.
        prop_assert_eq!(emitted.len(), bytes.len());
        let second = Packet::parse(&emitted).unwrap();
        prop_assert_eq!(second.headers(), packet.headers());
        prop_assert_eq!(second.payload(), packet.payload());
        prop_assert_eq!(&emitted[..BTH_LEN], &bytes[..BTH_LEN], "the BTH, including its reserved bits");
    }

    #[test]
    fn arbitrary_bytes_do_not_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            call_all_methods(&packet);
        }
    }

    /// Parses random bytes with an assigned opcode and a supported version, which pass the parser's first
    /// checks.
    #[test]
    fn plausible_bytes_do_not_make_the_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 1..120),
        opcode in prop::sample::select(valid_opcodes()),
    ) {
        bytes[0] = opcode.0;
        if let Some(byte) = bytes.get_mut(1) {
            *byte &= 0xf0;
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let inner = call_all_methods(&packet);
            prop_assert_eq!(inner + packet.headers().len() + ICRC_LEN, bytes.len());
        }
    }

    #[test]
    fn flipped_bit_invalidates_the_icrc_unless_its_field_is_variant(
        mut h in headers(),
        payload in payload(),
        id: u16,
        at: prop::sample::Index,
        v6: bool,
    ) {
        let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let flow = Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 50_000);
        h.bth.pad = pad_count(payload.len()) as u8;
        let mut bytes = emit(&h, &payload, 0, 0);
        let value = icrc::compute(&flow, id, IpIdent::DONT_FRAGMENT, &bytes);
        let tail = bytes.len() - ICRC_LEN;
        bytes[tail..].copy_from_slice(&value.to_le_bytes());
        let ident = IpIdent::Exact { id, flags: IpIdent::DONT_FRAGMENT };
        prop_assert!(icrc::verify(&flow, ident, 0, &bytes));
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(icrc::verify(&flow, ident, 0, &bytes), bit / 8 == 4);
    }
}

#[test]
fn parsing_a_truncated_packet_of_any_opcode_fails() {
    for opcode in valid_opcodes() {
        for pad in 0..4 {
            let h = Headers { bth: Bth { opcode, pad, ..Bth::default() }, ..Headers::default() };
            // The shortest payload with this number of pad bytes.
            let payload = vec![7; if pad == 0 { 0 } else { 4 - pad as usize }];
            let bytes = emit(&h, &payload, 0, 0);
            assert!(Packet::parse(&bytes).is_ok(), "{opcode}");
            let headers = BTH_LEN + opcode.row().headers.wire_len();
            for len in 0..bytes.len() {
                let error = Packet::parse(&bytes[..len]).expect_err("a truncated packet is invalid");
                let text = error.to_string();
                match error {
                    WireError::Truncated { len: actual, need, .. } => assert!(actual == len && len < need),
                    WireError::Unaligned(n) => assert!(n == len && n >= headers + pad as usize + ICRC_LEN),
                    other => panic!("{opcode} truncated to {len} bytes: {other}"),
                }
                assert!(text.contains(&len.to_string()), "{text}");
            }
        }
    }
}

#[test]
fn longest_headers_match_max_headers_len() {
    let longest = valid_opcodes().iter().map(|o| BTH_LEN + o.row().headers.wire_len()).max();
    assert_eq!(longest, Some(MAX_HEADERS_LEN));
}

#[test]
fn parsing_fails_for_an_unassigned_opcode_or_an_unsupported_version() {
    for opcode in (0..=255).map(Opcode) {
        let mut bytes = vec![0; 64];
        bytes[0] = opcode.0;
        let parsed = Packet::parse(&bytes).map(|_| ());
        if opcode.row().is_valid() {
            assert_eq!(parsed, Ok(()));
            for version in 1..16 {
                bytes[1] = version;
                assert_eq!(Packet::parse(&bytes).map(|_| ()), Err(WireError::Version(version)));
            }
        } else {
            assert_eq!(parsed, Err(WireError::ReservedOpcode(opcode.0)));
        }
    }
}

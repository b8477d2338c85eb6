//! Tests that tshark, scapy and urxe decode packets sent by urxe and by the kernel's rxe in the same way.
//! Needs tshark, python3-scapy and, for packets of rxe, the test guest.

use pcap_file::pcapng::{Block, PcapNgReader};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::*;
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Opcode, Operation, Packet, Transport, icrc};
use urxe_test_support::guest;
use urxe_test_support::nic;
use urxe_test_support::peer::{self, ConnectParams, TIMEOUT, remote_args};
use urxe_test_support::table::Table;
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};
use urxe_test_support::urxe_traffic;

const LENGTHS: [usize; 3] = [0, 101, 3000];

/// Captures every operation from `a` to `b`, with messages of one packet and of several, and a refused
/// request.
fn capture_urxe_urxe(file: &CaptureFile, v6: bool) {
    let fabric = Fabric::new();
    let open = |n: u8, name: &str| {
        let ip = if v6 { Ip::Ula.of(n) } else { Ip::V4.of(n) };
        let port = fabric.port(&[ip]).unwrap();
        let options = ContextOptions::default();
        let context = Context::on_port(port, &options, |port| match name {
            // A capture of one side suffices: the other sees the same packets.
            "a" => Box::new(file.capture(port, name)),
            _ => Box::new(port),
        });
        TestEndpoint::new(context.unwrap()).unwrap()
    };
    let (a, b) = (open(1, "a"), open(2, "b"));
    let options = ConnectOptions::default().mtu(Mtu::Mtu1024);
    nic::connect_with(&a.qp, &b.qp, &options);
    let (x, y) = (a.pd.reg_mr(4096, Access::ALL).unwrap(), b.pd.reg_mr(4096, Access::ALL).unwrap());
    x.write(0, &guest::pattern(4096, 9)).unwrap();
    for (id, len) in LENGTHS.into_iter().enumerate() {
        let (id, sges) = (id as u64, [x.sge(0..len)]);
        let recv_sges = [y.sge(0..4096)];
        let recv = RecvWr::new(id, &recv_sges);
        for wr in [
            SendWr::write(id, &sges, y.remote(0)),
            SendWr::write_imm(id, &sges, y.remote(0), 0x8000_0001),
            SendWr::read(id, &sges, y.remote(0)),
            SendWr::send(id, &sges),
            SendWr::send_imm(id, &sges, 0x1234_5678),
            SendWr::fetch_add(id, &[x.sge(0..8)], y.remote(8), u64::MAX),
            SendWr::compare_swap(id, &[x.sge(0..8)], y.remote(8), 1 << 63, 0x0102_0304_0506_0708),
        ] {
            let receives = matches!(wr.op, WrOp::Send | WrOp::SendWithImm(_) | WrOp::WriteWithImm { .. });
            a.qp.post_send(&wr).unwrap();
            if receives {
                // The receive is posted late, so that there usually is an RNR NAK.
                b.qp.post_recv(&recv).unwrap();
                b.cq.wait(TIMEOUT).unwrap();
            }
            a.cq.wait(TIMEOUT).unwrap();
        }
    }
    a.qp.post_send(&SendWr::write(9, &[x.sge(0..9)], y.remote(4090))).unwrap();
    assert_eq!(a.cq.wait_any(TIMEOUT).unwrap().status, WcStatus::RemAccessErr);
}

/// Captures the same operations between urxe and rxe in the guest, in both directions.
fn capture_urxe_rxe(setup: &Testbed, file: &CaptureFile, ip: Ip) {
    let side = setup.open_wrapped(ip, |link| Box::new(file.capture(link, "urxe")));
    let mut shell = setup.shell(65536);
    let check_success = |status: &str| assert_eq!(status, "SUCCESS");
    let qp = setup.connect(&side, &mut shell, &ConnectParams::new(ip, 1024));
    for (id, len) in LENGTHS.into_iter().enumerate() {
        let (id, sges) = (id as u64, [side.mr.sge(0..len)]);
        for wr in [
            SendWr::write(id, &sges, shell.at(0)),
            SendWr::write_imm(id, &sges, shell.at(0), 0x8000_0001),
            SendWr::read(id, &sges, shell.at(0)),
            SendWr::send(id, &sges),
            SendWr::send_imm(id, &sges, 0x1234_5678),
            SendWr::fetch_add(id, &[side.mr.sge(0..8)], shell.at(8), u64::MAX),
            SendWr::compare_swap(id, &[side.mr.sge(0..8)], shell.at(8), 1 << 63, 0x0102_0304_0506_0708),
        ] {
            qp.post_send(&wr).unwrap();
            if matches!(wr.op, WrOp::Send | WrOp::SendWithImm(_) | WrOp::WriteWithImm { .. }) {
                shell.vsh.cmd("recv q m 0 4096").unwrap();
                check_success(&shell.one().unwrap().status);
            }
            assert_eq!(side.one().unwrap().status, WcStatus::Success);
        }
        let to = remote_args(side.mr.remote(0));
        for line in [
            format!("write q m 0 {len} {to}"),
            format!("write q m 0 {len} {to} imm=0x80000001"),
            format!("read q m 0 {len} {to}"),
            format!("send q m 0 {len}"),
            format!("send q m 0 {len} imm=0x12345678"),
            format!("fadd q m 0 {to} add=0xffffffffffffffff"),
            format!("cswap q m 0 {to} cmp=0x8000000000000000 swap=0x0102030405060708"),
        ] {
            shell.vsh.cmd(&line).unwrap();
            if line.starts_with("send") || line.contains("imm=") {
                qp.post_recv(&RecvWr::new(id, &[side.mr.sge(0..4096)])).unwrap();
                assert_eq!(side.one().unwrap().status, WcStatus::Success);
            }
            check_success(&shell.one().unwrap().status);
        }
    }
    // A request refused by either side.
    qp.post_send(&SendWr::write(9, &[side.mr.sge(0..9)], shell.at(65530))).unwrap();
    assert_eq!(side.one().unwrap().status, WcStatus::RemAccessErr);
    let _qp = setup.connect(&side, &mut shell, &ConnectParams::new(ip, 1024));
    shell.vsh.cmd(&format!("read q m 0 9 {}", remote_args(side.mr.remote(peer::REGION)))).unwrap();
    assert_eq!(shell.one().unwrap().status, "REM_ACCESS_ERR");
}

/// Names of the compared fields in tshark, without the prefix `infiniband.`.
const FIELDS: &[&str] = &[
    "bth.opcode",
    "bth.se",
    "bth.m",
    "bth.padcnt",
    "bth.tver",
    "bth.p_key",
    "bth.destqp",
    "bth.a",
    "bth.psn",
    "reth.va",
    "reth.r_key",
    "reth.dmalen",
    "aeth.syndrome",
    "aeth.msn",
    "immdt",
    "atomiceth.va",
    "atomiceth.r_key",
    "atomiceth.swapdt",
    "atomiceth.cmpdt",
    "atomicacketh.origremdt",
    "ieth",
    "deth.q_key",
    "deth.srcqp",
];

/// Reports whether tshark 4.0 decodes all headers of packets with the opcode; it does not for XRC, FLUSH and
/// ATOMIC WRITE.
fn decodes_all_headers(opcode: Opcode) -> bool {
    let row = opcode.row();
    row.transport != Transport::Xrc && !matches!(row.operation, Operation::Flush | Operation::AtomicWrite)
}

/// Returns the values of [`FIELDS`] as urxe decodes them; `None` for each field whose header is absent.
fn urxe_fields(p: &Packet<'_>) -> Vec<Option<u64>> {
    let bth = p.bth();
    let (reth, aeth, atomic, deth) = (p.reth(), p.aeth(), p.atomic(), p.deth());
    // tshark shows the addresses and keys of both headers under the RETH's names.
    vec![
        Some(bth.opcode.0.into()),
        Some(bth.solicited.into()),
        Some(bth.mig_req.into()),
        Some(p.padding().len() as u64),
        Some(0),
        Some(bth.pkey.0.into()),
        Some(bth.dest_qp.get().into()),
        Some(bth.ack_req.into()),
        Some(bth.psn.get().into()),
        reth.map(|r| r.va).or(atomic.map(|a| a.va)),
        reth.map(|r| r.rkey.0.into()).or(atomic.map(|a| a.rkey.0.into())),
        reth.map(|r| r.dma_len.into()),
        aeth.map(|a| a.syndrome.to_byte().into()),
        aeth.map(|a| a.msn.into()),
        p.imm().map(u64::from),
        None,
        None,
        atomic.map(|a| a.swap_or_add),
        atomic.map(|a| a.compare),
        p.atomic_ack().map(|a| a.original),
        p.ieth().map(|key| key.0.into()),
        deth.map(|d| d.qkey.0.into()),
        deth.map(|d| d.src_qp.get().into()),
    ]
}

/// Returns for each packet the values of [`FIELDS`] as tshark decodes them, and the errors that it reports.
fn tshark(path: &str) -> Vec<(Vec<Option<u64>>, String)> {
    let mut c = Command::new("tshark");
    c.args(["-n", "-r", path, "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    // Heuristic dissectors of the payload, which fail on a SEND without payload.
    c.args(["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]);
    c.args(["-e", "_ws.malformed", "-e", "_ws.expert.message"]);
    for field in FIELDS.iter().filter(|f| has_field(f)) {
        c.args(["-e", &format!("infiniband.{field}")]);
    }
    let out = c.output().unwrap_or_else(|e| panic!("this test needs tshark (run tests/install): {e}"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let number = |field: &str, text: &str| -> Option<u64> {
        if text.is_empty() {
            return None;
        }
        let hex = text.strip_prefix("0x").or(matches!(field, "immdt" | "ieth").then_some(text));
        let n = match (hex, text) {
            (Some(hex), _) => u64::from_str_radix(&hex.replace(':', ""), 16),
            (_, "True") => Ok(1),
            (_, "False") => Ok(0),
            _ => text.parse(),
        };
        Some(n.unwrap_or_else(|e| panic!("{field}={text}: {e}")))
    };
    let row = |line: &str| {
        let mut cells = line.split('\t');
        let malformed = [cells.next(), cells.next()].into_iter().flatten().collect::<String>();
        // RoCEv2 has no UDP checksum over IPv6 either (annex A17); rxe sends none.
        let malformed = malformed.replace("Illegal checksum value (0)", "");
        let read = |f: &&str| if has_field(f) { number(f, cells.next().unwrap_or("")) } else { None };
        (FIELDS.iter().map(read).collect(), malformed)
    };
    String::from_utf8_lossy(&out.stdout).lines().map(row).collect()
}

/// Reports whether tshark 4.0 has the field; it shows the AtomicETH's address and R_Key as fields of the
/// RETH.
fn has_field(field: &str) -> bool {
    !matches!(field, "atomiceth.va" | "atomiceth.r_key")
}

/// Checks that tshark and urxe decode a capture alike, and returns the number of packets with each opcode.
fn compare(path: &str) -> BTreeMap<u8, usize> {
    let file = std::fs::File::open(path).unwrap();
    let mut reader = PcapNgReader::new(file).unwrap();
    let tshark_rows = tshark(path);
    let mut tshark_rows = tshark_rows.iter();
    let mut counts = BTreeMap::new();
    let mut n = 0;
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(block) = block.unwrap() else { continue };
        n += 1;
        // The capture has IP packets, but the parser expects Ethernet frames.
        let mut bytes = vec![0; 12];
        bytes.extend_from_slice(if block.data[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] });
        bytes.extend_from_slice(&block.data);
        let frame = frame::parse(&bytes, Checksums::Verify).unwrap();
        let Content::Roce(roce) = frame.content else { panic!("{path}, packet {n}: {:?}", frame.content) };
        let data = &bytes[roce.payload];
        assert!(icrc::verify(&roce.flow, roce.ident, 0, data), "{path}, packet {n}: ICRC, {:?}", roce.ident);
        let packet = Packet::parse(data).unwrap();
        let (fields, malformed) =
            tshark_rows.next().unwrap_or_else(|| panic!("{path}: tshark has no packet {n}"));
        assert_eq!(malformed, "", "{path}, packet {n}: {packet:?}");
        let is_complete = decodes_all_headers(packet.bth().opcode);
        for ((name, urxe_value), tshark_value) in FIELDS.iter().zip(urxe_fields(&packet)).zip(fields) {
            // A later version of tshark may decode more fields, which must be correct.
            if !is_complete && tshark_value.is_none() {
                assert!(!name.starts_with("bth."), "{path}, packet {n}: {name}, {packet:?}");
                continue;
            }
            assert_eq!(urxe_value, *tshark_value, "{path}, packet {n}: {name}, {packet:?}");
        }
        *counts.entry(packet.bth().opcode.0).or_insert(0) += 1;
    }
    assert_eq!(tshark_rows.count(), 0, "{path}: tshark has more than {n} packets");
    counts
}

/// Decodes captures with scapy. Prefers Debian's Python, because another one earlier in `PATH` may lack
/// Debian's packages.
fn scapy(paths: &[String]) -> String {
    let script = concat!(env!("URXE_REPOSITORY"), "/tests/rxe-guest/scapy_icrc.py");
    let has_scapy = |python: &&str| {
        let out = Command::new(python).args(["-c", "import scapy.contrib.roce"]).output();
        out.is_ok_and(|o| o.status.success())
    };
    let python = ["/usr/bin/python3", "python3"].into_iter().find(has_scapy);
    let python = python.expect("this test needs scapy: run tests/install, or apt-get install python3-scapy");
    let out = Command::new(python).arg(script).args(paths).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}");
    text
}

#[test]
fn tshark_and_scapy_agree_with_urxe_on_rc_packets() {
    let name = |peers: &str| format!("{}/interop-{peers}.pcapng", env!("CARGO_TARGET_TMPDIR"));
    let mut paths = Vec::new();
    let setup = Testbed::start(LinkKind::Dgram);
    for (peers, v6) in
        [("urxe-urxe-v4", false), ("urxe-urxe-v6", true), ("urxe-rxe-v4", false), ("urxe-rxe-v6", true)]
    {
        let file = CaptureFile::create(name(peers), Timestamps::Wall).unwrap();
        match peers.contains("-rxe") {
            true => capture_urxe_rxe(&setup, &file, if v6 { Ip::Ula } else { Ip::V4 }),
            false => capture_urxe_urxe(&file, v6),
        }
        file.flush().unwrap();
        paths.push(name(peers));
    }
    let counts: Vec<_> = paths.iter().map(|p| compare(p)).collect();
    let mut table = Table::new("tshark", &["opcode", "urxe-urxe v4", "v6", "urxe-rxe v4", "v6"]);
    let all: BTreeSet<u8> = counts.iter().flat_map(|c| c.keys().copied()).collect();
    for opcode in &all {
        let mut row = vec![urxe::wire::Opcode(*opcode).to_string()];
        row.extend(counts.iter().map(|c| c.get(opcode).copied().unwrap_or(0).to_string()));
        table.row(&row);
    }
    table.print();
    // All opcodes of RC but SEND with invalidate.
    assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..=0x14).collect::<Vec<u8>>());
    eprintln!("{}", scapy(&paths));
}

#[test]
fn tshark_and_scapy_agree_with_urxe_on_packets_of_the_other_services() {
    let mut table = Table::new("tshark services", &["opcode", "IPv4", "IPv6", "decoded by tshark"]);
    let mut counts: BTreeMap<u8, [usize; 2]> = BTreeMap::new();
    let mut paths = Vec::new();
    for (traffic, v6) in urxe_traffic::ALL.iter().flat_map(|t| [(t, false), (t, true)]) {
        let path = format!("{}/interop-{}", env!("CARGO_TARGET_TMPDIR"), traffic.file(v6));
        std::fs::write(&path, traffic.record(v6)).unwrap();
        for (opcode, n) in compare(&path) {
            counts.entry(opcode).or_default()[usize::from(v6)] += n;
        }
        paths.push(path);
    }
    for (opcode, [v4, v6]) in &counts {
        let decoded = if decodes_all_headers(Opcode(*opcode)) { "all headers" } else { "the BTH" };
        let name = Opcode(*opcode).to_string();
        table.row(&[name, v4.to_string(), v6.to_string(), decoded.into()]);
    }
    table.print();
    let valid = (0..=255).filter(|n| {
        let row = Opcode(*n).row();
        row.is_valid() && matches!(row.transport, Transport::Uc | Transport::Ud | Transport::Xrc)
    });
    let wanted: BTreeSet<u8> = valid.chain([0x16, 0x17, 0x1c, 0x1d]).collect();
    let missing: Vec<Opcode> =
        wanted.iter().filter(|n| !counts.contains_key(n)).map(|n| Opcode(*n)).collect();
    assert!(missing.is_empty(), "no capture contains {missing:?}");
    eprintln!("{}", scapy(&paths));
}

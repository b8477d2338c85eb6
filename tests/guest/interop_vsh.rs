//! Tests of every RC operation between urxe and the kernel's rxe in both directions, on every kind of link
//! and with every kind of IP address. Data and completions are checked on both sides. Needs the test guest;
//! the tap links need root.

use std::collections::BTreeMap;
use std::time::Instant;
use urxe::verbs::*;
use urxe_test_support::guest::{self, hash, pattern};
use urxe_test_support::peer::{self, ConnectParams, Shell, Side, remote_args};
use urxe_test_support::table::Table;
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

/// Offset of the source data; `DST` is the offset of the target. Both are unaligned.
const SRC: usize = 4096 + 13;
const DST: usize = (1 << 20) + 32768 + 7;
/// Number of bytes before and after the target that must not change.
const GUARD: usize = 16;
const UNTOUCHED: u8 = 0xee;

const SIZES: &[usize] = &[0, 1, 3, 1024, 4096, 65536, 1 << 20];
/// Message sizes tested with path MTUs other than 4096.
const FEW_SIZES: &[usize] = &[0, 3, 4096, 65536];
const PIECES: &[usize] = &[5, 4097, 65536];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
    CompareSwap,
    FetchAdd,
}

struct Op {
    name: &'static str,
    kind: Kind,
    imm: bool,
    inline: bool,
    /// Number of scatter/gather elements in the request, and in the receive.
    sges: [usize; 2],
    sizes: &'static [usize],
}

const fn op(name: &'static str, kind: Kind, sizes: &'static [usize]) -> Op {
    Op { name, kind, imm: false, inline: false, sges: [1, 1], sizes }
}

const OPS: &[Op] = &[
    op("WRITE", Kind::Write, SIZES),
    Op { imm: true, ..op("WRITE imm", Kind::Write, SIZES) },
    op("READ", Kind::Read, SIZES),
    op("SEND", Kind::Send, SIZES),
    Op { imm: true, ..op("SEND imm", Kind::Send, SIZES) },
    op("CMP_SWAP", Kind::CompareSwap, &[8, 8]),
    op("FETCH_ADD", Kind::FetchAdd, &[8, 8]),
    Op { inline: true, ..op("WRITE inline", Kind::Write, &[0, 1, 64, 256]) },
    Op { inline: true, imm: true, ..op("SEND imm inline", Kind::Send, &[0, 1, 64, 256]) },
    Op { sges: [4, 1], ..op("WRITE 4 SGEs", Kind::Write, PIECES) },
    Op { sges: [3, 1], ..op("READ 3 SGEs", Kind::Read, PIECES) },
    Op { sges: [4, 3], ..op("SEND 4 to 3 SGEs", Kind::Send, PIECES) },
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Role {
    Urxe,
    Rxe,
}

/// Splits `len` bytes at `base` into at most `n` pieces (offset, length) of unequal length, the first piece
/// last in memory.
fn pieces(base: usize, len: usize, n: usize) -> Vec<(usize, usize)> {
    let mut cuts = vec![0];
    cuts.extend((1..n).map(|i| len * i * i / (n * n)));
    cuts.push(len);
    cuts.windows(2).map(|w| (base + len - w[1], w[1] - w[0])).filter(|p| p.1 > 0).collect()
}

/// Returns the contents of the source's pieces, concatenated.
fn stream(src: &[(usize, usize)], seed: u8) -> Vec<u8> {
    src.iter().enumerate().flat_map(|(i, p)| pattern(p.1, seed.wrapping_add(i as u8))).collect()
}

/// Returns the expected contents of the target and its guards after `data` has been stored in the pieces
/// `dst`.
fn expected_memory(data: &[u8], dst: &[(usize, usize)]) -> Vec<u8> {
    let mut memory = vec![UNTOUCHED; data.len() + 2 * GUARD];
    let mut rest = data;
    for (off, len) in dst {
        let (piece, remaining) = rest.split_at(*len);
        memory[off - DST + GUARD..][..*len].copy_from_slice(piece);
        rest = remaining;
    }
    memory
}

fn check_equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what} is {got:?}, not {expected:?}")) }
}

struct Bench<'a> {
    side: &'a Side,
    shell: &'a mut Shell,
    qp: Qp,
    remote_qpn: Qpn,
    id: u64,
}

impl Bench<'_> {
    fn command(&mut self, line: &str) -> Result<guest::Reply, String> {
        self.shell.vsh.cmd(line).map_err(|e| e.to_string())
    }

    fn sges(&self, pieces: &[(usize, usize)]) -> Vec<Sge> {
        pieces.iter().map(|(off, len)| self.side.mr.sge(*off..off + len)).collect()
    }

    fn fill(&mut self, role: Role, pieces: &[(usize, usize)], seed: u8) -> Result<(), String> {
        for (i, (off, len)) in pieces.iter().enumerate() {
            let seed = seed.wrapping_add(i as u8);
            match role {
                Role::Urxe => self.side.mr.write(*off, &pattern(*len, seed)).unwrap(),
                Role::Rxe => drop(self.command(&format!("pattern m {off} {len} {seed}"))?),
            }
        }
        Ok(())
    }

    fn clear(&mut self, role: Role, len: usize) -> Result<(), String> {
        let (off, len) = (DST - GUARD, len + 2 * GUARD);
        match role {
            Role::Urxe => self.side.mr.write(off, &vec![UNTOUCHED; len]).unwrap(),
            Role::Rxe => drop(self.command(&format!("fill m {off} {len} {UNTOUCHED}"))?),
        }
        Ok(())
    }

    fn check(&mut self, role: Role, expected: &[u8]) -> Result<(), String> {
        let off = DST - GUARD;
        match role {
            Role::Urxe => {
                let mut got = vec![0; expected.len()];
                self.side.mr.read(off, &mut got).unwrap();
                let first = got.iter().zip(expected).position(|(a, b)| a != b);
                check_equal(
                    "the first wrong byte in urxe's memory",
                    first.map(|i| i as i64 - GUARD as i64),
                    None,
                )
            }
            Role::Rxe => {
                let got = self.command(&format!("hash m {off} {}", expected.len()))?.num("hash");
                check_equal("the hash of rxe's memory", got, hash(expected))
            }
        }
    }

    /// Checks that the next local completion is a successful one of work request `id`, with the given fields.
    fn check_local_completion(
        &self,
        id: u64,
        opcode: WcOpcode,
        len: usize,
        imm: Option<u32>,
    ) -> Result<(), String> {
        let wc = self.side.one()?;
        let got = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize, wc.imm, wc.qpn, wc.src_qpn);
        let expected = (id, WcStatus::Success, opcode, len, imm, self.qp.qpn(), self.remote_qpn);
        check_equal("urxe's completion", got, expected)
    }

    /// Checks that the shell's next completion is a successful one of work request `id`, with the given
    /// fields. `len` is `None` where rxe reports no length.
    fn check_shell_completion(
        &mut self,
        id: u64,
        op: &str,
        len: Option<usize>,
        imm: Option<u32>,
    ) -> Result<(), String> {
        let wc = self.shell.one()?;
        // rxe sets the immediate flag in the completion of a SEND with immediate too, with the value 0.
        let got_imm = wc.imm.filter(|_| op.starts_with("RECV"));
        let got = (wc.wr_id, &*wc.status, &*wc.op, len.map(|_| wc.len as usize), got_imm, wc.qpn);
        check_equal("rxe's completion", got, (id, "SUCCESS", op, len, imm, self.remote_qpn.get()))
    }

    fn transfer(&mut self, op: &Op, role: Role, len: usize) -> Result<(), String> {
        self.id += 1;
        let (id, recv_id) = (self.id, self.id + 5000);
        let seed = (id * 37) as u8;
        let imm = op.imm.then_some(0xfedc_0000 + id as u32);
        let other = if role == Role::Urxe { Role::Rxe } else { Role::Urxe };
        let (from, to) = if op.kind == Kind::Read { (other, role) } else { (role, other) };
        let (src_n, dst_n) = match op.kind {
            Kind::Read => (1, op.sges[0]),
            _ => (op.sges[0], op.sges[1]),
        };
        let (src, dst) = (pieces(SRC, len, src_n), pieces(DST, len, dst_n));
        let data = stream(&src, seed);
        self.fill(from, &src, seed)?;
        self.clear(to, len)?;

        let needs_receive = op.kind == Kind::Send || op.imm;
        let receive = if op.kind == Kind::Send { &dst[..] } else { &[] };
        let list = |pieces: &[(usize, usize)]| -> String {
            pieces.iter().map(|(off, len)| format!(" m {off} {len}")).collect()
        };
        match role {
            Role::Urxe => {
                if needs_receive {
                    self.command(&format!("recv q{} id={recv_id}", list(receive)))?;
                }
                let (src, dst) = (self.sges(&src), self.sges(&dst));
                let wr = match (op.kind, imm) {
                    (Kind::Write, None) => SendWr::write(id, &src, self.shell.at(DST)),
                    (Kind::Write, Some(imm)) => SendWr::write_imm(id, &src, self.shell.at(DST), imm),
                    (Kind::Read, _) => SendWr::read(id, &dst, self.shell.at(SRC)),
                    (_, None) => SendWr::send(id, &src),
                    (_, Some(imm)) => SendWr::send_imm(id, &src, imm),
                };
                let data = if op.inline { WrData::Inline(&data) } else { wr.data };
                self.qp.post_send(&wr.data(data)).map_err(|e| e.to_string())?;
                let opcode = match op.kind {
                    Kind::Write => WcOpcode::RdmaWrite,
                    Kind::Read => WcOpcode::RdmaRead,
                    _ => WcOpcode::Send,
                };
                self.check_local_completion(id, opcode, len, None)?;
                if needs_receive {
                    let name = if op.kind == Kind::Send { "RECV" } else { "RECV_RDMA_WITH_IMM" };
                    self.check_shell_completion(recv_id, name, Some(len), imm)?;
                }
            }
            Role::Rxe => {
                if needs_receive {
                    let sges = self.sges(receive);
                    self.qp.post_recv(&RecvWr::new(recv_id, &sges)).map_err(|e| e.to_string())?;
                }
                let (verb, local, remote, name) = match op.kind {
                    Kind::Write => ("write", &src, remote_args(self.side.mr.remote(DST)), "RDMA_WRITE"),
                    Kind::Read => ("read", &dst, remote_args(self.side.mr.remote(SRC)), "RDMA_READ"),
                    _ => ("send", &src, String::new(), "SEND"),
                };
                let imm_word = imm.map_or(String::new(), |imm| format!("imm={imm:#x}"));
                let inline = u8::from(op.inline);
                self.command(&format!(
                    "{verb} q{} {remote} {imm_word} inline={inline} id={id}",
                    list(local)
                ))?;
                self.check_shell_completion(id, name, (op.kind == Kind::Read).then_some(len), None)?;
                if needs_receive {
                    let opcode =
                        if op.kind == Kind::Send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
                    self.check_local_completion(recv_id, opcode, len, imm)?;
                }
            }
        }
        self.check(to, &expected_memory(&data, &dst))
    }

    /// Runs an atomic on the first aligned word at or after the responder's `DST`, with the old value
    /// returned to the requester's `SRC`, and checks both. The first compare-and-swap (`nth` is 0) swaps; any
    /// later one finds a value that differs from its compare operand.
    fn atomic(&mut self, op: &Op, role: Role, nth: usize) -> Result<(), String> {
        self.id += 1;
        let id = self.id;
        // Remote addresses must be aligned, local ones may be unaligned.
        let (at, result) = (DST.next_multiple_of(8), SRC);
        let before = 0x0123_4567_89ab_cdef_u64.rotate_left(id as u32);
        let compare = before.wrapping_add(nth as u64);
        let operand = 0xffff_ffff_ffff_fff0_u64;
        let after = match op.kind {
            Kind::FetchAdd => before.wrapping_add(operand),
            _ if nth == 0 => operand,
            _ => before,
        };
        let hex = |v: u64| v.to_ne_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>();
        match role {
            Role::Urxe => {
                self.command(&format!("set m {at} {}", hex(before)))?;
                let sges = self.sges(&[(result, 8)]);
                let to = self.shell.at(at);
                let (wr, opcode) = match op.kind {
                    Kind::FetchAdd => (SendWr::fetch_add(id, &sges, to, operand), WcOpcode::FetchAdd),
                    _ => (SendWr::compare_swap(id, &sges, to, compare, operand), WcOpcode::CompSwap),
                };
                self.qp.post_send(&wr).map_err(|e| e.to_string())?;
                self.check_local_completion(id, opcode, 8, None)?;
                let got = self.shell.vsh.get("m", at, 8).map_err(|e| e.to_string())?;
                check_equal("the value at rxe", got, after.to_ne_bytes().to_vec())?;
                let mut old = [0; 8];
                self.side.mr.read(result, &mut old).unwrap();
                check_equal("the old value at urxe", u64::from_ne_bytes(old), before)
            }
            Role::Rxe => {
                self.side.mr.write(at, &before.to_ne_bytes()).unwrap();
                let to = remote_args(self.side.mr.remote(at));
                let (line, name) = match op.kind {
                    Kind::FetchAdd => (format!("fadd q m {result} {to} add={operand} id={id}"), "FETCH_ADD"),
                    _ => {
                        (format!("cswap q m {result} {to} cmp={compare} swap={operand} id={id}"), "COMP_SWAP")
                    }
                };
                self.command(&line)?;
                self.check_shell_completion(id, name, None, None)?;
                let mut value = [0; 8];
                self.side.mr.read(at, &mut value).unwrap();
                check_equal("the value at urxe", u64::from_ne_bytes(value), after)?;
                let old = self.shell.vsh.get("m", result, 8).map_err(|e| e.to_string())?;
                check_equal("the old value at rxe", old, before.to_ne_bytes().to_vec())
            }
        }
    }
}

/// Runs one operation in one direction with all sizes, and returns the number of sizes.
fn run(
    setup: &Testbed,
    side: &Side,
    shell: &mut Shell,
    ip: Ip,
    mtu: usize,
    op: &Op,
    role: Role,
) -> Result<usize, String> {
    let qp = setup.connect(side, shell, &ConnectParams::new(ip, mtu));
    let remote_qpn = qp.query().dest_qpn.unwrap();
    let mut bench = Bench { side, shell, qp, remote_qpn, id: 0 };
    let few = mtu != 4096 && op.sizes == SIZES;
    let sizes = if few { FEW_SIZES } else { op.sizes };
    for (nth, &len) in sizes.iter().enumerate() {
        match op.kind {
            Kind::CompareSwap | Kind::FetchAdd => bench.atomic(op, role, nth),
            _ => bench.transfer(op, role, len),
        }
        .map_err(|e| format!("{len} bytes at MTU {mtu}: {e}"))?;
    }
    Ok(sizes.len())
}

/// Prints the results: for each operation and requester, the number of messages for each path MTU as text,
/// for each kind of address.
fn print_results(link: LinkKind, results: &BTreeMap<(usize, Role), Vec<String>>) {
    let heading = ["operation", "requester", "IPv4 (MTU 256 … 4096)", "IPv6 ULA (256, 4096)", "IPv6 LL"];
    let mut table = Table::new(&format!("vsh over {link}"), &heading);
    for ((operation, role), cells) in results {
        let head = [OPS[*operation].name.into(), format!("{role:?}").to_lowercase()];
        table.row(&[&head[..], cells].concat());
    }
    table.print();
}

fn every_operation(link: LinkKind) {
    let begin = Instant::now();
    let setup = Testbed::start(link);
    let mut shell = setup.shell(peer::REGION);
    let (mut failed, mut results) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    let mut all = None;
    for ip in Ip::ALL {
        // A UDP link has one address, the others have all three.
        let side = match all.take() {
            Some(side) if link != LinkKind::Udp => side,
            _ => setup.open(ip),
        };
        let mtus: &[usize] = if ip == Ip::V4 { &[256, 512, 1024, 2048, 4096] } else { &[256, 4096] };
        for (i, op) in OPS.iter().enumerate() {
            for role in [Role::Urxe, Role::Rxe] {
                let mut cells = Vec::new();
                for &mtu in mtus {
                    // After a failure the QP may be in any state, and completions may be left in the queues.
                    match run(&setup, &side, &mut shell, ip, mtu, op, role) {
                        Ok(n) => cells.push(format!("{n} ok")),
                        Err(e) => {
                            let counters = side.counters();
                            let counted: Vec<_> = counters.iter().filter(|(_, n)| *n > 0).collect();
                            let (name, state) = (op.name, setup.guest.state());
                            failed.push(format!(
                                "{name} by {role:?} over {link}, {ip}: {e}\nurxe: {counted:?}\n{state}"
                            ));
                            cells.push("FAILED".into());
                            side.poll(100, std::time::Duration::from_millis(100));
                            let _ = shell.vsh.poll(100, std::time::Duration::from_millis(100));
                        }
                    }
                }
                results.entry((i, role)).or_default().push(cells.join(", "));
            }
        }
        let c = side.counters();
        let bad = [c.rx_icrc_err, c.rx_malformed(), c.rx_wrong_source, c.rx_pkey_violation, c.rx_wrong_state];
        if bad != [0; 5] || side.context.link_state().1.is_some() {
            failed.push(format!("{link}, {ip}: {c:?}, {:?}", side.context.link_state()));
        }
        all = Some(side);
    }
    print_results(link, &results);
    eprintln!("{link}: {:.1} s", begin.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_operation_succeeds_over_datagram_frames() {
    every_operation(LinkKind::Dgram);
}

#[test]
fn every_operation_succeeds_over_stream_frames() {
    every_operation(LinkKind::Stream);
}

#[test]
fn every_operation_succeeds_over_packet_socket_with_interface_addresses() {
    every_operation(LinkKind::Packet);
}

#[test]
fn every_operation_succeeds_over_packet_socket_with_own_stack() {
    every_operation(LinkKind::PacketHostStack);
}

#[test]
fn every_operation_succeeds_over_udp_socket() {
    every_operation(LinkKind::Udp);
}

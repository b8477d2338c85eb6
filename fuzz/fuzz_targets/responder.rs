//! Fuzz target: the responders of a NIC, and an adversary in place of the requesters. The adversary sends
//! messages of all operations with the PSNs that the NIC expects, but loses, reorders, replays and alters
//! their packets. The NIC must not panic, complete receives out of order or twice, change memory that no key
//! grants, or send without bound.
#![no_main]
// The modules have functions for other targets, which `allow(dead_code)` covers.

#[path = "adversary/bench.rs"]
#[allow(dead_code)]
mod bench;
#[path = "nic/craft.rs"]
#[allow(dead_code)]
mod craft;
#[path = "adversary/draft.rs"]
mod draft;
#[path = "input.rs"]
mod input;
#[path = "nic/side.rs"]
#[allow(dead_code)]
mod side;

use bench::Bench;
use draft::Draft;
use input::Input;
use libfuzzer_sys::fuzz_target;
use side::{MTU, PAIRS, PEER_QKEY, Side};
use urxe::transport::QpType;
use urxe::wire::{AtomicEth, Bth, Deth, Feth, Headers, Opcode, Reth};

/// Opcodes of a message without the service: of the first, middle, last and only packet.
const MESSAGES: [[u8; 4]; 7] = [
    [0x00, 0x01, 0x02, 0x04],
    [0x00, 0x01, 0x03, 0x05],
    [0x00, 0x01, 0x16, 0x17],
    [0x06, 0x07, 0x08, 0x0a],
    [0x06, 0x07, 0x09, 0x0b],
    // Sequences that the specification forbids: a second FIRST, a SEND that becomes a WRITE.
    [0x06, 0x06, 0x08, 0x0a],
    [0x00, 0x07, 0x02, 0x04],
];
/// Opcodes of requests of one packet without payload: READ, atomics, ATOMIC WRITE, FLUSH.
const REQUESTS: [u8; 5] = [0x0c, 0x13, 0x14, 0x1d, 0x1c];

/// Returns the bits of the opcode that select the service.
fn service(side: &Side, qp: usize) -> u8 {
    match side.service(qp) {
        QpType::Rc => 0,
        QpType::Uc => 0x20,
        QpType::Ud => 0x60,
        QpType::XrcSend | QpType::XrcRecv => 0xa0,
    }
}

/// Queues the packets of a message for a queue pair.
fn request(bench: &mut Bench, p: &mut Input<'_>) {
    let (qp, side) = (p.below(PAIRS), &bench.side);
    let attr = side.nic.query_qp(side.qpns[qp]).expect("the queue pair exists").0;
    let first = attr.rq_psn.unwrap_or_default();
    let service = service(side, qp);
    let (va, rkey) = craft::remote(&side.regions, p);
    let kind = p.u8();
    let is_message = kind & 3 != 3;
    let len = if is_message { p.u16() as usize % (4 * MTU) } else { 0 };
    let dma_len = if is_message { len as u32 } else { u32::from(p.u16() % 2600) };
    let count = if service == 0x60 { 1 } else { len.div_ceil(MTU).max(1) };
    for n in 0..count {
        let position = match (n, n + 1 == count) {
            (_, true) if n == 0 => 3,
            (0, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        let opcode = match is_message {
            true => MESSAGES[usize::from(kind >> 2) % MESSAGES.len()][position],
            false => REQUESTS[usize::from(kind >> 2) % REQUESTS.len()],
        };
        let headers = Headers {
            bth: Bth {
                opcode: Opcode(service | opcode),
                dest_qp: side.qpns[qp],
                psn: first + n as u32,
                ack_req: kind & 0x80 != 0 || n + 1 == count,
                ..Bth::default()
            },
            reth: Reth { va, rkey, dma_len },
            atomic: AtomicEth { va: va & !7, rkey, swap_or_add: 1, compare: 0 },
            deth: Deth { qkey: PEER_QKEY, src_qp: Bench::qpn(qp) },
            xrceth: side.srq.0,
            feth: Feth(0x1),
            imm: 6,
            ieth: rkey,
            ..Headers::default()
        };
        let len = if opcode == 0x1d { 8 } else { (len - n * MTU).min(MTU) };
        bench.deliveries.waiting.push_back(Draft { headers, len });
    }
}

fuzz_target!(|data: &[u8]| {
    let mut p = Input::new(data);
    let mut bench = Bench::new(&mut p);
    for _ in 0..600 {
        if p.is_empty() {
            break;
        }
        match p.u8() & 0x0f {
            0..=3 => bench.post_recv(&mut p),
            4..=6 => request(&mut bench, &mut p),
            7..=11 => bench.deliver(&mut p),
            12 => bench.wait(&mut p),
            13 => bench.modify(&mut p),
            _ => {}
        }
        if bench.deliveries.waiting.len() > 64 {
            bench.deliveries.waiting.clear();
        }
        bench.transmit(|_, _, _| ());
        bench.side.collect();
    }
    bench.finish();
});

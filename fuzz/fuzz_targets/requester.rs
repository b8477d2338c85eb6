//! Fuzz target: the requesters of a NIC, and an adversary in place of the responders. The adversary answers
//! each request as the specification demands, but loses, reorders, replays and alters its responses. The NIC
//! must not panic, complete work out of order or twice, change memory that no key grants, or send without
//! bound.
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
use side::{MTU, Side};
use urxe::wire::{Aeth, AtomicAckEth, Bth, Headers, Opcode, Operation, Packet, Syndrome};

/// Low bits of opcodes, without the service.
const READ_RESPONSE_FIRST: u8 = 0x0d;
const READ_RESPONSE_MIDDLE: u8 = 0x0e;
const READ_RESPONSE_LAST: u8 = 0x0f;
const READ_RESPONSE_ONLY: u8 = 0x10;
const ACKNOWLEDGE: u8 = 0x11;
const ATOMIC_ACKNOWLEDGE: u8 = 0x12;

/// Appends the responses to a request.
fn respond(side: &Side, request: &Packet<'_>, responses: &mut Vec<Draft>) {
    let (Some(qp), bth) = (Bench::pair_of(request), request.bth()) else { return };
    let service = bth.opcode.0 & 0xe0;
    let response = |operation: u8, psn, len| Draft {
        headers: Headers {
            bth: Bth { opcode: Opcode(service | operation), dest_qp: side.qpns[qp], psn, ..Bth::default() },
            aeth: Aeth { syndrome: Syndrome::ACK, msn: psn.get() & 0xf },
            atomic_ack: AtomicAckEth { original: 7 },
            ..Headers::default()
        },
        len,
    };
    match (request.row().operation, request.reth()) {
        (Operation::ReadRequest, Some(reth)) => {
            let len = reth.dma_len as usize;
            let count = len.div_ceil(MTU).max(1);
            for n in 0..count {
                let operation = match (n, n + 1 == count) {
                    (0, true) => READ_RESPONSE_ONLY,
                    (0, false) => READ_RESPONSE_FIRST,
                    (_, true) => READ_RESPONSE_LAST,
                    (_, false) => READ_RESPONSE_MIDDLE,
                };
                responses.push(response(operation, bth.psn + n as u32, (len - n * MTU).min(MTU)));
            }
        }
        (Operation::CompareSwap | Operation::FetchAdd, _) => {
            responses.push(response(ATOMIC_ACKNOWLEDGE, bth.psn, 0));
        }
        (Operation::Flush | Operation::AtomicWrite, _) => {
            responses.push(response(READ_RESPONSE_ONLY, bth.psn, 0));
        }
        (operation, _) if operation.is_request() && bth.ack_req => {
            responses.push(response(ACKNOWLEDGE, bth.psn, 0));
        }
        _ => {}
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
            0..=4 => bench.post_send(&mut p),
            5..=9 => bench.deliver(&mut p),
            10 | 11 => bench.wait(&mut p),
            12 => bench.modify(&mut p),
            _ => {}
        }
        bench.transmit(respond);
        bench.side.collect();
    }
    bench.finish();
});

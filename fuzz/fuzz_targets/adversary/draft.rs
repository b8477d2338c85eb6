//! Packets of an adversary: valid ones as headers and a payload length, which mutations then change.

use urxe::wire::{
    Aeth, Flow, Headers, ICRC_LEN, MAX_HEADERS_LEN, NakCode, Opcode, Qpn, RnrTimer, Syndrome, pad_count,
};

use crate::craft::write_icrc;
use crate::input::Input;
use crate::side::{MTU, Side};

/// Number of packets that an adversary remembers for replays.
const HISTORY: usize = 32;

/// A packet before it has bytes.
#[derive(Clone, Copy)]
pub struct Draft {
    pub headers: Headers,
    /// Length of the payload in bytes.
    pub len: usize,
}

impl Draft {
    /// Returns the packet with a valid ICRC.
    fn bytes(&self, flow: &Flow) -> Vec<u8> {
        let mut headers = self.headers;
        headers.bth.pad = pad_count(self.len) as u8;
        let mut buffer = [0; MAX_HEADERS_LEN];
        let len = headers.emit(&mut buffer);
        let mut bytes = buffer[..len].to_vec();
        bytes.resize(len + self.len + pad_count(self.len), 0xee);
        bytes.resize(bytes.len() + ICRC_LEN, 0);
        write_icrc(flow, 0, &mut bytes);
        bytes
    }

    /// Changes one or a few fields of the packet.
    fn mutate(&mut self, p: &mut Input<'_>) {
        for _ in 0..1 + p.below(2) {
            let bth = &mut self.headers.bth;
            match p.below(12) {
                0 => bth.psn += (p.u8() as i8) as u32,
                1 => bth.psn += (p.u8() as i8 >> 5) as u32,
                2 => bth.psn += p.u64() as u32,
                // Keeps the service (the three highest bits), and changes the operation or the position in
                // the message.
                3 => bth.opcode = Opcode(bth.opcode.0 & 0xe0 | p.u8() & 0x1f),
                4 => bth.opcode = Opcode(bth.opcode.0 ^ 1 << p.below(8)),
                5 => self.headers.aeth = aeth(p),
                6 => {
                    self.headers.aeth.msn =
                        self.headers.aeth.msn.wrapping_add((p.u8() as i8) as u32) & 0xff_ffff
                }
                7 => self.len = [0, 1, MTU - 1, MTU, MTU + 1, p.u16() as usize % (2 * MTU)][p.below(6)],
                8 => self.headers.reth.dma_len = [0, 1, u32::MAX, p.u16().into()][p.below(4)],
                9 => self.headers.reth.va = self.headers.reth.va.wrapping_add((p.u16() as i16) as u64),
                10 => bth.ack_req ^= true,
                _ => bth.dest_qp = Qpn::new(bth.dest_qp.get() ^ u32::from(p.u8() & 7)),
            }
        }
    }
}

fn aeth(p: &mut Input<'_>) -> Aeth {
    let syndrome = match p.below(6) {
        0 => Syndrome::ACK,
        1 => Syndrome::Ack { credits: p.u8() & 31 },
        2 => Syndrome::RnrNak(RnrTimer::new(p.u8() & 31)),
        3 => Syndrome::Nak(NakCode::PsnSequenceError),
        _ => Syndrome::from_byte(p.u8()),
    };
    Aeth { syndrome, msn: p.u16().into() }
}

/// Packets that wait for delivery, and those that were delivered.
#[derive(Default)]
pub struct Deliveries {
    pub waiting: std::collections::VecDeque<Draft>,
    history: Vec<Draft>,
}

impl Deliveries {
    /// Returns the packet to deliver next: a waiting one, valid or mutated, or one delivered before. Returns
    /// `None` if there is none, or it is lost.
    pub fn next(&mut self, side: &Side, p: &mut Input<'_>) -> Option<(Flow, Vec<u8>)> {
        let fate = p.u8();
        let mut draft = match fate & 0x0f {
            // Reordered.
            1 if !self.waiting.is_empty() => self.waiting.remove(p.below(self.waiting.len()))?,
            // Replayed.
            2 | 3 if !self.history.is_empty() => self.history[p.below(self.history.len())],
            // Duplicated.
            4 => *self.waiting.front()?,
            // Lost.
            5 => {
                self.waiting.pop_front();
                return None;
            }
            _ => self.waiting.pop_front()?,
        };
        if fate & 0xf0 >= 0xc0 {
            draft.mutate(p);
        }
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push(draft);
        let flow = side.flow_from_peer();
        let mut bytes = draft.bytes(&flow);
        if fate & 0xf0 == 0xf0 {
            // Any byte, and any length.
            let at = p.u16() as usize % bytes.len();
            bytes[at] ^= p.u8();
            if p.chance(4) {
                bytes.truncate(p.u16() as usize % (bytes.len() + 1));
            }
            write_icrc(&flow, 0, &mut bytes);
        }
        Some((flow, bytes))
    }
}

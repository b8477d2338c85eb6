//! Generates the work requests at both ends of a reliable connection.

use urxe::memory::AtomicOp;
use urxe::transport::{Placement, WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use super::grants::GrantKind;
use super::memory::{Arena, Piece};
use super::program::{Key, Recv, Send, flags, length, signal_last, transfer};
use urxe_test_support::engine::Rng;

/// A message that a side receives, and the expected completion of the receive that it consumes.
#[derive(Debug)]
pub struct Message {
    pub opcode: WcOpcode,
    /// Data that the message stores in the receive; empty for a WRITE with immediate data.
    pub data: Vec<u8>,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub solicited: bool,
    pub invalidated: Key,
    /// Index of the other side's work request that sends the message.
    pub send: usize,
    /// Expected error status of the receive; `None` if the receive succeeds.
    pub fault: Option<WcStatus>,
}

/// Verbs calls of one side, in order.
#[derive(Default)]
pub struct Part {
    pub sends: Vec<Send>,
    /// Messages sent by the other side, in order.
    pub incoming: Vec<Message>,
    /// Address of a word in the other side's memory that only this side's atomics modify.
    word: Option<usize>,
    /// Address and length of the last WRITE to the other side.
    written: Option<(usize, u32)>,
    /// Number of messages that must arrive before the next work request is posted.
    after: usize,
}

/// Verbs calls of both sides of a connection, generated in an order in which they could run, so that no side
/// waits for a message that is never sent.
pub struct Exchange<'a> {
    pub arenas: &'a mut [Arena; 2],
    pub grants: &'a mut [Vec<GrantKind>; 2],
    pub rng: &'a mut Rng,
    pub mtu: usize,
    /// Maximum length of a SEND to each side: the minimum length of its shared receives, or `u32::MAX` if it
    /// has its own receive queue.
    pub longest: [u32; 2],
    /// The side that posts work requests, if only one side does; then neither side waits for messages.
    pub sender: Option<usize>,
    pub parts: [Part; 2],
}

impl<'a> Exchange<'a> {
    /// Generates the verbs calls of both sides. With `faulty`, one work request or receive fails.
    pub fn generate(mut self, faulty: bool) -> [Part; 2] {
        for _ in 0..self.rng.below(20) {
            if let Some(side) = self.sender {
                self.any(side);
                continue;
            }
            let side = self.rng.below(2) as usize;
            match self.rng.below(100) {
                0..12 => self.grant(side),
                12..17 => self.own_fast_region(side),
                _ => self.any(side),
            }
        }
        if faulty {
            self.fault();
            for _ in 0..self.rng.below(6) {
                let side = self.rng.below(2) as usize;
                self.any(side);
            }
        }
        self.parts.iter_mut().for_each(|p| signal_last(&mut p.sends));
        self.parts
    }

    /// Returns a side's memory, the other side's memory, and the random number generator.
    fn arenas(&mut self, side: usize) -> (&mut Arena, &mut Arena, &mut Rng) {
        let [a, b] = &mut *self.arenas;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        (from, to, self.rng)
    }

    /// Adds a work request and, if it consumes a receive, the message that the other side receives. Returns
    /// the index of the work request.
    pub fn push(&mut self, side: usize, send: Send) -> usize {
        let send = Send { after: self.parts[side].after, ..send };
        let index = self.parts[side].sends.len();
        if let Some(opcode) = send.receive_opcode() {
            self.parts[1 - side].incoming.push(Message {
                opcode,
                data: if send.is_send() { send.data.clone() } else { Vec::new() },
                byte_len: send.data.len() as u32,
                imm: send.imm(),
                solicited: send.flags.solicited,
                invalidated: if matches!(send.op, WrOp::SendWithInv(_)) { send.key } else { Key::None },
                send: index,
                fault: None,
            });
        }
        self.parts[side].sends.push(send);
        index
    }

    /// Makes a side's later work requests wait for all messages generated for that side so far.
    pub fn wait(&mut self, side: usize) {
        self.parts[side].after = self.parts[side].incoming.len();
    }

    /// Adds a random work request to a side.
    pub fn any(&mut self, side: usize) {
        let send = match self.rng.below(100) {
            0..28 => self.send(side),
            28..56 => {
                let (mtu, (_, to, rng)) = (self.mtu, self.arenas(side));
                let len = length(mtu, rng);
                let at = to.alloc(len as usize, 1, rng);
                self.write_to(side, at, len)
            }
            56..72 => self.read(side),
            72..86 => {
                let word = self.word(side);
                self.atomic(side, word)
            }
            86..92 => {
                let (_, to, rng) = self.arenas(side);
                let at = to.alloc(8, 8, rng);
                self.atomic_write(side, at)
            }
            _ => self.flush(side),
        };
        self.push(side, send);
    }

    /// Returns a SEND that fits into any of the other side's receives.
    pub fn send(&mut self, side: usize) -> Send {
        let (mtu, longest) = (self.mtu, self.longest[1 - side]);
        let (from, _, rng) = self.arenas(side);
        transfer(None, length(mtu, rng).min(longest), from, rng)
    }

    /// Returns a WRITE of `len` bytes to offset `at` of the other side's memory.
    pub fn write_to(&mut self, side: usize, at: usize, len: u32) -> Send {
        let (from, to, rng) = self.arenas(side);
        let w = transfer(Some(at), len, from, rng);
        to.bytes[at..][..w.data.len()].copy_from_slice(&w.data);
        self.parts[side].written = Some((at, len));
        Send { key: Key::Region(1 - side), ..w }
    }

    /// Returns a READ of newly allocated memory, or of data stored by an earlier WRITE of the queue pair.
    fn read(&mut self, side: usize) -> Send {
        let (mtu, written) = (self.mtu, self.parts[side].written);
        let (_, to, rng) = self.arenas(side);
        let source = match written.filter(|_| rng.percent(50)) {
            Some(w) => w,
            None => {
                let len = length(mtu, rng);
                (to.alloc(len as usize, 1, rng), len)
            }
        };
        self.read_of(side, source.0, source.1)
    }

    pub fn read_of(&mut self, side: usize, at: usize, len: u32) -> Send {
        let (from, to, rng) = self.arenas(side);
        let data = to.bytes[at..][..len as usize].to_vec();
        let pieces = from.scatter(len, true, rng);
        let op = WrOp::Read { va: at as u64, rkey: RKey(0) };
        self.result(side, op, pieces, data)
    }

    /// Returns a SEND, WRITE or READ whose local memory is `piece`.
    pub fn any_of(&mut self, side: usize, piece: Piece) -> Send {
        let longest = self.longest[1 - side];
        let (from, to, rng) = self.arenas(side);
        let len = piece.len as usize;
        let kind = rng.below(if piece.len > longest { 2 } else { 3 });
        let va = if kind < 2 { to.alloc(len, 1, rng) } else { 0 };
        if kind == 0 {
            let data = to.bytes[va..][..len].to_vec();
            return self.result(side, WrOp::Read { va: va as u64, rkey: RKey(0) }, vec![piece], data);
        }
        let data = from.gather(&[piece]);
        let (pieces, flags) = (vec![piece], flags(rng));
        if kind == 2 {
            return Send { pieces, flags, data, ..Send::new(WrOp::Send) };
        }
        to.bytes[va..][..len].copy_from_slice(&data);
        let (op, key) = (WrOp::Write { va: va as u64, rkey: RKey(0) }, Key::Region(1 - side));
        Send { pieces, flags, data, key, place: Some(va), ..Send::new(op) }
    }

    /// Returns a READ or an atomic whose result `data` is stored in the local pieces.
    fn result(&mut self, side: usize, op: WrOp, pieces: Vec<Piece>, data: Vec<u8>) -> Send {
        super::memory::store(&mut self.arenas[side].bytes, &pieces, 0, &data);
        Send { pieces, data, flags: flags(self.rng), key: Key::Region(1 - side), ..Send::new(op) }
    }

    pub fn word(&mut self, side: usize) -> usize {
        if let Some(word) = self.parts[side].word {
            return word;
        }
        let (_, to, rng) = self.arenas(side);
        let word = to.alloc(8, 8, rng);
        self.parts[side].word = Some(word);
        word
    }

    pub fn atomic(&mut self, side: usize, word: usize) -> Send {
        let (from, to, rng) = self.arenas(side);
        let old = u64::from_ne_bytes(to.bytes[word..][..8].try_into().unwrap());
        let operand = rng.next();
        let (op, new) = match rng.below(3) {
            0 => (AtomicOp::FetchAdd(operand), old.wrapping_add(operand)),
            1 => (AtomicOp::CompareSwap { compare: old, swap: operand }, operand),
            _ => (AtomicOp::CompareSwap { compare: !old, swap: operand }, old),
        };
        to.bytes[word..][..8].copy_from_slice(&new.to_ne_bytes());
        let pieces = from.scatter(8, true, rng);
        let op = WrOp::Atomic { va: word as u64, rkey: RKey(0), op };
        Send { word: Some((word, new)), ..self.result(side, op, pieces, old.to_ne_bytes().to_vec()) }
    }

    pub fn atomic_write(&mut self, side: usize, at: usize) -> Send {
        let value = self.rng.next().to_le_bytes();
        self.arenas[1 - side].bytes[at..][..8].copy_from_slice(&value);
        let op = WrOp::AtomicWrite { va: at as u64, rkey: RKey(0), value };
        let (data, place, key) = (value.to_vec(), Some(at), Key::Region(1 - side));
        Send { data, place, key, flags: flags(self.rng), ..Send::new(op) }
    }

    /// Returns a FLUSH of the range of the last WRITE, or of the whole region.
    fn flush(&mut self, side: usize) -> Send {
        let (at, len) = self.parts[side].written.unwrap_or((0, 1));
        let persistent = self.rng.percent(15);
        let mut placement = Placement::empty();
        placement.set(Placement::GLOBAL, !persistent || self.rng.percent(50));
        placement.set(Placement::PERSISTENT, persistent);
        let whole_region = self.rng.percent(30);
        let op = WrOp::Flush { va: at as u64, rkey: RKey(0), len, placement, whole_region };
        Send { key: Key::Region(1 - side), flags: flags(self.rng), ..Send::new(op) }
    }

    /// Returns the receives for a queue pair with its own receive queue: one for each message, and some spare
    /// ones.
    pub fn receives(part: &Part, arena: &mut Arena, rng: &mut Rng) -> Vec<Recv> {
        let mut recvs = Vec::new();
        for m in &part.incoming {
            let len = if m.opcode == WcOpcode::Recv { m.data.len() as u32 } else { rng.below(50) as u32 };
            let bad_lkey = m.fault == Some(WcStatus::LocProtErr);
            let room = match m.fault {
                Some(WcStatus::LocLenErr) => len - 1 - rng.below(len as u64) as u32,
                _ if bad_lkey || rng.percent(50) => len,
                _ => len + rng.below(100) as u32,
            };
            recvs.push(Recv { pieces: arena.scatter(room, !bad_lkey, rng), bad_lkey });
        }
        for _ in 0..rng.below(4) {
            let room = rng.below(200) as u32;
            recvs.push(Recv { pieces: arena.scatter(room, true, rng), bad_lkey: false });
        }
        recvs
    }
}

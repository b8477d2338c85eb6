//! Fuzz target: two NICs with connected queue pairs, and an attacker that controls the wire between them. The
//! attacker may delay, drop, duplicate, alter and forge packets, all with a valid ICRC. Neither NIC may
//! panic, loop forever, access memory without a key for it, send an invalid packet, or complete work out of
//! order or twice.
#![no_main]

#[path = "nic/craft.rs"]
mod craft;
#[path = "input.rs"]
mod input;
#[path = "nic/side.rs"]
mod side;

use std::collections::VecDeque;
use std::time::Duration;

use input::Input;
use libfuzzer_sys::fuzz_target;
use side::{PAIRS, Side};
use urxe::transport::{Instant, RxBurst};
use urxe::wire::{Flow, IpIdent};

/// A packet on the wire.
#[derive(Clone)]
pub struct PacketOnWire {
    /// Index of the receiving side.
    to: usize,
    flow: Flow,
    /// IPv4 identification.
    id: u16,
    bytes: Vec<u8>,
}

/// Maximum number of packets on the wire; a further packet displaces the oldest.
const WIRE_CAPACITY: usize = 128;

struct World {
    now: Instant,
    sides: [Side; 2],
    wire: VecDeque<PacketOnWire>,
}

impl World {
    fn transmit(&mut self, side: usize) {
        let wire = &mut self.wire;
        self.sides[side].transmit(self.now, |flow, id, bytes| {
            if wire.len() == WIRE_CAPACITY {
                wire.pop_front();
            }
            wire.push_back(PacketOnWire { to: 1 - side, flow, id, bytes: bytes.to_vec() });
        });
    }

    fn deliver(&mut self, packet: &PacketOnWire) {
        let ident = IpIdent::Exact { id: packet.id, flags: IpIdent::DONT_FRAGMENT };
        let (segment, data) = (packet.bytes.len(), &packet.bytes[..]);
        self.burst(packet.to, RxBurst::new(packet.flow, ident, segment, data));
    }

    fn burst(&mut self, to: usize, burst: RxBurst<'_>) {
        self.sides[to].receive(self.now, &burst);
    }

    /// Runs both NICs and the wire without faults for up to `rounds` rounds, or until the wire is empty.
    fn run_without_faults(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for side in 0..2 {
                self.transmit(side);
            }
            if self.wire.is_empty() {
                break;
            }
            while let Some(packet) = self.wire.pop_front() {
                self.deliver(&packet);
            }
        }
    }

    fn step(&mut self, p: &mut Input<'_>) {
        let op = p.u8();
        let side = (op >> 7) as usize;
        match op & 0x0f {
            0..=2 => self.sides[side].post_send(p),
            3 => self.sides[side].post_recv(p),
            4 => self.transmit(side),
            5 => {
                for _ in 0..1 + p.below(8) {
                    if let Some(packet) = self.wire.pop_front() {
                        self.deliver(&packet);
                    }
                }
            }
            6 => self.run_without_faults(1 + p.below(8)),
            7 if !self.wire.is_empty() => {
                // Duplicated, reordered, or lost.
                let at = p.below(self.wire.len());
                let packet = if p.chance(2) { self.wire.remove(at) } else { self.wire.get(at).cloned() };
                if let Some(packet) = packet.filter(|_| !p.chance(4)) {
                    self.deliver(&packet);
                }
            }
            8 | 9 if !self.wire.is_empty() => {
                let at = p.below(self.wire.len());
                let mut packet = self.wire[at].clone();
                for _ in 0..1 + p.below(3) {
                    let at = p.u16() as usize % packet.bytes.len();
                    packet.bytes[at] ^= p.u8();
                }
                if p.chance(8) {
                    packet.bytes.truncate(p.u16() as usize % (packet.bytes.len() + 1));
                }
                craft::write_icrc(&packet.flow, packet.id, &mut packet.bytes);
                self.deliver(&packet);
            }
            10 => {
                let time = match p.below(3) {
                    0 => self.sides.iter().filter_map(|s| s.nic.next_deadline()).min(),
                    1 => Some(self.now + Duration::from_nanos(p.u16().into())),
                    _ => Some(self.now + Duration::from_micros(p.u16().into())),
                };
                self.now = self.now.max(time.unwrap_or_default());
                for side in 0..2 {
                    // Packets received since the last transmit turn may have started a timer that has expired
                    // by now: two turns suffice.
                    for _ in 0..2 {
                        self.sides[side].timeouts(self.now);
                        self.transmit(side);
                    }
                    let next = self.sides[side].nic.next_deadline();
                    assert!(next.is_none_or(|at| at > self.now), "an overdue timer: {next:?}");
                }
            }
            11 => {
                let (qp, action) = (p.below(PAIRS), p.u8());
                let (peer_qpn, peer_psn) = self.sides[1 - side].endpoint(qp);
                self.sides[side].modify(self.now, qp, action, peer_qpn, peer_psn);
            }
            12 => {
                // Random bytes.
                let len = p.u8() as usize;
                let mut bytes: Vec<u8> = (0..len).map(|_| p.u8()).collect();
                let flow = self.sides[side].flow_from_peer();
                if p.chance(2) {
                    craft::write_icrc(&flow, 0, &mut bytes);
                }
                let segment = p.u8() as usize;
                let ident = if p.chance(2) { IpIdent::SENT } else { IpIdent::Unknown };
                self.burst(side, RxBurst::new(flow, ident, segment, &bytes));
            }
            _ => {
                let crafted = craft::burst(&self.sides[side], p);
                self.burst(side, crafted.as_burst());
            }
        }
        self.sides.iter_mut().for_each(Side::collect);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut p = Input::new(data);
    let now = Instant(1_000_000);
    let quirks = p.u8();
    let mut sides = [0, 1].map(|n| Side::new(n, quirks));
    for qp in 0..PAIRS {
        let ends = [sides[0].endpoint(qp), sides[1].endpoint(qp)];
        for (n, side) in sides.iter_mut().enumerate() {
            side.connect(now, qp, ends[1 - n].0, ends[1 - n].1);
        }
    }
    let mut world = World { now, sides, wire: VecDeque::new() };
    for _ in 0..400 {
        if p.is_empty() {
            break;
        }
        world.step(&mut p);
    }
    world.run_without_faults(4);
    for side in &mut world.sides {
        side.finish(world.now);
    }
});

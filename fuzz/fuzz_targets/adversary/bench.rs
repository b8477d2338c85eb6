//! A NIC under test and the clock of its adversary.

use std::time::Duration;

use urxe::transport::{Instant, RxBurst};
use urxe::wire::{IpIdent, Packet, Psn, Qpn};

use crate::draft::{Deliveries, Draft};
use crate::input::Input;
use crate::side::{PAIRS, Side};

/// First queue pair number of the adversary; that of pair `n` is this plus `n`.
const FIRST_QPN: u32 = 0x100;
/// First PSN of the adversary, close to the wraparound.
const FIRST_PSN: u32 = 0xff_fff0;

/// Maximum number of packets that wait for delivery.
const MAX_WAITING: usize = 256;

/// Number of packets that the NIC may send for each packet, post or expired timer: it retransmits at most all
/// that its queues hold, 8 work requests of 11 packets on each of 8 queue pairs.
const MAX_AMPLIFICATION: u64 = 8 * 8 * 11;

pub struct Bench {
    pub side: Side,
    pub deliveries: Deliveries,
    pub now: Instant,
    sent: u64,
    causes: u64,
}

impl Bench {
    pub fn new(p: &mut Input<'_>) -> Bench {
        let quirks = p.u8();
        let mut side = Side::new(0, quirks);
        let now = Instant(1_000_000);
        for qp in 0..PAIRS {
            side.connect(now, qp, Bench::qpn(qp), Psn::new(FIRST_PSN));
        }
        Bench { side, deliveries: Deliveries::default(), now, sent: 0, causes: 1 }
    }

    /// Returns the adversary's queue pair number of a pair.
    pub fn qpn(qp: usize) -> Qpn {
        Qpn::new(FIRST_QPN + qp as u32)
    }

    /// Returns the pair to which the NIC has sent a packet.
    pub fn pair_of(packet: &Packet<'_>) -> Option<usize> {
        let qp = packet.bth().dest_qp.get().checked_sub(FIRST_QPN)? as usize;
        (qp < PAIRS).then_some(qp)
    }

    /// Lets the NIC send, and passes its packets to `respond`, which returns packets to deliver.
    pub fn transmit(&mut self, mut respond: impl FnMut(&Side, &Packet<'_>, &mut Vec<Draft>)) {
        let mut packets = Vec::new();
        self.side.transmit(self.now, |_, _, bytes| packets.push(bytes.to_vec()));
        let mut drafts = Vec::new();
        for bytes in &packets {
            let packet = Packet::parse(bytes).expect("the NIC sends valid packets");
            respond(&self.side, &packet, &mut drafts);
        }
        self.deliveries.waiting.extend(drafts);
        self.deliveries.waiting.truncate(MAX_WAITING);
        self.sent += packets.len() as u64;
        assert!(
            self.sent <= MAX_AMPLIFICATION * self.causes,
            "{} packets for {} causes",
            self.sent,
            self.causes
        );
    }

    /// Delivers the next packet.
    pub fn deliver(&mut self, p: &mut Input<'_>) {
        if let Some((flow, data)) = self.deliveries.next(&self.side, p) {
            self.causes += 1;
            let ident = IpIdent::Exact { id: 0, flags: IpIdent::DONT_FRAGMENT };
            self.side.receive(self.now, &RxBurst::new(flow, ident, data.len(), &data));
        }
    }

    pub fn post_send(&mut self, p: &mut Input<'_>) {
        self.causes += 1;
        self.side.post_send(p);
    }

    pub fn post_recv(&mut self, p: &mut Input<'_>) {
        self.causes += 1;
        self.side.post_recv(p);
    }

    /// Advances the clock to the next deadline or by an arbitrary time.
    pub fn wait(&mut self, p: &mut Input<'_>) {
        let time = match p.below(3) {
            0 => self.side.nic.next_deadline(),
            1 => Some(self.now + Duration::from_nanos(p.u16().into())),
            _ => Some(self.now + Duration::from_micros(p.u16().into())),
        };
        self.causes += 1;
        self.now = self.now.max(time.unwrap_or_default());
        self.side.timeouts(self.now);
    }

    /// Changes the state of a queue pair, or connects it again.
    pub fn modify(&mut self, p: &mut Input<'_>) {
        let qp = p.below(PAIRS);
        self.side.modify(self.now, qp, p.u8(), Bench::qpn(qp), Psn::new(FIRST_PSN));
    }

    pub fn finish(mut self) {
        self.side.finish(self.now);
    }
}

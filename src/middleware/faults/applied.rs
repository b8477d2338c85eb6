//! Record of the packets to which a rule was applied, from which the failure of a queue pair is explained.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::fault_rules::{AppliedRule, FailedPackets, Rule};
use crate::transport::Instant;
use crate::wire::{Opcode, Packet, Psn, Qpn, Transport};

/// Number of streams that a record has room for.
const STREAMS: usize = 64;

/// Number of packets that are remembered for each stream.
const PACKETS: usize = 8;

/// Number of PSNs behind the stream's current one at which a packet is forgotten: more than are in flight,
/// and so few that the packet cannot be taken for one of the next cycle of PSNs.
const MAX_AGE: i32 = 1 << 22;

/// Requests, or responses, from or to one address for one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stream {
    address: IpAddr,
    dest: Qpn,
    is_request: bool,
}

impl Stream {
    /// Returns the stream of a packet whose sender or receiver has the given address.
    fn of(address: IpAddr, packet: &Packet<'_>) -> Stream {
        Stream { address, dest: packet.bth().dest_qp, is_request: packet.row().operation.is_request() }
    }
}

#[derive(Clone, Copy)]
struct AppliedPacket {
    psn: Psn,
    opcode: Opcode,
    at: Instant,
}

#[derive(Default)]
struct Applications {
    count: u64,
    /// Newest packets, oldest first.
    newest: VecDeque<AppliedPacket>,
}

/// Record of the packets to which a rule was applied. It contains reliable connections only, because losses
/// do not fail other queue pairs.
#[derive(Default)]
pub(super) struct Record(BTreeMap<Stream, Applications>);

impl Record {
    /// Records a packet. `address` is that of the peer.
    pub fn add(&mut self, now: Instant, address: IpAddr, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let (bth, row) = (packet.bth(), packet.row());
        if !matches!(row.transport, Transport::Rc | Transport::Xrc) {
            return;
        }
        let stream = Stream::of(address, &packet);
        if self.0.len() >= STREAMS && !self.0.contains_key(&stream) {
            let last_used = |found: &Applications| found.newest.back().map(|packet| packet.at);
            let oldest = self.0.iter().min_by_key(|(_, found)| last_used(found)).map(|(stream, _)| *stream);
            oldest.and_then(|stream| self.0.remove(&stream));
        }
        let found = self.0.entry(stream).or_default();
        found.count += 1;
        if found.newest.len() == PACKETS {
            found.newest.pop_front();
        }
        found.newest.push_back(AppliedPacket { psn: bth.psn, opcode: bth.opcode, at: now });
    }

    /// Forgets the packets that precede this one, to which the rule may apply or not, by more than are in
    /// flight.
    pub fn on_packet(&mut self, address: IpAddr, bytes: &[u8]) {
        if self.0.is_empty() {
            return;
        }
        let Ok(packet) = Packet::parse(bytes) else { return };
        if let Some(found) = self.0.get_mut(&Stream::of(address, &packet)) {
            found.newest.retain(|applied| packet.bth().psn.since(applied.psn) <= MAX_AGE);
        }
    }

    /// Forgets the packets of an earlier connection from or to `address` with the destination `dest`.
    pub fn forget(&mut self, address: IpAddr, dest: Qpn) {
        self.0.retain(|stream, _| (stream.address, stream.dest) != (address, dest));
    }

    /// Returns how `rule`, whose record this is, was applied to packets that may explain a failure. `is_sent`
    /// tells whether the rule is for sent packets.
    pub fn find(&self, rule: &Rule, is_sent: bool, failed: &FailedPackets) -> Option<AppliedRule> {
        let (address, peer) = failed.peer;
        let dest = if is_sent { peer } else { failed.qpn };
        let is_request = is_sent == failed.is_requester;
        let Applications { count, newest } = self.0.get(&Stream { address, dest, is_request })?;
        let may_explain =
            |packet: &AppliedPacket| packet.at <= failed.until && packet.psn.since(failed.first) >= 0;
        let last = newest.iter().rposition(may_explain)?;
        let later = (newest.len() - 1 - last) as u64;
        let AppliedPacket { psn, opcode, at } = newest[last];
        Some(AppliedRule { rule: rule.clone(), packets: count - later, psn, opcode, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_rules::{Action, Direction, When};
    use crate::wire::{Bth, Headers, ICRC_LEN};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const LOCAL: Qpn = Qpn::new(7);
    const REMOTE: Qpn = Qpn::new(8);

    /// Returns a packet with an opcode of the RC service: 0x04 SEND Only, 0x11 Acknowledge, 0x64 of UD.
    fn packet(opcode: u8, dest_qp: Qpn, psn: u32) -> Vec<u8> {
        let bth = Bth { opcode: Opcode(opcode), dest_qp, psn: Psn::new(psn), ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        let mut bytes = vec![0; headers.len() + ICRC_LEN];
        headers.emit(&mut bytes);
        bytes
    }

    fn failed(is_requester: bool, first: u32, until: u64) -> FailedPackets {
        FailedPackets {
            qpn: LOCAL,
            peer: (PEER, REMOTE),
            is_requester,
            first: Psn::new(first),
            until: Instant(until),
        }
    }

    /// Returns the number of packets, and the PSN and time of the last one.
    fn find(record: &Record, is_sent: bool, failed: FailedPackets) -> Option<(u64, u32, u64)> {
        let rule = Rule::new(Direction::Tx, Action::Drop, When::Nth(1));
        record.find(&rule, is_sent, &failed).map(|found| (found.packets, found.psn.get(), found.at.0))
    }

    #[test]
    fn packets_before_the_failed_request_and_after_the_failure_are_not_returned() {
        let mut record = Record::default();
        for psn in 1..=20 {
            record.add(Instant(psn.into()), PEER, &packet(0x04, REMOTE, psn));
        }
        assert_eq!(find(&record, true, failed(true, 20, 100)), Some((20, 20, 20)));
        assert_eq!(find(&record, true, failed(true, 3, 15)), Some((15, 15, 15)));
        assert_eq!(find(&record, true, failed(true, 16, 15)), None);
        assert_eq!(find(&record, true, failed(true, 21, 100)), None);
        record.forget(PEER, LOCAL);
        assert!(find(&record, true, failed(true, 20, 100)).is_some());
        record.forget(PEER, REMOTE);
        assert_eq!(find(&record, true, failed(true, 20, 100)), None);
    }

    #[test]
    fn packet_is_forgotten_before_its_psn_recurs() {
        let mut record = Record::default();
        record.add(Instant(1), PEER, &packet(0x04, REMOTE, 3));
        let mut psn = 0;
        while psn <= 1 << 22 {
            record.on_packet(PEER, &packet(0x04, REMOTE, psn));
            psn += 1 << 20;
        }
        record.on_packet(PEER, &packet(0x04, LOCAL, 3 + (1 << 23) - 1));
        assert!(find(&record, true, failed(true, 3, 9)).is_some());
        // The packet is repaired, and the peer stops responding after more than 2^23 packets.
        while psn <= 3 << 22 {
            record.on_packet(PEER, &packet(0x04, REMOTE, psn));
            psn += 1 << 20;
        }
        assert_eq!(find(&record, true, failed(true, psn, 9)), None);
        // Packets of the next cycle are recorded like any other.
        record.add(Instant(5), PEER, &packet(0x04, REMOTE, psn));
        assert_eq!(find(&record, true, failed(true, psn, 9)), Some((2, psn, 5)));
    }

    #[test]
    fn requests_and_responses_are_found_by_the_role_of_the_queue_pair() {
        let (mut sent, mut received) = (Record::default(), Record::default());
        sent.add(Instant(1), PEER, &packet(0x04, REMOTE, 10));
        received.add(Instant(2), PEER, &packet(0x11, LOCAL, 10));
        sent.add(Instant(3), PEER, &packet(0x11, REMOTE, 90));
        received.add(Instant(4), PEER, &packet(0x04, LOCAL, 90));
        assert_eq!(find(&sent, true, failed(true, 10, 9)), Some((1, 10, 1)));
        assert_eq!(find(&received, false, failed(true, 10, 9)), Some((1, 10, 2)));
        assert_eq!(find(&sent, true, failed(false, 90, 9)), Some((1, 90, 3)));
        assert_eq!(find(&received, false, failed(false, 90, 9)), Some((1, 90, 4)));
    }

    #[test]
    fn record_is_bounded_and_replaces_the_stream_that_was_used_least_recently() {
        let mut record = Record::default();
        record.add(Instant(1), PEER, &packet(0x64, REMOTE, 5));
        record.add(Instant(1), PEER, &[0; 3]);
        assert!(record.0.is_empty(), "datagrams and malformed packets are not recorded");
        for qpn in 0..=STREAMS as u32 {
            record.add(Instant(u64::from(qpn)), PEER, &packet(0x04, Qpn::new(100 + qpn), 5));
        }
        assert_eq!(record.0.len(), STREAMS);
        assert!(record.0.keys().all(|stream| stream.dest != Qpn::new(100)));
    }
}

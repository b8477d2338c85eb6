//! Recorder of one NIC: finds the queue pair of each event.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use parking_lot::Mutex;

use super::QlogFile;
use super::events;
use crate::link::LinkInfo;
use crate::middleware::faults::{Direction, FaultEvent};
use crate::qlog::{EventData, Side, dropped, group, observed};
use crate::transport::{EventKind, Instant, ObservedQp, QpEvent, QpObserver, QpState};
use crate::wire::{Flow, Packet, Qpn};

/// Queue pairs that are remembered: those of the peers of long-running programs end without a notice.
const MAX_KNOWN: usize = 1 << 16;

/// Recorder of the events of one NIC.
pub struct QlogRecorder {
    file: QlogFile,
    /// Address of queue pairs without a path.
    main: Option<IpAddr>,
    known: Mutex<Known>,
}

/// Paths of connected queue pairs.
#[derive(Default)]
struct Known {
    /// Queue pairs by those of their peers: a packet to a peer does not name its sender.
    senders: HashMap<(IpAddr, Qpn), (IpAddr, Qpn)>,
    /// Addresses of queue pairs.
    addresses: HashMap<Qpn, IpAddr>,
}

impl fmt::Debug for QlogRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QlogRecorder({:?})", self.file)
    }
}

impl QlogRecorder {
    /// Creates a recorder for a NIC called `name`, whose first link has the given properties.
    pub fn new(file: &QlogFile, name: &str, link: &LinkInfo) -> QlogRecorder {
        file.begin(name);
        QlogRecorder { file: file.clone(), main: link.addresses.first().copied(), known: Mutex::default() }
    }

    /// Logs a packet from BTH to ICRC, unless it cannot be parsed; the NIC tells why it drops such a packet.
    pub(super) fn packet(&self, now: Instant, direction: Direction, flow: &Flow, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let dest = packet.bth().dest_qp;
        let side = side_of(direction);
        let group = match direction {
            Direction::Rx => Some(group(flow.dst, dest)),
            Direction::Tx => self.sender_of(flow, &packet).map(|(ip, qpn)| group(ip, qpn)),
        };
        observed(side, flow, &packet, |data| self.file.write(Some(now), group.clone(), data));
    }

    /// Returns the queue pair that sends a packet.
    fn sender_of(&self, flow: &Flow, packet: &Packet<'_>) -> Option<(IpAddr, Qpn)> {
        match packet.deth() {
            Some(deth) => Some((flow.src, deth.src_qp)),
            None => self.known.lock().senders.get(&(flow.dst, packet.bth().dest_qp)).copied(),
        }
    }

    /// Logs a packet that a fault has dropped.
    pub fn fault(&self, event: &FaultEvent<'_>) {
        if !event.rule.action.is_loss() {
            return;
        }
        let direction = event.rule.direction;
        let packet = Packet::parse(&event.packet).ok();
        let group = match (direction, &packet) {
            (Direction::Rx, Some(packet)) => Some(group(event.flow.dst, packet.bth().dest_qp)),
            (Direction::Tx, Some(packet)) => {
                self.sender_of(&event.flow, packet).map(|(ip, qpn)| group(ip, qpn))
            }
            (_, None) => None,
        };
        let details = Some(event.rule.to_string());
        let data = dropped(side_of(direction), &event.flow, &event.packet, "fault", details);
        self.file.write(Some(event.at), group, data);
    }

    fn address_of(&self, qp: &ObservedQp) -> Option<IpAddr> {
        let known = || self.known.lock().addresses.get(&qp.qpn).copied();
        qp.flow.map(|flow| flow.src).or_else(known).or(self.main)
    }

    /// Remembers the path of a queue pair that is connected.
    fn note_path(&self, qp: &ObservedQp) {
        let Some(flow) = qp.flow else { return };
        let mut known = self.known.lock();
        if known.senders.len() >= MAX_KNOWN {
            known.senders.clear();
            known.addresses.clear();
        }
        known.senders.insert((flow.dst, qp.dest_qpn), (flow.src, qp.qpn));
        known.addresses.insert(qp.qpn, flow.src);
    }
}

fn side_of(direction: Direction) -> Side {
    match direction {
        Direction::Tx => Side::Send,
        Direction::Rx => Side::Receive,
    }
}

impl QpObserver for QlogRecorder {
    fn on_qp_event(&self, at: Option<Instant>, qp: &ObservedQp, event: &QpEvent<'_>) {
        if let QpEvent::Slow(_, EventKind::StateChange { to: QpState::Rtr, .. }) = event {
            self.note_path(qp);
        }
        let group_id = self.address_of(qp).map(|ip| group(ip, qp.qpn));
        for data in events::of(qp, event).into_iter().flatten() {
            self.file.write(at, group_id.clone(), data);
        }
    }

    fn on_drop(&self, at: Instant, flow: &Flow, packet: &[u8], reason: &'static str) {
        let data = dropped(Side::Receive, flow, packet, reason, None);
        let dest = match &data {
            EventData::PacketDropped(dropped) => dropped.dest_qp,
            _ => None,
        };
        self.file.write(Some(at), dest.map(|qpn| group(flow.dst, Qpn::new(qpn))), data);
    }

    fn on_time(&self, at: Instant) {
        self.file.set_time(at);
    }
}

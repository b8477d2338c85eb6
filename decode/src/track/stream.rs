//! Streams: the packets from one address to one queue pair of another.

use std::collections::VecDeque;
use std::net::IpAddr;

use urxe::wire::{Ecn, PKey, Packet, Psn, QKey, Qpn, Transport};

use super::facts::At;
use super::requests::Requests;
use crate::layers::{Roce, Version};

/// Fields that all packets of a stream have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Network identifier of the VXLAN around them.
    pub vni: Option<u32>,
}

/// Distinct values that a stream remembers of a field.
const MAX_VALUES: usize = 8;

/// Values of a field, with the first packet and the number of packets of each.
#[derive(Clone, Debug)]
pub struct Values<T>(pub Vec<(T, At, u64)>);

impl<T> Default for Values<T> {
    fn default() -> Values<T> {
        Values(Vec::new())
    }
}

impl<T: PartialEq + Copy> Values<T> {
    fn note(&mut self, value: T, at: At) {
        if let Some((.., count)) = self.0.iter_mut().find(|(known, ..)| *known == value) {
            *count += 1;
        } else if self.0.len() < MAX_VALUES {
            self.0.push((value, at, 1));
        }
    }

    /// Returns the value of the first packet.
    pub fn first(&self) -> Option<T> {
        self.0.first().map(|(value, ..)| *value)
    }
}

/// Packets of another interface that are remembered until the first one has them.
const MAX_ELSEWHERE: usize = 4096;

/// Interface on which a stream is followed, in a capture of several interfaces that its packets pass.
///
/// A packet that is new on another interface counts: a stream may use several (bonding), that of its sender has packets
/// that get lost, and the interfaces of a file are not in order of time.
#[derive(Clone, Debug)]
pub struct Home {
    interface: u32,
    newest: Psn,
    /// Packets that another interface had first.
    elsewhere: VecDeque<Psn>,
}

impl Home {
    /// Starts with the first packet of the stream.
    pub fn new(interface: u32, psn: Psn) -> Home {
        Home { interface, newest: psn, elsewhere: VecDeque::new() }
    }

    /// Reports whether another interface has captured the packet before.
    pub fn has_seen(&mut self, interface: u32, psn: Psn) -> bool {
        let (is_new, is_home) = (self.newest.is_before(psn), interface == self.interface);
        if is_new {
            self.newest = psn;
        }
        match (is_home, is_new) {
            (true, _) if self.elsewhere.is_empty() => false,
            (true, _) => {
                let known = self.elsewhere.iter().position(|known| *known == psn);
                known.is_some_and(|at| self.elsewhere.remove(at).is_some())
            }
            (false, true) => {
                self.elsewhere.truncate(MAX_ELSEWHERE - 1);
                self.elsewhere.push_front(psn);
                false
            }
            (false, false) => true,
        }
    }
}

/// Packets from one address to one queue pair of another.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Addresses and queue pair.
    pub key: Key,
    /// Interface on which it is followed.
    pub home: Home,
    /// Transport service of the first packet.
    pub transport: Transport,
    /// Version of RoCE of the first packet.
    pub version: Version,
    /// First packet.
    pub first: At,
    /// Last packet.
    pub last: At,
    /// Number of packets.
    pub packets: u64,
    /// Bytes from BTH to ICRC.
    pub bytes: u64,
    /// Stream of the other direction.
    pub peer: Option<usize>,
    /// Responses before that stream was known.
    pub unpaired: u32,
    /// Requests, of a connected service.
    pub requests: Requests,
    /// Packets marked CE, and the first one.
    pub marked: (u64, At),
    /// CNPs for the sender of the other direction: number, first and last.
    pub cnps: (u64, At, At),
    /// Queue keys of datagrams.
    pub qkeys: Values<QKey>,
    /// Partition keys.
    pub pkeys: Values<PKey>,
    /// Queue pairs that sent the datagrams.
    pub sources: Values<Qpn>,
    /// VLAN priorities.
    pub priorities: Values<u8>,
    /// DSCPs.
    pub dscps: Values<u8>,
    /// CNPs for this stream's sender: the time of each, and the bytes of this stream until then.
    pub reactions: Vec<(u64, u64)>,
}

/// CNPs whose times a stream remembers.
const MAX_CNPS: usize = 4096;

impl Stream {
    pub(super) fn new(key: Key, home: Home, transport: Transport, at: At) -> Stream {
        Stream {
            key,
            home,
            transport,
            version: Version::V2,
            first: at,
            last: at,
            packets: 0,
            bytes: 0,
            peer: None,
            unpaired: 0,
            requests: Requests::default(),
            marked: (0, At::default()),
            cnps: (0, At::default(), At::default()),
            qkeys: Values::default(),
            pkeys: Values::default(),
            sources: Values::default(),
            priorities: Values::default(),
            dscps: Values::default(),
            reactions: Vec::new(),
        }
    }

    /// Takes a packet of any kind.
    pub(super) fn packet(&mut self, roce: &Roce<'_>, packet: &Packet<'_>, at: At) {
        self.version = roce.version;
        self.last = at;
        self.packets += 1;
        self.bytes += roce.len as u64;
        let bth = packet.bth();
        if roce.flow.ecn() == Ecn::Ce {
            self.marked.0 += 1;
            if self.marked.0 == 1 {
                self.marked.1 = at;
            }
        }
        self.pkeys.note(bth.pkey, at);
        self.dscps.note(roce.flow.traffic_class >> 2, at);
        if let Some(priority) = roce.flow.vlan_priority {
            self.priorities.note(priority, at);
        }
        if let Some(deth) = packet.deth() {
            self.qkeys.note(deth.qkey, at);
            self.sources.note(deth.src_qp, at);
        }
    }

    /// Takes a CNP for this stream's sender.
    pub(super) fn slow_down(&mut self, at: At) {
        if self.reactions.len() < MAX_CNPS {
            self.reactions.push((at.time, self.bytes));
        }
    }

    /// Takes a CNP, which is a packet of this stream.
    pub(super) fn cnp(&mut self, at: At) {
        self.cnps.0 += 1;
        if self.cnps.0 == 1 {
            self.cnps.1 = at;
        }
        self.cnps.2 = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_of_two_interfaces_counts_once_whichever_has_it_first() {
        let mut home = Home::new(0, Psn::new(1));
        // Interface, PSN, whether it was seen before. PSN 3 is lost between the interfaces and sent again.
        let packets = [
            (0, 1, false),
            (1, 1, true),
            (1, 2, false),
            (0, 2, true),
            (0, 3, false),
            (0, 4, false),
            (1, 4, true),
            (0, 3, false),
            (1, 3, true),
        ];
        for (interface, psn, seen) in packets {
            assert_eq!(home.has_seen(interface, Psn::new(psn)), seen, "PSN {psn} on interface {interface}");
        }
    }
}

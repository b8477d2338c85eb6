//! Packets of a capture as Ethernet frames, with the fields by which a case selects those that show its
//! fault.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use urxe::wire::frame::{self, Checksums, Content, PauseFrame, VlanTag};
use urxe::wire::mad::{Mad, MessageKind};
use urxe::wire::{Flow, Mac, Opcode, Packet, Psn, Qpn, Syndrome, icrc};

/// Time of the first packets of computed captures, since the epoch: 21 September 2026.
pub const EPOCH: Duration = Duration::from_secs(1_790_000_000);

/// A packet of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shot {
    /// Time since the epoch.
    pub time: Duration,
    /// Whether the recording host sent the packet.
    pub sent: bool,
    /// Ethernet frame without FCS.
    pub frame: Vec<u8>,
}

/// Returns the MAC address of the host with an IP address: its last byte behind a fixed prefix.
pub fn mac(ip: IpAddr) -> Mac {
    let last = match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    Mac([0x02, 0, 0, 0x4d, 0, last])
}

/// Returns the Ethernet frame of an IP packet, with the MAC addresses of its source and destination.
pub fn ethernet(ip_packet: &[u8]) -> Vec<u8> {
    let address = |at: usize, len: usize| -> IpAddr {
        let bytes = &ip_packet[at..at + len];
        match <[u8; 4]>::try_from(bytes) {
            Ok(v4) => v4.into(),
            Err(_) => <[u8; 16]>::try_from(bytes).expect("an address of IPv6").into(),
        }
    };
    let (ether_type, src, dst) = match ip_packet[0] >> 4 {
        4 => ([8, 0], address(12, 4), address(16, 4)),
        _ => ([0x86, 0xdd], address(8, 16), address(24, 16)),
    };
    [&mac(dst).0[..], &mac(src).0, &ether_type, ip_packet].concat()
}

/// Reads a capture that `CaptureFile` has written.
///
/// In virtual time, the packets of a burst have one timestamp. They get those of a link of 25 Gb/s.
pub fn from_pcapng(bytes: &[u8]) -> Vec<Shot> {
    let mut reader = PcapNgReader::new(bytes).expect("a capture of urxe");
    let mut found: Vec<Shot> = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(block) = block.expect("a complete block") else { continue };
        // Bits 0 and 1 of the flags: 1 is inbound, 2 is outbound.
        let sent = block.options.iter().any(|option| {
            use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption::Flags;
            matches!(option, Flags(flags) if flags & 3 == 2)
        });
        let frame = ethernet(&block.data);
        let wire_time = Duration::from_nanos(frame.len() as u64 * 8 / 25);
        let free = found.last().map(|before| before.time + wire_time).unwrap_or_default();
        found.push(Shot { time: free.max(EPOCH + block.timestamp), sent, frame });
    }
    found
}

/// Reads a pcap file with Ethernet frames. The host with the MAC address `own` has recorded it.
pub fn from_pcap(bytes: &[u8], own: [u8; 6]) -> Vec<Shot> {
    let mut reader = PcapReader::new(bytes).expect("a pcap file");
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a complete packet");
        let frame = packet.data.into_owned();
        found.push(Shot { time: packet.timestamp, sent: frame[6..12] == own, frame });
    }
    found
}

/// Inserts a packet into a capture at its time.
pub fn insert(shots: &mut Vec<Shot>, shot: Shot) {
    let at = shots.partition_point(|other| other.time <= shot.time);
    shots.insert(at, shot);
}

/// Adds a VLAN tag to each frame, with the priority that `priority` returns for its traffic class.
pub fn tag(shots: &mut [Shot], id: u16, priority: impl Fn(u8) -> u8) {
    for shot in shots {
        let Some(flow) = flow_of(&shot.frame) else { continue };
        let control = u16::from(priority(flow.traffic_class)) << 13 | id;
        let tag = [0x81, 0, (control >> 8) as u8, control as u8];
        shot.frame.splice(12..12, tag);
        debug_assert_eq!(VlanTag::LEN, tag.len());
    }
}

/// Puts each frame into VXLAN (RFC 7348) between two tunnel endpoints, 192.0.2.N for the host 10.77.0.N.
pub fn tunnel(shots: &mut [Shot], network: u32) {
    for shot in shots {
        let inner = std::mem::take(&mut shot.frame);
        let [dst, src] = [inner[5], inner[11]].map(|n| [192, 0, 2, n]);
        let mut ip = Vec::new();
        etherparse::PacketBuilder::ipv4(src, dst, 64)
            .udp(49_152 + u16::from(inner[11]), 4789)
            .write(&mut ip, &[&[8, 0, 0, 0][..], &(network << 8).to_be_bytes(), &inner].concat())
            .expect("the packet is short enough");
        shot.frame = ethernet(&ip);
    }
}

/// Returns the IP and UDP fields of a RoCEv2 frame.
fn flow_of(frame: &[u8]) -> Option<Flow> {
    match frame::parse(frame, Checksums::Trust).ok()?.content {
        Content::Roce(roce) => Some(roce.flow),
        _ => None,
    }
}

/// EtherType of pause frames.
const MAC_CONTROL: [u8; 2] = [0x88, 8];
/// Opcode of an acknowledgement.
const RC_ACKNOWLEDGE: Opcode = Opcode(0x11);
/// Length of the headers that VXLAN puts before a frame.
const TUNNEL_LEN: usize = 50;

/// Kind of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Roce,
    Arp,
    Neighbour,
    Icmp,
    Pause(PauseFrame),
    Other,
}

/// Fields of a packet.
#[derive(Clone, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub sent: bool,
    /// Time since the packet before, pause frames aside.
    pub idle: Duration,
    pub flow: Flow,
    pub opcode: Opcode,
    pub qpn: Qpn,
    pub psn: Psn,
    pub syndrome: Option<Syndrome>,
    /// Number of bytes of the payload.
    pub len: usize,
    /// Whether an earlier packet of the same opcode had this PSN and destination.
    pub again: bool,
    /// Number of PSNs that are missing before this one, among the requests or READ responses of its queue
    /// pair.
    pub gap: u32,
    pub icrc_is_right: bool,
    pub message: Option<MessageKind>,
    /// UDP payload of a RoCEv2 packet, otherwise the frame.
    pub bytes: Vec<u8>,
}

impl Seen {
    pub fn is_request(&self) -> bool {
        self.kind == Kind::Roce && self.opcode.row().operation.is_request() && self.message.is_none()
    }

    /// Reports whether the packet is a NAK, but no RNR NAK.
    pub fn is_nak(&self) -> bool {
        matches!(self.syndrome, Some(Syndrome::Nak(_)))
    }

    pub fn is_rnr(&self) -> bool {
        matches!(self.syndrome, Some(Syndrome::RnrNak(_)))
    }

    pub fn is_ack(&self) -> bool {
        self.opcode == RC_ACKNOWLEDGE && matches!(self.syndrome, Some(Syndrome::Ack { .. }))
    }

    pub fn is_cm(&self, kind: MessageKind) -> bool {
        self.message == Some(kind)
    }

    pub fn packet(&self) -> Option<Packet<'_>> {
        Packet::parse(&self.bytes).ok()
    }
}

/// Decodes the packets of a capture.
pub fn decode(shots: &[Shot]) -> Vec<Seen> {
    let mut before: HashSet<(IpAddr, Opcode, Qpn, Psn)> = HashSet::new();
    let mut next: BTreeMap<(Qpn, bool), Psn> = BTreeMap::new();
    let mut last = shots.first().map(|shot| shot.time).unwrap_or_default();
    let decode = |shot: &Shot| {
        let idle = shot.time.saturating_sub(last);
        if shot.frame[12..14] != MAC_CONTROL {
            last = shot.time;
        }
        let mut seen = Seen {
            kind: Kind::Other,
            sent: shot.sent,
            idle,
            flow: Flow::new([0; 4].into(), [0; 4].into(), 0),
            opcode: Opcode(0xff),
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            syndrome: None,
            len: 0,
            again: false,
            gap: 0,
            icrc_is_right: true,
            message: None,
            bytes: shot.frame.clone(),
        };
        let is_tunnelled = shot.frame.get(36..38) == Some(&4789u16.to_be_bytes());
        let frame = if is_tunnelled { &shot.frame[TUNNEL_LEN..] } else { &shot.frame[..] };
        let Ok(parsed) = frame::parse(frame, Checksums::Trust) else { return seen };
        let roce = match parsed.content {
            Content::Roce(roce) => roce,
            Content::Pause(pause) => {
                seen.kind = Kind::Pause(pause);
                return seen;
            }
            _ => {
                seen.kind = match (&frame[12..14], frame.get(23), frame.get(20), frame.get(54)) {
                    ([8, 6], ..) => Kind::Arp,
                    ([8, 0], Some(1), ..) => Kind::Icmp,
                    ([0x86, 0xdd], _, Some(58), Some(133..=137)) => Kind::Neighbour,
                    ([0x86, 0xdd], _, Some(58), _) => Kind::Icmp,
                    _ => Kind::Other,
                };
                return seen;
            }
        };
        let bytes = frame[roce.payload.clone()].to_vec();
        let Ok(packet) = Packet::parse(&bytes) else { return seen };
        let (bth, row) = (packet.bth(), packet.row());
        seen.kind = Kind::Roce;
        seen.flow = roce.flow;
        (seen.opcode, seen.qpn, seen.psn) = (bth.opcode, bth.dest_qp, bth.psn);
        seen.syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        seen.len = packet.payload().len();
        seen.icrc_is_right = icrc::verify(&roce.flow, roce.ident, 0, &bytes);
        if bth.dest_qp == Qpn::GSI {
            seen.message = Mad::parse(packet.payload()).ok().map(|mad| mad.message.kind());
        }
        seen.again = !before.insert((roce.flow.dst, bth.opcode, bth.dest_qp, bth.psn));
        let is_request = row.operation.is_request();
        if seen.message.is_none() && (is_request || row.operation == urxe::wire::Operation::ReadResponse) {
            let expected = next.entry((bth.dest_qp, is_request)).or_insert(bth.psn);
            let ahead = bth.psn.get().wrapping_sub(expected.get()) & 0xff_ffff;
            if ahead < 1 << 23 {
                seen.gap = ahead;
                // A READ request takes the PSNs of its responses.
                let taken = match packet.reth() {
                    Some(reth) if row.operation == urxe::wire::Operation::ReadRequest => {
                        reth.dma_len.div_ceil(READ_MTU).max(1)
                    }
                    _ => 1,
                };
                *expected = Psn::new(bth.psn.get() + taken);
            }
        }
        seen.bytes = bytes;
        seen
    };
    shots.iter().map(decode).collect()
}

/// Path MTU of all captures in which a case looks for gaps behind READs.
pub const READ_MTU: u32 = 256;

//! Classic BPF programs for packet sockets: the socket filter, which accepts only RoCEv2 packets for the link
//! and the control packets that a host stack has to process, and the program that selects the shard for each
//! frame in a [fanout group](super::fanout).

use std::net::IpAddr;

use libc::{
    BPF_A, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_W, SKF_AD_OFF,
    SKF_AD_PKTTYPE, SKF_AD_PROTOCOL, SKF_AD_VLAN_TAG, sock_filter,
};

use crate::host::bpf::{if_eq, load, mask, op, ret, unless_eq};
use crate::nic::ShardId;
use crate::wire::frame::PauseFrame;
use crate::wire::{Mac, ROCE_PORT};

/// Maximum number of addresses that the filter checks, since a jump can skip at most 255 instructions. If
/// there are more, addresses are checked in user space instead.
const MAX_ADDRESSES: usize = 16;

/// An IP version, with offsets from the IP header.
struct IpVersion {
    ethertype: u32,
    is_ipv4: bool,
    protocol: u32,
    dst: u32,
    /// Mask for the first byte of a destination address, and the masked value that identifies multicast
    /// addresses.
    multicast: (u32, u32),
}

const IP_VERSIONS: [IpVersion; 2] = [
    IpVersion { ethertype: 0x0800, is_ipv4: true, protocol: 9, dst: 16, multicast: (0xf0, 0xe0) },
    IpVersion { ethertype: 0x86dd, is_ipv4: false, protocol: 6, dst: 24, multicast: (0xff, 0xff) },
];

impl IpVersion {
    /// Returns instructions that load the bits that identify multicast addresses. The IP header is at the
    /// offset `at`.
    fn load_multicast(&self, at: u32) -> [sock_filter; 2] {
        [load(BPF_B, at + self.dst), mask(self.multicast.0)]
    }

    /// Returns the instruction that loads the length of the IP header at the offset `at` into the index
    /// register.
    fn load_header_len(&self, at: u32) -> sock_filter {
        if self.is_ipv4 { op(BPF_LDX | BPF_B | BPF_MSH, at) } else { op(BPF_LDX | BPF_IMM, 40) }
    }
}

/// IP protocol number of UDP.
const UDP: u32 = 17;

/// EtherType of MAC control frames, among them pause frames.
const MAC_CONTROL: u16 = 0x8808;

/// Recipient of the frames that the filter accepts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipient<'a> {
    /// The interface itself, with the given addresses; the kernel answers neighbour discovery.
    Interface(&'a [IpAddr]),
    /// A host stack with the given MAC and VLAN ID, on a promiscuous interface.
    HostStack(Mac, Option<u16>),
}

type Block = Vec<sock_filter>;

/// Returns an instruction that loads one of the kernel's ancillary values (`SKF_AD_*`), which are not part of
/// the frame.
fn load_ancillary(what: i32) -> sock_filter {
    load(BPF_W, (SKF_AD_OFF + what) as u32)
}

fn accept() -> sock_filter {
    ret(u32::MAX)
}

fn reject() -> sock_filter {
    ret(0)
}

/// Appends instructions that drop the frame unless the accumulator equals `k`.
fn require(out: &mut Block, k: u32) {
    unless_eq(out, k, &[reject()]);
}

/// Offset of the last byte of the destination QPN, from the start of the UDP header.
const DEST_QP_LOW: u32 = 8 + 7;

/// Returns instructions that reject all frames but those to a MAC address.
fn require_destination(mac: Mac) -> Block {
    let [a, b, c, d, e, f] = mac.0;
    let mut p = vec![load(BPF_W, 0)];
    require(&mut p, u32::from_be_bytes([a, b, c, d]));
    p.push(load(BPF_H, 4));
    require(&mut p, u16::from_be_bytes([e, f]).into());
    p
}

/// Returns the socket filter for one shard of a NIC on an Ethernet interface. Requests to the host stack
/// itself go to the first shard only, since they are for no queue pair; replies and multicast packets go to
/// all shards. Pause frames go to the first shard, if `takes_pauses` is set.
pub(super) fn program(recipient: Recipient<'_>, shard: ShardId, takes_pauses: bool) -> Vec<sock_filter> {
    let mut p = Block::new();
    if takes_pauses && shard.is_first() {
        // Before the check of the VLAN, because they have no tag. The sockets do not receive outgoing frames
        // of this kind except in a fanout group before Linux 6.10, see below.
        p.push(load_ancillary(SKF_AD_PKTTYPE));
        if_eq(&mut p, libc::PACKET_OUTGOING.into(), &[reject()]);
        let mut pause = require_destination(PauseFrame::DESTINATION);
        pause.push(accept());
        p.push(load(BPF_H, 12));
        if_eq(&mut p, MAC_CONTROL.into(), &pause);
    }
    // The kernel has removed the tag. VLAN 0 carries only a priority; other VLANs have their own interfaces
    // or host stacks.
    let vlan = if let Recipient::HostStack(_, vlan) = recipient { vlan } else { None };
    p.push(load_ancillary(SKF_AD_VLAN_TAG));
    p.push(mask(0xfff));
    require(&mut p, vlan.unwrap_or(0).into());
    p.push(load_ancillary(SKF_AD_PKTTYPE));
    // The sockets ignore outgoing frames by option, but a fanout group of them does not before Linux 6.10.
    if_eq(&mut p, libc::PACKET_OUTGOING.into(), &[reject()]);
    match recipient {
        Recipient::Interface(_) => if_eq(&mut p, libc::PACKET_OTHERHOST.into(), &[reject()]),
        Recipient::HostStack(mac, _) => {
            p.push(load(BPF_B, 0));
            p.push(mask(1));
            if_eq(&mut p, 0, &require_destination(mac));
        }
    }
    p.push(load(BPF_H, 12));
    if let Recipient::HostStack(..) = recipient {
        let mut arp = Block::new();
        if !shard.is_first() {
            arp.push(load(BPF_H, 14 + 6));
            require(&mut arp, 2);
        }
        arp.push(accept());
        if_eq(&mut p, 0x0806, &arp);
    }
    for version in IP_VERSIONS {
        if_eq(&mut p, version.ethertype, &ip(&version, recipient, shard));
    }
    // RoCEv1 packets are only counted.
    if_eq(&mut p, 0x8915, &[if shard.is_first() { accept() } else { reject() }]);
    p.push(reject());
    p
}

/// Returns the fanout program, which selects one of `1 << bits` shards for a frame: the one that has the
/// destination queue pair, or the first shard if the frame is not for a particular queue pair. The program
/// sees each frame from the network header on.
pub(super) fn fanout_program(bits: u32) -> Vec<sock_filter> {
    let first = ret(0);
    let mut p = vec![load_ancillary(SKF_AD_PROTOCOL)];
    for version in IP_VERSIONS {
        let mut ip = vec![load(BPF_B, version.protocol)];
        unless_eq(&mut ip, UDP, &[first]);
        ip.extend(version.load_multicast(0));
        if_eq(&mut ip, version.multicast.1, &[first]);
        ip.extend([version.load_header_len(0), load_udp(BPF_B, DEST_QP_LOW)]);
        ip.extend([mask((1 << bits) - 1), op(BPF_RET | BPF_A, 0)]);
        if_eq(&mut p, version.ethertype, &ip);
    }
    p.push(first);
    p
}

/// Returns an instruction that loads a value from a UDP datagram. `at` is the offset of the IP header plus
/// that of the value in the datagram; the index register holds the length of the IP header.
fn load_udp(size: u32, at: u32) -> sock_filter {
    op(BPF_LD | size | BPF_IND, at)
}

/// Returns the part of the socket filter for packets of one IP version.
fn ip(version: &IpVersion, recipient: Recipient<'_>, shard: ShardId) -> Block {
    let mut p = vec![load(BPF_B, 14 + version.protocol)];
    match recipient {
        Recipient::HostStack(..) if version.is_ipv4 => icmp_and_igmp(&mut p, shard),
        Recipient::HostStack(..) => icmpv6(&mut p, shard),
        Recipient::Interface(_) => {}
    }
    require(&mut p, UDP);
    if version.is_ipv4 {
        // Only the first fragment contains the ports.
        p.extend([load(BPF_H, 14 + 6), mask(0x1fff)]);
        require(&mut p, 0);
    }
    p.extend([version.load_header_len(14), load_udp(BPF_H, 14 + 2)]);
    require(&mut p, ROCE_PORT.into());
    if !shard.is_alone() {
        p.extend(version.load_multicast(14));
        let mut unicast = vec![load_udp(BPF_B, 14 + DEST_QP_LOW), mask((1 << shard.bits()) - 1)];
        require(&mut unicast, shard.index());
        unless_eq(&mut p, version.multicast.1, &unicast);
    }
    if let Recipient::Interface(addresses) = recipient
        && addresses.len() <= MAX_ADDRESSES
    {
        for own in addresses.iter().filter(|own| own.is_ipv4() == version.is_ipv4) {
            let octets = match own {
                IpAddr::V4(own) => &own.octets()[..],
                IpAddr::V6(own) => &own.octets(),
            };
            // From the last word backwards, each comparison nested in the match of the word before.
            let mut matches = vec![accept()];
            for (word, octets) in octets.as_chunks().0.iter().enumerate().rev() {
                let mut block = vec![load(BPF_W, 14 + version.dst + 4 * word as u32)];
                if_eq(&mut block, u32::from_be_bytes(*octets), &matches);
                matches = block;
            }
            p.extend(matches);
        }
        p.extend(version.load_multicast(14));
        require(&mut p, version.multicast.1);
    }
    p.push(accept());
    p
}

/// Appends instructions that accept the ICMP messages and IGMP queries that a host stack has to process.
fn icmp_and_igmp(p: &mut Block, shard: ShardId) {
    if_eq(p, 1, &[if shard.is_first() { accept() } else { reject() }]);
    let mut igmp = vec![op(BPF_LDX | BPF_B | BPF_MSH, 14), op(BPF_LD | BPF_B | BPF_IND, 14)];
    require(&mut igmp, 0x11);
    igmp.push(accept());
    if_eq(p, 2, &igmp);
}

/// Appends instructions that accept the ICMPv6 messages that a host stack has to process.
fn icmpv6(p: &mut Block, shard: ShardId) {
    let mut icmp = Block::new();
    if !shard.is_first() {
        icmp.push(load(BPF_B, 14 + 40));
        require(&mut icmp, 136);
    }
    icmp.push(accept());
    if_eq(p, 58, &icmp);
    // MLD queries follow a hop-by-hop options header of 8 bytes.
    let mut mld = vec![load(BPF_H, 14 + 40)];
    require(&mut mld, 58 << 8);
    mld.push(load(BPF_B, 14 + 40 + 8));
    require(&mut mld, 130);
    mld.push(accept());
    if_eq(p, 0, &mld);
}

#[cfg(test)]
mod tests {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K};

    use super::*;
    use crate::wire::Flow;
    use crate::wire::frame::{Arp, Echo, append_arp, append_echo, append_frame};

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn program(recipient: Recipient<'_>, shard: ShardId) -> Vec<sock_filter> {
        super::program(recipient, shard, false)
    }

    fn run(program: &[sock_filter], frame: &[u8], vlan: u32, kind: u32) -> bool {
        result(program, frame, vlan, kind) != 0
    }

    /// Interprets a program as the kernel does: a load beyond the end of the packet ends the program with
    /// result 0.
    fn result(program: &[sock_filter], frame: &[u8], vlan: u32, kind: u32) -> u32 {
        let (mut a, mut x, mut pc) = (0u32, 0u32, 0);
        loop {
            let i = &program[pc];
            pc += 1;
            let get = |at: u32, n: usize| {
                let bytes = frame.get(at as usize..at as usize + n)?;
                Some(bytes.iter().fold(0u32, |v, b| v << 8 | u32::from(*b)))
            };
            let loaded = match u32::from(i.code) {
                c if c == BPF_LD | BPF_W | BPF_ABS && i.k == (SKF_AD_OFF + SKF_AD_VLAN_TAG) as u32 => {
                    Some(vlan)
                }
                c if c == BPF_LD | BPF_W | BPF_ABS && i.k == (SKF_AD_OFF + SKF_AD_PKTTYPE) as u32 => {
                    Some(kind)
                }
                // Used only by programs that see the frame from its network header on.
                c if c == BPF_LD | BPF_W | BPF_ABS && i.k == (SKF_AD_OFF + SKF_AD_PROTOCOL) as u32 => Some(
                    [0x0806, 0x0800, 0x86dd]
                        [[4, 6].iter().position(|v| frame[0] >> 4 == *v).map_or(0, |i| i + 1)],
                ),
                c if c == BPF_LD | BPF_W | BPF_ABS => get(i.k, 4),
                c if c == BPF_LD | BPF_H | BPF_ABS => get(i.k, 2),
                c if c == BPF_LD | BPF_B | BPF_ABS => get(i.k, 1),
                c if c == BPF_LD | BPF_H | BPF_IND => get(i.k + x, 2),
                c if c == BPF_LD | BPF_B | BPF_IND => get(i.k + x, 1),
                c if c == BPF_LDX | BPF_B | BPF_MSH => {
                    let Some(v) = get(i.k, 1) else { return 0 };
                    x = (v & 0xf) * 4;
                    Some(a)
                }
                c if c == BPF_LDX | BPF_IMM => {
                    x = i.k;
                    Some(a)
                }
                c if c == BPF_ALU | BPF_AND | BPF_K => Some(a & i.k),
                c if c == BPF_JMP | BPF_JEQ | BPF_K => {
                    pc += usize::from(if a == i.k { i.jt } else { i.jf });
                    Some(a)
                }
                c if c == BPF_RET | BPF_K => return i.k,
                c if c == BPF_RET | BPF_A => return a,
                other => panic!("instruction {other:#x}"),
            };
            let Some(v) = loaded else { return 0 };
            a = v;
        }
    }

    fn packet(dst: &str, to: Mac) -> Vec<u8> {
        let src = if dst.contains(':') { "fd00::9" } else { "10.0.0.9" };
        let mut out = Vec::new();
        append_frame(
            &mut out,
            (to, PEER),
            None,
            &Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 7),
            0,
            &[0; 16],
        );
        out
    }

    #[test]
    fn interface_filter_accepts_rocev2_for_its_addresses_and_for_groups() {
        let addresses: Vec<IpAddr> =
            ["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::2"].iter().map(|a| a.parse().unwrap()).collect();
        let p = program(Recipient::Interface(&addresses), ShardId::WHOLE);
        for local in ["10.0.0.1", "10.0.0.2", "239.1.2.3", "fd00::1", "fe80::2", "ff0e::7"] {
            assert!(run(&p, &packet(local, OWN), 0, 0), "{local}");
            assert!(run(&p, &packet(local, OWN), 0xe000, 0), "{local} with a priority");
            assert!(!run(&p, &packet(local, OWN), 5, 0), "{local} in a VLAN");
            for kind in [libc::PACKET_OTHERHOST, libc::PACKET_OUTGOING] {
                assert!(!run(&p, &packet(local, OWN), 0, kind.into()), "{local} of kind {kind}");
            }
        }
        for other in ["10.0.0.3", "fd00::2", "fe80::1"] {
            assert!(!run(&p, &packet(other, OWN), 0, 0), "{other}");
        }
        let mut dns = packet("10.0.0.1", OWN);
        dns[36] = 0;
        assert!(!run(&p, &dns, 0, 0));
        let mut roce_v1 = packet("fd00::1", OWN);
        roce_v1[12..14].copy_from_slice(&[0x89, 0x15]);
        assert!(run(&p, &roce_v1, 0, 0));
        let mut later_fragment = packet("10.0.0.1", OWN);
        later_fragment[21] = 1;
        assert!(!run(&p, &later_fragment, 0, 0));
        assert!(!run(&p, &packet("fd00::1", OWN)[..50], 0, 0));
        // Too many addresses for the filter: packets to any address are accepted.
        let many = vec!["10.0.0.1".parse().unwrap(); MAX_ADDRESSES + 1];
        assert!(run(&program(Recipient::Interface(&many), ShardId::WHOLE), &packet("10.0.0.3", OWN), 0, 0));
    }

    #[test]
    fn only_the_first_shard_accepts_pause_frames_and_only_with_flow_control() {
        let mut pause = Vec::new();
        PauseFrame::new(1, 1).append(&mut pause, PEER);
        let multicast = libc::PACKET_MULTICAST.into();
        for recipient in [Recipient::Interface(&[]), Recipient::HostStack(OWN, Some(5))] {
            let [first, second] =
                [0, 1].map(|i| super::program(recipient, ShardId::new(i, 2).unwrap(), true));
            assert_eq!([&first, &second].map(|p| run(p, &pause, 0, multicast)), [true, false]);
            assert!(!run(&first, &pause, 0, libc::PACKET_OUTGOING.into()));
            assert!(!run(&program(recipient, ShardId::WHOLE), &pause, 0, multicast));
            let mut other = pause.clone();
            other[5] = 0x0e;
            assert!(!run(&first, &other, 0, multicast));
            // Packets are accepted as without flow control.
            let with = super::program(recipient, ShardId::WHOLE, true);
            for (dst, vlan) in [("239.1.2.3", 0), ("239.1.2.3", 5), ("fd00::1", 0)] {
                let frame = packet(dst, OWN);
                assert_eq!(
                    run(&with, &frame, vlan, 0),
                    run(&program(recipient, ShardId::WHOLE), &frame, vlan, 0)
                );
            }
        }
    }

    #[test]
    fn filter_of_a_host_stack_in_a_vlan_accepts_only_that_vlan() {
        let p = program(Recipient::HostStack(OWN, Some(5)), ShardId::WHOLE);
        let frame = packet("10.0.0.1", OWN);
        for (vlan, accepted) in [(5, true), (7 << 13 | 5, true), (0, false), (7 << 13, false), (6, false)] {
            assert_eq!(run(&p, &frame, vlan, 0), accepted, "{vlan:#x}");
        }
    }

    #[test]
    fn host_stack_filter_accepts_rocev2_and_requests_to_the_host_stack() {
        let p = program(Recipient::HostStack(OWN, None), ShardId::WHOLE);
        assert!(run(&p, &packet("10.0.0.1", OWN), 0, libc::PACKET_OTHERHOST.into()));
        assert!(!run(&p, &packet("10.0.0.1", OWN), 0, libc::PACKET_OUTGOING.into()));
        assert!(run(&p, &packet("239.0.0.1", Mac([1, 0, 0x5e, 0, 0, 1])), 0, 2));
        assert!(!run(&p, &packet("10.0.0.1", PEER), 0, 0));
        let mut arp = Vec::new();
        let zero = "0.0.0.0".parse().unwrap();
        let request =
            Arp { request: true, sender_mac: PEER, sender_ip: zero, target_mac: OWN, target_ip: zero };
        append_arp(&mut arp, Mac::BROADCAST, &request);
        assert!(run(&p, &arp, 0, 1));
        for (src, dst) in [("10.0.0.9", "10.0.0.1"), ("fd00::9", "fd00::1")] {
            let mut ping = Vec::new();
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            append_echo(&mut ping, OWN, PEER, &Echo { request: true, src, dst, id: 1, seq: 1 }, b"");
            assert!(run(&p, &ping, 0, 3));
            assert!(
                !run(&program(Recipient::Interface(&[dst]), ShardId::WHOLE), &ping, 0, 0),
                "the kernel responds to it"
            );
        }
    }

    #[test]
    fn host_stack_filter_accepts_membership_queries_but_not_reports() {
        let mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
        let igmp = |kind: u8, options: usize| {
            let mut frame = packet("224.0.0.1", mac);
            frame[14] = 0x45 + options as u8;
            frame[23] = 2;
            frame.splice(34..34, vec![0; options * 4]);
            frame[34 + options * 4] = kind;
            frame
        };
        let mld = |kind: u8| {
            let mut frame = packet("ff02::1", mac);
            frame[20] = 0;
            frame.splice(54..54, [58, 0, 5, 2, 0, 0, 1, 0]);
            frame[62] = kind;
            frame
        };
        let (host_stack, own) = (
            program(Recipient::HostStack(OWN, None), ShardId::WHOLE),
            program(Recipient::Interface(&[]), ShardId::WHOLE),
        );
        for (query, report) in
            [(igmp(0x11, 1), igmp(0x22, 1)), (igmp(0x11, 0), igmp(0x16, 0)), (mld(130), mld(143))]
        {
            assert!(run(&host_stack, &query, 0, 2));
            assert!(!run(&host_stack, &report, 0, 2));
            assert!(!run(&own, &query, 0, 2), "the kernel responds to it");
        }
    }

    #[test]
    fn shard_filter_accepts_packets_for_its_queue_pairs_and_for_all_groups() {
        let own: Vec<IpAddr> = ["10.0.0.1", "fd00::1"].iter().map(|a| a.parse().unwrap()).collect();
        for recipient in [Recipient::Interface(&own), Recipient::HostStack(OWN, None)] {
            for qpn in [0x10_u8, 0x11, 0x12, 0xff] {
                for (dst, to, at) in [
                    ("10.0.0.1", OWN, 14 + 20 + 8 + 7),
                    ("fd00::1", OWN, 14 + 40 + 8 + 7),
                    ("239.1.2.3", Mac([1, 0, 0x5e, 1, 2, 3]), 14 + 20 + 8 + 7),
                    ("ff0e::7", Mac([0x33, 0x33, 0, 0, 0, 7]), 14 + 40 + 8 + 7),
                ] {
                    let mut frame = packet(dst, to);
                    frame[at] = qpn;
                    let group = to.is_multicast();
                    for index in 0..4 {
                        let p = program(recipient, ShardId::new(index, 4).unwrap());
                        let accepted = group || usize::from(qpn) % 4 == index;
                        assert_eq!(run(&p, &frame, 0, 0), accepted, "{dst}, QP {qpn:#x}, shard {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn fanout_program_selects_the_shard_of_the_queue_pair() {
        for bits in [1, 2, 6] {
            let p = fanout_program(bits);
            let shard = |frame: &[u8]| result(&p, &frame[14..], 0, 0);
            for (dst, at) in [("10.0.0.1", 14 + 20 + 8 + 7), ("fd00::1", 14 + 40 + 8 + 7)] {
                for qpn in [0_u8, 1, 2, 0x35, 0xff] {
                    let mut frame = packet(dst, OWN);
                    frame[at - 2..=at].copy_from_slice(&[0xff, 0xff, qpn]);
                    assert_eq!(
                        shard(&frame),
                        u32::from(qpn) % (1 << bits),
                        "{dst}, QP {qpn:#x}, {bits} bits"
                    );
                    let protocol = if dst.contains(':') { 14 + 6 } else { 14 + 9 };
                    assert_eq!(frame[protocol], 17);
                    for other in [1, 2, 6, 58] {
                        frame[protocol] = other;
                        assert_eq!(shard(&frame), 0, "protocol {other}");
                    }
                    frame[protocol] = 17;
                    // The kernel selects the first shard if a frame is too short.
                    assert_eq!(shard(&frame[..at]), 0);
                }
            }
            for (group, at) in [("239.1.2.3", 14 + 20 + 8 + 7), ("ff0e::7", 14 + 40 + 8 + 7)] {
                let mut frame = packet(group, Mac([1, 0, 0x5e, 1, 2, 3]));
                frame[at] = 0xff;
                assert_eq!(shard(&frame), 0, "{group}");
            }
            let mut with_options = packet("10.0.0.1", OWN);
            with_options[14] = 0x46;
            with_options.splice(34..34, [0; 4]);
            with_options[14 + 24 + 8 + 7] = 1;
            assert_eq!(shard(&with_options), 1);
            let mut arp = Vec::new();
            let zero = "0.0.0.0".parse().unwrap();
            let request =
                Arp { request: true, sender_mac: PEER, sender_ip: zero, target_mac: OWN, target_ip: zero };
            append_arp(&mut arp, Mac::BROADCAST, &request);
            assert_eq!(shard(&arp), 0);
        }
    }

    #[test]
    fn only_the_first_shard_accepts_requests_but_all_accept_replies() {
        let [first, second] =
            [0, 1].map(|i| program(Recipient::HostStack(OWN, None), ShardId::new(i, 2).unwrap()));
        for request in [true, false] {
            let mut arp = Vec::new();
            let (sender_ip, target_ip) = ("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
            let arp_of = Arp { request, sender_mac: PEER, sender_ip, target_mac: OWN, target_ip };
            append_arp(&mut arp, OWN, &arp_of);
            assert_eq!([&first, &second].map(|p| run(p, &arp, 0, 0)), [true, !request]);
        }
        let (src, dst) = ("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let mut ping = Vec::new();
        append_echo(&mut ping, OWN, PEER, &Echo { request: true, src, dst, id: 1, seq: 1 }, b"");
        assert_eq!([&first, &second].map(|p| run(p, &ping, 0, 0)), [true, false]);
        for (kind, by_second) in [(135, false), (136, true), (128, false)] {
            let mut frame = packet("fd00::1", OWN);
            frame[14 + 6] = 58;
            frame[14 + 40] = kind;
            assert_eq!([&first, &second].map(|p| run(p, &frame, 0, 0)), [true, by_second], "ICMPv6 {kind}");
        }
    }
}

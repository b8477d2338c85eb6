//! Classic BPF programs for packet sockets: the socket filter, which accepts only RoCEv2 packets for the link
//! and the control packets that a host stack has to process, and the program that selects the shard for each
//! frame in a [fanout group](super::fanout).

use std::net::IpAddr;

use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX,
    BPF_MSH, BPF_RET, BPF_W, SKF_AD_OFF, SKF_AD_PKTTYPE, SKF_AD_PROTOCOL, SKF_AD_VLAN_TAG, sock_filter,
};

use crate::nic::ShardId;
use crate::wire::frame::PauseFrame;
use crate::wire::{Mac, ROCE_PORT};

/// Maximum number of addresses that the filter checks, since a jump can skip at most 255 instructions. If
/// there are more, addresses are checked in user space instead.
const MAX_ADDRESSES: usize = 16;

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

fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(size: u32, at: u32) -> sock_filter {
    op(BPF_LD | size | BPF_ABS, at)
}

/// Returns an instruction that loads one of the kernel's ancillary values (`SKF_AD_*`), which are not part of
/// the frame.
fn load_ancillary(what: i32) -> sock_filter {
    load(BPF_W, (SKF_AD_OFF + what) as u32)
}

fn mask(bits: u32) -> sock_filter {
    op(BPF_ALU | BPF_AND | BPF_K, bits)
}

fn accept() -> sock_filter {
    op(BPF_RET | BPF_K, u32::MAX)
}

fn reject() -> sock_filter {
    op(BPF_RET | BPF_K, 0)
}

/// Appends instructions that execute `then` if the accumulator equals `k`, and skip it otherwise.
fn if_eq(out: &mut Block, k: u32, then: Block) {
    let skip = u8::try_from(then.len()).expect("a block has at most 255 instructions");
    out.push(sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: skip, k });
    out.extend(then);
}

/// Appends instructions that drop the frame unless the accumulator equals `k`.
fn require(out: &mut Block, k: u32) {
    out.push(sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 1, jf: 0, k });
    out.push(reject());
}

/// Appends instructions that execute `then` unless the accumulator equals `k`. Execution continues after
/// `then` unless it ends the program.
fn unless_eq(out: &mut Block, k: u32, then: Block) {
    let skip = u8::try_from(then.len()).expect("a block has at most 255 instructions");
    out.push(sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: skip, jf: 0, k });
    out.extend(then);
}

/// Offset of the last byte of the destination QPN, from the start of the UDP header.
const DEST_QP_LOW: u32 = 8 + 7;

/// Returns instructions that drop the frame unless its destination queue pair belongs to `shard`. The
/// instruction `byte` loads the last byte of the destination QPN.
fn require_shard(byte: sock_filter, shard: ShardId) -> Block {
    let mut p = vec![byte, mask((1 << shard.bits()) - 1)];
    require(&mut p, shard.index());
    p
}

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
        // Before the check of the VLAN, because they have no tag. The sockets do not receive outgoing frames of
        // this kind except in a fanout group before Linux 6.10, see below.
        p.push(load_ancillary(SKF_AD_PKTTYPE));
        if_eq(&mut p, libc::PACKET_OUTGOING.into(), vec![reject()]);
        let mut pause = require_destination(PauseFrame::DESTINATION);
        pause.push(accept());
        p.push(load(BPF_H, 12));
        if_eq(&mut p, MAC_CONTROL.into(), pause);
    }
    // The kernel has removed the tag. VLAN 0 carries only a priority; other VLANs have their own interfaces
    // or host stacks.
    let vlan = if let Recipient::HostStack(_, vlan) = recipient { vlan } else { None };
    p.push(load_ancillary(SKF_AD_VLAN_TAG));
    p.push(mask(0xfff));
    require(&mut p, vlan.unwrap_or(0).into());
    p.push(load_ancillary(SKF_AD_PKTTYPE));
    // The sockets ignore outgoing frames by option, but a fanout group of them does not before Linux 6.10.
    if_eq(&mut p, libc::PACKET_OUTGOING.into(), vec![reject()]);
    match recipient {
        Recipient::Interface(_) => if_eq(&mut p, libc::PACKET_OTHERHOST.into(), vec![reject()]),
        Recipient::HostStack(mac, _) => {
            p.push(load(BPF_B, 0));
            p.push(mask(1));
            if_eq(&mut p, 0, require_destination(mac));
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
        if_eq(&mut p, 0x0806, arp);
    }
    let ip = ipv4(recipient, shard);
    if_eq(&mut p, 0x0800, ip);
    let ip = ipv6(recipient, shard);
    if_eq(&mut p, 0x86dd, ip);
    // RoCEv1 packets are only counted.
    if_eq(&mut p, 0x8915, vec![if shard.is_first() { accept() } else { reject() }]);
    p.push(reject());
    p
}

/// Returns the fanout program, which selects one of `1 << bits` shards for a frame: the one that has the
/// destination queue pair, or the first shard if the frame is not for a particular queue pair. The program
/// sees each frame from the network header on.
pub(super) fn fanout_program(bits: u32) -> Vec<sock_filter> {
    let first = || op(BPF_RET | BPF_K, 0);
    let index = || [mask((1 << bits) - 1), op(BPF_RET | BPF_A, 0)];
    let mut ipv4 = vec![load(BPF_B, 9)];
    unless_eq(&mut ipv4, 17, vec![first()]);
    ipv4.extend([load(BPF_W, 16), mask(0xf000_0000)]);
    if_eq(&mut ipv4, 0xe000_0000, vec![first()]);
    ipv4.extend([op(BPF_LDX | BPF_B | BPF_MSH, 0), op(BPF_LD | BPF_B | BPF_IND, DEST_QP_LOW)]);
    ipv4.extend(index());
    let mut ipv6 = vec![load(BPF_B, 6)];
    unless_eq(&mut ipv6, 17, vec![first()]);
    ipv6.push(load(BPF_B, 24));
    if_eq(&mut ipv6, 0xff, vec![first()]);
    ipv6.push(load(BPF_B, 40 + DEST_QP_LOW));
    ipv6.extend(index());
    let mut p = vec![load_ancillary(SKF_AD_PROTOCOL)];
    if_eq(&mut p, 0x0800, ipv4);
    if_eq(&mut p, 0x86dd, ipv6);
    p.push(first());
    p
}

fn ipv4(recipient: Recipient<'_>, shard: ShardId) -> Block {
    let mut p = vec![load(BPF_B, 14 + 9)];
    if let Recipient::HostStack(..) = recipient {
        if_eq(&mut p, 1, vec![if shard.is_first() { accept() } else { reject() }]);
        // Only queries of IGMP are accepted.
        let mut igmp = vec![op(BPF_LDX | BPF_B | BPF_MSH, 14), op(BPF_LD | BPF_B | BPF_IND, 14)];
        require(&mut igmp, 0x11);
        igmp.push(accept());
        if_eq(&mut p, 2, igmp);
    }
    require(&mut p, 17);
    // Only the first fragment contains the ports.
    p.push(load(BPF_H, 14 + 6));
    p.push(mask(0x1fff));
    require(&mut p, 0);
    p.push(op(BPF_LDX | BPF_B | BPF_MSH, 14));
    p.push(op(BPF_LD | BPF_H | BPF_IND, 14 + 2));
    require(&mut p, ROCE_PORT.into());
    if !shard.is_alone() {
        p.extend([load(BPF_W, 14 + 16), mask(0xf000_0000)]);
        let byte = op(BPF_LD | BPF_B | BPF_IND, 14 + DEST_QP_LOW);
        unless_eq(&mut p, 0xe000_0000, require_shard(byte, shard));
    }
    if let Recipient::Interface(addresses) = recipient
        && addresses.len() <= MAX_ADDRESSES
    {
        p.push(load(BPF_W, 14 + 16));
        for own in addresses {
            if let IpAddr::V4(own) = own {
                if_eq(&mut p, own.to_bits(), vec![accept()]);
            }
        }
        p.push(mask(0xf000_0000));
        require(&mut p, 0xe000_0000);
    }
    p.push(accept());
    p
}

fn ipv6(recipient: Recipient<'_>, shard: ShardId) -> Block {
    let mut p = vec![load(BPF_B, 14 + 6)];
    if let Recipient::HostStack(..) = recipient {
        let mut icmp = Block::new();
        if !shard.is_first() {
            icmp.push(load(BPF_B, 14 + 40));
            require(&mut icmp, 136);
        }
        icmp.push(accept());
        if_eq(&mut p, 58, icmp);
        // MLD queries follow a hop-by-hop options header of 8 bytes.
        let mut mld = vec![load(BPF_H, 14 + 40)];
        require(&mut mld, 58 << 8);
        mld.push(load(BPF_B, 14 + 40 + 8));
        require(&mut mld, 130);
        mld.push(accept());
        if_eq(&mut p, 0, mld);
    }
    require(&mut p, 17);
    p.push(load(BPF_H, 14 + 40 + 2));
    require(&mut p, ROCE_PORT.into());
    if !shard.is_alone() {
        p.push(load(BPF_B, 14 + 24));
        unless_eq(&mut p, 0xff, require_shard(load(BPF_B, 14 + 40 + DEST_QP_LOW), shard));
    }
    if let Recipient::Interface(addresses) = recipient
        && addresses.len() <= MAX_ADDRESSES
    {
        const DST: u32 = 14 + 24;
        for own in addresses {
            let IpAddr::V6(own) = own else { continue };
            let mut words = own.octets();
            let mut matches = vec![accept()];
            // From the last word backwards, each comparison nested in the match of the word before.
            for i in (0..4).rev() {
                let (chunk, _) = words[i * 4..].split_first_chunk_mut::<4>().expect("16 bytes are 4 words");
                let mut block = vec![load(BPF_W, DST + i as u32 * 4)];
                if_eq(&mut block, u32::from_be_bytes(*chunk), matches);
                matches = block;
            }
            p.extend(matches);
        }
        p.push(load(BPF_B, DST));
        require(&mut p, 0xff);
    }
    p.push(accept());
    p
}

#[cfg(test)]
mod tests {
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

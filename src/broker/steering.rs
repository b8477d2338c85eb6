//! Packet steering for a shared address: a BPF program that selects the socket by QPN partition.

use std::ops::Range;

use libc::{
    BPF_A, BPF_ADD, BPF_ALU, BPF_B, BPF_H, BPF_JA, BPF_JMP, BPF_K, BPF_LSH, BPF_RET, BPF_RSH, BPF_W,
    sock_filter,
};

use crate::burst::RxBurst;
use crate::host::bpf::{if_eq, load, mask, op, ret, unless_eq};
use crate::link::udp::steer::DEST_QP_LOW;
use crate::nic::QpnPartition;
use crate::wire::Qpn;
use crate::wire::mad::MessageKind;

/// Offset of the highest byte of the destination QPN in a UDP payload.
const DEST_QP_HIGH: u32 = 5;

/// Offset of the 32-bit word in a UDP payload whose lowest three bytes are the destination QPN.
const DEST_QP_WORD: u32 = 4;

/// Offset of a MAD in a UDP payload, after BTH and DETH.
const MAD: u32 = 20;
/// Offset of a MAD's management class.
const MAD_CLASS: u32 = MAD + 1;
/// Offset of a MAD's attribute ID.
const MAD_ATTRIBUTE: u32 = MAD + 16;
/// Offset of a SIDR_REP's request ID, which the recipient has assigned.
const SIDR_REQUEST_ID: u32 = MAD + 24;
/// Offset of the remote communication ID, which the recipient has assigned, in the other CM messages.
const REMOTE_COMM_ID: u32 = MAD + 28;

/// Management class of the communication manager (CM).
const CM_CLASS: u32 = 7;

/// Returns the BPF program that selects the socket by QPN partition, and also by shard if a process holds
/// several partitions, as listed in `several`.
///
/// The partition of a MAD is in the communication ID of its recipient. MADs that name a service instead of an
/// ID go to the broker in partition 0, and so do those of other management classes. A load beyond the end of
/// a packet ends the program with 0, which also selects the broker.
pub fn by_partition(several: &[Range<usize>]) -> Vec<sock_filter> {
    let to_broker = ret(0);
    let mut mad = vec![load(BPF_B, MAD_CLASS)];
    unless_eq(&mut mad, CM_CLASS, &[to_broker]);
    mad.push(load(BPF_H, MAD_ATTRIBUTE));
    for kind in [MessageKind::Req, MessageKind::SidrReq] {
        if_eq(&mut mad, kind.attribute().into(), &[to_broker]);
    }
    let load_sidr_id = [load(BPF_B, SIDR_REQUEST_ID), op(BPF_JMP | BPF_JA, 1)];
    if_eq(&mut mad, MessageKind::SidrRep.attribute().into(), &load_sidr_id);
    // Moves the byte to the position of the highest byte of a QPN.
    mad.extend([load(BPF_B, REMOTE_COMM_ID), op(BPF_ALU | BPF_LSH | BPF_K, 16)]);
    let mut program = vec![load(BPF_W, DEST_QP_WORD), mask(0xff_ffff)];
    if_eq(&mut program, Qpn::GSI.get(), &mad);
    // Data packets have needed a single load so far: a load outside a packet's linear part costs the kernel a
    // call.
    program.push(op(BPF_ALU | BPF_RSH | BPF_K, 24 - QpnPartition::BITS));
    for partitions in several {
        let (first, shards) = (partitions.start as u32, mask(partitions.len() as u32 - 1));
        let add = op(BPF_ALU | BPF_ADD | BPF_K, first);
        let select_shard = [load(BPF_B, DEST_QP_LOW), shards, add, op(BPF_RET | BPF_A, 0)];
        if_eq(&mut program, first, &select_shard);
    }
    program.push(op(BPF_RET | BPF_A, 0));
    program
}

/// Returns the byte of a packet whose highest bits are its QPN partition, by the same rules as the BPF
/// program of [`by_partition`]; 0 for packets to the broker.
pub fn partition_byte(packet: &[u8]) -> u8 {
    let at = |at: u32| packet.get(at as usize).copied().unwrap_or(0);
    let attribute = u16::from_be_bytes([at(MAD_ATTRIBUTE), at(MAD_ATTRIBUTE + 1)]);
    let is_mad = [at(DEST_QP_HIGH), at(DEST_QP_HIGH + 1), at(DEST_QP_LOW)] == [0, 0, Qpn::GSI.get() as u8];
    let is = |kind: MessageKind| attribute == kind.attribute();
    match () {
        () if !is_mad => at(DEST_QP_HIGH),
        () if u32::from(at(MAD_CLASS)) != CM_CLASS || is(MessageKind::Req) || is(MessageKind::SidrReq) => 0,
        () if is(MessageKind::SidrRep) => at(SIDR_REQUEST_ID),
        () => at(REMOTE_COMM_ID),
    }
}

/// Reports whether a coalesced datagram contains packets for another QPN partition. This can happen because
/// the kernel selects the socket by the first packet. Multicast packets are not assigned to a partition.
pub fn has_mixed_partitions(burst: &RxBurst<'_>, partition: QpnPartition) -> bool {
    burst.data.len() > burst.segment
        && !burst.flow.dst.is_multicast()
        && burst.packets().any(|(_, packet)| !partition.has(partition_byte(packet)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Flow, IpIdent};

    #[test]
    fn coalesced_unicast_burst_with_a_packet_for_another_partition_counts_as_mixed() {
        let packet = |qpn: u32| {
            let mut packet = [0; 20];
            packet[4..8].copy_from_slice(&qpn.to_be_bytes());
            packet
        };
        let (own, other) = (5 << 18 | 1, 6 << 18 | 1);
        let is_mixed = |dst: [u8; 4], qpns: &[u32]| {
            let data: Vec<u8> = qpns.iter().flat_map(|qpn| packet(*qpn)).collect();
            let flow = Flow::new([10, 0, 0, 1].into(), dst.into(), 4791);
            let burst = RxBurst::new(flow, IpIdent::Unknown, 20, &data);
            has_mixed_partitions(&burst, QpnPartition::new(5).unwrap())
        };
        let (unicast, multicast) = ([10, 0, 0, 2], [239, 0, 0, 1]);
        assert!(is_mixed(unicast, &[own, other, own]));
        assert!(!is_mixed(unicast, &[own, own]));
        assert!(!is_mixed(unicast, &[other]), "a single packet is not coalesced");
        assert!(!is_mixed(multicast, &[0xff_ffff, 0xff_ffff]));
    }
}

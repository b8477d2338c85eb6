//! Packets that a NIC of the same process delivers without copying their payloads: no rules of the
//! specification, but the same results as for packets from a wire.

use std::ffi::c_void;
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use urxe::memory::{Access, Accessor, Extent, HostSlice, RegionInfo, Table, install_fault_handler};
use urxe::nic::Personality;
use urxe::transport::{QpType, Quirks, RecvWr, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{Flow, IpIdent, Mtu, NakCode, Qpn, RKey};

use crate::bench::{Bench, QKEY, RQ, SQ, Wc, bad, ok};
use crate::pkt::*;
use urxe_test_support::engine::{PD, pattern};

/// Registered memory of the sender, which the program can make unreadable.
struct SenderMemory {
    map: NonNull<c_void>,
    table: Table,
    region: RegionInfo,
}

impl SenderMemory {
    const LEN: usize = 16 << 10;

    fn new() -> SenderMemory {
        install_fault_handler();
        let (len, access) =
            (NonZeroUsize::new(Self::LEN).unwrap(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel picks affects no other memory.
        let map = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE) }.unwrap();
        for (i, byte) in Self::bytes(Self::LEN).into_iter().enumerate() {
            // SAFETY: the mapping has `LEN` bytes, and nothing else refers to it yet.
            unsafe { map.cast::<u8>().add(i).write(byte) };
        }
        let mut table = Table::new();
        let extent =
            Extent { addr: map.expose_provenance().get(), len: Self::LEN, iova: 0, access: Access::ALL };
        // SAFETY: the mapping outlives the slices that the tests take, and accesses of protected memory fail
        // without a fault of the process.
        let region = unsafe { table.register(PD, extent) }.unwrap();
        SenderMemory { map, table, region }
    }

    /// Returns what the first `len` bytes contain.
    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| pattern(i + 1000)).collect()
    }

    /// Returns consecutive slices of the given lengths from `at` on.
    fn slices(&self, mut at: usize, lengths: &[usize]) -> Vec<HostSlice> {
        let by = Accessor { pd: PD, qpn: Qpn::new(2) };
        let slice = |len: &usize| {
            let start = at as u64;
            at += len;
            self.table.local(by, self.region.lkey, start, *len as u32, Access::LOCAL_READ).unwrap()
        };
        lengths.iter().map(slice).collect()
    }

    #[cfg(all(target_arch = "x86_64", not(urxe_plain_access)))]
    fn set_readable(&self, readable: bool) {
        let access =
            if readable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_NONE };
        // SAFETY: only the NIC accesses the mapping, and reports accesses that fail.
        unsafe { nix::sys::mman::mprotect(self.map, Self::LEN, access) }.unwrap();
    }
}

impl Drop for SenderMemory {
    fn drop(&mut self) {
        // SAFETY: no slice is used after this.
        unsafe { munmap(self.map, Self::LEN) }.unwrap();
    }
}

fn bench(qp_type: QpType) -> Bench {
    Bench::with(|s| (s.qp_type, s.mtu) = (qp_type, Mtu::Mtu1024))
}

#[test]
fn write_gathered_from_slices_of_any_length_arrives() {
    let memory = SenderMemory::new();
    let mut b = bench(QpType::Rc);
    let to = b.remote(3, 2 * 1024 + 701);
    let first = memory.slices(0, &[8, 1, 1015]);
    let middle = memory.slices(1024, &[1024]);
    let last = memory.slices(2048, &[700, 0, 1]);
    b.deliver_directly(
        &b.flow(),
        &[
            (write(First, RQ, to, &[]), &first),
            (write(Middle, RQ + 1, to, &[]), &middle),
            (write(Last, RQ + 2, to, &[]), &last),
        ],
        || {},
    );
    b.expect(&[ack(RQ + 2, 1)]);
    assert_eq!(b.mr.read(3, 2749), SenderMemory::bytes(2749));
}

#[test]
fn payload_behind_a_gap_is_kept_until_the_missing_packet_arrives() {
    let memory = SenderMemory::new();
    let mut b = Bench::with(|s| {
        s.mtu = Mtu::Mtu1024;
        s.quirks = Quirks { credits: false, ..Personality::DEFAULT.quirks };
    });
    let to = b.remote(0, 3 * 1024);
    let slices = [0, 1, 2].map(|i| memory.slices(1024 * i, &[1024]));
    let packets = [(First, RQ), (Middle, RQ + 1), (Last, RQ + 2)].map(|(at, psn)| write(at, psn, to, &[]));
    let at = |i: usize| (packets[i].clone(), &slices[i][..]);
    b.deliver_directly(&b.flow(), &[at(0), at(2)], || {});
    b.expect(&[nak(RQ + 1, 0, NakCode::PsnSequenceError)]);
    b.deliver_directly(&b.flow(), &[at(1)], || {});
    b.expect(&[ack(RQ + 2, 1)]);
    assert_eq!(b.mr.read(0, 3 * 1024), SenderMemory::bytes(3 * 1024));
}

/// Number of packets of a WRITE that [`same_in_runs`] delivers, and its path MTU in bytes.
const PACKETS: usize = 12;
const MTU: usize = 1024;

/// Delivers packets with ICRCs (0), without them (1), or with the payloads in the sender's memory (2).
fn deliver_in_way(b: &mut Bench, way: usize, packets: Vec<Pkt>, memory: &SenderMemory) {
    match way {
        0 => b.deliver(&packets),
        1 => b.deliver_as(IpIdent::Elided, &packets),
        _ => {
            let data = SenderMemory::bytes(PACKETS * MTU);
            let slices = packets.iter().map(|p| {
                let start = data.windows(MTU).position(|part| part == p.data);
                start.map_or(vec![], |at| memory.slices(at, &[MTU]))
            });
            let slices: Vec<_> = slices.collect();
            let packets: Vec<(Pkt, &[HostSlice])> =
                packets.into_iter().zip(slices.iter().map(Vec::as_slice)).collect();
            b.deliver_directly(&b.flow(), &packets, || {});
        }
    }
}

/// Delivers the packets of a WRITE, which `change` may change, in all ways, and checks that the results are
/// the same. Without ICRCs, middle packets are processed in runs.
fn same_in_runs(change: impl Fn(&mut Bench, &mut Vec<Pkt>)) -> (Vec<Pkt>, Vec<u8>) {
    let memory = SenderMemory::new();
    let results = [0, 1, 2].map(|way| {
        let mut b = bench(QpType::Rc);
        let data = SenderMemory::bytes(PACKETS * MTU);
        let to = b.remote(0, data.len() as u32);
        let mut packets = message(MTU, &data, |position, psn, part| write(position, psn, to, part), RQ);
        change(&mut b, &mut packets);
        deliver_in_way(&mut b, way, packets, &memory);
        while b.next_event().is_some() {}
        (b.sent(), (), b.mr.read(0, PACKETS * MTU), format!("{:?}", b.count()))
    });
    let (sent, (), stored) = same_results(results);
    (sent, stored)
}

/// Checks that the packets sent, the completions, the stored bytes and the counters are the same for each way
/// of delivery, and returns the first three.
fn same_results<C: PartialEq + Debug>(
    [with_icrcs, without, direct]: [(Vec<Pkt>, C, Vec<u8>, String); 3],
) -> (Vec<Pkt>, C, Vec<u8>) {
    for (sent, completed, stored, counters) in [without, direct] {
        assert_eq!((&sent, &completed, &counters), (&with_icrcs.0, &with_icrcs.1, &with_icrcs.3));
        let differs = stored.iter().zip(&with_icrcs.2).position(|(byte, expected)| byte != expected);
        assert_eq!(differs, None, "the position at which the stored bytes differ");
    }
    (with_icrcs.0, with_icrcs.1, with_icrcs.2)
}

/// Returns what the target of [`same_in_runs`] contains before the WRITE.
fn initial_bytes() -> Vec<u8> {
    bench(QpType::Rc).mr.read(0, PACKETS * MTU)
}

#[test]
fn write_in_runs_of_middle_packets_is_executed_like_its_packets() {
    let data = SenderMemory::bytes(PACKETS * MTU);
    let last = RQ + PACKETS as u32 - 1;
    let (sent, stored) = same_in_runs(|_, _| {});
    assert!(sent == [ack(last, 1)] && stored == data);
    // A packet in the middle that requests an acknowledgement, or that has its payload in the packet.
    same_in_runs(|_, packets| packets[5] = packets[5].clone().ackreq(true));
    let (sent, stored) = same_in_runs(|_, packets| packets[5].data = vec![7; MTU]);
    assert!(sent == [ack(last, 1)] && stored[5 * MTU..6 * MTU] == [7; MTU]);
    // One that is lost, and one that arrives twice.
    let (sent, stored) = same_in_runs(|_, packets| drop(packets.remove(5)));
    assert_eq!(
        (sent, &stored[..5 * MTU]),
        (vec![nak(RQ + 5, 0, NakCode::PsnSequenceError)], &data[..5 * MTU])
    );
    same_in_runs(|_, packets| packets.insert(5, packets[4].clone()));
    // One with another P_Key, or of another length.
    same_in_runs(|_, packets| packets[5] = packets[5].clone().pkey(0x1234));
    same_in_runs(|_, packets| packets[5].data.truncate(MTU - 4));
}

#[test]
fn run_that_exceeds_the_length_of_the_write_is_refused_at_the_first_packet_too_many() {
    for extra in 1..PACKETS as u32 - 1 {
        let (sent, stored) = same_in_runs(|b, packets| {
            let len = (PACKETS as u32 - extra) * MTU as u32;
            assert_eq!(packets[0].h.reth.va, b.remote(0, len).0);
            packets[0].h.reth.dma_len = len;
        });
        let stored_packets = PACKETS - extra as usize - 1;
        let psn = RQ + stored_packets as u32;
        assert_eq!(sent, [nak(psn, 0, NakCode::InvalidRequest)], "{extra} too many");
        let untouched = stored_packets * MTU;
        assert!(stored[untouched..] == initial_bytes()[untouched..], "{extra} too many");
    }
}

#[test]
fn run_stops_where_access_is_withdrawn() {
    let (sent, stored) = same_in_runs(|b, packets| {
        let rest = packets.split_off(4);
        b.deliver(packets);
        b.memory.deregister(b.mr.info.lkey).unwrap();
        *packets = rest;
    });
    assert_eq!(sent, [nak(RQ + 4, 0, NakCode::RemoteAccessError)]);
    assert!(stored[..4 * MTU] == SenderMemory::bytes(4 * MTU));
    assert!(stored[4 * MTU..] == initial_bytes()[4 * MTU..]);
}

#[test]
fn run_of_sends_behind_a_duplicate_does_not_continue_a_write() {
    let (sent, stored) = same_in_runs(|_, packets| {
        let send_of = |packet: &Pkt| send(Middle, packet.h.bth.psn.get(), &packet.data);
        let duplicate = send_of(&packets[4]);
        packets[5..].iter_mut().for_each(|packet| *packet = send_of(packet));
        packets.insert(5, duplicate);
    });
    assert_eq!(sent.last(), Some(&nak(RQ + 5, 0, NakCode::InvalidRequest)));
    assert!(stored[5 * MTU..] == initial_bytes()[5 * MTU..]);
}

/// Posts a receive of the given ranges, and delivers the packets of a SEND, which `change` may change, like
/// [`same_in_runs`]. Returns the packets sent, the receive completions, and the bytes of the ranges.
fn same_sends_in_runs(
    ranges: &[(usize, usize)],
    change: impl Fn(&mut Vec<Pkt>),
) -> (Vec<Pkt>, Vec<Wc>, Vec<u8>) {
    let memory = SenderMemory::new();
    let results = [0, 1, 2].map(|way| {
        let mut b = bench(QpType::Rc);
        let sges: Vec<_> = ranges.iter().map(|(at, len)| b.mr.sge(*at, *len as u32)).collect();
        b.recv_sges(7, &sges).unwrap();
        let mut packets = message(MTU, &SenderMemory::bytes(PACKETS * MTU), send, RQ);
        change(&mut packets);
        deliver_in_way(&mut b, way, packets, &memory);
        while b.next_event().is_some() {}
        let stored: Vec<_> = ranges.iter().map(|(at, len)| b.mr.read(*at, *len)).collect();
        let counters = format!("{:?}", b.count());
        (b.sent(), b.received(), stored.concat(), counters)
    });
    same_results(results)
}

#[test]
fn send_in_runs_of_middle_packets_is_stored_like_its_packets() {
    let data = SenderMemory::bytes(PACKETS * MTU);
    let last = RQ + PACKETS as u32 - 1;
    let whole = [(0, PACKETS * MTU)];
    let done = [ok(7, WcOpcode::Recv, (PACKETS * MTU) as u32)];
    // One element, one that is longer, and several, two of which begin in the middle of a packet.
    let longer = [(0, PACKETS * MTU + 100)];
    let several = [(20_000, 3 * MTU), (0, 0), (0, 5 * MTU + 100), (30_000, 4 * MTU - 100)];
    for ranges in [&whole[..], &longer, &several] {
        let (sent, received, stored) = same_sends_in_runs(ranges, |_| {});
        assert!(sent == [ack(last, 1)] && received == done && stored[..data.len()] == data);
    }
    same_sends_in_runs(&whole, |packets| packets[5] = packets[5].clone().ackreq(true));
    let (_, received, stored) = same_sends_in_runs(&whole, |packets| packets[5].data = vec![7; MTU]);
    assert!(received == done && stored[5 * MTU..6 * MTU] == [7; MTU]);
    let (sent, received, _) = same_sends_in_runs(&whole, |packets| drop(packets.remove(5)));
    assert!(sent == [nak(RQ + 5, 0, NakCode::PsnSequenceError)] && received.is_empty());
    same_sends_in_runs(&whole, |packets| packets.insert(5, packets[4].clone()));
    same_sends_in_runs(&whole, |packets| packets[5].data.truncate(MTU - 4));
}

#[test]
fn run_that_exceeds_the_receive_is_refused_at_the_first_packet_too_many() {
    for len in [4 * MTU, 4 * MTU + 1, 5 * MTU - 1] {
        let (sent, received, stored) = same_sends_in_runs(&[(0, len)], |_| {});
        assert_eq!(sent, [nak(RQ + 4, 0, NakCode::InvalidRequest)], "receive of {len} bytes");
        assert_eq!(received, [bad(7, WcStatus::LocLenErr)], "receive of {len} bytes");
        assert!(stored[..4 * MTU] == SenderMemory::bytes(4 * MTU));
        assert!(stored[4 * MTU..] == initial_bytes()[4 * MTU..len], "receive of {len} bytes");
    }
}

/// Posts a READ into the given ranges, and delivers its responses, which `change` may change, like
/// [`same_in_runs`]. Returns the packets sent, the opcodes of the completions, and the bytes of the ranges.
fn same_responses_in_runs(
    ranges: &[(usize, usize)],
    change: impl Fn(&mut Bench, &mut Vec<Pkt>),
) -> (Vec<Pkt>, Vec<WcOpcode>, Vec<u8>) {
    let memory = SenderMemory::new();
    let results = [0, 1, 2].map(|way| {
        let mut b = bench(QpType::Rc);
        let sges: Vec<_> = ranges.iter().map(|(at, len)| b.mr.sge(*at, *len as u32)).collect();
        let request = (0, RKey(1), (PACKETS * MTU) as u32);
        b.post_sges(7, WrOp::Read { va: 0, rkey: RKey(1) }, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&[read(SQ, request)]);
        let data = SenderMemory::bytes(PACKETS * MTU);
        let mut packets = message(MTU, &data, |position, psn, part| resp(position, psn, 1, part), SQ);
        change(&mut b, &mut packets);
        deliver_in_way(&mut b, way, packets, &memory);
        while b.next_event().is_some() {}
        let stored: Vec<_> = ranges.iter().map(|(at, len)| b.mr.read(*at, *len)).collect();
        let counters = format!("{:?}", b.count());
        (b.sent(), b.sent_opcodes(), stored.concat(), counters)
    });
    same_results(results)
}

#[test]
fn read_responses_in_runs_are_stored_like_single_ones() {
    let data = SenderMemory::bytes(PACKETS * MTU);
    let whole = [(0, PACKETS * MTU)];
    let done = vec![WcOpcode::RdmaRead];
    // One element, and several, two of which begin in the middle of a packet.
    for ranges in [&whole[..], &[(20_000, 3 * MTU), (0, 5 * MTU + 100), (30_000, 4 * MTU - 100)]] {
        let (sent, completed, stored) = same_responses_in_runs(ranges, |_, _| {});
        assert!(sent.is_empty() && completed == done && stored == data);
    }
    // One with its payload in the packet, one that arrives twice, and one with another P_Key.
    let (_, completed, stored) = same_responses_in_runs(&whole, |_, packets| packets[5].data = vec![7; MTU]);
    assert!(completed == done && stored[5 * MTU..6 * MTU] == [7; MTU]);
    let (_, completed, _) =
        same_responses_in_runs(&whole, |_, packets| packets.insert(5, packets[4].clone()));
    assert!(completed == done);
    same_responses_in_runs(&whole, |_, packets| packets[5] = packets[5].clone().pkey(0x1234));
}

#[test]
fn run_of_read_responses_with_a_gap_is_stored_up_to_there_and_the_rest_requested_again() {
    let whole = [(0, PACKETS * MTU)];
    for lost in 1..PACKETS - 1 {
        let (sent, completed, stored) =
            same_responses_in_runs(&whole, |_, packets| drop(packets.remove(lost)));
        let rest = (lost * MTU) as u64;
        assert_eq!(sent, [read(SQ + lost as u32, (rest, RKey(1), ((PACKETS - lost) * MTU) as u32))]);
        assert!(completed.is_empty() && stored[..lost * MTU] == SenderMemory::bytes(lost * MTU));
        assert!(stored[lost * MTU..] == initial_bytes()[lost * MTU..]);
    }
}

#[test]
fn run_of_more_read_responses_than_requested_completes_the_read_once() {
    let whole = [(0, PACKETS * MTU)];
    let data = SenderMemory::bytes(PACKETS * MTU);
    let (sent, completed, stored) = same_responses_in_runs(&whole, |_, packets| {
        packets.pop();
        let psn = SQ + PACKETS as u32 - 1;
        packets.extend((0..3).map(|n| resp(Middle, psn + n, 1, &data[(PACKETS - 1) * MTU..])));
    });
    assert!(sent.is_empty() && completed == [WcOpcode::RdmaRead] && stored == data);
}

#[cfg(all(target_arch = "x86_64", not(urxe_plain_access)))]
#[test]
fn run_whose_source_is_partly_unreadable_is_executed_up_to_there() {
    let memory = [SenderMemory::new(), SenderMemory::new()];
    let mut b = bench(QpType::Rc);
    let data = SenderMemory::bytes(PACKETS * MTU);
    let to = b.remote(0, data.len() as u32);
    let packets = message(MTU, &data, |position, psn, part| write(position, psn, to, part), RQ);
    let slices: Vec<_> = (0..PACKETS).map(|n| memory[usize::from(n >= 6)].slices(n * MTU, &[MTU])).collect();
    let packets: Vec<(Pkt, &[HostSlice])> =
        packets.into_iter().zip(slices.iter().map(Vec::as_slice)).collect();
    b.deliver_directly(&b.flow(), &packets, || memory[1].set_readable(false));
    b.expect(&[nak(RQ + 6, 0, NakCode::PsnSequenceError)]);
    assert!(b.mr.read(0, 6 * MTU) == data[..6 * MTU]);
    memory[1].set_readable(true);
    b.deliver_directly(&b.flow(), &packets[6..], || {});
    b.expect(&[ack(RQ + PACKETS as u32 - 1, 1)]);
    assert!(b.mr.read(0, PACKETS * MTU) == data);
}

#[test]
fn payload_in_the_packet_between_others_is_taken_from_there() {
    let memory = SenderMemory::new();
    let mut b = bench(QpType::Rc);
    // With an opcode that is reserved, the RETH counts as payload.
    let (inline, with_reth) = ([7; 1000], [9; 1016]);
    let long = memory.slices(0, &[1000]);
    let end = memory.slices(1000, &[400, 600]);
    // All of one length, so that they are in one burst. The third is dropped.
    let packets: [(Pkt, &[HostSlice]); 5] = [
        (write(Only, RQ, b.remote(0, 1000), &[]), &long),
        (write(Only, RQ + 1, b.remote(1000, 1000), &inline), &[]),
        (write(Only, RQ + 2, b.remote(2000, 1000), &with_reth).opcode(0x1f), &[]),
        (write(Only, RQ + 2, b.remote(2000, 1000), &[]), &end),
        (write(Only, RQ + 3, b.remote(3000, 1000), &[]), &long),
    ];
    b.deliver_directly(&b.flow(), &packets, || {});
    b.expect(&[ack(RQ + 3, 4)]);
    assert_eq!(b.count().rx_reserved_opcode, 1);
    let expected = [SenderMemory::bytes(1000), inline.to_vec(), SenderMemory::bytes(2000)[1000..].to_vec()];
    assert_eq!(b.mr.read(0, 3000), expected.concat());
    assert_eq!(b.mr.read(3000, 1000), SenderMemory::bytes(1000));
}

#[test]
fn each_member_of_a_multicast_group_gets_the_payload() {
    let memory = SenderMemory::new();
    let slices = memory.slices(0, &[333, 667]);
    let mut b = Bench::with(|s| (s.qp_type, s.mtu, s.qps) = (QpType::Ud, Mtu::Mtu1024, 2));
    let group: std::net::IpAddr = "239.1.2.3".parse().unwrap();
    for qp in 0..2 {
        b.nic.attach_mcast(b.qpns[qp], group.into()).unwrap().unwrap();
        let sges = [b.mr.sge(2000 * qp, 1040)];
        b.nic.post_recv(b.qpns[qp], &RecvWr::new(qp as u64, &sges)).unwrap().unwrap();
    }
    let flow = Flow { dst: group, ..b.flow() };
    b.deliver_directly(&flow, &[(send(Only, RQ, &[]).ud(QKEY, Qpn::new(9)), &slices)], || {});
    b.recvs(&[0, 1].map(|qp| ok(qp, WcOpcode::Recv, 1040)));
    for qp in 0..2 {
        assert_eq!(b.mr.read(2000 * qp + 40, 1000), SenderMemory::bytes(1000));
    }
}

#[test]
fn send_and_datagram_are_scattered_over_the_elements_of_a_receive() {
    let memory = SenderMemory::new();
    let slices = memory.slices(0, &[333, 667]);
    for qp_type in [QpType::Rc, QpType::Ud] {
        let mut b = bench(qp_type);
        let sges = [b.mr.sge(0, 48), b.mr.sge(100, 1), b.mr.sge(200, 1000)];
        b.recv_sges(1, &sges).unwrap();
        let packet = match qp_type {
            QpType::Ud => send(Only, RQ, &[]).ud(QKEY, Qpn::new(9)),
            _ => send(Only, RQ, &[]),
        };
        b.deliver_directly(&b.flow(), &[(packet, &slices)], || {});
        let stored = [b.mr.read(0, 48), b.mr.read(100, 1), b.mr.read(200, 1000)].concat();
        if qp_type == QpType::Ud {
            assert_eq!(b.raw_recv().byte_len, 1040);
            assert_eq!(stored[40..1040], SenderMemory::bytes(1000));
        } else {
            b.expect(&[ack(RQ, 1)]);
            b.recvs(&[ok(1, WcOpcode::Recv, 1000)]);
            assert_eq!(stored[..1000], SenderMemory::bytes(1000));
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(urxe_plain_access)))]
#[test]
fn payload_that_becomes_unreadable_counts_as_lost() {
    let memory = SenderMemory::new();
    let slices = memory.slices(0, &[1000]);
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for is_write in [true, false] {
            let mut b = bench(qp_type);
            b.recv(1, 0, 1040);
            let to = b.remote(2000, 1000);
            let packet = if is_write { write_imm(Only, RQ, to, &[], 5) } else { send_imm(Only, RQ, &[], 5) };
            let packet = match qp_type {
                QpType::Rc => packet,
                QpType::Uc => packet.uc(),
                _ if is_write => continue,
                _ => packet.ud(QKEY, Qpn::new(9)),
            };
            let lost = packet.clone();
            b.deliver_directly(&b.flow(), &[(lost, &slices)], || memory.set_readable(false));
            b.expect_nothing();
            b.recvs(&[]);
            memory.set_readable(true);
            // The sender repeats the packet of a reliable connection, and continues with the next one on
            // others.
            let next = if qp_type == QpType::Rc { packet } else { packet.with(|h| h.bth.psn += 1) };
            b.deliver_directly(&b.flow(), &[(next, &slices)], || {});
            if qp_type == QpType::Rc {
                b.expect(&[ack(RQ, 1)]);
            }
            assert_eq!(b.raw_recv().wr_id, 1);
            let at = if is_write {
                2000
            } else if qp_type == QpType::Ud {
                40
            } else {
                0
            };
            assert_eq!(b.mr.read(at, 1000), SenderMemory::bytes(1000), "{qp_type:?}");
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(urxe_plain_access)))]
#[test]
fn read_response_that_becomes_unreadable_counts_as_lost() {
    let memory = SenderMemory::new();
    let slices = memory.slices(0, &[1000]);
    let mut b = bench(QpType::Rc);
    b.post(7, WrOp::Read { va: 0, rkey: RKey(1) }, 0, 1000);
    b.expect(&[read(SQ, (0, RKey(1), 1000))]);
    let response = resp(Only, SQ, 1, &[]);
    b.deliver_directly(&b.flow(), &[(response.clone(), &slices)], || memory.set_readable(false));
    b.expect_nothing();
    b.sends(&[]);
    memory.set_readable(true);
    b.deliver_directly(&b.flow(), &[(response, &slices)], || {});
    b.sends(&[ok(7, WcOpcode::RdmaRead, 1000)]);
    assert_eq!(b.mr.read(0, 1000), SenderMemory::bytes(1000));
}

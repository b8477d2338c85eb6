//! Tests of packet bursts in the transmit queue: when the payload is copied, and how many bytes a burst
//! holds.

use urxe::memory::{Access, Accessor, HostSlice, Table};
use urxe::transport::{BurstLimits, TxBurst, TxQueue};
use urxe::wire::{Bth, Flow, Headers, ICRC_LEN, IpIdent, Opcode, Packet, Psn, Qpn, icrc};
use urxe_test_support::engine::{PD, Region};

fn flow() -> Flow {
    Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 9)
}

/// Returns the headers of an RC SEND Only packet.
fn headers() -> Headers {
    Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() }
}

/// Registers memory and returns a slice of it.
fn memory(table: &mut Table, len: usize) -> (Region, HostSlice) {
    let region = Region::new(table, PD, len, 0x1000, Access::ALL);
    let accessor = Accessor { pd: PD, qpn: Qpn::new(2) };
    let slice = table.local(accessor, region.info.lkey, 0x1000, len as u32, Access::LOCAL_READ).unwrap();
    (region, slice)
}

#[test]
fn payload_is_copied_at_push_or_at_transmission_if_its_icrc_is_deferred() {
    let mut table = Table::new();
    for len in [0, 1, 512, 513, 4096] {
        let (region, slice) = memory(&mut table, len);
        region.write(0, &vec![1; len]);
        for (new, is_deferred) in [(TxQueue::new as fn(_) -> _, false), (TxQueue::with_deferred_icrc, true)] {
            let is_copied_later = is_deferred && len > 512;
            let mut queue = new(BurstLimits::SEGMENTED);
            assert!(queue.is_empty());
            queue.push_host(&flow(), &headers(), &[slice]).unwrap();
            assert!(!queue.is_empty());
            let burst = queue.bursts().next().unwrap();
            assert_eq!(burst.as_bytes().is_none(), is_deferred, "{len} bytes");
            // The application may write at any time, and the ICRC must match the sent bytes in each case.
            region.write(0, &vec![2; len]);
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            assert!(icrc::verify(&flow(), IpIdent::SENT, 0, &bytes));
            let expected = if is_copied_later { 2 } else { 1 };
            assert_eq!(Packet::parse(&bytes).unwrap().payload(), vec![expected; len]);
            region.write(0, &vec![1; len]);
        }
    }
}

#[test]
fn burst_does_not_exceed_the_byte_limit_of_the_link() {
    // Packets of 116 bytes.
    for (bytes, expected) in
        [(231, &[1, 1, 1, 1, 1][..]), (232, &[2, 2, 1]), (347, &[2, 2, 1]), (348, &[3, 2])]
    {
        let mut queue = TxQueue::new(BurstLimits { bytes, packets: 64 });
        (0..5).for_each(|_| queue.push(&flow(), headers(), &[7; 100]));
        assert_eq!(queue.bursts().map(|b| b.packets).collect::<Vec<_>>(), expected, "{bytes} bytes");
    }
}

#[test]
fn size_of_a_turn_depends_on_how_the_link_delivers() {
    let packets = |mut queue: TxQueue| {
        while !queue.is_full() {
            queue.push(&flow(), headers(), &[7; 4096]);
        }
        queue.packets()
    };
    let [copied, deferred, direct] =
        [TxQueue::new, TxQueue::with_deferred_icrc, TxQueue::with_direct_delivery].map(|new| {
            let kept = packets(new(BurstLimits::SEGMENTED));
            let mut queue = new(BurstLimits::SEGMENTED);
            queue.defer_icrcs();
            (kept, packets(queue))
        });
    assert_eq!(deferred.0, deferred.1);
    assert_eq!(copied.1, deferred.0, "a link that begins to copy has the turns of one that always copies");
    assert_eq!(direct.0, direct.1, "a queue that already defers ICRCs keeps its turns");
    assert!(deferred.0 < copied.0 && copied.0 < direct.0, "{copied:?} {deferred:?} {direct:?}");
}

#[test]
fn data_too_short_for_a_packet_is_copied_unchanged() {
    // Too short for a BTH and an ICRC, and moved to another index of a burst.
    for len in [0, 3, ICRC_LEN, 15] {
        let bytes: Vec<u8> = (0..len as u8).collect();
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        queue.push_raw(&flow(), 5, &bytes);
        let mut moved = Vec::new();
        queue.bursts().next().unwrap().copy_to(&mut moved);
        assert_eq!(moved, bytes);
    }
}

/// Returns the bytes of each burst, after checking that copying the burst packet by packet gives the same
/// bytes.
fn copied(queue: &TxQueue) -> Vec<Vec<u8>> {
    let copy = |burst: TxBurst<'_>| {
        let (mut at_once, mut one_by_one, mut copier) = (Vec::new(), Vec::new(), burst.copier());
        burst.copy_to(&mut at_once);
        let mut packets = 0;
        while copier.copy_next(&mut one_by_one) {
            packets += 1;
        }
        assert_eq!((packets, &one_by_one), (burst.packets, &at_once));
        at_once
    };
    queue.bursts().map(copy).collect()
}

#[test]
fn deferred_icrcs_match_the_immediate_ones() {
    let mut table = Table::new();
    let (region, slice) = memory(&mut table, 8192);
    region.write(0, &(0..8192u32).map(|i| ((i * i) >> 7) as u8).collect::<Vec<_>>());
    for lens in [&[4096, 4096, 1001][..], &[513], &[600, 300, 600], &[512, 512], &[4097, 4097, 4094], &[0]] {
        let [immediate, deferred] = [TxQueue::new, TxQueue::with_deferred_icrc].map(|new| {
            let mut queue = new(BurstLimits::SEGMENTED);
            for len in lens {
                let (first, rest) = slice.split_at(*len).0.split_at(len / 3);
                queue.push_host(&flow(), &headers(), &[first, HostSlice::EMPTY, rest]).unwrap();
            }
            copied(&queue)
        });
        assert_eq!(immediate, deferred, "{lens:?}");
    }
}

#[test]
fn bulk_send_gives_the_same_bytes_as_sending_its_packets_singly() {
    let mut table = Table::new();
    let (region, slice) = memory(&mut table, 12 << 10);
    region.write(0, &(0..12 << 10u32).map(|i| ((i * i) >> 7) as u8).collect::<Vec<_>>());
    for (new, each) in
        [(TxQueue::new as fn(_) -> _, 4096), (TxQueue::with_deferred_icrc, 1024), (TxQueue::new, 256)]
    {
        let mut headers = headers();
        headers.bth.psn = Psn::new(0xff_fffe);
        let (mut bulk, mut single) = (new(BurstLimits::SEGMENTED), new(BurstLimits::SEGMENTED));
        bulk.push_train(&flow(), headers, slice, each);
        let mut rest = slice;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(each);
            single.push_host(&flow(), &headers, &[now]).unwrap();
            headers.bth.psn += 1;
            rest = later;
        }
        assert_eq!(
            (copied(&bulk), bulk.packets(), bulk.bytes()),
            (copied(&single), single.packets(), single.bytes())
        );
    }
}

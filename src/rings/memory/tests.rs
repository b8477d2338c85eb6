//! Tests of rings, with both ends in one process, and with ends that break the protocol.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::mapping::{CAPACITY, Mapping};
use super::*;
use crate::burst::{BurstLimits, TxQueue};
use crate::memory::{Access, Accessor, Extent, HostSlice, PdId, Table};
use crate::sys::rng::SimRng;
use crate::wire::{Bth, Flow, Headers, IpIdent, Opcode, Psn, Qpn, icrc};

const SRC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
const DST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

fn ring() -> (RingWriter, RingReader, OwnedFd) {
    ring_eliding_icrcs(false)
}

fn ring_eliding_icrcs(elides_icrcs: bool) -> (RingWriter, RingReader, OwnedFd) {
    let (writer, fd) = RingWriter::create(CAPACITY, elides_icrcs).unwrap();
    let reader = RingReader::open(&fd, CAPACITY, SRC, DST).unwrap();
    (writer, reader, fd)
}

fn flow(port: u16) -> Flow {
    Flow { traffic_class: 0x62, hop_limit: 9, ..Flow::new(SRC, DST, port) }
}

/// Returns a queue with one burst of packets with payloads of `len` bytes, numbered from `psn`.
fn queue(psn: u32, packets: u32, len: usize) -> TxQueue {
    let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
    for n in 0..packets {
        let bth = Bth { opcode: Opcode(4), psn: Psn::new(psn + n), ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        queue.push(&flow(4000), headers, &vec![n as u8; len]);
    }
    queue
}

/// Returns the PSNs of the packets that are waiting. All must be intact.
fn received(reader: &mut RingReader) -> Vec<u32> {
    let mut psns = Vec::new();
    let sink = &mut |burst: crate::burst::RxBurst<'_>| {
        assert_eq!(burst.flow, flow(4000));
        for (index, packet) in burst.packets() {
            assert!(icrc::verify(&burst.flow, burst.ident, index, packet));
            psns.push(crate::wire::Packet::parse(packet).unwrap().bth().psn.get());
        }
    };
    let packets = reader.receive(CAPACITY as u64 / 4, sink).unwrap();
    assert_eq!(packets, psns.len());
    psns
}

#[test]
fn bursts_arrive_in_order_across_many_turns_of_the_ring() {
    let (mut writer, mut reader, _fd) = ring();
    let (mut sent, mut got) = (0, Vec::new());
    for round in 0..200 {
        let queue = queue(sent, 1 + round % 15, 16 * (1 + round as usize * 37 % 256));
        for burst in queue.bursts() {
            assert!(writer.write(&burst).unwrap());
            sent += burst.packets as u32;
        }
        writer.publish();
        got.extend(received(&mut reader));
    }
    assert_eq!(got, (0..sent).collect::<Vec<_>>());
    assert!(!reader.has_bursts());
}

#[test]
fn burst_is_visible_only_after_it_was_published() {
    let (mut writer, mut reader, _fd) = ring();
    assert!(writer.write(&queue(0, 2, 64).bursts().next().unwrap()).unwrap());
    assert!(received(&mut reader).is_empty());
    writer.publish();
    assert_eq!(received(&mut reader), [0, 1]);
}

#[test]
fn full_ring_takes_no_burst_until_some_are_read() {
    let (mut writer, mut reader, _fd) = ring();
    let big = queue(0, 15, 4096);
    let burst = big.bursts().next().unwrap();
    let count = (0..).take_while(|_| writer.write(&burst).unwrap()).count();
    assert_eq!(count, CAPACITY / (burst.bytes + 12).next_multiple_of(64));
    writer.publish();
    assert!(!writer.write(&burst).unwrap());
    let mut got = received(&mut reader).len();
    assert!(got >= 15 && got < 15 * count, "a call reads a part: {got} packets");
    assert!(writer.write(&burst).unwrap());
    writer.publish();
    while reader.has_bursts() {
        got += received(&mut reader).len();
    }
    assert_eq!(got, 15 * (count + 1));
}

#[test]
fn sleeping_reader_is_notified_once() {
    let (mut writer, mut reader, _fd) = ring();
    let small = queue(0, 1, 8);
    let send = |writer: &mut RingWriter| {
        assert!(writer.write(&small.bursts().next().unwrap()).unwrap());
        writer.publish()
    };
    assert!(!send(&mut writer), "it does not sleep");
    assert!(reader.prepare_to_sleep(), "a burst is waiting");
    received(&mut reader);
    assert!(!reader.prepare_to_sleep());
    assert_eq!([(); 3].map(|()| send(&mut writer)), [true, false, false]);
    received(&mut reader);
}

#[test]
fn memory_of_another_length_or_without_seals_or_pages_is_refused() {
    let open = |fd: &OwnedFd| RingReader::open(fd, CAPACITY, SRC, DST).unwrap_err();
    let memory = |len| {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, len).unwrap();
        memory
    };
    assert!(matches!(open(&memory((64 << 10) + CAPACITY as u64)), RingError::Unsealed));
    let short = memory(4096);
    fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    assert!(matches!(open(&short), RingError::Length { len: 4096 }));
    let empty = memory((64 << 10) + CAPACITY as u64);
    fcntl_add_seals(&empty, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    assert!(matches!(open(&empty), RingError::Unallocated { allocated: 0, .. }));
    let null = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(open(&null), RingError::System(_) | RingError::Length { .. }));
}

#[test]
fn impossible_positions_and_records_are_errors_at_the_other_end() {
    // The reader claims to have read what was never written, or to have unread something.
    for (tail, moved) in [(1, 0), (u64::MAX, 0), (0, 64)] {
        let (mut writer, mut reader, fd) = ring();
        let big = queue(0, 15, 4096);
        let burst = big.bursts().next().unwrap();
        if moved > 0 {
            assert!(writer.write(&burst).unwrap());
            writer.publish();
            received(&mut reader);
            while writer.write(&burst).unwrap() {}
        }
        Mapping::open(&fd, CAPACITY).unwrap().control().tail.store(tail, Ordering::SeqCst);
        let failed = (0..100).find_map(|_| writer.write(&burst).err());
        assert!(matches!(failed, Some(RingError::Position { .. })), "{tail}: {failed:?}");
    }
    // The writer claims to have written more than fits, or less than was read.
    for head in [CAPACITY as u64 + 1, u64::MAX, 1 << 40] {
        let (_writer, mut reader, fd) = ring();
        Mapping::open(&fd, CAPACITY).unwrap().control().head.store(head, Ordering::SeqCst);
        let error = reader.receive(u64::MAX, &mut |_| panic!("nothing was written")).unwrap_err();
        assert!(matches!(error, RingError::Position { .. }), "{error}");
    }
    // Length and segment of a record do not fit.
    for (len, segment) in [(0, 0), (40, 15), (40, 41), (64, 16), (u32::MAX, 16), (1 << 30, 16)] {
        let (_writer, mut reader, fd) = ring();
        let forged = Mapping::open(&fd, CAPACITY).unwrap();
        forged.slice(0, 4).store_in_ring(&u32::to_ne_bytes(len)).unwrap();
        forged.slice(4, 2).store_in_ring(&u16::to_ne_bytes(segment)).unwrap();
        forged.control().head.store(64, Ordering::SeqCst);
        let error = reader.receive(u64::MAX, &mut |_| panic!("the record is malformed")).unwrap_err();
        assert!(matches!(error, RingError::Record { .. }), "{error}");
    }
}

#[test]
fn random_bytes_in_the_memory_end_in_an_error_or_in_bursts_within_the_ring() {
    let (mut errors, mut bursts) = (0, 0);
    for seed in 0..2000 {
        let mut rng = SimRng::new(seed, 0);
        let (mut writer, mut reader, fd) = ring();
        let other = Mapping::open(&fd, CAPACITY).unwrap();
        for _ in 0..20 {
            let small = queue(0, 1 + rng.below(15) as u32, 16);
            let _ = writer.write(&small.bursts().next().unwrap());
            writer.publish();
            let control = other.control();
            let value = match rng.below(3) {
                0 => rng.below(u64::MAX),
                1 => rng.below(2 * CAPACITY as u64),
                _ => 64 * rng.below(64),
            };
            match rng.below(4) {
                0 => control.head.store(value, Ordering::SeqCst),
                1 => control.tail.store(value, Ordering::SeqCst),
                _ => other.slice(64 * rng.below(16), 8).store_in_ring(&value.to_le_bytes()).unwrap(),
            }
            match reader
                .receive(u64::MAX, &mut |burst| assert!(burst.segment > 0 && burst.data.len() <= CAPACITY))
            {
                Ok(packets) => bursts += u32::from(packets > 0),
                Err(_) => {
                    errors += 1;
                    break;
                }
            }
        }
    }
    assert!(errors > 500 && bursts > 500, "{errors} errors, {bursts} times bursts");
}

/// User memory of one page that the test can make unreadable.
struct UserMemory {
    address: *mut libc::c_void,
    slice: HostSlice,
    _table: Table,
}

const PAGE: usize = 4096;

impl UserMemory {
    /// Maps a page, filled with `byte`, and registers it.
    fn new(byte: u8) -> UserMemory {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: creates a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        // SAFETY: the page was just mapped writable, and only this test has its address.
        unsafe { address.cast::<u8>().write_bytes(byte, PAGE) };
        let (pd, addr) = (PdId(1), address.expose_provenance());
        let (mut table, access) = (Table::new(), Access::LOCAL_WRITE);
        let extent = Extent { addr, len: PAGE, iova: 0, access };
        // SAFETY: the page is unmapped only in `drop`, after which nothing uses the table or the slice.
        let info = unsafe { table.register(pd, extent) }.unwrap();
        let accessor = Accessor { pd, qpn: Qpn::new(2) };
        let slice = table.local(accessor, info.lkey, 0, PAGE as u32, Access::LOCAL_READ).unwrap();
        UserMemory { address, slice, _table: table }
    }

    #[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
    fn make_unreadable(&self) {
        // SAFETY: the page belongs to this test; later loads are those of `HostSlice`, which return an error.
        assert_eq!(unsafe { libc::mprotect(self.address, PAGE, libc::PROT_NONE) }, 0);
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        // SAFETY: nothing uses the page any more.
        unsafe { libc::munmap(self.address, PAGE) };
    }
}

/// Returns a queue with one burst, with a packet for each page of memory and deferred ICRCs.
fn deferred(memory: &[&UserMemory]) -> TxQueue {
    let mut queue = TxQueue::with_deferred_icrc(BurstLimits::SEGMENTED);
    for page in memory {
        let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
        queue.push_host(&flow(4000), &headers, &[page.slice]).unwrap();
    }
    queue
}

/// Received packets: the burst's identification, and for each packet its payload and whether its ICRC is
/// valid once the burst [has ICRCs](crate::burst::RxBurst::with_icrcs).
fn received_payloads(reader: &mut RingReader) -> (IpIdent, Vec<(Vec<u8>, bool)>) {
    let (mut ident, mut packets) = (None, Vec::new());
    let sink = &mut |burst: crate::burst::RxBurst<'_>| {
        ident = Some(burst.ident);
        let mut scratch = Vec::new();
        let burst = burst.with_icrcs(&mut scratch).unwrap();
        assert_eq!(burst.ident, IpIdent::SENT);
        packets.extend(burst.packets().map(|(index, packet)| {
            let payload = crate::wire::Packet::parse(packet).unwrap().payload().to_vec();
            (payload, icrc::verify(&burst.flow, burst.ident, index, packet))
        }));
    };
    reader.receive(CAPACITY as u64, sink).unwrap();
    (ident.unwrap(), packets)
}

#[test]
fn deferred_icrcs_are_left_out_if_the_writer_elides_them() {
    let memory = [3, 5].map(UserMemory::new);
    for (elides_icrcs, expected) in [(false, IpIdent::SENT), (true, IpIdent::Elided)] {
        let (mut writer, mut reader, _fd) = ring_eliding_icrcs(elides_icrcs);
        assert!(writer.write(&deferred(&memory.each_ref()).bursts().next().unwrap()).unwrap());
        writer.publish();
        let packets = vec![(vec![3; PAGE], true), (vec![5; PAGE], true)];
        assert_eq!(received_payloads(&mut reader), (expected, packets), "{elides_icrcs}");
    }
}

#[test]
fn icrcs_of_short_packets_are_deferred_and_left_out_likewise() {
    for (elides_icrcs, expected) in [(false, IpIdent::SENT), (true, IpIdent::Elided)] {
        let (mut writer, mut reader, _fd) = ring_eliding_icrcs(elides_icrcs);
        let mut queue = TxQueue::with_deferred_icrc(BurstLimits::SEGMENTED);
        for byte in [3, 5] {
            let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
            queue.push(&flow(4000), headers, &[byte; 99]);
        }
        let burst = queue.bursts().next().unwrap();
        assert_eq!((queue.bursts().len(), burst.as_bytes()), (1, None));
        assert!(writer.write(&burst).unwrap());
        writer.publish();
        let packets = vec![(vec![3; 99], true), (vec![5; 99], true)];
        assert_eq!(received_payloads(&mut reader), (expected, packets), "{elides_icrcs}");
    }
}

#[test]
fn complete_packets_keep_their_icrcs() {
    let (mut writer, mut reader, _fd) = ring_eliding_icrcs(true);
    let mut bytes = Vec::new();
    queue(0, 1, 600).bursts().next().unwrap().copy_to(&mut bytes);
    // As fault injection does.
    bytes[100] ^= 1;
    let mut corrupt = TxQueue::with_deferred_icrc(BurstLimits::SEGMENTED);
    corrupt.push_raw(&flow(4000), 0, &bytes);
    assert!(writer.write(&corrupt.bursts().next().unwrap()).unwrap());
    writer.publish();
    let (ident, packets) = received_payloads(&mut reader);
    assert_eq!((ident, packets[0].1), (IpIdent::SENT, false));
}

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
#[test]
fn packet_whose_payload_became_unreadable_has_an_invalid_icrc() {
    crate::memory::install_fault_handler();
    let memory = [3, 5].map(UserMemory::new);
    let (mut writer, mut reader, _fd) = ring_eliding_icrcs(true);
    let queue = deferred(&memory.each_ref());
    memory[1].make_unreadable();
    assert!(writer.write(&queue.bursts().next().unwrap()).unwrap());
    writer.publish();
    let (ident, packets) = received_payloads(&mut reader);
    assert_eq!((ident, packets), (IpIdent::SENT, vec![(vec![3; PAGE], true), (vec![0; PAGE], false)]));
}

//! Tests of gathered records, and of payloads that stay in the writer's memory, with both ends in one
//! process, and with a writer that breaks the protocol.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::*;
use crate::burst::{BurstLimits, RxBurst, TxQueue};
use crate::link::{Link, LinkInfo};
use crate::memory::{Access, Accessor, Buffer, Extent, PdId, Table, withdraw_payloads};
use crate::rings::memory::{CAPACITY, RingError, RingReader, RingWriter};
use crate::sys::rng::SimRng;
use crate::transport::Instant;
use crate::verbs::{ConnectOptions, Context, ContextOptions, Endpoint, TestEndpoint};
use crate::wire::{Bth, Flow, Headers, Opcode, PKey, Psn, Qpn, RKey, Reth};

const SRC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
const DST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

const SEND_FIRST: Opcode = Opcode(0x00);
const SEND_MIDDLE: Opcode = Opcode(0x01);
const WRITE_MIDDLE: Opcode = Opcode(0x07);
const WRITE_ONLY: Opcode = Opcode(0x0a);
const READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);
const UC_SEND_MIDDLE: Opcode = Opcode(0x21);

/// User memory, registered: the slice is all of it.
struct UserMemory {
    slice: HostSlice,
    buffer: Buffer,
    _table: Table,
}

impl UserMemory {
    fn new(buffer: Buffer, seed: u64) -> UserMemory {
        let mut rng = SimRng::new(seed, 0);
        let bytes: Vec<u8> = (0..buffer.len()).map(|_| rng.below(256) as u8).collect();
        buffer.write(0, &bytes).unwrap();
        let (pd, mut table, len) = (PdId(1), Table::new(), buffer.len());
        let extent = Extent { addr: buffer.addr(), len, iova: 0, access: Access::LOCAL_WRITE };
        // SAFETY: the buffer lives as long as the table and the slice.
        let info = unsafe { table.register(pd, extent) }.unwrap();
        let accessor = Accessor { pd, qpn: Qpn::new(2) };
        let slice = table.local(accessor, info.lkey, 0, len as u32, Access::LOCAL_READ).unwrap();
        UserMemory { slice, buffer, _table: table }
    }

    fn shareable(seed: u64) -> UserMemory {
        UserMemory::new(Buffer::shareable(1 << 20).unwrap(), seed)
    }

    fn part(&self, at: usize, len: usize) -> HostSlice {
        self.slice.split_at(at).1.split_at(len).0
    }

    fn id(&self) -> u32 {
        let all = all_shareable();
        all.iter().find(|memory| memory.range().start == self.buffer.addr()).unwrap().id()
    }
}

fn flow() -> Flow {
    Flow { traffic_class: 0x62, hop_limit: 9, ..Flow::new(SRC, DST, 4000) }
}

fn ring() -> (RingWriter, RingReader) {
    let (writer, fd) = RingWriter::create(CAPACITY, true).unwrap();
    let reader = RingReader::open(&fd, CAPACITY, SRC, DST).unwrap();
    (writer, reader)
}

/// Queue of packets with deferred ICRCs.
struct Packets(TxQueue);

impl Packets {
    fn new() -> Packets {
        Packets(TxQueue::with_deferred_icrc(BurstLimits::SEGMENTED))
    }

    fn add(&mut self, opcode: Opcode, psn: u32, slices: &[HostSlice]) {
        let bth = Bth { opcode, psn: Psn::new(psn), ..Bth::default() };
        self.0.push_host(&flow(), &Headers { bth, ..Headers::default() }, slices).unwrap();
    }

    /// Writes all bursts, and returns the number of bytes that they take in the ring.
    fn write(&self, writer: &mut RingWriter) -> u64 {
        let before = writer.head();
        assert!(self.0.bursts().all(|burst| writer.write(&burst).unwrap()));
        writer.publish();
        writer.head() - before
    }

    /// Returns the bytes of each burst, with ICRCs.
    fn bytes(&self) -> Vec<Vec<u8>> {
        let copy = |burst: crate::burst::TxBurst<'_>| {
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            bytes
        };
        self.0.bursts().map(copy).collect()
    }
}

/// Returns the bytes of each burst that is waiting, with ICRCs; `None` for one with withdrawn payloads.
fn received(reader: &mut RingReader) -> Vec<Option<Vec<u8>>> {
    let (mut bursts, mut scratch) = (Vec::new(), Vec::new());
    while reader.has_bursts() {
        let sink = &mut |burst: RxBurst<'_>| {
            assert_eq!(burst.flow, flow());
            let whole = burst.with_icrcs(&mut scratch);
            bursts.push(whole.map(|burst| burst.data.to_vec()));
        };
        reader.receive(u64::MAX, sink).unwrap();
    }
    bursts
}

/// Passes offers and withdrawals to the reader, and its answers to the writer. Returns the numbers of the
/// memory accepted, refused and withdrawn.
fn exchange(writer: &mut RingWriter, reader: &mut RingReader) -> [Vec<u32>; 3] {
    let mut numbers = [const { Vec::new() }; 3];
    while let Some(change) = writer.next_change().unwrap() {
        match change {
            Change::Offer(memory) => {
                let fd = memory.as_fd().try_clone_to_owned().unwrap();
                let accepts = reader.memory.share(memory.id(), &fd).unwrap().is_ok();
                assert!(writer.memory.on_answer(memory.id(), accepts));
                numbers[usize::from(!accepts)].push(memory.id());
            }
            Change::Withdraw(id) => {
                assert!(reader.memory.withdraw(id));
                numbers[2].push(id);
            }
        }
    }
    numbers
}

/// Writes the packets until none are lost: other tests of this process withdraw payloads too. Returns their
/// length in the ring.
fn check_arrive(packets: impl Fn() -> Packets, writer: &mut RingWriter, reader: &mut RingReader) -> u64 {
    loop {
        let packets = packets();
        let written = packets.write(writer);
        let got = received(reader);
        if got.iter().all(Option::is_some) {
            assert!(got.into_iter().flatten().eq(packets.bytes()));
            return written;
        }
    }
}

#[test]
fn payloads_in_memory_that_the_reader_has_mapped_are_left_out() {
    let memory = UserMemory::shareable(1);
    let (mut writer, mut reader) = ring();
    let packets = || {
        let mut packets = Packets::new();
        (0..15).for_each(|n| packets.add(WRITE_MIDDLE, n, &[memory.part(4096 * n as usize, 4096)]));
        packets
    };
    assert!(check_arrive(packets, &mut writer, &mut reader) > 60_000, "not yet offered");
    assert!(check_arrive(packets, &mut writer, &mut reader) > 60_000, "not yet accepted");
    assert_eq!(exchange(&mut writer, &mut reader), [vec![memory.id()], vec![], vec![]]);
    // 15 headers and ICRCs, and one descriptor for all payloads.
    assert_eq!(check_arrive(packets, &mut writer, &mut reader), 24 + 15 * 16 + 24 + 32);
}

#[test]
fn bursts_of_any_packets_arrive_like_copied_ones() {
    let shared = [1, 2].map(UserMemory::shareable);
    let private = UserMemory::new(Buffer::zeroed(1 << 20), 3);
    let (mut writer, mut reader) = ring();
    let mut rng = SimRng::new(7, 0);
    let opcodes = [SEND_FIRST, SEND_MIDDLE, WRITE_MIDDLE, READ_RESPONSE_MIDDLE, UC_SEND_MIDDLE];
    let mut shortest = u64::MAX;
    for round in 0..400 {
        let (count, len) = (1 + rng.below(16), 1 + rng.below(4096) as usize);
        let plan: Vec<(Opcode, Vec<HostSlice>)> = (0..count)
            .map(|n| {
                let opcode = opcodes[rng.below(opcodes.len() as u64) as usize];
                let mut left = if n + 1 == count { 1 + rng.below(len as u64) as usize } else { len };
                let mut slices = Vec::new();
                while left > 0 {
                    let take = if rng.below(3) == 0 { 1 + rng.below(left as u64) as usize } else { left };
                    let memory = match rng.below(4) {
                        0 => &private,
                        n => &shared[n as usize % 2],
                    };
                    slices.push(memory.part(rng.below(1 << 19) as usize, take));
                    left -= take;
                }
                (opcode, slices)
            })
            .collect();
        let packets = || {
            let mut packets = Packets::new();
            plan.iter().zip(round..).for_each(|((opcode, slices), psn)| packets.add(*opcode, psn, slices));
            packets
        };
        shortest = shortest.min(check_arrive(packets, &mut writer, &mut reader));
        exchange(&mut writer, &mut reader);
    }
    assert!(shortest < 2000, "{shortest}");
}

#[test]
fn responses_and_packets_without_acknowledgements_are_copied() {
    let memory = UserMemory::shareable(1);
    let (mut writer, mut reader) = ring();
    for opcode in [WRITE_MIDDLE, READ_RESPONSE_MIDDLE, UC_SEND_MIDDLE] {
        let packets = || {
            let mut packets = Packets::new();
            (0..4).for_each(|n| packets.add(opcode, n, &[memory.part(0, 1024)]));
            packets
        };
        check_arrive(packets, &mut writer, &mut reader);
        exchange(&mut writer, &mut reader);
        let written = check_arrive(packets, &mut writer, &mut reader);
        assert_eq!(written > 4096, opcode != WRITE_MIDDLE, "{opcode:?}");
    }
}

#[test]
fn withdrawn_payloads_are_lost_and_later_ones_are_not() {
    let memory = UserMemory::shareable(1);
    let (mut writer, mut reader) = ring();
    let packets = || {
        let mut packets = Packets::new();
        packets.add(WRITE_MIDDLE, 0, &[memory.part(0, 1024)]);
        packets
    };
    check_arrive(packets, &mut writer, &mut reader);
    exchange(&mut writer, &mut reader);
    let queued = packets();
    assert_eq!(packets().write(&mut writer), 64);
    withdraw_payloads();
    assert_eq!(received(&mut reader), [None]);
    // The request may have ended between the two.
    queued.write(&mut writer);
    assert_eq!(received(&mut reader), [None]);
    check_arrive(packets, &mut writer, &mut reader);
}

#[test]
fn freed_memory_is_withdrawn_once_the_reader_has_read_the_last_payload_in_it() {
    let (mut writer, mut reader) = ring();
    let memory = UserMemory::shareable(1);
    let id = memory.id();
    let mut packets = Packets::new();
    packets.add(WRITE_MIDDLE, 0, &[memory.part(0, 1024)]);
    packets.write(&mut writer);
    assert_eq!(exchange(&mut writer, &mut reader)[0], [id]);
    packets.write(&mut writer);
    let expected = packets.bytes();
    drop(memory);
    assert_eq!(exchange(&mut writer, &mut reader), [const { Vec::<u32>::new() }; 3]);
    let got = received(&mut reader);
    assert_eq!(got[0].as_ref(), Some(&expected[0]));
    assert!(got[1].is_none() || got[1].as_ref() == Some(&expected[0]));
    assert_eq!(exchange(&mut writer, &mut reader), [vec![], vec![], vec![id]]);
    assert!(!reader.memory.withdraw(id), "it is no longer mapped");
}

#[test]
fn number_of_shared_memories_is_limited_at_both_ends() {
    let (mut writer, mut reader) = ring();
    let mut memories: Vec<UserMemory> = (0..MAX_SHARED as u64 + 1).map(UserMemory::shareable).collect();
    let send_from_all = |writer: &mut RingWriter, reader: &mut RingReader, memories: &[UserMemory]| {
        for memory in memories {
            let mut packets = Packets::new();
            packets.add(WRITE_MIDDLE, 0, &[memory.part(0, 1024)]);
            packets.write(writer);
            received(reader);
        }
    };
    send_from_all(&mut writer, &mut reader, &memories);
    assert_eq!(exchange(&mut writer, &mut reader).map(|ids| ids.len()), [MAX_SHARED, 0, 0]);
    let fd = all_shareable()[0].as_fd().try_clone_to_owned().unwrap();
    assert!(reader.memory.share(u32::MAX, &fd).unwrap().is_err(), "one too many");
    assert!(reader.memory.share(memories[0].id(), &fd).is_none(), "twice");
    memories.remove(0);
    send_from_all(&mut writer, &mut reader, &memories);
    assert_eq!(exchange(&mut writer, &mut reader).map(|ids| ids.len()), [1, 0, 1]);
}

#[test]
fn answers_without_an_offer_are_recognised() {
    let (mut writer, mut reader) = ring();
    assert!(!writer.memory.on_answer(7, true));
    let memory = UserMemory::shareable(1);
    let mut packets = Packets::new();
    packets.add(WRITE_MIDDLE, 0, &[memory.part(0, 1024)]);
    packets.write(&mut writer);
    assert!(!writer.memory.on_answer(memory.id(), true), "not yet offered");
    exchange(&mut writer, &mut reader);
    assert!(!writer.memory.on_answer(memory.id(), true), "answered before");
}

/// Record of one packet of 1040 bytes: 16 bytes of headers and ICRC, and 1024 of payload elsewhere.
#[derive(Clone)]
struct Forged {
    len: u32,
    segment: u32,
    fields: u32,
    stored: u32,
    descriptors: Vec<[u32; Parts::WORDS]>,
}

impl Forged {
    fn valid(id: u32) -> Forged {
        let descriptors = vec![[12, 1024, 1, id, 0, 0]];
        Forged { len: 1040, segment: 1040, fields: 3 << 16, stored: 16, descriptors }
    }

    /// Returns the result of reading the record.
    fn read(&self, writer: &mut RingWriter, reader: &mut RingReader) -> Result<usize, RingError> {
        let count = self.descriptors.len() as u32;
        let epoch = crate::memory::payload_epoch();
        let header = [self.len, 4000 << 16 | self.segment, self.fields, self.stored, count, epoch];
        let packets = vec![0_u32; self.stored.div_ceil(4) as usize];
        let words: Vec<u32> = header.into_iter().chain(packets).chain(self.descriptors.concat()).collect();
        writer.forge_record(&words);
        writer.publish();
        reader.receive(1, &mut |burst: RxBurst<'_>| {
            burst.with_icrcs(&mut Vec::new());
        })
    }
}

#[test]
fn contradictory_records_are_refused() {
    let memory = UserMemory::shareable(1);
    let id = memory.id();
    type Change = fn(&mut Forged);
    let changes: [(&str, Change); 21] = [
        ("valid", |_| {}),
        ("no ICRCs elided", |record| record.fields = 2 << 16),
        ("segment too short", |record| record.segment = 15),
        ("segment too long", |record| record.segment = 1041),
        ("more than a ring", |record| record.len = CAPACITY as u32 + 1),
        ("more bytes than fit", |record| record.stored = 20),
        ("fewer bytes than needed", |record| record.stored = 8),
        ("unknown memory", |record| record.descriptors[0][3] = u32::MAX),
        ("beyond the memory", |record| record.descriptors[0][4] = (1 << 20) - 1023),
        ("far beyond the memory", |record| record.descriptors[0][5] = u32::MAX),
        ("empty", |record| record.descriptors[0][1] = 0),
        ("across packets", |record| record.segment = 520),
        ("in the header", |record| record.descriptors[0][0] = 8),
        ("not at the end", |record| record.descriptors[0][0] = 16),
        ("with a gap", |record| {
            let id = record.descriptors[0][3];
            record.stored = 20;
            record.descriptors = vec![[12, 500, 1, id, 0, 0], [516, 520, 1, id, 0, 0]];
        }),
        ("overlapping", |record| record.descriptors = vec![record.descriptors[0]; 2]),
        ("too many", |record| record.descriptors[0][2] = u32::MAX),
        ("valid in the record", |record| {
            record.stored = 1040;
            record.descriptors[0][3..5].copy_from_slice(&[RECORD, 16]);
        }),
        ("beyond the record", |record| {
            record.stored = 1040;
            record.descriptors[0][3..5].copy_from_slice(&[RECORD, 17]);
        }),
        ("not in the record", |record| record.descriptors[0][3] = RECORD),
        ("twice in the record", |record| {
            (record.len, record.stored) = (2080, 1056);
            record.descriptors = vec![[12, 1024, 1, RECORD, 32, 0], [1052, 1024, 1, RECORD, 32, 0]];
        }),
    ];
    for (what, change) in changes {
        let (mut writer, mut reader) = ring();
        let fd = all_shareable().iter().find(|m| m.id() == id).unwrap().as_fd().try_clone_to_owned();
        reader.memory.share(id, &fd.unwrap()).unwrap().unwrap();
        let mut record = Forged::valid(id);
        change(&mut record);
        let result = record.read(&mut writer, &mut reader);
        assert_eq!(result.is_ok(), what.starts_with("valid"), "{what}: {result:?}");
    }
}

#[test]
fn random_records_are_read_or_refused() {
    let memory = UserMemory::shareable(1);
    let id = memory.id();
    let mut rng = SimRng::new(11, 0);
    let mut accepted = 0;
    for _ in 0..3000 {
        let (mut writer, mut reader) = ring();
        let fd = all_shareable().iter().find(|m| m.id() == id).unwrap().as_fd().try_clone_to_owned();
        reader.memory.share(id, &fd.unwrap()).unwrap().unwrap();
        let mut record = Forged::valid(id);
        for _ in 0..1 + rng.below(3) {
            let value = [0, 1, 12, 520, 1024, u32::MAX, rng.below(2000) as u32][rng.below(7) as usize];
            match rng.below(9) {
                0 => record.len = value,
                1 => record.segment = value & 0xffff,
                2 => record.stored = value.min(4096),
                word if word < 9 => record.descriptors[0][word as usize - 3] = value,
                _ => {}
            }
        }
        accepted += u32::from(record.read(&mut writer, &mut reader).is_ok());
    }
    assert!(accepted > 0);
}

/// Link that receives from a ring, and sends nothing.
struct RingLink {
    info: LinkInfo,
    reader: RingReader,
}

impl Link for RingLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, _: Instant, _: &TxQueue) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.reader.receive(u64::MAX, sink).map_err(io::Error::other)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

#[test]
fn nic_executes_a_packet_only_if_its_whole_payload_is_shared() {
    let source = UserMemory::shareable(1);
    let (mut writer, mut reader) = ring();
    let fd = all_shareable().iter().find(|m| m.id() == source.id()).unwrap().as_fd().try_clone_to_owned();
    reader.memory.share(source.id(), &fd.unwrap()).unwrap().unwrap();
    let link = RingLink { info: LinkInfo::new("ring", vec![DST]), reader };
    let context = Context::open(Box::new(link), &ContextOptions::default()).unwrap();
    let node = TestEndpoint::new(context).unwrap();
    let peer = Endpoint { gid: SRC.into(), qpn: Qpn::new(0x77), psn: Psn::new(0) };
    node.qp.connect(&peer, &ConnectOptions::default()).unwrap();
    let target = node.pd.reg_mr(4096, Access::ALL).unwrap();
    let mut expected = vec![0; 1024];
    source.buffer.read(0, &mut expected).unwrap();
    // Length of the shared part, whether the R_Key is valid, and whether the packet is executed.
    for (len, has_key, executes) in
        [(1020, true, false), (1028, true, false), (1024, true, true), (1024, false, false)]
    {
        let to = target.remote(0);
        let rkey = if has_key { to.rkey } else { RKey(to.rkey.0 ^ 1 << 20) };
        let bth = Bth {
            opcode: WRITE_ONLY,
            dest_qp: node.qp.qpn(),
            psn: Psn::new(u32::from(!has_key)),
            pkey: PKey::DEFAULT,
            ..Bth::default()
        };
        let reth = Reth { va: to.va, rkey, dma_len: 1024 };
        let headers = Headers { bth, reth, ..Headers::default() };
        let whole = 28 + 1024 + 4;
        // The part ends where the payload does, and begins after or before it if it has another length.
        let at = 28 + 1024 - len;
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.resize(at as usize, 0);
        packet.extend([0; 4]);
        let stored = packet.len() as u32;
        let header = [whole, 4000 << 16 | whole, 3 << 16, stored, 1];
        let packet = packet.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        let descriptor = [at, len, 1, source.id(), 0, 0];
        let before = loop {
            let epoch = crate::memory::payload_epoch();
            let words = header.into_iter().chain([epoch]).chain(packet.clone()).chain(descriptor);
            writer.forge_record(&words.collect::<Vec<_>>());
            writer.publish();
            let before = node.context.counters();
            let begin = std::time::Instant::now();
            while node.context.counters().rcvd_pkts == before.rcvd_pkts {
                assert!(begin.elapsed().as_secs() < 60, "the packet does not arrive");
                let _ = node.cq.poll(1, &mut Vec::new());
            }
            // Another test of this process may have withdrawn all payloads.
            if crate::memory::payload_epoch() == epoch {
                break before;
            }
        };
        let mut stored = vec![0; 1024];
        target.read(0, &mut stored).unwrap();
        assert_eq!(stored == expected, executes, "{len} {has_key}");
        let truncated = node.context.counters().rx_truncated - before.rx_truncated;
        assert_eq!(truncated, u64::from(len != 1024), "{len} {has_key}");
        target.write(0, &[0; 1024]).unwrap();
    }
}

//! Fuzz target: the rings in shared memory between the processes of a host. A hostile process passes rings of
//! its own to an honest one and writes anything into them, and does the same with the rings that the honest
//! process passes to it. The honest process must deliver what a model of the reader reads from the same
//! memory, must write what it sends into the room that a model of the writer has, must close a ring of which
//! a position or record is invalid, and must keep no descriptors.
#![no_main]

#[path = "input.rs"]
mod input;
#[path = "shared.rs"]
mod shared;

use std::cell::RefCell;
use std::io::IoSlice;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use input::Input;
use libfuzzer_sys::fuzz_target;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{pread, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use urxe::broker::{SharedMemory, SharedUdpLink};
use urxe::link::{Link, MemoryPath, NicEvent, NicObserver, PortState, SharedAddress};
use urxe::transport::{BurstLimits, Instant, TxQueue};
use urxe::wire::{Bth, Flow, Headers, ICRC_LEN, IpIdent, Opcode, Psn, Qpn, icrc};

/// Layout of the memory: a control block with three positions, then the data.
const HEAD: u64 = 0;
const TAIL: u64 = 128;
const READER_SLEEPS: u64 = 256;
const DATA: u64 = 64 << 10;
const CAPACITY: u64 = 2 << 20;
const FILE_LEN: u64 = DATA + CAPACITY;

const ALIGN: u64 = 64;
const RECORD_HEADER_LEN: u64 = 12;
const MIN_PACKET: u64 = 16;
/// Bit of a record's third word: the packets have no ICRCs.
const ELIDES_ICRCS: u32 = 1 << 16;

/// Bit of a record's third word: payloads are apart from the packets, and three more words follow.
const IS_GATHERED: u32 = 1 << 17;
const LONG_HEADER_LEN: u64 = 24;
const DESCRIPTOR_LEN: u64 = 24;
/// Number that stands for the record itself in place of that of a memory.
const RECORD: u64 = 0;
/// Length of the header of shared memory, which begins with the epoch.
const SHARED_HEADER: u64 = 64 << 10;
const EPOCH: u32 = 5;
/// Maximum number of shared memories, and of messages that the victim takes from a connection at a time.
const MAX_SHARED: usize = 32;
const MAX_MESSAGES: usize = 64;

/// QPN partition in which the hostile process listens.
const PARTITION: u32 = 40;

/// Number of executions after which the honest process joins again, and descriptors are counted. It passes no
/// ring to a process that has broken the protocol before, so each execution has a hostile process with
/// another address.
const JOIN_INTERVAL: u64 = 240;
/// Time within which a process gets a partition. The broker makes it wait for those of processes that have
/// just disconnected.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which the kernel closes a socket.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bound of this process's descriptors.
const MAX_DESCRIPTORS: usize = 1000;

/// Memory of a ring, as the hostile process uses it.
struct Memory(OwnedFd);

impl Memory {
    /// Creates the memory of an empty ring, of which some bytes are allocated.
    fn create(seals: SealFlags, len: u64, allocated: u64) -> Memory {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a descriptor");
        ftruncate(&fd, len).expect("memory");
        if allocated > 0 {
            fallocate(&fd, FallocateFlags::empty(), 0, allocated).expect("memory");
        }
        fcntl_add_seals(&fd, seals).expect("seals");
        Memory(fd)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(pread(&self.0, &mut bytes, at).expect("memory"), len, "{len} bytes at {at}");
        bytes
    }

    fn read_u32(&self, at: u64) -> u32 {
        u32::from_ne_bytes(self.read(at, 4).try_into().expect("4 bytes"))
    }

    fn read_u64(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().expect("8 bytes"))
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let len = bytes.len().min((FILE_LEN - at) as usize);
        assert_eq!(pwrite(&self.0, &bytes[..len], at).expect("memory"), len, "{len} bytes at {at}");
    }

    fn write_u64(&self, at: u64, value: u64) {
        self.write(at, &value.to_ne_bytes());
    }

    /// Reads data at a position, which may continue at the beginning.
    fn data(&self, position: u64, len: usize) -> Vec<u8> {
        let at = position % CAPACITY;
        let first = len.min((CAPACITY - at) as usize);
        [self.read(DATA + at, first), self.read(DATA, len - first)].concat()
    }

    fn write_data(&self, position: u64, bytes: &[u8]) {
        let at = position % CAPACITY;
        let first = bytes.len().min((CAPACITY - at) as usize);
        self.write(DATA + at, &bytes[..first]);
        self.write(DATA, &bytes[first..]);
    }
}

/// Delivered burst.
#[derive(PartialEq, Debug)]
struct Burst {
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    segment: usize,
    data: Vec<u8>,
}

/// A ring that the hostile process writes to, and a model of the honest reader.
struct ToVictim {
    memory: Memory,
    connection: Option<OwnedFd>,
    /// Addresses of the packets.
    flow: Flow,
    /// The reader's position.
    tail: u64,
    /// Position behind the last record that was written according to the protocol.
    head: u64,
    is_closed: bool,
    /// Memory that the victim has mapped: number and data.
    shared: Vec<(u32, Vec<u8>)>,
    /// Number of messages since the victim last read them.
    messages: usize,
    /// Whether one of the messages breaks the protocol.
    is_broken: bool,
}

impl ToVictim {
    /// Sends a message, with a descriptor if there is one. Returns false if the connection is closed, or has
    /// many messages.
    fn send(&mut self, message: &[u8], fd: Option<&OwnedFd>) -> bool {
        let Some(connection) = self.connection.as_ref().filter(|_| self.messages + 1 < MAX_MESSAGES) else {
            return false;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let is_sent = sendmsg(connection, &[IoSlice::new(message)], &mut control, flags).is_ok();
        self.messages += usize::from(is_sent);
        is_sent
    }

    /// Offers or withdraws memory, or sends anything.
    fn send_about_memory(&mut self, p: &mut Input<'_>) {
        let id = u32::from(p.u8() % 4);
        let is_shared = self.shared.iter().any(|(of, _)| *of == id);
        match p.below(8) {
            0 => {
                let message: Vec<u8> = (0..1 + p.below(40)).map(|_| p.u8()).collect();
                let is_notification = message == b"\0";
                self.is_broken |= self.send(&message, None) && !is_notification;
            }
            1 | 2 => {
                if self.send(format!("withdraw {id}").as_bytes(), None) {
                    self.shared.retain(|(of, _)| *of != id);
                    self.is_broken |= !is_shared;
                }
            }
            kind => {
                let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
                let fd = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                    .expect("a descriptor");
                let data: Vec<u8> = (0..8192).map(|n| (n * 7 + kind) as u8 ^ p.u8()).collect();
                let len = if kind == 3 { SHARED_HEADER } else { SHARED_HEADER + data.len() as u64 };
                if kind == 4 {
                    // Without its pages.
                    ftruncate(&fd, len).expect("memory");
                } else {
                    fallocate(&fd, FallocateFlags::empty(), 0, len).expect("memory");
                    pwrite(&fd, &EPOCH.to_ne_bytes(), 0).expect("memory");
                    pwrite(&fd, &data[..(len - SHARED_HEADER) as usize], SHARED_HEADER).expect("memory");
                }
                let missing = if kind == 5 { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
                fcntl_add_seals(&fd, seals & !missing).expect("seals");
                if self.send(format!("offer {id}").as_bytes(), Some(&fd)) {
                    self.is_broken |= is_shared;
                    if kind > 5 && self.shared.len() < MAX_SHARED {
                        self.shared.push((id, data));
                    }
                }
            }
        }
    }

    /// Appends a gathered record, most often according to the protocol.
    fn append_long(&mut self, p: &mut Input<'_>) {
        let payload = 4 * (1 + u32::from(p.u8())) * (1 + p.below(3) as u32);
        let segment = MIN_PACKET as u32 + payload;
        let count = 1 + p.below(4) as u32;
        let (mut bytes, mut behind, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..count {
            // The pad count in the second byte is 0.
            bytes.extend([4, 0]);
            bytes.extend((0..10).map(|_| p.u8()));
            if p.chance(4) {
                bytes.extend((0..payload).map(|n| n as u8));
            } else {
                let (at, id) = (segment * n + 12, u32::from(p.u8() % 4));
                let is_behind = u64::from(id) == RECORD;
                let offset = if is_behind { behind.len() as u32 } else { u32::from(p.u16()) % 9000 };
                words.push([at, payload, 1, id, offset, 0]);
                behind.extend((0..if is_behind { payload } else { 0 }).map(|n| n as u8));
            }
            bytes.extend([0; ICRC_LEN]);
        }
        // The payloads in the record are behind the bytes of the packets.
        words
            .iter_mut()
            .filter(|word| u64::from(word[3]) == RECORD)
            .for_each(|word| word[4] += bytes.len() as u32);
        bytes.extend(behind);
        let fields = u32::from(p.u16()) | ELIDES_ICRCS | IS_GATHERED;
        let epoch = if p.chance(8) { EPOCH + 1 } else { EPOCH };
        let header =
            [count * segment, 4791 << 16 | segment, fields, bytes.len() as u32, words.len() as u32, epoch];
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let mut record: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
        record.extend(bytes);
        record.extend(words.concat().into_iter().flat_map(u32::to_ne_bytes));
        if p.chance(3) {
            let word = p.below(record.len() / 4);
            let value = if p.chance(2) { p.u8().into() } else { p.u64() as u32 };
            record[4 * word..][..4].copy_from_slice(&value.to_ne_bytes());
        }
        let record_len = (record.len() as u64).next_multiple_of(ALIGN);
        if self.head.wrapping_sub(self.tail).saturating_add(record_len) <= CAPACITY {
            self.memory.write_data(self.head, &record);
            self.head += record_len;
            self.memory.write_u64(HEAD, self.head);
        }
    }

    /// Returns the packets of a gathered record, without ICRCs, and the length of the record. The packets are
    /// `None` if they are no longer valid. `None` if the reader must refuse the record.
    fn expect_long(&self, available: u64) -> Option<(Option<Vec<u8>>, u64)> {
        let word = |at: u64| {
            let bytes = self.memory.data(self.tail.wrapping_add(at), 4);
            u64::from(u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
        };
        let (len, segment) = (word(0), word(4) & 0xffff);
        let [stored, count, epoch] = [12, 16, 20].map(word);
        let descriptors = LONG_HEADER_LEN + stored.next_multiple_of(4);
        let record_len = (descriptors + count * DESCRIPTOR_LEN).next_multiple_of(ALIGN);
        let elides = word(8) as u32 & ELIDES_ICRCS != 0;
        if record_len > available || len > CAPACITY || segment < MIN_PACKET || segment > len || !elides {
            return None;
        }
        let stored = self.memory.data(self.tail.wrapping_add(LONG_HEADER_LEN), stored as usize);
        // For each byte that is apart from its packet, its value.
        let mut left_out: Vec<Option<u8>> = vec![None; len as usize];
        let (mut end_of_last, mut is_shared, mut apart) = (0, false, 0);
        for n in 0..count {
            let at = descriptors + n * DESCRIPTOR_LEN;
            let [start, part, parts, id, low, high] = [0, 4, 8, 12, 16, 20].map(|word_at| word(at + word_at));
            let data = if id == RECORD {
                &stored
            } else {
                &self.shared.iter().find(|(of, _)| u64::from(*of) == id)?.1
            };
            match id {
                RECORD => apart += part * parts,
                _ => is_shared |= parts > 0,
            }
            for k in 0..parts {
                let (from, offset) = (start + k * segment, (high << 32 | low) + k * part);
                let is_inside = from + part <= len && part > 0 && from >= end_of_last;
                if !is_inside || from / segment != (from + part - 1) / segment || from % segment < 12 {
                    return None;
                }
                let values = data.get(usize::try_from(offset).ok()?..)?.get(..part as usize)?;
                for (to, value) in left_out[from as usize..].iter_mut().zip(values) {
                    *to = Some(*value);
                }
                end_of_last = from + part;
            }
        }
        if left_out.iter().filter(|byte| byte.is_none()).count() as u64 + apart != stored.len() as u64 {
            return None;
        }
        let mut stored = stored.into_iter();
        let packets: Vec<u8> =
            left_out.iter().map(|byte| byte.unwrap_or_else(|| stored.next().expect("a byte"))).collect();
        // The bytes of a payload outside of its packet are contiguous, and end where the payload ends.
        for (packet, left_out) in packets.chunks(segment as usize).zip(left_out.chunks(segment as usize)) {
            let Some(last) = left_out.iter().rposition(Option::is_some) else { continue };
            let first = left_out.iter().position(Option::is_some).expect("there is a last");
            let pad = usize::from(packet[1] >> 4 & 3);
            if left_out[first..=last].iter().any(Option::is_none) || last + 1 + pad + ICRC_LEN != packet.len()
            {
                return None;
            }
        }
        Some(((!is_shared || epoch == u64::from(EPOCH)).then_some(packets), record_len))
    }

    /// Appends a record according to the protocol.
    fn append(&mut self, p: &mut Input<'_>) {
        let len = match p.below(8) {
            0 => u64::from(p.u16()),
            1 => MIN_PACKET,
            n => MIN_PACKET + (n as u64 - 1) * u64::from(p.u8()),
        }
        .max(MIN_PACKET);
        let segment = if p.chance(2) { MIN_PACKET.max(len / 4) } else { len.min(u16::MAX.into()) };
        let record_len = (RECORD_HEADER_LEN + len).next_multiple_of(ALIGN);
        if self.head.wrapping_sub(self.tail).saturating_add(record_len) > CAPACITY {
            return;
        }
        let fields = u32::from(p.u16()) | if p.chance(4) { ELIDES_ICRCS } else { 0 };
        let words = [len as u32, 4791 << 16 | segment as u32, fields];
        let header: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        self.memory.write_data(self.head, &header);
        let fill = p.u8();
        let packets: Vec<u8> = (0..len).map(|n| fill ^ n as u8).collect();
        self.memory.write_data(self.head + RECORD_HEADER_LEN, &packets);
        self.head += record_len;
        self.memory.write_u64(HEAD, self.head);
    }

    /// Writes anything anywhere, most often to places of importance.
    fn scribble(&mut self, p: &mut Input<'_>) {
        let at = match p.below(8) {
            0 => HEAD,
            1 => TAIL,
            2 => READER_SLEEPS,
            3 => p.u64() % FILE_LEN,
            n => DATA + (self.tail + (n as u64 - 4) * 4) % CAPACITY,
        };
        let value = match p.below(4) {
            0 => self.tail.wrapping_add(u64::from(p.u16()) * ALIGN),
            1 => self.tail.wrapping_sub(p.u8().into()),
            2 => p.u8().into(),
            _ => p.u64(),
        };
        let len = [8, 4, 2, 1][p.below(4)];
        self.memory.write(at, &value.to_ne_bytes()[..len]);
        // Later records begin where the reader expects them.
        self.head = self.memory.read_u64(HEAD);
    }

    /// Returns the bursts that the reader delivers, and whether it keeps the ring.
    fn expect(&mut self) -> (Vec<Burst>, bool) {
        let mut bursts = Vec::new();
        let head = self.memory.read_u64(HEAD);
        if head.wrapping_sub(self.tail) > CAPACITY || !head.is_multiple_of(ALIGN) {
            return (bursts, false);
        }
        while self.tail != head {
            let header = self.memory.data(self.tail, RECORD_HEADER_LEN as usize);
            let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
            let (len, segment) = (u64::from(word(0)), u64::from(word(4) & 0xffff));
            let record_len = (RECORD_HEADER_LEN + len).next_multiple_of(ALIGN);
            let (traffic_class, hop_limit) = (word(8) as u8, (word(8) >> 8) as u8);
            if word(8) & IS_GATHERED != 0 {
                let Some((packets, record_len)) = self.expect_long(head.wrapping_sub(self.tail)) else {
                    return (bursts, false);
                };
                let (src_port, segment) = ((word(4) >> 16) as u16, segment as usize);
                // Payloads that are no longer valid are lost.
                if let Some(mut data) = packets {
                    add_icrcs(&Flow { src_port, ..self.flow }, segment, &mut data);
                    bursts.push(Burst { src_port, traffic_class, hop_limit, segment, data });
                }
                self.tail = self.tail.wrapping_add(record_len);
                continue;
            }
            if record_len > head.wrapping_sub(self.tail) || segment < MIN_PACKET || segment > len {
                return (bursts, false);
            }
            let (src_port, segment) = ((word(4) >> 16) as u16, segment as usize);
            let mut data = self.memory.data(self.tail.wrapping_add(RECORD_HEADER_LEN), len as usize);
            if word(8) & ELIDES_ICRCS != 0 {
                add_icrcs(&Flow { src_port, ..self.flow }, segment, &mut data);
            }
            bursts.push(Burst { src_port, traffic_class, hop_limit, segment, data });
            self.tail = self.tail.wrapping_add(record_len);
        }
        (bursts, self.connection.is_some())
    }
}

/// Stores the ICRCs of packets that have none, as a reader does that does not permit this.
fn add_icrcs(flow: &Flow, segment: usize, data: &mut [u8]) {
    for (index, packet) in data.chunks_mut(segment).enumerate() {
        if packet.len() >= MIN_PACKET as usize {
            let icrc = icrc::compute(flow, index as u16, IpIdent::DONT_FRAGMENT, packet);
            let start = packet.len() - ICRC_LEN;
            packet[start..].copy_from_slice(&icrc.to_le_bytes());
        }
    }
}

/// A ring that the honest process writes to, and a model of that writer.
struct FromVictim {
    memory: Memory,
    connection: OwnedFd,
    head: u64,
    /// The last position of the reader that the writer has accepted.
    tail: u64,
    /// Whether the position that the victim may have looked at was ever invalid.
    was_invalid: bool,
}

struct Victim {
    link: SharedUdpLink,
    now: u64,
    partition: u32,
    /// Address of the hostile process, and the socket on which it listens for rings.
    attacker: Ipv4Addr,
    listener: OwnedFd,
    executions: u64,
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn name(address: Ipv4Addr, partition: u32) -> SocketAddrUnix {
    let name = format!("urxe-ring-2/{address}/{partition}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the name is short")
}

/// Reports whether the other end of a connection is open.
fn is_open(connection: &OwnedFd) -> bool {
    let mut bytes = [0; 16];
    loop {
        match recv(connection, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
}

/// Reports whether a connection is open, or closed, as expected. The kernel may close it late: a process that
/// inspects the descriptors of others holds the socket for a moment.
fn is_open_if(expected: bool, connection: &OwnedFd) -> bool {
    let begin = std::time::Instant::now();
    while is_open(connection) {
        if expected {
            return true;
        }
        if begin.elapsed() > CLOSE_TIMEOUT {
            return false;
        }
        std::thread::yield_now();
    }
    !expected
}

impl Victim {
    fn start() -> Victim {
        let link = shared::start_broker(SharedMemory::Auto);
        let partition = link.partition().index();
        let (attacker, listener) = (Ipv4Addr::UNSPECIFIED, socket());
        Victim { link, now: 1_000_000_000, partition, attacker, listener, executions: 0 }
    }

    fn join(&self) -> SharedUdpLink {
        let begin = std::time::Instant::now();
        loop {
            match shared::join(shared::address().into(), SharedMemory::Auto) {
                Ok(link) => return link,
                Err(e) => assert!(begin.elapsed() < JOIN_TIMEOUT, "no lease: {e}"),
            }
        }
    }

    /// Prepares the next execution.
    fn start_execution(&mut self) {
        let n = self.executions % JOIN_INTERVAL;
        self.executions += 1;
        if n == 0 {
            self.link = self.join();
            self.partition = self.link.partition().index();
            let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
            assert!(descriptors < MAX_DESCRIPTORS, "{descriptors} descriptors");
        }
        let [a, b, c, _] = shared::address().octets();
        self.attacker = Ipv4Addr::new(a, b, c, 2 + n as u8);
        self.listener = socket();
        bind(&self.listener, &name(self.attacker, PARTITION)).expect("the name is free");
        listen(&self.listener, 16).expect("the socket listens");
    }

    /// Returns the bursts that arrive.
    fn receive(&mut self) -> Vec<Burst> {
        let mut bursts = Vec::new();
        loop {
            // More than the interval between polls.
            self.now += 1_000_000;
            let received = self.link.receive(Instant(self.now), &mut |burst| {
                let flow = burst.flow;
                assert_eq!((flow.src, flow.dst), (self.attacker.into(), shared::address().into()));
                bursts.push(Burst {
                    src_port: flow.src_port,
                    traffic_class: flow.traffic_class,
                    hop_limit: flow.hop_limit,
                    segment: burst.segment,
                    data: burst.data.to_vec(),
                });
            });
            if received.expect("the link works") == 0 {
                return bursts;
            }
        }
    }

    /// Passes a ring to the victim; `None` if the victim refuses it, as it must if the memory is unusable.
    fn offer(&mut self, p: &mut Input<'_>) -> Option<ToVictim> {
        let kind = p.below(16);
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let memory = match kind {
            0 => Memory::create(SealFlags::SHRINK, FILE_LEN, FILE_LEN),
            1 => Memory::create(seals, u64::from(p.u16()), 0),
            2 => Memory(std::fs::File::open("/dev/null").expect("a descriptor").into()),
            // Refused unless all of it is allocated.
            6 => Memory::create(seals, FILE_LEN, u64::from(p.u16())),
            _ => Memory::create(seals, FILE_LEN, FILE_LEN),
        };
        let (src, dst) = (self.attacker, shared::address());
        let line = match kind {
            3 => format!("urxe-ring-2 {dst} {src}"),
            4 => (0..p.u8()).map(|_| p.u8() as char).collect(),
            _ => format!("urxe-ring-2 {src} {dst}"),
        };
        let fds = [memory.0.as_fd(), memory.0.as_fd()];
        let fds = &fds[..if kind == 5 { 2 * p.below(2) } else { 1 }];
        let connection = socket();
        connect(&connection, &name(dst, self.partition)).expect("the victim listens");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        sendmsg(&connection, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)
            .expect("the message is short");
        assert_eq!(self.receive(), []);
        // An empty message carries no line, and looks like the end of the connection.
        let is_valid = kind > 6;
        assert!(is_open_if(is_valid, &connection), "offer of kind {kind}: open: {}", !is_valid);
        is_valid.then_some(ToVictim {
            memory,
            connection: Some(connection),
            flow: Flow::new(src.into(), dst.into(), 0),
            tail: 0,
            head: 0,
            is_closed: false,
            shared: Vec::new(),
            messages: 0,
            is_broken: false,
        })
    }

    /// Lets the victim read a ring, and compares what it does with the model.
    fn check(&mut self, ring: &mut ToVictim) {
        if ring.is_closed {
            return assert_eq!(self.receive(), []);
        }
        let (expected, is_kept) = if ring.is_broken { (Vec::new(), false) } else { ring.expect() };
        ring.messages = 0;
        assert_eq!(self.receive(), expected);
        if !expected.is_empty() {
            assert_eq!(ring.memory.read_u64(TAIL), ring.tail, "the writer sees the room");
        }
        ring.is_closed = !is_kept;
        if let Some(connection) = &ring.connection {
            assert!(is_open_if(is_kept, connection), "open: {}", !is_kept);
        }
    }

    /// Sends a packet to the hostile process.
    fn send(&mut self, p: &mut Input<'_>) {
        let flow = Flow::new(shared::address().into(), self.attacker.into(), 4791);
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        // Five turns of the most packets fill a ring.
        let payload = vec![p.u8(); 32 * p.below(1 << 8)];
        for psn in 0..1 + p.below(64) as u32 {
            let dest_qp = Qpn::new(PARTITION << 18 | 5);
            let bth = Bth { opcode: Opcode(4), dest_qp, psn: Psn::new(psn), ..Bth::default() };
            queue.push(&flow, Headers { bth, ..Headers::default() }, &payload);
        }
        self.link.transmit(Instant(self.now), &queue).expect("the link works");
    }

    /// Takes the ring that the victim passes before its first packet.
    fn take(&mut self) -> Option<FromVictim> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = accept_with(&self.listener, flags).ok()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 256];
        let mut parts = [std::io::IoSliceMut::new(&mut text)];
        recvmsg(&connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("an offer");
        let memory = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let memory = Memory(memory.expect("memory"));
        Some(FromVictim { memory, connection, head: 0, tail: 0, was_invalid: false })
    }

    /// Sends packets into a ring, and compares what the victim writes with the model. Returns false if the
    /// victim has closed the ring.
    fn check_writer(&mut self, ring: &mut FromVictim, p: &mut Input<'_>) -> bool {
        let tail = ring.memory.read_u64(TAIL);
        if !is_open(&ring.connection) {
            // The victim looks at the position of a full ring when it receives.
            assert!(ring.was_invalid, "a ring with a valid position is not closed");
            return false;
        }
        let dropped = self.link.counters().tx_dropped;
        self.send(p);
        let is_intact = self.link.counters().tx_dropped == dropped;
        let (mut at, head) = (ring.head, ring.memory.read_u64(HEAD));
        assert!(head - ring.head <= CAPACITY, "from {} to {head}", ring.head);
        while at < head {
            let len = u64::from(ring.memory.read_u32(DATA + at % CAPACITY));
            at += (RECORD_HEADER_LEN + len).next_multiple_of(ALIGN);
        }
        assert_eq!(at, head, "records fill the ring up to the head");
        assert!(!is_intact || head > ring.head, "packets that are not dropped are in the ring");
        let is_tail_valid = (ring.tail..=head).contains(&tail) && tail.is_multiple_of(ALIGN);
        if is_tail_valid {
            assert!(head - tail <= CAPACITY, "the ring has room");
            ring.tail = tail;
        } else {
            assert!(head - ring.tail <= CAPACITY, "the ring has room");
        }
        ring.was_invalid |= !is_tail_valid;
        ring.head = head;
        // A writer that finds no room has looked at the position, and closes the ring if that is invalid.
        is_intact || is_tail_valid
    }

    fn execute(&mut self, p: &mut Input<'_>) {
        let (mut to, mut from): (Option<ToVictim>, Option<FromVictim>) = (None, None);
        for _ in 0..64 {
            if p.is_empty() {
                break;
            }
            let op = p.below(16);
            match (&mut to, &mut from) {
                (None, _) if op < 8 => to = self.offer(p),
                (Some(ring), _) if op < 8 => {
                    match op {
                        0 | 1 => ring.append(p),
                        2 => ring.append_long(p),
                        3 => ring.send_about_memory(p),
                        4..6 => ring.scribble(p),
                        6 => {
                            for _ in 0..=p.u8() {
                                ring.send(b"\0", None);
                            }
                        }
                        _ => drop(ring.connection.take()),
                    }
                    if p.chance(2) {
                        self.link.prepare_to_sleep();
                    }
                    // Several records are read at a time.
                    if !p.chance(4) {
                        self.check(ring);
                    }
                    if ring.is_closed {
                        to = None;
                    }
                }
                (_, None) => {
                    self.send(p);
                    from = self.take();
                    if let Some(ring) = &mut from {
                        if p.chance(4) {
                            // Refuses the ring.
                            from = None;
                        } else {
                            send(&ring.connection, b"y", SendFlags::NOSIGNAL).expect("the victim listens");
                            ring.head = ring.memory.read_u64(HEAD);
                        }
                    } else {
                        let event = NicEvent::Connected {
                            local: Qpn::new(self.partition << 18),
                            remote: Qpn::new(PARTITION << 18),
                            peer: self.attacker.into(),
                        };
                        self.link.on_nic_event(Instant(self.now), &event);
                    }
                }
                (_, Some(ring)) => {
                    match op {
                        8 | 9 => ring.memory.write_u64(TAIL, ring.head),
                        10 => ring.memory.write_u64(TAIL, ring.tail + ALIGN * u64::from(p.u8())),
                        11 => ring.memory.write_u64(TAIL, p.u64()),
                        12 => {
                            let at = DATA + u64::from(p.u16()) * 16 % CAPACITY;
                            ring.memory.write(at, &[p.u8(); 8]);
                        }
                        13 => ring.memory.write(READER_SLEEPS, &[p.u8()]),
                        14 if p.chance(8) => {
                            let (punch, keep) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::KEEP_SIZE);
                            fallocate(&ring.memory.0, punch | keep, 0, FILE_LEN).expect("a hole");
                            // The victim's positions are gone with the rest.
                            from = None;
                            continue;
                        }
                        _ => {}
                    }
                    if !self.check_writer(ring, p) {
                        from = None;
                    }
                }
            }
        }
        // The last operation may have left records unread.
        if let Some(ring) = &mut to {
            self.check(ring);
        }
        drop((to, from));
        self.receive();
    }
}

fuzz_target!(|data: &[u8]| {
    // Never dropped: the broker ends when its only client does, which is a finding before the fuzzer ends.
    thread_local!(static VICTIM: RefCell<Option<ManuallyDrop<Victim>>> = const { RefCell::new(None) });
    VICTIM.with_borrow_mut(|victim| {
        let victim = victim.get_or_insert_with(|| ManuallyDrop::new(Victim::start()));
        victim.start_execution();
        victim.execute(&mut Input::new(data));
    });
});

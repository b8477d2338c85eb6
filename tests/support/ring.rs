//! A ring in shared memory with both ends in this process, which checks that every burst arrives exactly
//! once, unchanged and in order.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe::link::RxBurst;
use urxe::rings::{RingReader, RingWriter};
use urxe::transport::{BurstLimits, TxBurst};
use urxe::wire::{Flow, IpIdent};

/// Capacity of the rings, so small that they are often full.
pub const CAPACITY: usize = 16 << 10;

/// Largest bursts: a ring has room for one and a part of the next.
pub const LIMITS: BurstLimits = BurstLimits { bytes: CAPACITY * 3 / 4, packets: 64 };

/// Counts of all rings of this process, in the order of [`WHAT`].
static TOTAL: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
const WHAT: [&str; 4] = [
    "bursts found no room",
    "rings were used from end to end",
    "bursts of several packets",
    "bursts without ICRCs",
];

/// Alignment of records.
const ALIGN: usize = 64;

/// A burst in the ring.
struct Written {
    flow: Flow,
    segment: usize,
    bytes: Vec<u8>,
    /// Length of its record.
    len: usize,
}

pub struct Ring {
    writer: RingWriter,
    reader: RingReader,
    inside: VecDeque<Written>,
    /// Number of bytes in use.
    used: usize,
    /// Number of bytes ever used.
    written: usize,
    scratch: Vec<u8>,
    counts: [u64; 4],
}

impl Ring {
    /// Creates a ring, whose reader sleeps.
    pub fn new(src: IpAddr, dst: IpAddr, elides_icrcs: bool) -> Ring {
        let (writer, memory) = RingWriter::create(CAPACITY, elides_icrcs).expect("memory for a ring");
        let reader = RingReader::open(&memory, CAPACITY, src, dst).expect("the memory is that of a ring");
        assert!(!reader.prepare_to_sleep(), "a new ring has bursts");
        Ring {
            writer,
            reader,
            inside: VecDeque::new(),
            used: 0,
            written: 0,
            scratch: Vec::new(),
            counts: [0; 4],
        }
    }

    /// Writes a burst, unless there is no room for it. Returns whether it was written.
    pub fn write(&mut self, burst: &TxBurst<'_>) -> bool {
        let most = self.writer.room_for(burst) as usize;
        assert!(most >= (12 + burst.bytes).next_multiple_of(ALIGN), "{most} bytes for {}", burst.bytes);
        let is_written = self.writer.write(burst).expect("the reader heeds the protocol");
        assert_eq!(is_written, self.used + most <= CAPACITY, "{most} bytes, {} in use", self.used);
        self.counts[0] += u64::from(!is_written);
        if is_written {
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            // The rest of a flow is for Ethernet frames and routers.
            let flow = Flow { flow_label: 0, vlan_priority: None, ..burst.flow };
            let len = CAPACITY - self.room() - self.used;
            assert!((12..=most).contains(&len), "{len} bytes instead of {most}");
            self.inside.push_back(Written { flow, segment: burst.segment, bytes, len });
            self.used += len;
            self.written += len;
            self.counts[1] += u64::from(self.written % CAPACITY < len);
            self.counts[2] += u64::from(burst.packets > 1);
        }
        is_written
    }

    /// Returns the number of bytes for which the writer has room.
    fn room(&mut self) -> usize {
        let has_room =
            |len: &usize| self.writer.has_room(*len as u64).expect("the reader heeds the protocol");
        (0..=CAPACITY).step_by(ALIGN).take_while(has_room).last().expect("there is room for nothing")
    }

    /// Makes the bursts visible. Returns true if the reader has to be notified.
    pub fn publish(&mut self) -> bool {
        self.writer.publish()
    }

    /// Passes bursts to `sink` until `limit` bytes have been read, and returns the number of packets.
    pub fn read(&mut self, limit: u64, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let Ring { reader, inside, used, scratch, counts, .. } = self;
        let check = &mut |burst: RxBurst<'_>| {
            let Written { flow, segment, bytes, len } = inside.pop_front().expect("a burst was written");
            counts[3] += u64::from(burst.ident == IpIdent::Elided);
            let whole = burst.with_icrcs(scratch).expect("no payload is shared");
            assert_eq!((whole.flow, whole.ident, whole.segment), (flow, IpIdent::SENT, segment));
            assert!(whole.data == bytes, "the burst differs from the one written");
            *used -= len;
            sink(burst);
        };
        let packets = reader.receive(limit, check).expect("the writer heeds the protocol");
        assert_eq!(self.reader.has_bursts(), !self.inside.is_empty(), "whether bursts are waiting");
        packets
    }

    /// Lets the reader sleep if no bursts are waiting. Returns whether it sleeps.
    pub fn sleep_if_empty(&mut self) -> bool {
        !self.reader.has_bursts() && !self.reader.prepare_to_sleep()
    }

    pub fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (total, count) in TOTAL.iter().zip(self.counts) {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// Checks that the rings of this process have been full, have been used from end to end, and so on.
pub fn check_that_everything_happened() {
    let total = TOTAL.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!(
        "rings: {}",
        WHAT.iter().zip(total).map(|(what, n)| format!("{n} {what}")).collect::<Vec<_>>().join(", ")
    );
    assert!(total.iter().all(|count| *count > 0), "{WHAT:?}: {total:?}");
}

//! Record of the last acknowledgement of each queue pair, in memory that outlives the process.
//!
//! A message's receive completes before its acknowledgement leaves, which may wait for a response to carry it. On an adapter the
//! acknowledgement leaves whatever becomes of the process, so a requester whose peer ends right after the completion must not fail
//! either. Therefore each acknowledgement is recorded before the completion becomes visible, and whoever keeps the memory sends
//! those recorded last when the process has ended. A second acknowledgement of the same message has no effect.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use super::Instant;
use super::connection::Connection;
use crate::wire::{
    Aeth, Bth, Flow, HeaderSet, Headers, Opcode, Operation, PKey, Position, Psn, Qpn, Syndrome, Transport,
};

/// Number of records of a NIC. Queue pairs whose numbers are equal modulo this number share a record.
const RECORDS: usize = 256;
/// Words of a record: the time, which is 0 while the record is written; what the headers contain; source and destination.
const RECORD_WORDS: usize = 8;

/// Age after which a record is not sent. Acknowledgements wait for milliseconds, and a busy machine may take long to
/// notice the end of a process.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The records of one NIC.
#[derive(Clone)]
pub struct LastAcks {
    words: Arc<dyn AsRef<[AtomicU64]> + Send + Sync>,
    /// Index of the first word.
    first: usize,
}

impl LastAcks {
    /// Number of words for one NIC.
    pub const WORDS: usize = RECORDS * RECORD_WORDS;

    /// Returns the records at part `index` of `words`, which has [`WORDS`](Self::WORDS) words for each.
    pub fn new(words: Arc<dyn AsRef<[AtomicU64]> + Send + Sync>, index: usize) -> LastAcks {
        LastAcks { words, first: index * LastAcks::WORDS }
    }

    /// Records the acknowledgement of everything up to `psn`.
    pub(super) fn record(&self, psn: Psn, msn: u32, conn: &Connection, now: Instant) {
        let Some(flow) = &conn.flow else { return };
        let first = self.first + conn.qpn.get() as usize % RECORDS * RECORD_WORDS;
        let Some(record) = (*self.words).as_ref().get(first..first + RECORD_WORDS) else { return };
        let bth = conn.bth(Operation::Acknowledge, Position::Only, HeaderSet::NONE, psn);
        let (src, dst) = (words_of(flow.src), words_of(flow.dst));
        let values = [
            u64::from(psn.get()) | u64::from(bth.dest_qp.get()) << 24 | u64::from(bth.pkey.0) << 48,
            u64::from(msn)
                | u64::from(bth.opcode.0) << 24
                | u64::from(bth.mig_req) << 32
                | u64::from(flow.src_port) << 48,
            u64::from(flow.flow_label)
                | u64::from(flow.traffic_class) << 32
                | u64::from(flow.hop_limit) << 40,
            src[0],
            src[1],
            dst[0],
            dst[1],
        ];
        // The process may end between any two of these.
        record[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        record[1..].iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        record[0].store(now.0, Ordering::Release);
    }

    /// Returns the packets to be sent for the words that a process has left.
    pub fn packets(words: &[u64], now: Instant) -> impl Iterator<Item = (Flow, Headers)> {
        let (records, _) = words.as_chunks::<RECORD_WORDS>();
        records.iter().filter_map(move |record| packet(record, now))
    }
}

impl fmt::Debug for LastAcks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastAcks").field("first", &self.first).finish_non_exhaustive()
    }
}

/// Returns the packet of a record; `None` if the record is old, empty or invalid.
fn packet(record: &[u64; RECORD_WORDS], now: Instant) -> Option<(Flow, Headers)> {
    let [at, numbers, more, path, src0, src1, dst0, dst1] = *record;
    if at == 0 || now.since(Instant(at)) > MAX_AGE {
        return None;
    }
    let opcode = Opcode((more >> 24) as u8);
    let is_ack = [Transport::Rc, Transport::Xrc].into_iter().any(|transport| {
        Opcode::find(transport, Operation::Acknowledge, Position::Only, HeaderSet::NONE) == Some(opcode)
    });
    let flow = Flow {
        traffic_class: (path >> 32) as u8,
        hop_limit: (path >> 40) as u8,
        flow_label: path as u32 & 0xf_ffff,
        ..Flow::new(address_of([src0, src1]), address_of([dst0, dst1]), (more >> 48) as u16)
    };
    let bth = Bth {
        opcode,
        mig_req: more >> 32 & 1 != 0,
        pkey: PKey((numbers >> 48) as u16),
        dest_qp: Qpn::new((numbers >> 24) as u32 & 0xff_ffff),
        psn: Psn::new(numbers as u32 & 0xff_ffff),
        ..Bth::default()
    };
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: more as u32 & 0xff_ffff };
    let is_valid = is_ack && flow.src.is_ipv4() == flow.dst.is_ipv4() && !flow.dst.is_multicast();
    is_valid.then_some((flow, Headers { bth, aeth, ..Headers::default() }))
}

fn words_of(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn address_of([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

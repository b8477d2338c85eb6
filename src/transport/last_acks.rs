//! Record of the last acknowledgement of each queue pair, in memory that outlives the process.
//!
//! A receive completes before the acknowledgement of its message is sent, because the acknowledgement may be
//! delayed until a response carries it. An adapter sends the acknowledgement even if the process ends in
//! between, so the requester must not fail here either. Therefore each acknowledgement is recorded before its
//! completion becomes visible, and the record is cleared once the acknowledgement is sent. The broker, which
//! has a descriptor of the memory, sends the recorded acknowledgements when the process has ended. A second
//! acknowledgement of the same message has no effect.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use super::Instant;
use super::connection::Connection;
use crate::wire::{
    Aeth, Bth, Flow, Gid, HeaderSet, Headers, Opcode, Operation, PKey, Position, Psn, Qpn, Syndrome,
    Transport,
};

/// Number of records of a NIC. Queue pairs whose numbers are equal modulo this number share a record.
const RECORDS: usize = 256;
/// Words of a record: the time, which is 0 while the record is written; the fields of the headers; source and
/// destination.
const RECORD_WORDS: usize = 8;

/// Age after which the broker does not send a record. An acknowledgement is delayed by milliseconds at most;
/// a loaded machine may report the end of a process late.
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
        // The process may end between any two of these stores.
        record[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        record[1..].iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        record[0].store(now.0, Ordering::Release);
    }

    /// Clears the record of a queue pair whose acknowledgement is sent. A peer that has destroyed its queue
    /// pair would count a second acknowledgement as an unexpected packet.
    pub fn clear(&self, qpn: Qpn) {
        let at = self.first + qpn.get() as usize % RECORDS * RECORD_WORDS;
        if let Some(time) = (*self.words).as_ref().get(at) {
            time.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the recorded acknowledgements in the memory of a process that has ended.
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
    let bits = u128::from_be_bytes(Gid::from(ip).0);
    [(bits >> 64) as u64, bits as u64]
}

fn address_of([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::QpInit;

    struct Words(Vec<AtomicU64>);

    impl AsRef<[AtomicU64]> for Words {
        fn as_ref(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    fn connection(src: &str, dst: &str) -> Connection {
        let mut conn = Connection::new(&QpInit::rc(), Qpn::new(0x12_3456));
        let flow = Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 50_000);
        conn.set_flow(Flow { traffic_class: 0x68, hop_limit: 7, flow_label: 0xf_0001, ..flow });
        (conn.attr.dest_qpn, conn.pkey) = (Qpn::new(0xab_cdef), PKey(0x8001));
        conn
    }

    #[test]
    fn recorded_acknowledgement_becomes_a_packet_until_it_is_old() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (conn, now) = (connection(src, dst), Instant(5_000_000_000));
            let memory = Arc::new(Words((0..2 * LastAcks::WORDS).map(|_| AtomicU64::new(0)).collect()));
            let shard = LastAcks::new(memory.clone(), 1);
            shard.record(Psn::new(0x99_0001), 0x77_0002, &conn, now);
            let words: Vec<u64> = memory.0.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            let sent: Vec<_> = LastAcks::packets(&words, now).collect();
            let bth = conn.bth(Operation::Acknowledge, Position::Only, HeaderSet::NONE, Psn::new(0x99_0001));
            let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0x77_0002 };
            assert_eq!(sent, [(conn.flow.unwrap(), Headers { bth, aeth, ..Headers::default() })]);
            let other = Qpn::new(0x12_3457);
            shard.clear(other);
            let load = || memory.0.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
            assert_eq!(LastAcks::packets(&load(), now).count(), 1);
            shard.clear(conn.qpn);
            assert_eq!(LastAcks::packets(&load(), now).count(), 0);
            let late = Instant(now.0 + MAX_AGE.as_nanos() as u64 + 1);
            assert_eq!(LastAcks::packets(&words, late).count(), 0);
        }
    }

    #[test]
    fn words_that_a_process_has_changed_become_no_other_packet() {
        let any = [1, 2, 3, 4, 5, 6, 7, 8];
        let to_a_group = [1, 0, 0x11 << 24, 0, 0, 0xffff_0a00_0001, 0, 0xffff_e000_0001];
        assert_eq!(LastAcks::packets(&[any, to_a_group].concat(), Instant(2)).count(), 0);
    }
}

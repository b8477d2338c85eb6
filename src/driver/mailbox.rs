//! Cross-shard mailboxes, which pass on packets received by a shard that does not own their queue pair, and
//! the loss of a link, which fails all shards.
//!
//! The kernel selects a socket by the first packet of a datagram that it has coalesced from several (GRO), so
//! the packets after it may belong to another shard. They are copied into the inbox of that shard, so that no
//! shard ever waits for another's lock.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::burst::RxBurst;
use crate::nic::{QpnPartition, ShardId};
use crate::wire::{Flow, IpIdent};

/// Offset of the last byte of the destination QPN in a packet.
const DEST_QP_LOW: usize = 7;

/// Number of bytes in a shard's inbox above which the other shards stop reading their sockets.
const INBOX_FULL_BYTES: usize = 4 << 20;

/// A shard's mailbox, with access to those of the NIC's other shards.
pub(crate) struct ShardMailbox {
    id: ShardId,
    shared: Arc<Shared>,
}

struct Shared {
    inboxes: Box<[Inbox]>,
    /// Set of the shards whose inbox is full, with one bit per shard index.
    full: AtomicU64,
    /// Reason for the loss of a link, once one is lost.
    lost: OnceLock<Arc<io::Error>>,
}

struct Inbox {
    /// Number of queued bytes. Atomic, so that checking for an empty inbox takes no lock.
    bytes: AtomicUsize,
    handoffs: Mutex<HandoffBatch>,
    /// Eventfd that wakes the shard's background thread.
    wake: EventFd,
}

/// Copied packets, in runs.
#[derive(Default)]
pub(crate) struct HandoffBatch {
    data: Vec<u8>,
    runs: Vec<Run>,
}

/// Consecutive packets of a received burst, all for one shard.
struct Run {
    flow: Flow,
    ident: IpIdent,
    segment: usize,
    /// Index of the run's first packet within the original burst.
    first: u16,
    len: usize,
}

impl ShardMailbox {
    /// Creates the mailboxes for `count` shards of a device with the given QPN partition. Returns `None` if a
    /// NIC cannot have that many shards.
    pub fn new(count: usize, partition: QpnPartition) -> io::Result<Option<Vec<ShardMailbox>>> {
        let id = |i| Some(ShardId::new(i, count)?.with_partition(partition));
        let Some(ids) = (0..count.max(1)).map(id).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let inbox = |_: &ShardId| {
            let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            Ok(Inbox { bytes: AtomicUsize::new(0), handoffs: Mutex::default(), wake })
        };
        let inboxes = ids.iter().map(inbox).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared { inboxes, full: AtomicU64::new(0), lost: OnceLock::new() });
        Ok(Some(ids.into_iter().map(|id| ShardMailbox { id, shared: shared.clone() }).collect()))
    }

    /// Returns this shard's ID.
    pub fn id(&self) -> ShardId {
        self.id
    }

    fn inbox(&self) -> &Inbox {
        &self.shared.inboxes[self.id.index() as usize]
    }

    /// Returns the eventfd that wakes this shard's background thread.
    pub fn wake(&self) -> &EventFd {
        &self.inbox().wake
    }

    /// Passes this shard's packets in a burst to `own`, in runs, each with the index of its first packet, and
    /// copies the other packets to their owners' inboxes. Returns the number of packets handed over.
    #[inline]
    pub fn deliver_or_hand_off(&self, burst: &RxBurst<'_>, mut own: impl FnMut(&RxBurst<'_>, u16)) -> u64 {
        // Every shard that has joined a multicast group receives its own copy.
        if self.id.is_alone() || burst.flow.dst.is_multicast() {
            own(burst, 0);
            return 0;
        }
        let mut handed_over = 0;
        let mut from = 0;
        let segment = burst.segment.max(1);
        let ours = self.id.index() as usize;
        while from < burst.data.len() {
            let rest = &burst.data[from..];
            let mut packets = rest.chunks(segment);
            let owner = packets.next().map_or(ours, |packet| self.owner(packet));
            let count = 1 + packets.take_while(|packet| self.owner(packet) == owner).count();
            let len = (count * segment).min(rest.len());
            let run = RxBurst { data: &rest[..len], ..*burst };
            let first = (from / segment) as u16;
            if owner == ours {
                own(&run, first);
            } else {
                self.shared.hand_off(owner, &run, first);
                handed_over += len.div_ceil(segment) as u64;
            }
            from += len;
        }
        handed_over
    }

    /// Returns the index of the shard that owns a packet; this shard's own index if the packet is too short.
    fn owner(&self, packet: &[u8]) -> usize {
        packet.get(DEST_QP_LOW).map_or(self.id.index() as usize, |qpn| self.id.of(*qpn))
    }

    /// Passes the packets in this shard's inbox to `own`, and returns their number. `spare` is swapped with
    /// the inbox, so that both keep their buffers.
    #[inline]
    pub fn collect(&self, spare: &mut HandoffBatch, own: impl FnMut(&RxBurst<'_>, u16)) -> usize {
        let inbox = self.inbox();
        if inbox.bytes.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut handoffs = inbox.handoffs.lock();
        std::mem::swap(&mut *handoffs, spare);
        if inbox.bytes.swap(0, Ordering::AcqRel) > INBOX_FULL_BYTES {
            self.shared.full.fetch_and(!(1 << self.id.index()), Ordering::Relaxed);
        }
        drop(handoffs);
        spare.deliver_all(own)
    }

    /// Reports whether another shard's inbox is so full that this shard must stop receiving.
    pub fn are_others_full(&self) -> bool {
        self.shared.full.load(Ordering::Relaxed) & !(1 << self.id.index()) != 0
    }

    /// Records that a shard has lost its link, which fails the whole NIC, and wakes all shards.
    pub fn lose_link(&self, why: Arc<io::Error>) {
        if self.shared.lost.set(why).is_ok() {
            for inbox in &self.shared.inboxes {
                inbox.wake();
            }
        }
    }

    /// Returns the reason for the loss of a link, or `None` if none is lost.
    pub fn loss(&self) -> Option<&Arc<io::Error>> {
        self.shared.lost.get()
    }
}

impl Shared {
    /// Copies a run into its owner's inbox.
    fn hand_off(&self, owner: usize, run: &RxBurst<'_>, first: u16) {
        let RxBurst { flow, ident, segment, data, .. } = *run;
        let inbox = &self.inboxes[owner];
        let mut handoffs = inbox.handoffs.lock();
        let before = handoffs.data.len();
        if run.append_to(first.into(), &mut handoffs.data).is_none() {
            // Lost, as their payloads can no longer be read.
            return handoffs.data.truncate(before);
        }
        handoffs.runs.push(Run { flow, ident, segment, first, len: data.len() });
        let before = inbox.bytes.fetch_add(data.len(), Ordering::Release);
        if before + data.len() > INBOX_FULL_BYTES {
            self.full.fetch_or(1 << owner, Ordering::Relaxed);
        }
        drop(handoffs);
        if before == 0 {
            inbox.wake();
        }
    }
}

impl HandoffBatch {
    /// Passes all packets to `own` and returns their number. Empties the buffers, but keeps their capacity.
    fn deliver_all(&mut self, mut own: impl FnMut(&RxBurst<'_>, u16)) -> usize {
        let (mut packets, mut from) = (0, 0);
        for Run { flow, ident, segment, first, len } in self.runs.drain(..) {
            let data = &self.data[from..from + len];
            from += len;
            packets += len.div_ceil(segment.max(1));
            own(&RxBurst::new(flow, ident, segment, data), first);
        }
        self.data.clear();
        packets
    }
}

impl Inbox {
    fn wake(&self) {
        // The write fails only when the counter is full, and then the thread has been woken already.
        let _ = self.wake.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailboxes(count: usize) -> Vec<ShardMailbox> {
        ShardMailbox::new(count, QpnPartition::WHOLE).unwrap().unwrap()
    }

    /// Returns a burst with one packet of 20 bytes for each destination QPN byte in `to`; the last packet is
    /// cut to `last` bytes.
    fn packets(to: &[u8], last: usize) -> Vec<u8> {
        let mut data: Vec<u8> = to.iter().flat_map(|qpn| [&[0; 7][..], &[*qpn], &[0; 12]].concat()).collect();
        data.truncate(data.len() - 20 + last);
        data
    }

    fn burst<'a>(dst: &str, data: &'a [u8]) -> RxBurst<'a> {
        let flow = Flow::new("10.0.0.1".parse().unwrap(), dst.parse().unwrap(), 4791);
        RxBurst::new(flow, IpIdent::Unknown, 20, data)
    }

    /// Index of the first packet and the destinations of each run.
    type Runs = Vec<(u16, Vec<u8>)>;

    fn note(runs: &mut Runs) -> impl FnMut(&RxBurst<'_>, u16) {
        |burst, first| runs.push((first, burst.packets().map(|(_, p)| p[DEST_QP_LOW]).collect()))
    }

    #[test]
    fn each_shard_gets_its_own_packets_and_no_others() {
        let all = mailboxes(4);
        let data = packets(&[0x10, 0x14, 0x11, 0x13, 0x17, 0x10], 8);
        let mut own = Runs::new();
        assert_eq!(all[0].deliver_or_hand_off(&burst("10.0.0.2", &data), note(&mut own)), 3);
        assert_eq!(own, [(0, vec![0x10, 0x14]), (5, vec![0x10])]);
        let mut got = [(); 4].map(|()| Runs::new());
        for (shard, got) in all.iter().zip(&mut got) {
            let mut spare = HandoffBatch::default();
            let packets = shard.collect(&mut spare, note(got));
            assert_eq!(packets, got.iter().map(|(_, run)| run.len()).sum::<usize>());
            assert_eq!(shard.collect(&mut spare, |_, _| panic!("taken twice")), 0);
        }
        assert_eq!(got, [vec![], vec![(2, vec![0x11])], vec![], vec![(3, vec![0x13, 0x17])]]);
    }

    #[test]
    fn multicast_and_short_packets_are_not_handed_over() {
        let all = mailboxes(2);
        let data = packets(&[0xff, 0xff], 20);
        let mut own = Runs::new();
        assert_eq!(all[0].deliver_or_hand_off(&burst("239.0.0.1", &data), note(&mut own)), 0);
        assert_eq!(own, [(0, vec![0xff, 0xff])]);
        let mut scraps = 0;
        assert_eq!(
            all[1].deliver_or_hand_off(&burst("10.0.0.2", &data[..5]), |b, _| scraps += b.data.len()),
            0
        );
        assert_eq!(scraps, 5);
    }

    /// The kernel coalesces datagrams of any length.
    #[test]
    fn burst_of_packets_without_a_destination_goes_to_the_shard_that_received_it() {
        let all = mailboxes(2);
        for segment in 1..8 {
            let mut own = Vec::new();
            let data = [1; 20];
            let burst = RxBurst { segment, ..burst("10.0.0.2", &data) };
            assert_eq!(all[0].deliver_or_hand_off(&burst, |run, first| own.push((first, run.data.len()))), 0);
            assert_eq!(own, [(0, 20)], "{segment}");
        }
    }

    #[test]
    fn full_inbox_stops_reception_by_other_shards_until_it_is_emptied() {
        let all = mailboxes(2);
        let data = packets(&[1; 3000], 20);
        while !all[0].are_others_full() {
            all[0].deliver_or_hand_off(&burst("10.0.0.2", &data), |_, _| panic!("not its own"));
        }
        assert!(!all[1].are_others_full(), "its own does not stop it");
        assert!(all[1].collect(&mut HandoffBatch::default(), |_, _| {}) * 20 > INBOX_FULL_BYTES);
        assert!(!all[0].are_others_full());
    }

    #[test]
    fn hand_off_and_link_loss_wake_the_shards() {
        let all = mailboxes(2);
        let data = packets(&[1, 1], 20);
        for _ in 0..2 {
            all[0].deliver_or_hand_off(&burst("10.0.0.2", &data), |_, _| {});
        }
        assert_eq!(all[1].wake().read(), Ok(1), "once for both");
        assert!(all[0].wake().read().is_err());
        all[1].lose_link(Arc::new(io::Error::other("gone")));
        assert_eq!([&all[0], &all[1]].map(|s| (s.wake().read(), s.loss().is_some())), [(Ok(1), true); 2]);
        assert!(
            ShardMailbox::new(3, QpnPartition::WHOLE).unwrap().is_none()
                && ShardMailbox::new(0, QpnPartition::WHOLE).unwrap().is_none()
        );
    }
}

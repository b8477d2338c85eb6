//! Priority flow control (PFC, IEEE 802.1Q clause 36) of links that carry Ethernet frames. The link honours
//! the pause frames of its neighbour, and sends some itself while packets arrive faster than they are
//! processed.

mod backlog;
mod pauses;

use std::sync::Arc;

use backlog::{Backlog, Congested};
use pauses::Pauses;

use super::frame_queue::FrameQueue;
use crate::sys::setters::setters;
use crate::transport::{EgressRoom, Instant, earliest, priority_of};
use crate::wire::frame::{PRIORITIES, PauseFrame, VlanTag};
use crate::wire::{Flow, Mac};

/// Maximum number of bytes in frames that are held back until their priority is resumed.
const MAX_HELD: usize = 1 << 20;

/// Configuration of priority flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PfcConfig {
    /// Number of bytes waiting to be received above which the neighbour is paused; `None` for half of the
    /// receive queue's capacity.
    pub xoff: Option<usize>,
    /// Number of bytes waiting to be received at which the neighbour may send again; `None` for half of
    /// `xoff`.
    pub xon: Option<usize>,
}

setters!(PfcConfig {} optional { xoff: usize, xon: usize });

/// State that the links of a NIC's shards share.
#[derive(Debug, Default)]
pub(crate) struct SharedPfc {
    pauses: Pauses,
    congested: Congested,
}

/// Properties of a link that its flow control depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PfcLink {
    /// Source of the pause frames sent.
    pub mac: Mac,
    /// VLAN tag of all packets sent and received.
    pub vlan: Option<VlanTag>,
    /// Speed in bits per second.
    pub speed: u64,
    /// Number of bytes that can wait to be received.
    pub capacity: usize,
    /// Index of the link among those of the NIC's shards.
    pub shard: usize,
}

/// Flow control of one link.
#[derive(Debug)]
pub(crate) struct Pfc {
    link: PfcLink,
    shared: Arc<SharedPfc>,
    backlog: Backlog,
    /// Frames of paused priorities that were passed to the link nevertheless: congestion notification
    /// packets, and packets sent just before the pause.
    held: [FrameQueue; PRIORITIES],
    /// Pause frames to send, and frames that are no longer held back.
    pub outbox: FrameQueue,
    /// Numbers of pause frames received and sent, by the priorities that they name.
    pub received: [u64; PRIORITIES],
    pub sent: [u64; PRIORITIES],
}

impl Pfc {
    pub fn new(config: PfcConfig, link: PfcLink, shared: Arc<SharedPfc>) -> Pfc {
        let xoff = config.xoff.unwrap_or(link.capacity / 2);
        let xon = config.xon.unwrap_or(xoff / 2).min(xoff);
        Pfc {
            link,
            shared,
            backlog: Backlog::new(xoff, xon, link.shard, link.speed),
            held: Default::default(),
            outbox: FrameQueue::default(),
            received: [0; PRIORITIES],
            sent: [0; PRIORITIES],
        }
    }

    /// Returns the priority of a packet: that in the VLAN tag, if there is one.
    fn priority(&self, flow: &Flow) -> usize {
        let of_tag = |tag: VlanTag| tag.of_flow(flow).priority.into();
        self.link.vlan.map_or_else(|| priority_of(flow.traffic_class), of_tag)
    }

    /// Returns the number of packets that the NIC may send now.
    pub fn egress_room(&self) -> EgressRoom {
        let is_paused = |priority| self.shared.pauses.is_paused(priority);
        // The NIC knows the priorities in the DSCP; all packets except CNPs have the one in the VLAN tag, if
        // there is one.
        EgressRoom::with_pauses(|dscp| is_paused(self.link.vlan.map_or(dscp, |tag| tag.priority.into())))
    }

    /// Reports whether the priority of the packets of a flow is paused.
    pub fn is_paused(&self, flow: &Flow) -> bool {
        self.shared.pauses.is_paused(self.priority(flow))
    }

    /// Holds back a frame of a paused priority, which `write` appends. Returns false if there is no room.
    pub fn hold(&mut self, flow: &Flow, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let has_room = self.held.iter().map(FrameQueue::byte_len).sum::<usize>() < MAX_HELD;
        if has_room {
            let priority = self.priority(flow);
            self.held[priority].push_with(write);
        }
        has_room
    }

    /// Carries out a pause frame. Returns whether it has ended a pause early, which the other shards must be
    /// told.
    pub fn on_frame(&mut self, now: Instant, frame: &PauseFrame) -> bool {
        let has_ended = self.shared.pauses.on_frame(now, frame, self.link.speed);
        count(&mut self.received, frame);
        self.release();
        has_ended
    }

    /// Ends pauses whose time is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.shared.pauses.expire(now);
        self.release();
    }

    /// Ends all pauses by the neighbour, because it is a new one.
    pub fn on_new_neighbour(&mut self) {
        self.shared.pauses.clear();
        self.release();
    }

    /// Moves frames that are no longer paused to the outbox.
    pub fn release(&mut self) {
        for (priority, held) in self.held.iter_mut().enumerate() {
            while let Some(frame) = held.front()
                && !self.shared.pauses.is_paused(priority)
            {
                self.outbox.push(frame);
                held.pop();
            }
        }
    }

    /// Records that a packet was received.
    pub fn on_received(&mut self, flow: &Flow) {
        self.backlog.on_received(self.priority(flow));
    }

    /// Pauses or resumes the neighbour after a batch was received and `waiting` bytes are left.
    pub fn update(&mut self, now: Instant, waiting: usize) {
        if let Some(frame) = self.backlog.update(now, waiting, &self.shared.congested) {
            count(&mut self.sent, &frame);
            self.outbox.push_with(|out| frame.append(out, self.link.mac));
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) and [`update`](Self::update) must
    /// next be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadline = earliest([self.shared.pauses.next_deadline(), self.backlog.next_deadline()]);
        // The pauses are read again after their deadline, because another shard may end one in between.
        let mut held = self.held.iter().enumerate().filter(|(_, held)| !held.is_empty());
        if held.any(|(priority, _)| !self.shared.pauses.is_paused(priority)) {
            Some(Instant(0))
        } else {
            deadline
        }
    }
}

/// Counts a frame for each priority that it names.
fn count(counters: &mut [u64; PRIORITIES], frame: &PauseFrame) {
    for (counter, time) in counters.iter_mut().zip(frame.times) {
        *counter += u64::from(time.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: PfcLink =
        PfcLink { mac: Mac([2; 6]), vlan: None, speed: 1_000_000_000, capacity: 4000, shard: 0 };

    fn flow(priority: u8) -> Flow {
        let ip = |n| [10, 0, 0, n].into();
        Flow { traffic_class: priority << 5, ..Flow::new(ip(1), ip(2), 4000) }
    }

    fn outbox(pfc: &mut Pfc) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(frame) = pfc.outbox.front() {
            frames.push(frame.to_vec());
            pfc.outbox.pop();
        }
        frames
    }

    #[test]
    fn frames_of_a_paused_priority_are_held_until_the_pause_ends() {
        let mut pfc = Pfc::new(PfcConfig::default(), LINK, Arc::default());
        pfc.on_frame(Instant(0), &PauseFrame::new(1 << 3 | 1 << 5, 10));
        assert_eq!([3, 4].map(|priority| pfc.is_paused(&flow(priority))), [true, false]);
        assert_eq!([3, 4].map(|priority| pfc.egress_room().has_room(priority)), [false, true]);
        for (priority, frame) in [(3, 1), (5, 2), (3, 3)] {
            assert!(pfc.hold(&flow(priority), |out| out.push(frame)));
        }
        pfc.handle_timeout(Instant(5119));
        assert_eq!(pfc.outbox.front(), None);
        pfc.on_frame(Instant(5119), &PauseFrame::new(1 << 3, 0));
        assert_eq!(outbox(&mut pfc), [[1], [3]]);
        pfc.handle_timeout(Instant(5120));
        assert_eq!((outbox(&mut pfc), pfc.next_deadline()), (vec![vec![2]], None));
        assert_eq!(pfc.received, [0, 0, 0, 2, 0, 1, 0, 0]);
    }

    #[test]
    fn held_frames_are_limited() {
        let mut pfc = Pfc::new(PfcConfig::default(), LINK, Arc::default());
        pfc.on_frame(Instant(0), &PauseFrame::new(1, 1));
        let full = (0..).take_while(|_| pfc.hold(&flow(0), |out| out.resize(out.len() + 1000, 0))).count();
        assert_eq!(full, MAX_HELD.div_ceil(1000));
    }

    #[test]
    fn all_packets_of_a_link_in_a_vlan_have_the_priority_of_its_tag() {
        let vlan = Some(VlanTag { id: 5, priority: 2 });
        let mut pfc = Pfc::new(PfcConfig::default(), PfcLink { vlan, ..LINK }, Arc::default());
        pfc.on_frame(Instant(0), &PauseFrame::new(1 << 3, 10));
        assert!(
            (0..8).all(
                |priority| pfc.egress_room().has_room(priority.into()) && !pfc.is_paused(&flow(priority))
            )
        );
        pfc.on_frame(Instant(0), &PauseFrame::new(1 << 2, 10));
        assert!(
            (0..8).all(
                |priority| !pfc.egress_room().has_room(priority.into()) && pfc.is_paused(&flow(priority))
            )
        );
        assert!(!pfc.is_paused(&Flow { vlan_priority: Some(6), ..flow(0) }), "a CNP has its own priority");
    }

    #[test]
    fn shards_share_pauses_of_the_neighbour() {
        let shared = Arc::new(SharedPfc::default());
        let [mut a, mut b] =
            [0, 1].map(|shard| Pfc::new(PfcConfig::default(), PfcLink { shard, ..LINK }, shared.clone()));
        assert!(!a.on_frame(Instant(0), &PauseFrame::new(1 << 3, 10)));
        assert!(b.is_paused(&flow(3)));
        assert_eq!(b.next_deadline(), Some(Instant(5120)));
        assert!(b.hold(&flow(3), |out| out.push(1)));
        assert!(a.on_frame(Instant(1), &PauseFrame::new(1 << 3, 0)));
        b.release();
        assert_eq!(outbox(&mut b), [[1]]);
    }

    #[test]
    fn thresholds_default_to_parts_of_the_capacity() {
        let mut pfc = Pfc::new(PfcConfig::default(), LINK, Arc::default());
        let mut sent = |waiting| {
            pfc.on_received(&flow(3));
            pfc.update(Instant(0), waiting);
            outbox(&mut pfc).len()
        };
        assert_eq!([2000, 2001, 1001, 1000].map(&mut sent), [0, 1, 0, 1]);
        assert_eq!(pfc.sent, [0, 0, 0, 2, 0, 0, 0, 0]);
    }
}

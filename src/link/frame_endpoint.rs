//! Common part of packet and frames links: the IP stack on Ethernet frames, priority flow control, and
//! packets to the link itself.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::loopback::Loopback;
use super::{LinkCounters, LinkInfo};
use crate::burst::{BurstLimits, TxBurst};
use crate::host::frame_queue::FrameQueue;
use crate::host::host_stack::{FrameOutcome, IpStack};
use crate::host::pfc::{Pfc, PfcConfig, PfcLink, SharedPfc};
use crate::transport::{Instant, earliest};
use crate::wire::Mac;
use crate::wire::frame::{self, Checksums, Content, Frame, RoceFrame, VlanTag};

/// State of a link that carries Ethernet frames, apart from its socket.
#[derive(Debug)]
pub(super) struct FrameEndpoint<S: ?Sized> {
    pub info: LinkInfo,
    /// VLAN tag added to each frame sent.
    pub vlan: Option<VlanTag>,
    /// Whether the interface is a loopback interface, which loops multicast packets back itself.
    pub is_loopback: bool,
    pub local: Loopback,
    pub counters: LinkCounters,
    /// Priority flow control, if enabled.
    pub pfc: Option<Box<Pfc>>,
    pub stack: Box<S>,
}

impl<S: IpStack + ?Sized> FrameEndpoint<S> {
    /// Creates the state of a link. `capacity` is the size of its receive queue in bytes, `shared` the flow
    /// control state that the links of a NIC's shards share, and `shard` the index of the link among them.
    pub fn new(
        info: LinkInfo,
        vlan: Option<VlanTag>,
        stack: Box<S>,
        (pfc, capacity): (Option<PfcConfig>, usize),
        (shared, shard): (Arc<SharedPfc>, usize),
    ) -> FrameEndpoint<S> {
        let link = PfcLink { mac: Mac(info.mac), vlan, speed: info.speed, capacity, shard };
        FrameEndpoint {
            info: LinkInfo { vlan: vlan.map(|tag| tag.id), burst: BurstLimits::SEGMENTED, ..info },
            vlan,
            is_loopback: false,
            local: Loopback::default(),
            counters: LinkCounters::default(),
            pfc: pfc.map(|config| Box::new(Pfc::new(config, link, shared))),
            stack,
        }
    }

    /// Reports whether a burst is for another host and its packets exceed the MTU.
    pub fn exceeds_mtu(&self, burst: &TxBurst<'_>) -> bool {
        let is_long = burst.flow.header_len() + burst.segment > self.info.mtu;
        is_long && !self.info.addresses.contains(&burst.flow.dst)
    }

    /// Delivers a burst to this link itself if its destination is an address or a group of the link. Returns
    /// whether it must be sent to other hosts too.
    pub fn loop_back(&mut self, burst: &TxBurst<'_>) -> bool {
        let dst = burst.flow.dst;
        let is_own = self.info.addresses.contains(&dst);
        if (is_own || !self.is_loopback && self.stack.is_member(dst)) && !self.local.push(burst) {
            self.counters.tx_dropped += burst.packets as u64;
        }
        !is_own
    }

    /// Returns the destination MAC of a burst that can be sent now. Otherwise queues the packets until the
    /// next hop's MAC is known or their priority is resumed, and returns `None`.
    pub fn resolve_or_keep_back(&mut self, now: Instant, burst: &TxBurst<'_>) -> Option<Mac> {
        let flow = burst.flow;
        let to = self.stack.resolve(now, flow.dst);
        let mut paused = self.pfc.as_mut().filter(|pfc| pfc.is_paused(&flow));
        if to.is_some() && paused.is_none() {
            return to;
        }
        let (macs, tag) = ((to.unwrap_or_default(), Mac(self.info.mac)), self.vlan);
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let mut write = |out: &mut Vec<u8>| frame::append_frame(out, macs, tag, &flow, id, packet);
            match &mut paused {
                Some(pfc) if to.is_some() => {
                    self.counters.tx_dropped += u64::from(!pfc.hold(&flow, write));
                }
                _ => _ = self.stack.queue_unresolved(flow.dst, &mut write),
            }
        }
        None
    }

    /// Parses a received frame. Counts a malformed frame, and returns `None`.
    pub fn parse(&mut self, bytes: &[u8], checksums: Checksums) -> Option<Frame> {
        frame::parse(bytes, checksums).inspect_err(|error| self.counters.count(error)).ok()
    }

    /// Handles a received frame. Returns its packet, if it contains one for this link. Calls `on_resumed` if
    /// the frame has ended a pause early, so that the link can notify the other shards.
    pub fn receive(
        &mut self,
        now: Instant,
        bytes: &[u8],
        frame: Frame,
        on_resumed: impl FnOnce(),
    ) -> Option<RoceFrame> {
        // Pause frames are for the station itself, in whatever VLAN it is.
        if let (Content::Pause(pause), Some(pfc)) = (&frame.content, &mut self.pfc) {
            if pfc.on_frame(now, pause) {
                on_resumed();
            }
            return None;
        }
        match self.stack.handle(now, bytes, frame) {
            FrameOutcome::Packet(packet) => {
                self.pfc.iter_mut().for_each(|pfc| pfc.on_received(&packet.flow));
                return Some(packet);
            }
            FrameOutcome::Foreign => self.counters.rx_foreign += 1,
            FrameOutcome::RoceV1 { intact } => self.counters.count_roce_v1(intact),
            FrameOutcome::Handled => {}
        }
        None
    }

    /// Serves the timers after a batch of frames was received, and pauses or resumes the neighbour. `waiting`
    /// returns the number of bytes that have not been read yet.
    pub fn handle_timeout(&mut self, now: Instant, waiting: impl FnOnce() -> usize) {
        self.stack.handle_timeout(now);
        if let Some(pfc) = &mut self.pfc {
            pfc.handle_timeout(now);
            pfc.update(now, waiting());
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let local = (!self.local.is_empty()).then_some(Instant::default());
        let pfc = self.pfc.as_ref().and_then(|pfc| pfc.next_deadline());
        earliest([local, pfc, self.stack.next_deadline()])
    }

    /// Iterates over the queues of frames to send: those of the stack, and those of flow control.
    pub fn outboxes(&mut self) -> impl Iterator<Item = &mut FrameQueue> {
        let of_pfc = self.pfc.as_mut().map(|pfc| &mut pfc.outbox);
        [&mut self.stack.unresolved().outbox].into_iter().chain(of_pfc)
    }

    /// Returns the counters, with those of the stack and of flow control.
    pub fn counters(&mut self) -> LinkCounters {
        let tx_unresolved = self.stack.unresolved().dropped;
        let (rx_prio_pause, tx_prio_pause) =
            self.pfc.as_ref().map(|pfc| (pfc.received, pfc.sent)).unwrap_or_default();
        LinkCounters { tx_unresolved, rx_prio_pause, tx_prio_pause, ..self.counters }
    }
}

//! RoCEv2 over a packet socket on a network interface, either alongside the kernel on the interface's own
//! addresses or as a separate host stack.
//!
//! Bursts are passed to the kernel as GSO super-packets, which the kernel or the hardware segments. If the
//! kernel rejects them, packets are sent one by one.

mod config;
mod fanout;
mod filter;
mod kernel;
mod segmentation;
mod shard_group;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use pnet_datalink::NetworkInterface;

use super::loopback::Loopback;
use super::options::MIN_MTU;
use super::{DEFAULT_SPEED, JoinError, Link, LinkCounters, LinkInfo, Multicast, PortState};
use crate::burst::{BurstLimits, RxBurst, TxBurst, TxQueue};
use crate::host::frame_queue::FrameQueue;
use crate::host::host_stack::{FrameOutcome, HostStack, IfAddr};
use crate::host::link_state::LinkStateMonitor;
use crate::host::pfc::{Pfc, PfcLink, SharedPfc};
use crate::host::{gid_table_order, socket_calls, system_udp};
use crate::nic::ShardId;
use crate::transport::{EgressRoom, Instant, earliest};
use crate::wire::Mac;
use crate::wire::frame::{self, Content, ETHERNET_LEN, Frame, PauseFrame, RoceFrame, VlanTag};
pub use config::{PacketConfig, PacketError};
use filter::Recipient;
use kernel::KernelNeighbours;
use shard_group::ShardGroup;
use socket::{RX_MESSAGES, RawSocket, RxFrame, Shape, SuperPacket, TxBatch, TxMessage};

/// A link over a packet socket on an interface.
#[derive(Debug)]
pub struct PacketLink {
    info: LinkInfo,
    mac: Mac,
    /// VLAN tag added to each frame sent.
    vlan: Option<VlanTag>,
    neighbours: Neighbours,
    socket: RawSocket,
    /// UDP payload bytes per packet in the last super-packet whose segment size the kernel did not report:
    /// the likeliest segment size of the next one.
    likely_segment: usize,
    batch: TxBatch,
    local: Loopback,
    /// Membership in the group of the NIC's packet links; `None` if there is only one shard.
    shard_group: Option<ShardGroup>,
    counters: LinkCounters,
    /// Priority flow control, if enabled.
    pfc: Option<Box<Pfc>>,
    /// Link state monitor; `None` if the system does not report interface states, or if another shard
    /// monitors this interface.
    link_state: Option<LinkStateMonitor>,
}

/// Source of the neighbours' MACs.
#[derive(Debug)]
enum Neighbours {
    Kernel(Box<KernelNeighbours>),
    HostStack(Box<HostStack>),
}

impl Neighbours {
    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Option<Mac> {
        match self {
            Neighbours::Kernel(k) => k.resolve(now, dst),
            Neighbours::HostStack(s) => s.resolve(now, dst),
        }
    }

    fn queue_unresolved(&mut self, dst: IpAddr, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self {
            Neighbours::Kernel(k) => k.queue_unresolved(dst, write),
            Neighbours::HostStack(s) => s.queue_unresolved(dst, write),
        }
    }

    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        match self {
            Neighbours::Kernel(k) => k.join(group),
            Neighbours::HostStack(s) => s.join(now, group),
        }
    }

    /// Leaves a group. `last` is false if another link of the same NIC is still a member.
    fn leave(&mut self, group: IpAddr, last: bool) {
        match self {
            Neighbours::Kernel(k) => k.leave(group),
            Neighbours::HostStack(s) if last => s.leave(group),
            Neighbours::HostStack(s) => s.leave_without_report(group),
        }
    }

    fn vlan(&self) -> Option<VlanTag> {
        match self {
            Neighbours::Kernel(_) => None,
            Neighbours::HostStack(s) => s.config().vlan,
        }
    }

    /// Reports whether the interface is a loopback interface, which loops multicast packets back itself.
    fn is_loopback(&self) -> bool {
        matches!(self, Neighbours::Kernel(k) if k.loopback)
    }

    /// Reports whether this link has to loop back packets to the group `dst`: it is a member, and the
    /// interface does not loop them back itself.
    fn loops_back(&self, dst: IpAddr) -> bool {
        match self {
            Neighbours::Kernel(k) => k.is_member(dst) && !self.is_loopback(),
            Neighbours::HostStack(s) => s.is_member(dst),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Neighbours::Kernel(k) => k.handle_timeout(now),
            Neighbours::HostStack(s) => s.handle_timeout(now),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Neighbours::Kernel(k) => k.next_deadline(),
            Neighbours::HostStack(s) => s.next_deadline(),
        }
    }

    /// Frames to send.
    fn outbox(&mut self) -> &mut FrameQueue {
        match self {
            Neighbours::Kernel(k) => &mut k.outbox,
            Neighbours::HostStack(s) => &mut s.outbox,
        }
    }

    fn unresolved(&self) -> u64 {
        match self {
            Neighbours::Kernel(k) => k.unresolved,
            Neighbours::HostStack(s) => s.unresolved(),
        }
    }
}

fn find_interface(name: &str) -> Result<NetworkInterface, PacketError> {
    let mut interfaces = pnet_datalink::interfaces();
    match interfaces.iter().position(|i| i.name == name) {
        Some(i) => Ok(interfaces.swap_remove(i)),
        None => {
            let names: Vec<_> = interfaces.iter().map(|i| i.name.as_str()).collect();
            Err(PacketError::NoInterface { name: name.to_owned(), existing: names.join(", ") })
        }
    }
}

/// Returns a function that converts an error from the operation `what` on the interface `name` to a
/// [`PacketError`].
fn failed(name: &str, what: &'static str) -> impl Fn(io::Error) -> PacketError {
    let name = name.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => PacketError::NotPermitted { name: name.clone() },
        _ => PacketError::Io { name: name.clone(), what, source },
    }
}

/// Source of a received frame.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// The link's own socket; the value is the index of the frame in the last batch received.
    Socket(usize),
    /// The link of another shard, which passed on this frame.
    ShardGroup(RxFrame<'a>),
}

impl PacketLink {
    /// Opens a packet socket on the interface.
    ///
    /// # Errors
    /// [`PacketError::NoInterface`], [`PacketError::Down`], [`PacketError::NotEthernet`],
    /// [`PacketError::NoAddress`] or [`PacketError::Mtu`] for an interface that cannot carry the link;
    /// [`PacketError::Io`] if the system refuses a socket, for lack of CAP_NET_RAW for example.
    pub fn open(config: PacketConfig) -> Result<PacketLink, PacketError> {
        let link = PacketLink::open_one(config, None, Arc::default())?;
        link.start(ShardId::WHOLE)?;
        Ok(link)
    }

    /// Opens `count` packet sockets, one per shard of a NIC
    /// ([`Context::open_shards`](crate::verbs::Context::open_shards)). Each shard receives the packets for
    /// queue pairs whose numbers have the shard's index in their lowest bits. `count` is rounded up to a
    /// power of two and limited to 64.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_shards(config: PacketConfig, count: usize) -> Result<Vec<PacketLink>, PacketError> {
        let count = count.next_power_of_two().min(ShardId::MAX_COUNT);
        if count == 1 {
            return Ok(vec![PacketLink::open(config)?]);
        }
        if config.fanout {
            let mut links = PacketLink::open_all(&config, count)?;
            if fanout::join(links.iter().map(|link| &link.socket)).is_ok() {
                links
                    .iter_mut()
                    .flat_map(|link| &mut link.shard_group)
                    .for_each(|shard_group| shard_group.fans_out = true);
                links.iter().try_for_each(|link| link.start(ShardId::WHOLE))?;
                return Ok(links);
            }
            // The kernel has rejected the fanout group. A socket leaves one only by being closed, so all are
            // opened again.
        }
        let links = PacketLink::open_all(&config, count)?;
        links.iter().try_for_each(|link| link.start(link.shard()))?;
        Ok(links)
    }

    /// Opens the links of one NIC's shards, without starting reception.
    fn open_all(config: &PacketConfig, count: usize) -> Result<Vec<PacketLink>, PacketError> {
        let shard_group = ShardGroup::new(count).map_err(|source| PacketError::Io {
            name: config.interface.clone(),
            what: "create an eventfd",
            source,
        })?;
        let pfc = Arc::new(SharedPfc::default());
        shard_group
            .into_iter()
            .map(|shard_group| PacketLink::open_one(config.clone(), Some(shard_group), pfc.clone()))
            .collect()
    }

    /// Opens a link without starting reception.
    fn open_one(
        config: PacketConfig,
        shard_group: Option<ShardGroup>,
        shared_pfc: Arc<SharedPfc>,
    ) -> Result<PacketLink, PacketError> {
        let first = shard_group.as_ref().and_then(ShardGroup::shard).is_none_or(ShardId::is_first);
        let PacketConfig { interface: name, host_stack, mtu, offload, speed, pfc, .. } = config;
        let interface = find_interface(&name)?;
        if !interface.is_up() {
            return Err(PacketError::Down { name });
        }
        let loopback = interface.is_loopback();
        let own_mac = match interface.mac {
            Some(mac) => Mac(mac.octets()),
            None if loopback => Mac::default(),
            None => return Err(PacketError::NotEthernet { name }),
        };
        let failed = |what| failed(&name, what);
        // Reading the MTU needs a socket of any kind.
        let probe = system_udp::bound(([0, 0, 0, 0], 0).into()).map_err(failed("open a socket"))?;
        let interface_mtu =
            socket_calls::interface_mtu(&probe, &name).map_err(failed("read the MTU"))?.min(super::MAX_MTU);
        if interface_mtu < MIN_MTU {
            return Err(PacketError::Mtu { name, mtu: interface_mtu });
        }
        let socket = RawSocket::open(interface.index, offload).map_err(failed("open a packet socket"))?;
        let (mac, addresses, neighbours) = match host_stack {
            Some(host_stack) => {
                let addresses: Vec<_> = host_stack.addresses.iter().map(|a| a.ip).collect();
                (host_stack.mac, addresses, Neighbours::HostStack(Box::new(HostStack::new(host_stack))))
            }
            None => {
                let mut own: Vec<_> =
                    interface.ips.iter().map(|n| IfAddr { ip: n.ip(), prefix: n.prefix() }).collect();
                // The order of a GID table.
                own.sort_by_key(|a| gid_table_order(&a.ip));
                let addresses: Vec<_> = own.iter().map(|a| a.ip).collect();
                if addresses.is_empty() {
                    return Err(PacketError::NoAddress { name });
                }
                let kernel = KernelNeighbours::new(&name, interface.index, loopback, &addresses)
                    .map_err(failed("query neighbours"))?;
                (own_mac, addresses, Neighbours::Kernel(Box::new(kernel)))
            }
        };
        let vlan = neighbours.vlan();
        let promiscuous = matches!(neighbours, Neighbours::HostStack(_));
        socket.bind(promiscuous).map_err(failed("bind a packet socket"))?;
        if pfc.is_some() {
            socket.accept_group(PauseFrame::DESTINATION).map_err(failed("receive pause frames"))?;
        }
        let info = LinkInfo {
            mac: mac.0,
            vlan: vlan.map(|tag| tag.id),
            mtu: mtu.unwrap_or(interface_mtu).min(interface_mtu),
            burst: BurstLimits::SEGMENTED,
            window: socket.window(),
            speed: speed.unwrap_or(DEFAULT_SPEED),
            ..LinkInfo::new(format!("packet {name}"), addresses)
        };
        let properties = PfcLink {
            mac,
            vlan,
            speed: info.speed,
            capacity: socket.receive_buffer(),
            shard: shard_group.as_ref().map_or(0, ShardGroup::index),
        };
        let pfc = pfc.map(|config| Box::new(Pfc::new(config, properties, shared_pfc)));
        Ok(PacketLink {
            info,
            mac,
            vlan,
            neighbours,
            socket,
            likely_segment: 0,
            batch: TxBatch::default(),
            local: Loopback::default(),
            shard_group,
            counters: LinkCounters::default(),
            pfc,
            // One monitor suffices for all shards.
            link_state: first.then(|| LinkStateMonitor::open([interface.index]).ok()).flatten(),
        })
    }

    fn shard(&self) -> ShardId {
        self.shard_group.as_ref().and_then(ShardGroup::shard).unwrap_or(ShardId::WHOLE)
    }

    /// Starts reception: from now on the socket accepts frames for the given shard.
    fn start(&self, shard: ShardId) -> Result<(), PacketError> {
        let recipient = match self.neighbours {
            Neighbours::HostStack(_) => Recipient::HostStack(self.mac, self.info.vlan),
            Neighbours::Kernel(_) => Recipient::Interface(&self.info.addresses),
        };
        let name = self.info.name.trim_start_matches("packet ");
        self.socket
            .attach_filter(&filter::program(recipient, shard, self.pfc.is_some()))
            .map_err(failed(name, "attach the packet filter"))
    }

    /// Reports whether super-packets are passed to the kernel. Becomes false once the kernel has rejected
    /// one.
    pub fn offloads(&self) -> bool {
        self.socket.vnet
    }

    /// Reports whether the kernel distributes frames to the shards by queue pair, examining each frame only
    /// once.
    pub fn fans_out(&self) -> bool {
        self.shard_group.as_ref().is_some_and(|shard_group| shard_group.fans_out)
    }

    /// Adds a burst to the batch, loops it back, or queues it until its next hop is resolved. Counts packets
    /// that have to be dropped.
    fn add_burst(&mut self, now: Instant, index: usize, burst: &TxBurst<'_>) {
        let flow = burst.flow;
        if self.info.addresses.contains(&flow.dst) {
            self.counters.tx_dropped += if self.local.push(burst) { 0 } else { burst.packets as u64 };
            return;
        }
        if flow.header_len() + burst.segment > self.info.mtu {
            self.counters.tx_oversized += burst.packets as u64;
            return;
        }
        if self.neighbours.loops_back(flow.dst) && !self.local.push(burst) {
            self.counters.tx_dropped += burst.packets as u64;
        }
        if flow.dst.is_multicast()
            && !self.neighbours.is_loopback()
            && let Some(shard_group) = &self.shard_group
        {
            self.counters.tx_dropped += shard_group.forward_burst(burst);
        }
        let is_paused = self.pfc.as_ref().is_some_and(|pfc| pfc.is_paused(&flow));
        match self.neighbours.resolve(now, flow.dst) {
            Some(to) if is_paused => self.keep_back(Some(to), burst),
            // Bursts of tagged frames are not passed as super-packets: the tag is part of the frame, and not
            // all devices parse beyond it.
            Some(to) if self.socket.vnet && burst.packets > 1 && self.vlan.is_none() => {
                self.add_super_packet(to, index, burst)
            }
            Some(to) => self.add_packets(to, index, burst),
            None => self.keep_back(None, burst),
        }
    }

    /// Adds a burst to the batch as a super-packet, which the kernel segments.
    fn add_super_packet(&mut self, to: Mac, index: usize, burst: &TxBurst<'_>) {
        let (flow, own) = (burst.flow, self.mac);
        let udp_end = ETHERNET_LEN + flow.header_len();
        let super_packet = SuperPacket { segment: burst.segment, ip_end: udp_end - 8, udp_end };
        let info = TxMessage { burst: index, packets: burst.packets, super_packet: true, to };
        self.batch.begin(info, true, Some(super_packet), |out| {
            frame::append_headers(out, to, own, &flow, 0, burst.bytes);
            // The pseudo-header sum, which the kernel completes in every packet.
            let at = out.len() - 2;
            let sum = frame::udp_pseudo_sum(&flow, burst.bytes as u16 + 8);
            out[at..].copy_from_slice(&sum.to_be_bytes());
        });
        self.batch.data(burst.bytes());
    }

    /// Adds the packets of a burst to the batch as separate messages.
    fn add_packets(&mut self, to: Mac, index: usize, burst: &TxBurst<'_>) {
        let (flow, own, tag) = (burst.flow, self.mac, self.vlan);
        let info = TxMessage { burst: index, packets: 1, super_packet: false, to };
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let write = |out: &mut Vec<u8>| {
                let start = out.len();
                frame::append_headers(out, to, own, &flow, id, packet.len());
                if let Some(tag) = tag {
                    tag.of_flow(&flow).insert(out, start);
                }
            };
            self.batch.begin(info, self.socket.vnet, None, write);
            self.batch.data(packet);
        }
    }

    /// Keeps the packets of a burst back: until their priority is resumed or, without `to`, until the next hop's MAC is
    /// known.
    fn keep_back(&mut self, to: Option<Mac>, burst: &TxBurst<'_>) {
        let (flow, macs, tag) = (burst.flow, (to.unwrap_or_default(), self.mac), self.vlan);
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let write = |out: &mut Vec<u8>| frame::append_frame(out, macs, tag, &flow, id, packet);
            match &mut self.pfc {
                Some(pfc) if to.is_some() => {
                    self.counters.tx_dropped += u64::from(!pfc.hold(&flow, write));
                }
                _ => _ = self.neighbours.queue_unresolved(flow.dst, write),
            }
        }
    }

    /// Sends the batch. If the kernel rejects a super-packet, stops and returns the index of the rejected
    /// message.
    fn send_batch(&mut self) -> io::Result<Option<usize>> {
        let mut next = 0;
        while next < self.batch.info.len() {
            let (sent, error) = self.socket.send(&mut self.batch, next);
            let Some(error) = error else { break };
            let message = self.batch.info[sent];
            match error.raw_os_error() {
                Some(libc::ENODEV | libc::ENXIO) => return Err(error),
                Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EIO) if message.super_packet => {
                    return Ok(Some(sent));
                }
                // A queue that is full now is full for the remaining messages as well.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENETDOWN) => {
                    let rest = self.batch.info[sent..].iter().map(|m| m.packets as u64).sum::<u64>();
                    self.counters.tx_dropped += rest;
                    return Ok(None);
                }
                Some(libc::EMSGSIZE) => {
                    self.counters.tx_oversized += message.packets as u64;
                    next = sent + 1;
                }
                _ => {
                    self.counters.tx_dropped += message.packets as u64;
                    next = sent + 1;
                }
            }
        }
        Ok(None)
    }

    /// Sends the rest of the batch packet by packet, starting with the burst whose message has index `first`.
    fn send_in_packets(&mut self, first: usize, queue: &TxQueue) -> io::Result<()> {
        let mut bursts: Vec<_> = self.batch.info[first..].iter().map(|m| (m.burst, m.to)).collect();
        bursts.dedup();
        self.batch.clear();
        for (index, to) in bursts {
            if let Some(burst) = queue.bursts().nth(index) {
                self.add_packets(to, index, &burst);
            }
        }
        self.send_batch().map(drop)
    }

    /// Sends the pending frames of the host stack or of the kernel's neighbour resolution, and those of flow
    /// control.
    fn flush_outbox(&mut self) -> io::Result<()> {
        const INFO: TxMessage = TxMessage { burst: 0, packets: 1, super_packet: false, to: Mac([0; 6]) };
        loop {
            self.batch.clear();
            let of_pfc = self.pfc.as_mut().map(|pfc| &mut pfc.outbox);
            for outbox in [Some(self.neighbours.outbox()), of_pfc].into_iter().flatten() {
                while let (Some(bytes), false) = (outbox.front(), self.batch.is_full()) {
                    self.batch.begin(INFO, self.socket.vnet, None, |out| out.extend_from_slice(bytes));
                    outbox.pop();
                }
            }
            if self.batch.info.is_empty() {
                return Ok(());
            }
            self.send_batch()?;
        }
    }

    /// Carries out a pause frame.
    fn on_pause(&mut self, now: Instant, frame: &PauseFrame) {
        let Some(pfc) = &mut self.pfc else {
            self.counters.rx_foreign += 1;
            return;
        };
        if pfc.on_frame(now, frame) {
            self.shard_group.iter().for_each(ShardGroup::wake_others);
        }
    }

    /// Ends pauses whose time is over, and pauses or resumes the neighbour after a batch of frames was received.
    /// `is_full` tells whether more may be waiting.
    fn handle_flow_control(&mut self, now: Instant, is_full: bool) {
        if let Some(pfc) = &mut self.pfc {
            pfc.handle_timeout(now);
            let waiting = if is_full { self.socket.waiting_bytes() } else { 0 };
            pfc.update(now, waiting);
        }
    }

    fn handle_frame(&mut self, now: Instant, from: Origin<'_>, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let received = match from {
            Origin::Socket(index) => self.socket.received(index),
            Origin::ShardGroup(frame) => frame,
        };
        if received.unusable {
            self.counters.rx_malformed += 1;
            return 0;
        }
        let frame = match frame::parse(received.bytes, received.checksums) {
            // The kernel has removed the tag, and the filter has checked it.
            Ok(frame) if self.vlan.is_some() => Frame { vlan: [self.info.vlan, None], ..frame },
            Ok(frame) => frame,
            Err(e) => {
                self.counters.count(&e);
                return 0;
            }
        };
        if let (Origin::Socket(_), Some(shard_group)) = (from, &self.shard_group) {
            self.counters.rx_overflow += shard_group.forward_frame(&frame, &received);
        }
        let outcome = match &mut self.neighbours {
            Neighbours::HostStack(host_stack) => host_stack.handle(now, received.bytes, frame),
            Neighbours::Kernel(kernel) => {
                let is_local = |ip: IpAddr| self.info.addresses.contains(&ip) || kernel.is_member(ip);
                classify_frame(frame, is_local)
            }
        };
        match outcome {
            FrameOutcome::Packet(RoceFrame { flow, ident, payload }) => {
                if let Some(pfc) = &mut self.pfc {
                    pfc.on_received(&flow);
                }
                let data = &received.bytes[payload];
                let segment = match received.shape {
                    Shape::Single => data.len(),
                    Shape::SuperPacket(segment) => segment,
                    Shape::Unknown => {
                        self.likely_segment = segmentation::segment(&flow, ident, data, self.likely_segment);
                        self.likely_segment
                    }
                };
                let ident = segmentation::ident(&flow, ident, data, segment);
                sink(RxBurst::new(flow, ident, segment, data));
                return data.len().div_ceil(segment.max(1));
            }
            FrameOutcome::Pause(frame) => self.on_pause(now, &frame),
            FrameOutcome::Foreign => self.counters.rx_foreign += 1,
            FrameOutcome::RoceV1 { intact } => self.counters.count_roce_v1(intact),
            FrameOutcome::Malformed(e) => self.counters.count(&e),
            FrameOutcome::EchoReply { .. } | FrameOutcome::Handled => {}
        }
        0
    }
}

/// Classifies a frame received by a link that uses the interface's own addresses. On such a link, the kernel
/// handles every protocol other than RoCE.
fn classify_frame(frame: Frame, is_local: impl Fn(IpAddr) -> bool) -> FrameOutcome {
    match frame.content {
        Content::Roce(roce) if is_local(roce.flow.dst) => FrameOutcome::Packet(roce),
        Content::RoceV1 { intact } => FrameOutcome::RoceV1 { intact },
        Content::Pause(pause) => FrameOutcome::Pause(pause),
        _ => FrameOutcome::Foreign,
    }
}

impl Link for PacketLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        if let Some(pfc) = &mut self.pfc {
            // Frames that were held back precede new ones.
            pfc.release();
            self.flush_outbox()?;
        }
        let count = queue.bursts().len();
        let mut from = 0;
        while from < count {
            self.batch.clear();
            let mut bursts = queue.bursts().enumerate().skip(from);
            for (i, burst) in bursts.by_ref() {
                self.add_burst(now, i, &burst);
                from = i + 1;
                if self.batch.is_full() {
                    break;
                }
            }
            if let Some(rejected) = self.send_batch()? {
                self.socket.disable_gso()?;
                self.send_in_packets(rejected, queue)?;
            }
        }
        self.flush_outbox()
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if self.link_state.as_ref().is_some_and(LinkStateMonitor::is_removed) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let mut packets = self.local.deliver(64, sink);
        if let Some(mut contents) = self.shard_group.as_ref().and_then(ShardGroup::take) {
            packets += contents.bursts.deliver(usize::MAX, sink);
            while let Some((&(shape, checksums), bytes)) = contents.frames.front_tagged() {
                let frame = RxFrame { bytes, shape, checksums, unusable: false };
                packets += self.handle_frame(now, Origin::ShardGroup(frame), sink);
                contents.frames.pop();
            }
        }
        let count = self.socket.receive()?;
        for i in 0..count {
            packets += self.handle_frame(now, Origin::Socket(i), sink);
        }
        self.neighbours.handle_timeout(now);
        self.handle_flow_control(now, count == RX_MESSAGES);
        self.flush_outbox()?;
        Ok(packets)
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.local.is_empty() {
            return Some(Instant::default());
        }
        let pfc = self.pfc.as_ref().and_then(|pfc| pfc.next_deadline());
        earliest([self.neighbours.next_deadline(), pfc])
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        [self.socket.as_fd()].into_iter().chain(self.shard_group.as_ref().map(ShardGroup::fd)).collect()
    }

    own_capabilities!(multicast: Multicast, port_state: PortState);
}

impl Multicast for PacketLink {
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.neighbours.join(now, group)?;
        if let Some(shard_group) = &self.shard_group {
            shard_group.join(group);
        }
        // A report that cannot be sent is repeated later.
        let _ = self.flush_outbox();
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let last = self.shard_group.as_ref().is_none_or(|shard_group| shard_group.leave(group));
        self.neighbours.leave(group, last);
        let _ = self.flush_outbox();
    }
}

impl PortState for PacketLink {
    fn is_up(&mut self) -> bool {
        self.link_state.as_mut().is_none_or(LinkStateMonitor::is_up)
    }

    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.link_state.as_ref().map(AsFd::as_fd)
    }

    fn egress_room(&self) -> Option<EgressRoom> {
        self.pfc.as_ref().map(|pfc| pfc.egress_room())
    }

    fn counters(&mut self) -> LinkCounters {
        let mut counters = LinkCounters { tx_unresolved: self.neighbours.unresolved(), ..self.counters };
        if let Some(pfc) = &self.pfc {
            (counters.rx_prio_pause, counters.tx_prio_pause) = pfc.counters();
        }
        counters
    }
}

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

use super::frame_endpoint::FrameEndpoint;
use super::options::MIN_MTU;
use super::{DEFAULT_SPEED, JoinError, Link, LinkCounters, LinkInfo, Multicast, PortState};
use crate::burst::{RxBurst, TxBurst, TxQueue};
use crate::host::host_stack::{HostStack, IpStack};
use crate::host::link_state::LinkStateMonitor;
use crate::host::pfc::SharedPfc;
use crate::host::{gid_table_order, socket_calls, system_udp};
use crate::nic::ShardId;
use crate::transport::{EgressRoom, Instant};
use crate::wire::Mac;
use crate::wire::frame::{self, ETHERNET_LEN, PauseFrame, RoceFrame};
pub use config::{PacketConfig, PacketError};
use filter::Recipient;
use kernel::KernelNeighbours;
use shard_group::ShardGroup;
use socket::{RX_MESSAGES, RawSocket, RxFrame, Shape, SuperPacket, TxBatch, TxMessage};

/// A link over a packet socket on an interface.
#[derive(Debug)]
pub struct PacketLink {
    endpoint: FrameEndpoint<dyn IpStack>,
    /// Whether the IP stack is the link's own, and not that of the kernel.
    has_own_stack: bool,
    socket: RawSocket,
    /// UDP payload bytes per packet in the last super-packet whose segment size the kernel did not report:
    /// the likeliest segment size of the next one.
    likely_segment: usize,
    batch: TxBatch,
    /// Membership in the group of the NIC's packet links; `None` if there is only one shard.
    shard_group: Option<ShardGroup>,
    /// Link state monitor; without interfaces if another shard monitors this one.
    link_state: LinkStateMonitor,
}

fn find_interface(name: &str) -> Result<NetworkInterface, PacketError> {
    let interfaces = pnet_datalink::interfaces();
    let found = interfaces.iter().find(|interface| interface.name == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<_> = interfaces.iter().map(|i| i.name.as_str()).collect();
        PacketError::NoInterface { name: name.to_owned(), existing: names.join(", ") }
    })
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
        let shard_of = |index| ShardId::new(index, count).unwrap_or(ShardId::WHOLE);
        links.iter().enumerate().try_for_each(|(index, link)| link.start(shard_of(index)))?;
        Ok(links)
    }

    /// Opens the links of one NIC's shards, without starting reception.
    fn open_all(config: &PacketConfig, count: usize) -> Result<Vec<PacketLink>, PacketError> {
        let shard_group = ShardGroup::new(count).map_err(failed(&config.interface, "create an eventfd"))?;
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
        let shard = shard_group.as_ref().map_or(0, |shard_group| shard_group.own);
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
        let has_own_stack = host_stack.is_some();
        let (mac, vlan, addresses, stack): (_, _, Vec<IpAddr>, Box<dyn IpStack>) = match host_stack {
            Some(config) => {
                let addresses = config.addresses.iter().map(|a| a.ip).collect();
                (config.mac, config.vlan, addresses, Box::new(HostStack::new(config)))
            }
            None => {
                let mut addresses: Vec<_> = interface.ips.iter().map(|network| network.ip()).collect();
                addresses.sort_by_key(gid_table_order);
                if addresses.is_empty() {
                    return Err(PacketError::NoAddress { name });
                }
                let kernel = KernelNeighbours::new(&name, interface.index, loopback, &addresses)
                    .map_err(failed("query neighbours"))?;
                (own_mac, None, addresses, Box::new(kernel))
            }
        };
        socket.bind(has_own_stack).map_err(failed("bind a packet socket"))?;
        if pfc.is_some() {
            socket.accept_group(PauseFrame::DESTINATION).map_err(failed("receive pause frames"))?;
        }
        let info = LinkInfo {
            mac: mac.0,
            mtu: mtu.unwrap_or(interface_mtu).min(interface_mtu),
            window: socket.window(),
            speed: speed.unwrap_or(DEFAULT_SPEED),
            ..LinkInfo::new(format!("packet {name}"), addresses)
        };
        let pfc = (pfc, socket.receive_buffer);
        let is_loopback = loopback && !has_own_stack;
        Ok(PacketLink {
            endpoint: FrameEndpoint {
                is_loopback,
                ..FrameEndpoint::new(info, vlan, stack, pfc, (shared_pfc, shard))
            },
            has_own_stack,
            socket,
            likely_segment: 0,
            batch: TxBatch::default(),
            shard_group,
            // One monitor suffices for all shards.
            link_state: LinkStateMonitor::open((shard == 0).then_some(interface.index)),
        })
    }

    /// Starts reception: from now on the socket accepts frames for the given shard.
    fn start(&self, shard: ShardId) -> Result<(), PacketError> {
        let info = &self.endpoint.info;
        let recipient = match self.has_own_stack {
            true => Recipient::HostStack(Mac(info.mac), info.vlan),
            false => Recipient::Interface(&info.addresses),
        };
        let name = info.name.trim_start_matches("packet ");
        let program = filter::program(recipient, shard, self.endpoint.pfc.is_some());
        socket_calls::attach_filter(&self.socket.fd, &program)
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
        if self.endpoint.exceeds_mtu(burst) {
            self.endpoint.counters.tx_oversized += burst.packets as u64;
            return;
        }
        if !self.endpoint.loop_back(burst) {
            return;
        }
        if burst.flow.dst.is_multicast()
            && !self.endpoint.is_loopback
            && let Some(shard_group) = &self.shard_group
        {
            self.endpoint.counters.tx_dropped += shard_group.forward_burst(burst);
        }
        match self.endpoint.resolve_or_keep_back(now, burst) {
            // Bursts of tagged frames are not passed as super-packets: the tag is part of the frame, and not
            // all devices parse beyond it.
            Some(to) if self.socket.vnet && burst.packets > 1 && self.endpoint.vlan.is_none() => {
                self.add_super_packet(to, index, burst)
            }
            Some(to) => self.add_packets(to, index, burst),
            None => {}
        }
    }

    /// Adds a burst to the batch as a super-packet, which the kernel segments.
    fn add_super_packet(&mut self, to: Mac, index: usize, burst: &TxBurst<'_>) {
        let (flow, own) = (burst.flow, Mac(self.endpoint.info.mac));
        let udp_end = ETHERNET_LEN + flow.header_len();
        let super_packet = Some(SuperPacket { segment: burst.segment, udp_end });
        let info = TxMessage { burst: index, packets: burst.packets, super_packet, to };
        self.batch.begin(info, true, |out| {
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
        let (flow, own, tag) = (burst.flow, Mac(self.endpoint.info.mac), self.endpoint.vlan);
        let info = TxMessage { burst: index, packets: 1, super_packet: None, to };
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let write = |out: &mut Vec<u8>| {
                let start = out.len();
                frame::append_headers(out, to, own, &flow, id, packet.len());
                if let Some(tag) = tag {
                    tag.of_flow(&flow).insert(out, start);
                }
            };
            self.batch.begin(info, self.socket.vnet, write);
            self.batch.data(packet);
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
                Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EIO) if message.super_packet.is_some() => {
                    return Ok(Some(sent));
                }
                // A queue that is full now is full for the remaining messages as well.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENETDOWN) => {
                    let rest = self.batch.info[sent..].iter().map(|m| m.packets as u64).sum::<u64>();
                    self.endpoint.counters.tx_dropped += rest;
                    return Ok(None);
                }
                Some(libc::EMSGSIZE) => {
                    self.endpoint.counters.tx_oversized += message.packets as u64;
                    next = sent + 1;
                }
                _ => {
                    self.endpoint.counters.tx_dropped += message.packets as u64;
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
        const INFO: TxMessage = TxMessage { burst: 0, packets: 1, super_packet: None, to: Mac([0; 6]) };
        loop {
            self.batch.clear();
            for outbox in self.endpoint.outboxes() {
                while let (Some(bytes), false) = (outbox.front(), self.batch.is_full()) {
                    self.batch.begin(INFO, self.socket.vnet, |out| out.extend_from_slice(bytes));
                    outbox.pop();
                }
            }
            if self.batch.info.is_empty() {
                return Ok(());
            }
            self.send_batch()?;
        }
    }

    fn handle_frame(&mut self, now: Instant, from: Origin<'_>, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let received = match from {
            Origin::Socket(index) => self.socket.received(index),
            Origin::ShardGroup(frame) => frame,
        };
        if received.unusable {
            self.endpoint.counters.rx_malformed += 1;
            return 0;
        }
        let Some(mut frame) = self.endpoint.parse(received.bytes, received.checksums) else { return 0 };
        if self.endpoint.vlan.is_some() {
            // The kernel has removed the tag, and the filter has checked it.
            frame.vlan = [self.endpoint.info.vlan, None];
        }
        let shard_group = self.shard_group.as_ref();
        if let (Origin::Socket(_), Some(shard_group)) = (from, shard_group) {
            self.endpoint.counters.rx_overflow += shard_group.forward_frame(&frame, &received);
        }
        let wake_others = || shard_group.into_iter().for_each(ShardGroup::wake_others);
        let packet = self.endpoint.receive(now, received.bytes, frame, wake_others);
        let Some(RoceFrame { flow, ident, payload }) = packet else { return 0 };
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
        data.len().div_ceil(segment.max(1))
    }
}

impl Link for PacketLink {
    fn info(&self) -> &LinkInfo {
        &self.endpoint.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        if let Some(pfc) = &mut self.endpoint.pfc {
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
        self.link_state.check_exists()?;
        let mut packets = self.endpoint.local.deliver(64, sink);
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
        // If the batch is full, more frames may be waiting.
        let waiting = || if count == RX_MESSAGES { self.socket.waiting_bytes() } else { 0 };
        self.endpoint.handle_timeout(now, waiting);
        self.flush_outbox()?;
        Ok(packets)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.endpoint.next_deadline()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        [self.socket.fd.as_fd()].into_iter().chain(self.shard_group.as_ref().map(ShardGroup::fd)).collect()
    }

    own_capabilities!(multicast: Multicast, port_state: PortState);
}

impl Multicast for PacketLink {
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.endpoint.stack.join(now, group)?;
        if let Some(shard_group) = &self.shard_group {
            shard_group.join(group);
        }
        // A report that cannot be sent is repeated later.
        let _ = self.flush_outbox();
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let is_last = self.shard_group.as_ref().is_none_or(|shard_group| shard_group.leave(group));
        self.endpoint.stack.leave(group, is_last);
        let _ = self.flush_outbox();
    }
}

impl PortState for PacketLink {
    fn is_up(&mut self) -> bool {
        self.link_state.is_up()
    }

    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.link_state.fd()
    }

    fn egress_room(&self) -> Option<EgressRoom> {
        self.endpoint.pfc.as_ref().map(|pfc| pfc.egress_room())
    }

    fn counters(&mut self) -> LinkCounters {
        self.endpoint.counters()
    }
}

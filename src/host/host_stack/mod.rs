//! Ethernet host stack without I/O: the subset of ARP, NDP, ICMP, IGMP and MLD that a RoCEv2 endpoint needs.
//!
//! The host stack replies to ARP requests, neighbour solicitations and pings for its addresses, resolves the
//! MACs of others, queues frames whose next hop is not resolved yet, reports its multicast memberships to
//! routers and switches, and determines for every frame whether it is a RoCEv2 packet for it.
#![forbid(unsafe_code)]

mod address;
mod groups;
mod neighbours;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use address::{IfAddr, IfAddrError};
use groups::Groups;
use neighbours::{NeighbourRequest, Neighbours, REACHABLE_TIME};

use super::interfaces::is_link_local;
use super::membership::{self, JoinError};
use super::unresolved_queue::UnresolvedQueue;
use crate::sys::setters::setters;
use crate::transport::{Instant, earliest};
use crate::wire::frame::{
    self, Arp, Content, Echo, Frame, MembershipState, NeighborAdvert, NeighborSolicit, RoceFrame, VlanTag,
};
use crate::wire::{Mac, solicited_node};

/// Maximum number of queued frames that the host stack has generated itself; further ones are dropped.
const MAX_OUTBOX: usize = 1024;

/// Configuration of a host stack.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HostStackConfig {
    /// MAC address.
    pub mac: Mac,
    /// IP addresses, each with its on-link prefix.
    pub addresses: Vec<IfAddr>,
    /// Routers to all off-link destinations; the first of each IP version is used.
    pub gateways: Vec<IpAddr>,
    /// VLAN tag of all frames sent; `None` if the host stack is not in a VLAN.
    pub vlan: Option<VlanTag>,
}

setters!(HostStackConfig { mac: Mac, gateways: Vec<IpAddr> } optional { vlan: VlanTag });

/// Result of handling a received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FrameOutcome {
    /// RoCEv2 packet to an address of the host stack or to a group that it has joined.
    Packet(RoceFrame),
    /// RoCEv1 packet, which is not supported.
    RoceV1 {
        /// Whether the ICRC is valid.
        intact: bool,
    },
    /// The host stack has processed the frame itself.
    Handled,
    /// The frame is not addressed to the host stack, or is of an unknown kind.
    Foreign,
}

/// IP stack of a link that carries Ethernet frames, which resolves next hops and joins multicast groups: the
/// link's own stack, or the kernel's.
pub(crate) trait IpStack: fmt::Debug + Send {
    /// Returns the destination MAC for packets to `dst`: the host's, the router's or the group's. If it is
    /// not yet known, returns `None` and requests it; [`queue_unresolved`](Self::queue_unresolved) holds
    /// packets until the reply arrives.
    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Option<Mac>;

    /// Queues a frame to `dst` after [`resolve`](Self::resolve) has returned `None`. `write` appends the
    /// frame, with any destination MAC. Once the next hop is resolved, the frame is in the outbox; if the
    /// resolution fails, the frame is dropped and counted. If there is no route or no room, counts it at
    /// once and returns false without calling `write`.
    fn queue_unresolved(&mut self, dst: IpAddr, write: &mut dyn FnMut(&mut Vec<u8>)) -> bool;

    /// Returns the queue of frames without a destination MAC, with the outbox.
    fn unresolved(&mut self) -> &mut UnresolvedQueue;

    /// Handles a received frame, and replies if it is a request to this stack.
    fn handle(&mut self, now: Instant, bytes: &[u8], frame: Frame) -> FrameOutcome;

    /// Joins a multicast group, and reports the membership to routers and switches.
    ///
    /// # Errors
    /// [`JoinError`]; the group is then not joined.
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError>;

    /// Leaves a multicast group. `is_last` is false if another link with the same addresses is still a
    /// member, so that no change is reported to routers and switches.
    fn leave(&mut self, group: IpAddr, is_last: bool);

    /// Reports whether the stack has joined `group`.
    fn is_member(&self, group: IpAddr) -> bool;

    /// Repeats unanswered requests, and gives up a resolution after the last attempt.
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must next be called; `None` if
    /// nothing is pending.
    fn next_deadline(&self) -> Option<Instant>;
}

/// The host stack of one link.
#[derive(Debug)]
pub struct HostStack {
    config: HostStackConfig,
    neighbours: Neighbours,
    groups: Groups,
    unresolved: UnresolvedQueue,
    /// Address and MAC of the sender learned most recently, and the time. Most packets come from that sender
    /// again, and then need no lookup.
    last_sender: Option<(IpAddr, Mac, Instant)>,
}

impl HostStack {
    /// Creates a host stack with an empty neighbour cache.
    pub fn new(config: HostStackConfig) -> HostStack {
        HostStack {
            config,
            neighbours: Neighbours::default(),
            groups: Groups::default(),
            unresolved: UnresolvedQueue::default(),
            last_sender: None,
        }
    }

    /// Sends an echo request. Returns false if there is no source address or no route.
    #[cfg(test)]
    fn ping(&mut self, now: Instant, dst: IpAddr, id: u16, seq: u16, data: &[u8]) -> bool {
        let Some(src) = self.source_for(dst) else { return false };
        let (to, config) = (self.resolve(now, dst), self.config.clone());
        let echo = Echo { request: true, src, dst, id, seq };
        let append = |out: &mut _, own| frame::append_echo(out, to.unwrap_or_default(), own, &echo, data);
        if to.is_none() {
            return self.queue_unresolved(dst, &mut |out| config.append(out, append));
        }
        self.emit(append);
        true
    }

    /// Reports whether `ip` is an address of the host stack.
    fn owns(&self, ip: IpAddr) -> bool {
        self.config.addresses.iter().any(|a| a.ip == ip)
    }

    /// Returns the next hop to `dst`: the destination itself or a router; `None` if there is no route.
    fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.on_link(dst) {
            return Some(dst);
        }
        self.config.gateways.iter().find(|g| g.is_ipv4() == dst.is_ipv4()).copied()
    }

    fn on_link(&self, ip: IpAddr) -> bool {
        is_link_local(&ip) || self.config.addresses.iter().any(|a| a.contains(ip))
    }

    /// Returns the source address for packets to `dst`: one on the same network if possible.
    fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        let mut same_family = self.config.addresses.iter().filter(|a| a.ip.is_ipv4() == dst.is_ipv4());
        let nearest = same_family.clone().find(|a| a.contains(dst));
        nearest.or_else(|| same_family.next()).map(|a| a.ip)
    }

    fn emit(&mut self, write: impl FnOnce(&mut Vec<u8>, Mac)) {
        let HostStack { config, unresolved: UnresolvedQueue { outbox, .. }, .. } = self;
        if outbox.len() < MAX_OUTBOX {
            outbox.push_with(|out| config.append(out, write));
        }
    }

    /// Queues a membership report for a group.
    fn report(&mut self, group: IpAddr, membership: MembershipState) {
        let src = match group {
            IpAddr::V4(_) => self.source_for(group),
            IpAddr::V6(_) => self.config.addresses.iter().map(|a| a.ip).find(is_link_local),
        };
        let src = src.unwrap_or_else(|| groups::link_local(self.config.mac).into());
        if let Some(report) = self.groups.report(src, group, membership) {
            self.emit(|out, own| frame::append_group_report(out, own, &report));
        }
    }

    /// Queues a request for the MAC of a neighbour.
    fn request(&mut self, request: NeighbourRequest) {
        match (request.ip, self.source_for(request.ip)) {
            (IpAddr::V4(target_ip), Some(IpAddr::V4(sender_ip))) => self.emit(|out, own| {
                let arp =
                    Arp { request: true, sender_mac: own, sender_ip, target_mac: Mac::default(), target_ip };
                frame::append_arp(out, request.mac.unwrap_or(Mac::BROADCAST), &arp);
            }),
            (IpAddr::V6(target), Some(IpAddr::V6(src))) => self.emit(|out, own| {
                let group = solicited_node(target);
                let (dst, to) = match request.mac {
                    Some(mac) => (target, mac),
                    None => (group, Mac::of_group(group.into()).unwrap_or(Mac::BROADCAST)),
                };
                let ns = NeighborSolicit { src, dst, target, source_mac: Some(own) };
                frame::append_neighbor_solicit(out, to, own, &ns);
            }),
            // No source address of that IP version: the attempts run out.
            _ => {}
        }
    }

    /// Learns the MAC of a packet's sender if the sender is on-link, as if it had replied to a request.
    fn learn_sender(&mut self, now: Instant, ip: IpAddr, mac: Mac) {
        if let Some((last_ip, last_mac, when)) = self.last_sender
            && (last_ip, last_mac) == (ip, mac)
            && now.since(when) < REACHABLE_TIME / 4
        {
            return;
        }
        if self.on_link(ip) {
            self.learn(now, ip, mac, false);
            self.last_sender = Some((ip, mac, now));
        }
    }

    fn learn(&mut self, now: Instant, ip: IpAddr, mac: Mac, only_known: bool) {
        if mac.is_multicast() || mac == Mac::default() || self.owns(ip) || ip.is_unspecified() {
            return;
        }
        if self.neighbours.mac(ip) != Some(mac) {
            self.last_sender = None;
        }
        if self.neighbours.learn(now, ip, mac, only_known) {
            self.unresolved.finish(ip, Some(mac));
        }
    }

    fn handle_arp(&mut self, now: Instant, arp: &Arp) {
        let for_us = self.owns(arp.target_ip.into());
        // RFC 826: a known entry is updated by any message; a new one is added only if the target is this
        // host stack.
        self.learn(now, arp.sender_ip.into(), arp.sender_mac, !for_us);
        if arp.request && for_us && arp.sender_ip != arp.target_ip {
            self.emit(|out, own| {
                let reply = Arp {
                    request: false,
                    sender_mac: own,
                    sender_ip: arp.target_ip,
                    target_mac: arp.sender_mac,
                    target_ip: arp.sender_ip,
                };
                frame::append_arp(out, arp.sender_mac, &reply);
            });
        }
    }

    fn handle_solicit(&mut self, now: Instant, from: Mac, ns: &NeighborSolicit) {
        if !self.owns(ns.target.into()) {
            return;
        }
        let (target, probe) = (ns.target, ns.src.is_unspecified());
        if let (false, Some(mac)) = (probe, ns.source_mac) {
            self.learn(now, ns.src.into(), mac, false);
        }
        // A duplicate address probe has no source address to reply to, so the reply goes to all nodes.
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let (dst, to) = match Mac::of_group(all_nodes.into()) {
            Some(group) if probe => (all_nodes, group),
            _ => (ns.src, ns.source_mac.unwrap_or(from)),
        };
        self.emit(|out, own| {
            let (target_mac, solicited) = (Some(own), !probe);
            let na = NeighborAdvert { src: target, dst, target, target_mac, solicited, replace: true };
            frame::append_neighbor_advert(out, to, own, &na);
        });
    }

    fn handle_advert(&mut self, now: Instant, na: &NeighborAdvert) {
        if let Some(mac) = na.target_mac {
            // Without the override flag an advertisement must not replace a different MAC (RFC 4861, 7.2.5).
            let known = self.neighbours.mac(na.target.into());
            if na.replace || known.is_none() || known == Some(mac) {
                self.learn(now, na.target.into(), mac, true);
            }
        }
    }
}

impl IpStack for HostStack {
    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Option<Mac> {
        let is_broadcast = self.config.addresses.iter().any(|a| a.is_broadcast(dst));
        if let Some(mac) = Mac::of_group(dst).or(is_broadcast.then_some(Mac::BROADCAST)) {
            return Some(mac);
        }
        let (mac, request) = self.neighbours.lookup(now, self.next_hop(dst)?);
        if let Some(request) = request {
            self.request(request);
        }
        mac
    }

    fn queue_unresolved(&mut self, dst: IpAddr, write: &mut dyn FnMut(&mut Vec<u8>)) -> bool {
        self.unresolved.push(self.next_hop(dst), write)
    }

    fn unresolved(&mut self) -> &mut UnresolvedQueue {
        &mut self.unresolved
    }

    fn handle(&mut self, now: Instant, bytes: &[u8], frame: Frame) -> FrameOutcome {
        // VLAN 0 carries only a priority (IEEE 802.1Q).
        let mut vlans = frame.vlan.iter().flatten().copied().filter(|id| *id != 0);
        let is_other_vlan = vlans.next() != self.config.vlan.map(|tag| tag.id) || vlans.next().is_some();
        if is_other_vlan || !(frame.dst == self.config.mac || frame.dst.is_multicast()) {
            return FrameOutcome::Foreign;
        }
        match frame.content {
            Content::Roce(roce) if self.owns(roce.flow.dst) || self.is_member(roce.flow.dst) => {
                if self.owns(roce.flow.src) {
                    return FrameOutcome::Foreign;
                }
                self.learn_sender(now, roce.flow.src, frame.src);
                return FrameOutcome::Packet(roce);
            }
            Content::Arp(arp) => self.handle_arp(now, &arp),
            Content::NeighborSolicit(ns) => self.handle_solicit(now, frame.src, &ns),
            Content::NeighborAdvert(na) => self.handle_advert(now, &na),
            // The reply is sent without a random delay: a single host stack does not flood the router that
            // queries.
            Content::GroupQuery(query) => {
                for group in self.groups.on_query(&query) {
                    self.report(group, MembershipState::Member);
                }
            }
            Content::Echo { echo, data } if self.owns(echo.dst) => {
                self.learn_sender(now, echo.src, frame.src);
                if echo.request {
                    let reply = Echo { request: false, src: echo.dst, dst: echo.src, ..echo };
                    self.emit(|out, own| frame::append_echo(out, frame.src, own, &reply, &bytes[data]));
                }
            }
            Content::RoceV1 { intact } => return FrameOutcome::RoceV1 { intact },
            _ => return FrameOutcome::Foreign,
        }
        FrameOutcome::Handled
    }

    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        membership::check(group, self.config.addresses.iter().map(|a| a.ip))?;
        if self.groups.join(now, group) {
            self.report(group, MembershipState::Joined);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr, is_last: bool) {
        if self.groups.leave(group) && is_last {
            self.report(group, MembershipState::Left);
        }
    }

    fn is_member(&self, group: IpAddr) -> bool {
        self.groups.joined.contains(&group)
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.neighbours.expire(now) {
            match due {
                Ok(request) => self.request(request),
                Err(failed) => {
                    self.last_sender = None;
                    self.unresolved.finish(failed, None);
                }
            }
        }
        while let Some(group) = self.groups.due(now) {
            self.report(group, MembershipState::Joined);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        earliest([self.neighbours.next_deadline(), self.groups.next_deadline()])
    }
}

impl HostStackConfig {
    /// Returns a configuration with the given addresses and the MAC derived from them
    /// ([`derived_mac`](Self::derived_mac)), without gateways or a VLAN.
    pub fn new(addresses: Vec<IfAddr>) -> HostStackConfig {
        let mac = HostStackConfig::derived_mac(&addresses);
        HostStackConfig { mac, addresses, gateways: Vec::new(), vlan: None }
    }

    /// Returns a locally administered MAC derived from the first address, which makes it the same on every
    /// run.
    pub fn derived_mac(addresses: &[IfAddr]) -> Mac {
        let ip = addresses.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |a| a.ip);
        let tail = match ip {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => {
                let o = ip.octets();
                [o[12], o[13], o[14], o[15]]
            }
        };
        Mac([0x52, 0x58, tail[0], tail[1], tail[2], tail[3]])
    }

    /// Appends a frame, which `write` encodes for the given source MAC, and inserts the VLAN tag, if any.
    fn append(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>, Mac)) {
        let start = out.len();
        write(out, self.mac);
        if let Some(tag) = self.vlan {
            tag.insert(out, start);
        }
    }
}

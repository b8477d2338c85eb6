//! Combines several links on one interface, each with its own addresses, into a single link.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{
    ClaimError, HostMemory, JoinError, Link, LinkCounters, LinkInfo, MemoryPath, Multicast, NicEvent,
    NicObserver, PortState, SharedAddress,
};
use crate::burst::{RxBurst, TxQueue};
use crate::fault_rules::{AppliedRule, FailedPackets};
use crate::nic::QpnPartition;
use crate::transport::{Instant, LastAcks, PeerChange, PeerWindow};
use crate::wire::mad::ServiceId;

/// Time without traffic after which a member is considered idle, unless it is the one used last.
const ACTIVE_TIME: Duration = Duration::from_millis(10);

/// Interval at which the next idle member is polled. Active members are polled every time. Polling idle
/// members every time too would cost a system call for each unused address.
const IDLE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A link composed of member links: each burst is sent by the member that has its source address, and packets
/// are received from all members.
pub struct Multihomed<L> {
    /// The members, in the order of their addresses.
    members: Vec<Member<L>>,
    info: LinkInfo,
    last_acks: Option<LastAcks>,
    /// QPN partition that all members share.
    partition: QpnPartition,
    /// Index of the member that was used last.
    last: usize,
    /// Round-robin cursor over the members, for polling idle ones in turn.
    next: usize,
    /// Time at which idle members were last due for polling.
    last_idle_poll: Instant,
    /// Scratch queue for one member's bursts, used when a queue has packets for several members.
    scratch: TxQueue,
    /// Windows that differ from that of the link, by peer address and index of the member that has set them.
    windows: HashMap<(IpAddr, usize), PeerWindow>,
    /// Number of packets dropped because no member has their source address.
    unmatched_source: u64,
}

struct Member<L> {
    link: L,
    /// Time of the last packet sent or received.
    used: Instant,
}

impl<L: Link> Multihomed<L> {
    /// Combines links on one interface. The first link's port state applies to all. Returns `None` if `links`
    /// is empty.
    pub fn new(name: String, mut links: Vec<L>) -> Option<Multihomed<L>> {
        let mut infos = links.iter().map(Link::info);
        let mut info = LinkInfo { name, vlan: None, ..infos.next()?.clone() };
        for other in infos {
            info.addresses.extend(&other.addresses);
            info.mtu = info.mtu.min(other.mtu);
            info.burst.bytes = info.burst.bytes.min(other.burst.bytes);
            info.burst.packets = info.burst.packets.min(other.burst.packets);
            info.window = info.window.min(other.window);
            info.speed = info.speed.min(other.speed);
        }
        let first = links[0].shared_address();
        let last_acks = first.as_ref().and_then(|shared| shared.last_acks());
        let partition = first.map_or(QpnPartition::WHOLE, |shared| shared.partition());
        let members: Vec<_> = links.into_iter().map(|link| Member { link, used: Instant(0) }).collect();
        let scratch = TxQueue::new(info.burst);
        Some(Multihomed {
            members,
            info,
            partition,
            last_acks,
            last: 0,
            next: 0,
            last_idle_poll: Instant(0),
            scratch,
            windows: HashMap::new(),
            unmatched_source: 0,
        })
    }

    /// Returns the index of the member that has the address `ip`.
    fn owner_of(&self, ip: IpAddr) -> Option<usize> {
        let owns = |i: &usize| self.members[*i].link.info().addresses.contains(&ip);
        Some(self.last).filter(owns).or_else(|| (0..self.members.len()).find(owns))
    }

    /// Returns the index of the member that joins all groups of the given group's IP version. If several
    /// members joined, packets to a group would be received more than once.
    fn member_for_group(&self, group: IpAddr) -> Option<usize> {
        let has_version =
            |m: &Member<L>| m.link.info().addresses.iter().any(|ip| ip.is_ipv4() == group.is_ipv4());
        self.members.iter().position(has_version)
    }

    /// Iterates over the links that have the address; over all links if `address` is `None`.
    fn links_at(&mut self, address: Option<IpAddr>) -> impl Iterator<Item = &mut L> {
        let has = move |link: &&mut L| address.is_none_or(|ip| link.info().addresses.contains(&ip));
        self.members.iter_mut().map(|member| &mut member.link).filter(has)
    }

    fn mark_used(&mut self, i: usize, now: Instant) -> &mut L {
        self.last = i;
        self.members[i].used = now;
        &mut self.members[i].link
    }

    /// Iterates over the members that exchange packets through the memory of the host, with their indices.
    fn memory_paths(&mut self) -> impl Iterator<Item = (usize, HostMemory<'_>)> {
        let members = self.members.iter_mut().enumerate();
        members.filter_map(|(n, member)| Some((n, member.link.host_memory()?)))
    }

    fn observers(&mut self) -> impl Iterator<Item = &mut dyn NicObserver> {
        self.members.iter_mut().filter_map(|member| member.link.nic_observer())
    }

    fn is_active(&self, i: usize, now: Instant) -> bool {
        i == self.last || now.since(self.members[i].used) < ACTIVE_TIME
    }

    /// Returns the number of idle members to poll now: one for each elapsed [`IDLE_POLL_INTERVAL`].
    fn due(&mut self, now: Instant) -> usize {
        let intervals = now.since(self.last_idle_poll).as_nanos() / IDLE_POLL_INTERVAL.as_nanos();
        if intervals > 0 {
            self.last_idle_poll = now;
        }
        (intervals as usize).min(self.members.len())
    }

    fn receive_by(&mut self, i: usize, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let packets = self.members[i].link.receive(now, sink)?;
        if packets > 0 {
            self.mark_used(i, now);
        }
        Ok(packets)
    }
}

impl<L: Link> Link for Multihomed<L> {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        let mut sources = queue.bursts().map(|burst| burst.flow.src);
        let Some(src) = sources.next() else { return Ok(()) };
        if sources.all(|other| other == src) {
            match self.owner_of(src) {
                Some(i) => return self.mark_used(i, now).transmit(now, queue),
                None => self.unmatched_source += queue.packets() as u64,
            }
            return Ok(());
        }
        // The bursts are copied apart: packets of two addresses are rare in one turn, and their bytes are
        // still in the cache.
        let mut scratch = std::mem::replace(&mut self.scratch, TxQueue::new(self.info.burst));
        let mut unmatched = queue.packets();
        let mut outcome = Ok(());
        for i in 0..self.members.len() {
            scratch.clear();
            let own = |ip: &IpAddr| self.members[i].link.info().addresses.contains(ip);
            queue.bursts().filter(|burst| own(&burst.flow.src)).for_each(|burst| scratch.push_burst(&burst));
            unmatched -= scratch.packets();
            if !scratch.is_empty() && outcome.is_ok() {
                outcome = self.mark_used(i, now).transmit(now, &scratch);
            }
        }
        self.unmatched_source += unmatched as u64;
        self.scratch = scratch;
        outcome
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let (mut packets, count) = (0, self.members.len());
        let mut due = self.due(now);
        for i in 0..count {
            if self.is_active(i, now) {
                packets += self.receive_by(i, now, sink)?;
            }
        }
        for _ in 0..count {
            if due == 0 {
                break;
            }
            self.next = (self.next + 1) % count;
            if !self.is_active(self.next, now) {
                due -= 1;
                packets += self.receive_by(self.next, now, sink)?;
            }
        }
        Ok(packets)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.members.iter().filter_map(|m| m.link.next_deadline()).min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.members.iter().flat_map(|m| m.link.fds()).collect()
    }

    own_capabilities!(multicast: Multicast, port_state: PortState, shared_address: SharedAddress, nic_observer: NicObserver);

    fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        Some(HostMemory::new(self))
    }
}

impl<L: Link> Multicast for Multihomed<L> {
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        match self.member_for_group(group) {
            Some(i) => {
                self.members[i].link.multicast().ok_or(JoinError::Unsupported(group))?.join(now, group)
            }
            None if group.is_multicast() => Err(JoinError::NoAddress(group)),
            None => Err(JoinError::NotMulticast(group)),
        }
    }

    fn leave(&mut self, group: IpAddr) {
        let member = self.member_for_group(group);
        if let Some(multicast) = member.and_then(|i| self.members[i].link.multicast()) {
            multicast.leave(group);
        }
    }
}

impl<L: Link> PortState for Multihomed<L> {
    fn is_up(&mut self) -> bool {
        self.members[0].link.port_state().is_none_or(|port| port.is_up())
    }

    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.members[0].link.port_state()?.state_fd()
    }

    fn counters(&mut self) -> LinkCounters {
        let mut all = LinkCounters { tx_dropped: self.unmatched_source, ..LinkCounters::default() };
        self.members.iter_mut().filter_map(|m| m.link.port_state()).for_each(|port| all += port.counters());
        all
    }
}

impl<L: Link> MemoryPath for Multihomed<L> {
    /// The members are links of one kind: if one supports deferred ICRCs, all accept packets with them.
    fn supports_deferred_icrc(&mut self) -> bool {
        self.memory_paths().any(|(_, mut memory)| memory.supports_deferred_icrc())
    }

    fn elide_icrcs(&mut self) {
        self.memory_paths().for_each(|(_, mut memory)| memory.elide_icrcs());
    }

    fn next_peer_change(&mut self) -> Option<PeerChange> {
        let (member, change) =
            self.memory_paths().find_map(|(n, mut memory)| Some((n, memory.next_peer_change()?)))?;
        let PeerChange::Window(address, window) = change else { return Some(change) };
        match window {
            PeerWindow::OfLink => self.windows.remove(&(address, member)),
            _ => self.windows.insert((address, member), window),
        };
        let of_peer = self.windows.iter().filter(|((to, _), _)| *to == address).map(|(_, window)| *window);
        Some(PeerChange::Window(address, of_peer.reduce(PeerWindow::min).unwrap_or(PeerWindow::OfLink)))
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.memory_paths().fold(false, |is_waiting, (_, mut memory)| memory.prepare_to_sleep() | is_waiting)
    }

    fn has_used_rings(&mut self) -> bool {
        self.memory_paths().any(|(_, mut memory)| memory.has_used_rings())
    }
}

impl<L: Link> NicObserver for Multihomed<L> {
    fn on_nic_event(&mut self, now: Instant, event: &NicEvent) {
        self.observers().for_each(|observer| observer.on_nic_event(now, event));
    }

    fn applied_rules(&mut self, failed: &FailedPackets) -> Vec<AppliedRule> {
        self.observers().flat_map(|observer| observer.applied_rules(failed)).collect()
    }
}

impl<L: Link> SharedAddress for Multihomed<L> {
    fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        let mut selected: Vec<&mut L> = self.links_at(address).collect();
        if let Some(address) = address.filter(|_| selected.is_empty()) {
            return Err(ClaimError::NotLocal { address });
        }
        for n in 0..selected.len() {
            let Some(shared) = selected[n].shared_address() else { continue };
            if let Err(e) = shared.claim(service, address) {
                let claimed = selected[..n].iter_mut().filter_map(|link| link.shared_address());
                claimed.for_each(|shared| shared.release(service, address));
                return Err(e);
            }
        }
        Ok(())
    }

    fn release(&mut self, service: ServiceId, address: Option<IpAddr>) {
        let claimed = self.links_at(address).filter_map(|link| link.shared_address());
        claimed.for_each(|shared| shared.release(service, address));
    }

    fn partition(&self) -> QpnPartition {
        self.partition
    }

    fn last_acks(&self) -> Option<LastAcks> {
        self.last_acks.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::burst::BurstLimits;
    use crate::wire::{Flow, IpIdent};

    const PEER: &str = "192.0.2.9";
    const US: u64 = 1000;

    /// Record of the calls to a scripted link, and the packets that it delivers.
    #[derive(Default)]
    struct Script {
        polls: usize,
        incoming: VecDeque<Vec<u8>>,
        windows: VecDeque<PeerWindow>,
        /// Each burst sent: length of the first packet, number of packets, and all bytes.
        sent: Vec<(usize, usize, Vec<u8>)>,
        groups: Vec<IpAddr>,
        /// Services claimed by another process; `claimed` lists the ones claimed by this process.
        in_use: Vec<ServiceId>,
        claimed: Vec<ServiceId>,
    }

    struct Scripted {
        info: LinkInfo,
        script: Arc<Mutex<Script>>,
        up: bool,
    }

    impl Link for Scripted {
        fn info(&self) -> &LinkInfo {
            &self.info
        }
        fn transmit(&mut self, _: Instant, queue: &TxQueue) -> io::Result<()> {
            let mut script = self.script.lock();
            for burst in queue.bursts() {
                assert!(self.info.addresses.contains(&burst.flow.src));
                script.sent.push((burst.segment, burst.packets, burst.bytes().to_vec()));
            }
            Ok(())
        }
        fn receive(&mut self, _: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
            let mut script = self.script.lock();
            script.polls += 1;
            let Some(data) = script.incoming.pop_front() else { return Ok(0) };
            let flow = Flow::new(PEER.parse().unwrap(), self.info.addresses[0], 4791);
            sink(RxBurst::new(flow, IpIdent::Unknown, data.len(), &data));
            Ok(1)
        }
        fn shared_address(&mut self) -> Option<&mut dyn SharedAddress> {
            Some(self)
        }
        fn fds(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }
        fn multicast(&mut self) -> Option<&mut dyn Multicast> {
            Some(self)
        }
        fn port_state(&mut self) -> Option<&mut dyn PortState> {
            Some(self)
        }
        fn host_memory(&mut self) -> Option<HostMemory<'_>> {
            Some(HostMemory::new(self))
        }
    }

    impl Multicast for Scripted {
        fn join(&mut self, _: Instant, group: IpAddr) -> Result<(), JoinError> {
            self.script.lock().groups.push(group);
            Ok(())
        }
        fn leave(&mut self, group: IpAddr) {
            self.script.lock().groups.retain(|g| *g != group);
        }
    }

    impl PortState for Scripted {
        fn is_up(&mut self) -> bool {
            self.up
        }
        fn counters(&mut self) -> LinkCounters {
            LinkCounters { tx_dropped: 1, rx_overflow: 2, ..LinkCounters::default() }
        }
    }

    impl MemoryPath for Scripted {
        fn next_peer_change(&mut self) -> Option<PeerChange> {
            Some(PeerChange::Window(ip(PEER), self.script.lock().windows.pop_front()?))
        }
    }

    impl SharedAddress for Scripted {
        fn partition(&self) -> QpnPartition {
            QpnPartition::WHOLE
        }
        fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
            assert!(address.is_none_or(|ip| self.info.addresses.contains(&ip)));
            let mut script = self.script.lock();
            if script.in_use.contains(&service) {
                return Err(ClaimError::InUse { service, address: self.info.name.clone() });
            }
            script.claimed.push(service);
            Ok(())
        }
        fn release(&mut self, service: ServiceId, _: Option<IpAddr>) {
            self.script.lock().claimed.retain(|s| *s != service);
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Combines scripted links, each with one of the given addresses. Returns the combined link and the
    /// scripts.
    fn multihomed(addresses: &[&str]) -> (Multihomed<Scripted>, Vec<Arc<Mutex<Script>>>) {
        let scripts: Vec<Arc<Mutex<Script>>> = addresses.iter().map(|_| Arc::default()).collect();
        let links = addresses.iter().zip(&scripts).enumerate().map(|(i, (address, script))| Scripted {
            info: LinkInfo {
                name: format!("scripted {i}"),
                addresses: vec![ip(address)],
                mac: [0; 6],
                vlan: None,
                mtu: 1500 - i,
                src_port: Some(4791),
                burst: BurstLimits { bytes: 9000, packets: 64 - i },
                window: 100_000 - i,
                speed: 1000 - i as u64,
            },
            script: script.clone(),
            up: i == 0,
        });
        (Multihomed::new("both".into(), links.collect()).unwrap(), scripts)
    }

    fn flow(src: &str) -> Flow {
        Flow::new(ip(src), if ip(src).is_ipv4() { ip(PEER) } else { ip("fe80::9") }, 4791)
    }

    fn receive(link: &mut Multihomed<Scripted>, at: u64) -> usize {
        link.receive(Instant(at), &mut |_| ()).unwrap()
    }

    fn polls(scripts: &[Arc<Mutex<Script>>]) -> Vec<usize> {
        scripts.iter().map(|s| std::mem::take(&mut s.lock().polls)).collect()
    }

    #[test]
    fn info_contains_all_addresses_and_the_smallest_limits_of_the_members() {
        let (mut link, _) = multihomed(&["fe80::1", "10.0.0.1", "fd00::1"]);
        let info = link.info().clone();
        assert_eq!(info.addresses, ["fe80::1", "10.0.0.1", "fd00::1"].map(ip));
        assert_eq!((info.mtu, info.burst.packets, info.window), (1498, 62, 99_998));
        assert!(link.is_up(), "the port state is that of the first member");
        assert_eq!((link.counters().tx_dropped, link.counters().rx_overflow), (3, 6));
        assert!(Multihomed::<Scripted>::new("none".into(), Vec::new()).is_none());
    }

    #[test]
    fn window_of_a_peer_is_the_smallest_that_a_member_has_set() {
        use PeerWindow::{AtMost, Bytes, OfLink};
        let (mut link, scripts) = multihomed(&["10.0.0.1", "10.0.0.2"]);
        let steps = [
            (0, Bytes(7), Bytes(7)),
            (1, Bytes(5), Bytes(5)),
            (1, AtMost(9), AtMost(7)),
            (0, AtMost(8), AtMost(8)),
            (0, OfLink, AtMost(9)),
            (0, Bytes(10), AtMost(9)),
            (1, OfLink, Bytes(10)),
            (0, OfLink, OfLink),
        ];
        for (step, (member, window, expected)) in steps.into_iter().enumerate() {
            scripts[member].lock().windows.push_back(window);
            assert_eq!(link.next_peer_change(), Some(PeerChange::Window(ip(PEER), expected)), "step {step}");
            assert_eq!(link.next_peer_change(), None);
        }
        assert!(link.windows.is_empty());
    }

    #[test]
    fn bursts_are_sent_by_the_member_with_their_source_address() {
        let (mut link, scripts) = multihomed(&["fe80::1", "10.0.0.1"]);
        let mut queue = TxQueue::new(link.info().burst);
        let packet = |i: u8, len| vec![i; len];
        queue.push_raw(&flow("10.0.0.1"), 0, &packet(1, 100));
        link.transmit(Instant(0), &queue).unwrap();
        // Two bursts of one address with one of the other between them, and one of an unknown address.
        queue.push_raw(&flow("10.0.0.1"), 1, &packet(2, 40));
        queue.push_raw(&flow("fe80::1"), 0, &packet(3, 64));
        queue.push_raw(&flow("10.0.0.7"), 0, &packet(4, 64));
        queue.push_raw(&flow("10.0.0.1"), 0, &packet(5, 64));
        let whole: Vec<_> = queue.bursts().map(|b| (b.segment, b.packets, b.bytes().to_vec())).collect();
        assert_eq!(whole.iter().map(|b| b.1).collect::<Vec<_>>(), [2, 1, 1, 1]);
        link.transmit(Instant(0), &queue).unwrap();
        assert_eq!(scripts[0].lock().sent, [whole[1].clone()]);
        let first = (100, 1, packet(1, 100));
        assert_eq!(scripts[1].lock().sent, [first, whole[0].clone(), whole[3].clone()]);
        assert_eq!(link.counters().tx_dropped, 2 + 1);
    }

    #[test]
    fn idle_members_are_polled_only_once_per_interval() {
        let (mut link, scripts) = multihomed(&["fe80::1", "10.0.0.1", "fd00::1"]);
        scripts[1].lock().incoming.push_back(vec![0; 64]);
        let start = 1_000_000 * US;
        assert_eq!(receive(&mut link, start), 1, "all members are idle, and all are due for polling");
        polls(&scripts);
        for at in 1..=1000 {
            receive(&mut link, start + at * US);
        }
        assert_eq!(polls(&scripts), [10, 1000, 10], "an idle member is polled every 50 us");
    }

    #[test]
    fn idle_member_receives_within_an_interval_and_is_then_active() {
        let (mut link, scripts) = multihomed(&["fe80::1", "10.0.0.1"]);
        let mut now = 1_000_000 * US;
        scripts[1].lock().incoming.push_back(vec![0; 64]);
        assert_eq!(receive(&mut link, now), 1);
        scripts[0].lock().incoming.push_back(vec![0; 64]);
        let since = now;
        while receive(&mut link, now) == 0 {
            now += US;
        }
        assert!(Duration::from_nanos(now - since) <= IDLE_POLL_INTERVAL, "{} ns", now - since);
        // Both are active now, until one is idle for long enough.
        polls(&scripts);
        for packets in [0, 1, 0] {
            if packets > 0 {
                scripts[0].lock().incoming.push_back(vec![0; 64]);
            }
            assert_eq!(receive(&mut link, now + US), packets);
        }
        assert_eq!(polls(&scripts), [3, 3]);
        let later = now + ACTIVE_TIME.as_nanos() as u64 + 2 * US;
        receive(&mut link, later);
        polls(&scripts);
        for i in 1..=10 {
            receive(&mut link, later + i * US);
        }
        assert_eq!(polls(&scripts), [10, 0], "the member used last stays active");
        // Sending keeps a member active too, since a reply is expected.
        let mut queue = TxQueue::new(link.info().burst);
        queue.push_raw(&flow("10.0.0.1"), 0, &[0; 64]);
        link.transmit(Instant(later + 11 * US), &queue).unwrap();
        receive(&mut link, later + 12 * US);
        assert_eq!(polls(&scripts)[1], 1);
    }

    #[test]
    fn service_is_claimed_at_one_or_all_addresses_and_released_again_on_error() {
        let (mut link, scripts) = multihomed(&["fe80::1", "10.0.0.1", "fd00::1"]);
        let claimed = || scripts.iter().map(|s| s.lock().claimed.clone()).collect::<Vec<_>>();
        let [one, all, other] = [1, 2, 3].map(ServiceId);
        link.claim(one, Some(ip("10.0.0.1"))).unwrap();
        link.claim(all, None).unwrap();
        assert_eq!(claimed(), [vec![all], vec![one, all], vec![all]]);
        scripts[2].lock().in_use.push(other);
        assert!(matches!(link.claim(other, None), Err(ClaimError::InUse { .. })));
        assert!(matches!(link.claim(other, Some(ip("10.0.0.2"))), Err(ClaimError::NotLocal { .. })));
        assert_eq!(claimed(), [vec![all], vec![one, all], vec![all]]);
        link.release(one, Some(ip("10.0.0.1")));
        link.release(all, None);
        assert!(claimed().iter().all(Vec::is_empty));
    }

    #[test]
    fn group_is_joined_by_only_one_member_of_its_ip_version() {
        let (mut link, scripts) = multihomed(&["fe80::1", "10.0.0.1", "fd00::1"]);
        let groups = || scripts.iter().map(|s| s.lock().groups.clone()).collect::<Vec<_>>();
        let (v4, v6) = (ip("224.0.77.1"), ip("ff0e::77"));
        link.join(Instant(0), v4).unwrap();
        link.join(Instant(0), v6).unwrap();
        assert_eq!(groups(), [vec![v6], vec![v4], vec![]]);
        link.leave(v6);
        link.leave(v4);
        assert!(groups().iter().all(Vec::is_empty));
        let (mut link, _) = multihomed(&["10.0.0.1"]);
        assert!(matches!(link.join(Instant(0), v6), Err(JoinError::NoAddress(_))));
        assert!(matches!(link.join(Instant(0), ip("fd00::7")), Err(JoinError::NotMulticast(_))));
    }
}

//! Several links of one interface, each with addresses of its own, as the one link of a NIC with all of them.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{JoinError, Link, LinkCounters, LinkInfo, RxBurst};
use crate::nic::Seat;
use crate::transport::{BurstLimits, Instant, TxQueue};

/// A link of which nothing was sent and nothing came for so long falls asleep, unless it is the one used last.
const AWAKE: Duration = Duration::from_millis(10);

/// Every so often, one that sleeps is looked at. Whoever polls looks at those that are awake each time: to look at all would
/// cost a system call for every address that nobody uses, as much as the poll itself.
const NAP: Duration = Duration::from_micros(50);

/// Links that are one: what is sent goes by the one that has the source's address, and what comes to any is received.
pub struct Multihomed<L> {
    /// In the order of their addresses.
    members: Vec<Member<L>>,
    info: LinkInfo,
    /// The member that was used last.
    last: usize,
    /// The one that sleeps to be looked at next, or one behind it.
    next: usize,
    looked: Instant,
    /// What goes by one member, where a turn has packets for several.
    part: TxQueue,
    /// Packets from addresses that none has.
    foreign: u64,
}

struct Member<L> {
    link: L,
    /// When something was sent or received by it.
    used: Instant,
}

impl<L: Link> Multihomed<L> {
    /// Joins links of one interface: the state of the first one's port is that of all. `None` without any.
    pub fn new(name: String, links: Vec<L>) -> Option<Multihomed<L>> {
        let infos = || links.iter().map(Link::info);
        let first = infos().next()?;
        let burst = infos().map(|i| i.burst).fold(first.burst, |all, one| BurstLimits {
            bytes: all.bytes.min(one.bytes),
            packets: all.packets.min(one.packets),
        });
        let info = LinkInfo {
            name,
            addresses: infos().flat_map(|i| &i.addresses).copied().collect(),
            mac: first.mac,
            mtu: infos().map(|i| i.mtu).fold(first.mtu, usize::min),
            src_port: first.src_port,
            burst,
            window: infos().map(|i| i.window).fold(first.window, usize::min),
        };
        let members: Vec<_> = links.into_iter().map(|link| Member { link, used: Instant(0) }).collect();
        let part = TxQueue::new(burst);
        Some(Multihomed { members, info, last: 0, next: 0, looked: Instant(0), part, foreign: 0 })
    }

    /// The member that has an address.
    fn owner_of(&self, ip: IpAddr) -> Option<usize> {
        let owns = |i: &usize| self.members[*i].link.info().addresses.contains(&ip);
        Some(self.last).filter(owns).or_else(|| (0..self.members.len()).find(owns))
    }

    /// The member that is in groups of an IP version; one alone, or their packets would come twice.
    fn member_for(&self, group: IpAddr) -> Option<usize> {
        let has_version = |m: &Member<L>| m.link.info().addresses.iter().any(|ip| ip.is_ipv4() == group.is_ipv4());
        self.members.iter().position(has_version)
    }

    fn use_member(&mut self, i: usize, now: Instant) -> &mut L {
        self.last = i;
        self.members[i].used = now;
        &mut self.members[i].link
    }

    fn is_awake(&self, i: usize, now: Instant) -> bool {
        i == self.last || now.since(self.members[i].used) < AWAKE
    }

    /// How many of those that sleep are to be looked at now: one for each [`NAP`] that has gone by.
    fn due(&mut self, now: Instant) -> usize {
        let naps = now.since(self.looked).as_nanos() / NAP.as_nanos();
        if naps > 0 {
            self.looked = now;
        }
        (naps as usize).min(self.members.len())
    }

    fn receive_by(&mut self, i: usize, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let packets = self.members[i].link.receive(now, sink)?;
        if packets > 0 {
            self.use_member(i, now);
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
                Some(i) => return self.use_member(i, now).transmit(now, queue),
                None => self.foreign += queue.packets() as u64,
            }
            return Ok(());
        }
        // Copied apart: two addresses are seldom busy in one turn, and their bytes are in the cache still.
        let mut part = std::mem::replace(&mut self.part, TxQueue::new(self.info.burst));
        let mut left = queue.packets();
        let mut outcome = Ok(());
        for i in 0..self.members.len() {
            part.clear();
            let own = |ip: &IpAddr| self.members[i].link.info().addresses.contains(ip);
            queue.bursts().filter(|burst| own(&burst.flow.src)).for_each(|burst| part.push_burst(&burst));
            left -= part.packets();
            if !part.is_empty() && outcome.is_ok() {
                outcome = self.use_member(i, now).transmit(now, &part);
            }
        }
        self.foreign += left as u64;
        self.part = part;
        outcome
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let (mut packets, count) = (0, self.members.len());
        let mut due = self.due(now);
        for i in 0..count {
            if self.is_awake(i, now) {
                packets += self.receive_by(i, now, sink)?;
            }
        }
        for _ in 0..count {
            if due == 0 {
                break;
            }
            self.next = (self.next + 1) % count;
            if !self.is_awake(self.next, now) {
                due -= 1;
                packets += self.receive_by(self.next, now, sink)?;
            }
        }
        Ok(packets)
    }

    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        match self.member_for(group) {
            Some(i) => self.members[i].link.join(now, group),
            None if group.is_multicast() => Err(JoinError::NoAddress(group)),
            None => Err(JoinError::NotMulticast(group)),
        }
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(i) = self.member_for(group) {
            self.members[i].link.leave(group);
        }
    }

    fn seat(&self) -> Seat {
        self.members[0].link.seat()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.members.iter().filter_map(|m| m.link.next_deadline()).min()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.members[0].link.poll_fd()
    }

    fn group_fd(&self) -> Option<BorrowedFd<'_>> {
        self.members[0].link.group_fd()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.members.iter().flat_map(|m| m.link.fds()).collect()
    }

    fn is_up(&mut self) -> bool {
        self.members[0].link.is_up()
    }

    fn state_fd(&self) -> Option<BorrowedFd<'_>> {
        self.members[0].link.state_fd()
    }

    fn counters(&self) -> LinkCounters {
        let mut all = LinkCounters { tx_dropped: self.foreign, ..LinkCounters::default() };
        self.members.iter().for_each(|m| all += m.link.counters());
        all
    }
}

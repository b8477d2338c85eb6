//! The group of packet links of one NIC's shards. A link passes its own multicast packets to the other
//! members of the multicast group, and passes on frames that the kernel delivered to it alone to the other
//! links that need them. Only the last member to leave a multicast group reports that to the network.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::socket::{RxFrame, Shape};
use crate::burst::TxBurst;
use crate::host::frame_queue::FrameQueue;
use crate::link::loopback::Loopback;
use crate::wire::frame::{Checksums, Content, Frame};

/// Membership of one link in the group.
#[derive(Debug)]
pub(super) struct ShardGroup {
    /// Index of this link.
    pub own: usize,
    shared: Arc<Shared>,
    /// Whether the kernel delivers each frame to only one of the links.
    pub fans_out: bool,
}

#[derive(Debug)]
struct Shared {
    /// Members of each multicast group, as a bit set of links.
    members: Mutex<HashMap<IpAddr, u64>>,
    inboxes: Box<[Inbox]>,
}

/// Inbox of one link, filled by the other links.
#[derive(Debug)]
struct Inbox {
    non_empty: AtomicBool,
    contents: Mutex<InboxContents>,
    /// Descriptor that is readable while the inbox is not empty.
    readable: EventFd,
}

/// Contents of an inbox.
#[derive(Debug, Default)]
pub(super) struct InboxContents {
    /// Bursts that other links have sent to multicast groups.
    pub bursts: Loopback,
    /// Frames that other links have received and that this link needs.
    pub frames: FrameQueue<(Shape, Checksums)>,
}

/// Maximum total size of queued frames, in bytes.
const MAX_BYTES: usize = 4 << 20;

impl ShardGroup {
    /// Creates a group, and returns the memberships of its `count` links.
    pub fn new(count: usize) -> io::Result<Vec<ShardGroup>> {
        let inbox = |_| {
            let readable = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            Ok(Inbox { non_empty: AtomicBool::new(false), contents: Mutex::default(), readable })
        };
        let inboxes = (0..count).map(inbox).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared { members: Mutex::default(), inboxes });
        Ok((0..count).map(|own| ShardGroup { own, shared: shared.clone(), fans_out: false }).collect())
    }

    /// Makes the other links receive, although no packet has arrived.
    pub fn wake_others(&self) {
        self.push_to(u64::MAX, |_| true);
    }

    pub fn join(&self, group: IpAddr) {
        *self.shared.members.lock().entry(group).or_default() |= 1 << self.own;
    }

    /// Removes this link from a multicast group. Returns whether no other link remains in it.
    pub fn leave(&self, group: IpAddr) -> bool {
        let mut members = self.shared.members.lock();
        let Some(set) = members.get_mut(&group) else { return true };
        *set &= !(1 << self.own);
        let last = *set == 0;
        if last {
            members.remove(&group);
        }
        last
    }

    /// Passes a burst to the other members of its multicast group. Returns the number of packets dropped
    /// because an inbox was full.
    pub fn forward_burst(&self, burst: &TxBurst<'_>) -> u64 {
        let lost = self.push_to(self.members(burst.flow.dst), |contents| contents.bursts.push(burst));
        lost as u64 * burst.packets as u64
    }

    /// Passes a frame that only this link has received to the other links that need it. Returns the number of
    /// links whose inboxes were full.
    pub fn forward_frame(&self, frame: &Frame, received: &RxFrame<'_>) -> u64 {
        if !self.fans_out {
            return 0;
        }
        let to = match &frame.content {
            Content::Roce(roce) if roce.flow.dst.is_multicast() => self.members(roce.flow.dst),
            // Each link has its own neighbour cache and its own groups to report.
            Content::Arp(arp) if !arp.request => u64::MAX,
            Content::NeighborAdvert(_) | Content::GroupQuery(_) => u64::MAX,
            _ => return 0,
        };
        let full = self.push_to(to, |InboxContents { frames, .. }| {
            let has_room = frames.byte_len() + received.bytes.len() <= MAX_BYTES;
            if has_room {
                let tag = (received.shape, received.checksums);
                frames.push_tagged(tag, |out| out.extend_from_slice(received.bytes));
            }
            has_room
        });
        full as u64
    }

    /// Returns the members of a multicast group, as a bit set of links.
    fn members(&self, group: IpAddr) -> u64 {
        self.shared.members.lock().get(&group).copied().unwrap_or(0)
    }

    /// Calls `push` on the inboxes of the other links in the bit set `to`. Returns the number of inboxes that
    /// were full.
    fn push_to(&self, to: u64, push: impl Fn(&mut InboxContents) -> bool) -> usize {
        let others =
            self.shared.inboxes.iter().enumerate().filter(|(i, _)| *i != self.own && to & 1 << i != 0);
        let full = others.filter(|(_, inbox)| {
            // Locked until the descriptor is readable, so that the owner does not miss the entry or the
            // notification.
            let mut contents = inbox.contents.lock();
            let pushed = push(&mut contents);
            if pushed && !inbox.non_empty.swap(true, Ordering::AcqRel) {
                // Fails only if the counter is at its maximum, and then the descriptor is readable anyway.
                let _ = inbox.readable.write(1);
            }
            !pushed
        });
        full.count()
    }

    /// Takes the contents of this link's inbox, if there are any.
    pub fn take(&self) -> Option<InboxContents> {
        let inbox = &self.shared.inboxes[self.own];
        if !inbox.non_empty.load(Ordering::Acquire) {
            return None;
        }
        // The contents are moved out, so that the lock is not held while the link processes them and sends.
        let mut contents = inbox.contents.lock();
        inbox.non_empty.store(false, Ordering::Release);
        let _ = inbox.readable.read();
        Some(std::mem::take(&mut *contents))
    }

    /// Returns a descriptor that is readable while this link's inbox is not empty.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.inboxes[self.own].readable.as_fd()
    }
}

//! The packet links of one NIC's shards: what one sends to a group is for the others that are in it too, the last
//! that leaves tells the network, and what only one is given but several have to know is passed on.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::socket::{RxFrame, Shape};
use crate::link::frame_queue::FrameQueue;
use crate::link::loopback::Loopback;
use crate::nic::ShardId;
use crate::transport::TxBurst;
use crate::wire::frame::{Checksums, Content, Frame};

/// A link's place among them.
#[derive(Debug)]
pub(super) struct Kin {
    own: usize,
    shared: Arc<Shared>,
    /// Whether the kernel gives each frame to only one of them.
    pub fans_out: bool,
}

#[derive(Debug)]
struct Shared {
    /// Members of each group, a bit for each link.
    members: Mutex<HashMap<IpAddr, u64>>,
    inboxes: Box<[Inbox]>,
}

/// What the others have for one.
#[derive(Debug)]
struct Inbox {
    waiting: AtomicBool,
    passed: Mutex<Passed>,
    /// Readable while there are some.
    readable: EventFd,
}

/// What waits for a link.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// What the others have sent to groups.
    pub bursts: Loopback,
    /// What they have received.
    pub frames: Frames,
}

/// Frames with what the kernel has said of them.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: FrameQueue,
    heads: VecDeque<(Shape, Checksums)>,
}

/// Bytes of frames that wait at most.
const MAX_BYTES: usize = 4 << 20;

impl Frames {
    /// False if there is no room.
    fn push(&mut self, frame: &RxFrame<'_>) -> bool {
        let fits = self.bytes.byte_len() + frame.bytes.len() <= MAX_BYTES;
        if fits {
            self.bytes.push(frame.bytes);
            self.heads.push_back((frame.shape, frame.checksums));
        }
        fits
    }

    pub fn front(&self) -> Option<RxFrame<'_>> {
        let (shape, checksums) = *self.heads.front()?;
        Some(RxFrame { bytes: self.bytes.front()?, shape, checksums, unusable: false })
    }

    pub fn pop(&mut self) {
        self.bytes.pop();
        self.heads.pop_front();
    }
}

/// The links that a frame concerns beside the one that was given it.
enum Concern {
    Nobody,
    Everybody,
    Members(IpAddr),
}

impl Concern {
    fn of(frame: &Frame) -> Concern {
        match &frame.content {
            Content::Roce(roce) if roce.flow.dst.is_multicast() => Concern::Members(roce.flow.dst),
            // Each has its own neighbours, and its own groups to tell of.
            Content::Arp(arp) if !arp.request => Concern::Everybody,
            Content::NeighborAdvert(_) | Content::GroupQuery(_) => Concern::Everybody,
            _ => Concern::Nobody,
        }
    }
}

impl Kin {
    /// The places of `count` links.
    pub fn new(count: usize) -> io::Result<Vec<Kin>> {
        let inbox = |_| {
            let readable = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            Ok(Inbox { waiting: AtomicBool::new(false), passed: Mutex::default(), readable })
        };
        let inboxes = (0..count).map(inbox).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared { members: Mutex::default(), inboxes });
        Ok((0..count).map(|own| Kin { own, shared: shared.clone(), fans_out: false }).collect())
    }

    /// Its place as that of a shard.
    pub fn shard(&self) -> Option<ShardId> {
        ShardId::new(self.own, self.shared.inboxes.len())
    }

    pub fn join(&self, group: IpAddr) {
        *self.shared.members.lock().entry(group).or_default() |= 1 << self.own;
    }

    /// Whether nobody is in the group any more.
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

    /// Gives what is sent to a group to the others that are in it. How many packets found no room.
    pub fn pass(&self, burst: &TxBurst<'_>) -> u64 {
        let lost = self.give(self.members(burst.flow.dst), |passed| passed.bursts.push(burst));
        lost as u64 * burst.packets as u64
    }

    /// Gives a frame that this link has received to the others that it concerns and that have not. How many of them had no
    /// room.
    pub fn share(&self, frame: &Frame, received: &RxFrame<'_>) -> u64 {
        if !self.fans_out {
            return 0;
        }
        let to = match Concern::of(frame) {
            Concern::Nobody => return 0,
            Concern::Everybody => u64::MAX,
            Concern::Members(group) => self.members(group),
        };
        self.give(to, |passed| passed.frames.push(received)) as u64
    }

    /// Members of a group, a bit for each link.
    fn members(&self, group: IpAddr) -> u64 {
        self.shared.members.lock().get(&group).copied().unwrap_or(0)
    }

    /// Has `push` put something into the inboxes of those of the others whose bits are set; how many of them refused.
    fn give(&self, to: u64, push: impl Fn(&mut Passed) -> bool) -> usize {
        let others =
            self.shared.inboxes.iter().enumerate().filter(|(i, _)| *i != self.own && to & 1 << i != 0);
        let refused = others.filter(|(_, inbox)| {
            // Held until its owner can read of it, or he might miss one or the other.
            let mut passed = inbox.passed.lock();
            let pushed = push(&mut passed);
            if pushed && !inbox.waiting.swap(true, Ordering::AcqRel) {
                // Only a full counter could refuse, and then it is readable.
                let _ = inbox.readable.write(1);
            }
            !pushed
        });
        refused.count()
    }

    /// What the others have for this link, if there is anything.
    pub fn take(&self) -> Option<Passed> {
        let inbox = &self.shared.inboxes[self.own];
        if !inbox.waiting.load(Ordering::Acquire) {
            return None;
        }
        // Taken out whole: whoever deals with it may send, and wait for nobody.
        let mut passed = inbox.passed.lock();
        inbox.waiting.store(false, Ordering::Release);
        let _ = inbox.readable.read();
        Some(std::mem::take(&mut *passed))
    }

    /// Readable when there is something to [`take`](Self::take).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.inboxes[self.own].readable.as_fd()
    }
}

//! The packet links of one NIC's shards: what one sends to a group is for the others that are in it too, and the last
//! that leaves tells the network.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::link::RxBurst;
use crate::link::loopback::Loopback;
use crate::nic::ShardId;
use crate::transport::TxBurst;

/// A link's place among them.
#[derive(Debug)]
pub(super) struct Kin {
    own: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Who is in which group, a bit for each.
    members: Mutex<HashMap<IpAddr, u64>>,
    inboxes: Box<[Inbox]>,
}

/// What the others have sent to groups.
#[derive(Debug)]
struct Inbox {
    waiting: AtomicBool,
    bursts: Mutex<Loopback>,
    /// Readable while there are some.
    readable: EventFd,
}

impl Kin {
    /// The places of `count` links.
    pub fn new(count: usize) -> io::Result<Vec<Kin>> {
        let inbox = |_| {
            let readable = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            Ok(Inbox { waiting: AtomicBool::new(false), bursts: Mutex::default(), readable })
        };
        let inboxes = (0..count).map(inbox).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared { members: Mutex::default(), inboxes });
        Ok((0..count).map(|own| Kin { own, shared: shared.clone() }).collect())
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
        let mut dropped = 0;
        let members = self.shared.members.lock().get(&burst.flow.dst).copied().unwrap_or(0);
        for (i, inbox) in self.shared.inboxes.iter().enumerate() {
            if i == self.own || members & 1 << i == 0 {
                continue;
            }
            // Held until its owner can read of it, or he might miss one or the other.
            let mut bursts = inbox.bursts.lock();
            if !bursts.push(burst) {
                dropped += burst.packets as u64;
            } else if !inbox.waiting.swap(true, Ordering::AcqRel) {
                // Only a full counter could refuse, and then it is readable.
                let _ = inbox.readable.write(1);
            }
        }
        dropped
    }

    /// Hands over what the others have sent; how many packets that was.
    pub fn deliver(&self, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let inbox = &self.shared.inboxes[self.own];
        if !inbox.waiting.load(Ordering::Acquire) {
            return 0;
        }
        // Taken out first: whoever deals with it may send, and wait for nobody.
        let mut bursts = {
            let mut bursts = inbox.bursts.lock();
            inbox.waiting.store(false, Ordering::Release);
            let _ = inbox.readable.read();
            std::mem::take(&mut *bursts)
        };
        bursts.deliver(usize::MAX, sink)
    }

    /// Readable when there is something to [`deliver`](Self::deliver).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.inboxes[self.own].readable.as_fd()
    }
}

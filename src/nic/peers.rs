//! Per-peer window: limits the total flight cost of all queue pairs with the same peer, because the peer's
//! link has one receive buffer for all of them. The link may set the window of single peers, which packets
//! reach through another buffer.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::peer_share::PeerShare;
use super::table::Entry;
use crate::wire::Qpn;

/// Flight cost by peer address, and the window waiters: queue pairs that wait for room in their peer's
/// window.
#[derive(Debug, Default)]
pub(super) struct PeerWindows {
    /// Window of the peers for which none is set.
    default: usize,
    /// Windows that differ from `default`, by peer address.
    set: HashMap<IpAddr, usize>,
    by_address: HashMap<IpAddr, usize>,
    peers: Vec<Peer>,
    /// Unused indices in `peers`.
    free: Vec<usize>,
    /// Window waiters whose peer's window has room again.
    pub unblocked: VecDeque<Qpn>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    window: usize,
    queue_pairs: usize,
    /// Flight cost of everything sent to the peer and not yet acknowledged.
    in_flight: u64,
    /// Window waiters: queue pairs blocked by the per-peer window, in order of arrival.
    waiting: VecDeque<Qpn>,
}

impl PeerWindows {
    pub fn new(default: usize) -> PeerWindows {
        PeerWindows { default, ..PeerWindows::default() }
    }

    /// Sets the window of a peer. Wakes one window waiter if there is room.
    pub fn set_window(&mut self, address: IpAddr, window: usize) {
        if window == self.default {
            self.set.remove(&address);
        } else {
            self.set.insert(address, window);
        }
        if let Some(at) = self.by_address.get(&address).copied() {
            self.peers[at].window = window;
            self.wake_one(at);
        }
    }

    /// Returns the window of the queue pair's peer.
    #[inline]
    pub fn window(&self, share: &PeerShare) -> usize {
        share.peer.map_or(self.default, |at| self.peers[at].window)
    }

    /// Returns the flight cost of the other queue pairs with the same peer.
    pub fn others(&self, share: &PeerShare) -> u64 {
        share.peer.map_or(0, |at| self.peers[at].in_flight - share.in_flight)
    }

    /// Updates the flight cost charged to a queue pair's current peer, after any step other than a turn to
    /// send. Wakes one window waiter if there is room.
    pub fn settle(&mut self, entry: &mut Entry) {
        if let Some(at) = self.account(entry) {
            self.wake_one(at);
        }
    }

    /// Updates the flight cost like [`settle`](Self::settle), after a queue pair's turn to send. If the
    /// per-peer window has blocked the queue pair, it becomes a window waiter.
    pub fn settle_turn(&mut self, entry: &mut Entry) {
        let Some(at) = self.account(entry) else { return };
        if !entry.qp.is_blocked_by_peer_window() {
            self.wake_one(at);
        } else if !entry.share.waits {
            entry.share.waits = true;
            self.peers[at].waiting.push_back(entry.qp.qpn());
        }
    }

    /// Removes a queue pair's flight cost from its peer's total, and wakes one window waiter if there is
    /// room.
    pub fn remove(&mut self, entry: &mut Entry) {
        let PeerShare { peer, in_flight, waits } = std::mem::take(&mut entry.share);
        let Some(at) = peer else { return };
        let peer = &mut self.peers[at];
        peer.queue_pairs -= 1;
        peer.in_flight -= in_flight;
        if waits {
            peer.waiting.retain(|qpn| *qpn != entry.qp.qpn());
            self.unblocked.retain(|qpn| *qpn != entry.qp.qpn());
        }
        if peer.queue_pairs == 0 {
            self.by_address.remove(&peer.address);
            peer.waiting = VecDeque::new();
            self.free.push(at);
        }
        self.wake_one(at);
    }

    fn account(&mut self, entry: &mut Entry) -> Option<usize> {
        let at = match (entry.share.peer, entry.qp.flow()) {
            (Some(at), Some(flow)) if self.peers[at].address == flow.dst => at,
            (_, flow) => {
                let address = flow.map(|flow| flow.dst);
                self.remove(entry);
                entry.share.peer = address.map(|address| self.join(address));
                entry.share.peer?
            }
        };
        let now = entry.qp.in_flight();
        let peer = &mut self.peers[at];
        peer.in_flight = peer.in_flight - entry.share.in_flight + now;
        entry.share.in_flight = now;
        Some(at)
    }

    fn wake_one(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if peer.in_flight < peer.window as u64 {
            self.unblocked.extend(peer.waiting.pop_front());
        }
    }

    fn join(&mut self, address: IpAddr) -> usize {
        let PeerWindows { default, set, by_address, peers, free, .. } = self;
        let at = *by_address.entry(address).or_insert_with(|| {
            let at = free.pop().unwrap_or(peers.len());
            let window = set.get(&address).copied().unwrap_or(*default);
            let peer = Peer { address, window, queue_pairs: 0, in_flight: 0, waiting: VecDeque::new() };
            match peers.get_mut(at) {
                Some(place) => *place = peer,
                None => peers.push(peer),
            }
            at
        });
        peers[at].queue_pairs += 1;
        at
    }
}

//! Room of a link that sends at the rate of a wire or whose peer pauses priorities, full paths, and queue
//! pairs that wait for room (`egress.rs`).

use std::collections::{HashMap, VecDeque};

use super::table::Entry;
use crate::burst::PeerPath;
use crate::transport::EgressRoom;
use crate::wire::Qpn;

/// Number of packets that a queue pair sends before the next one gets its turn, if the number of packets of
/// their priority is limited, or if each packet can have another priority or another path.
const TURN: usize = 1;

/// Room of the link in the current turn, and queue pairs that wait for room.
#[derive(Debug, Default)]
pub(super) struct Egress {
    /// Room that is left; `None` if the link takes whatever it gets.
    pub room: Option<EgressRoom>,
    /// Queue pairs that wait for room for packets of their priority.
    pub parked: [VecDeque<Qpn>; 8],
    /// Full paths, and the queue pairs that wait for room on each.
    pub full: HashMap<PeerPath, VecDeque<Qpn>>,
}

impl Egress {
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.room.is_some() || self.has_full_paths()
    }

    pub fn has_full_paths(&self) -> bool {
        !self.full.is_empty()
    }

    /// Returns the list in which a queue pair must wait for room for its next packet; `None` if there is
    /// room.
    pub fn wait_list(&mut self, entry: &Entry) -> Option<&mut VecDeque<Qpn>> {
        let priority = entry.qp.priority();
        if self.room.is_some_and(|room| !room.has_room(priority)) {
            return Some(&mut self.parked[priority]);
        }
        self.full.get_mut(&entry.qp.next_path()?)
    }

    /// Returns the priority of the next packet of a queue pair, and how many packets it may send in its turn;
    /// without a limit, `default`.
    #[inline]
    pub fn turn(&self, entry: &Entry, default: usize) -> (usize, usize) {
        if !self.is_limited() {
            return (0, default);
        }
        let priority = entry.qp.priority();
        let is_unlimited = self.room.is_none_or(|room| room.is_unlimited(priority));
        let is_connected = entry.qp.flow().is_some();
        (priority, if is_connected && is_unlimited { default } else { TURN })
    }

    /// Charges the packets that a queue pair has sent in its turn.
    #[inline]
    pub fn charge(&mut self, priority: usize, packets: usize) {
        if let Some(room) = &mut self.room {
            room.take(priority, packets);
        }
    }

    pub fn has_any_parked(&self) -> bool {
        self.parked.iter().any(|parked| !parked.is_empty())
    }

    pub fn has_parked(&self, room: EgressRoom) -> bool {
        self.parked.iter().enumerate().any(|(priority, parked)| room.has_room(priority) && !parked.is_empty())
    }
}

//! Detection of deadlocks by flow control: cyclic buffer dependencies, in which wires wait for each other.

use super::config::Node;
use super::queues::PRIORITIES;
use super::state::{Deadlock, State};

impl State {
    /// Looks for a deadlock that includes `direction`, after a pause of that direction or an increase of the
    /// packets that wait for it. A deadlock is reported once.
    pub(super) fn check_deadlock(&mut self, direction: u32, priority: usize) {
        debug_assert!(priority < PRIORITIES);
        let mut stuck = self.paused_behind(direction, priority);
        if stuck.len() < 2 {
            return;
        }
        // A switch also sends what it has for wires outside the cycle. A wire is stuck only if its packets
        // for stuck wires alone keep it paused.
        loop {
            let before = stuck.len();
            let still = stuck.clone();
            stuck.retain(|d| self.stays_paused(*d, priority, &still));
            if stuck.len() == before {
                break;
            }
        }
        if !stuck.contains(&direction) {
            return;
        }
        let mut path = vec![direction];
        let cycle = loop {
            let last = path[path.len() - 1];
            let Some(next) = stuck.iter().copied().find(|d| self.held(last, *d, priority) > 0) else {
                return;
            };
            if let Some(start) = path.iter().position(|d| *d == next) {
                break &path[start..];
            }
            path.push(next);
        };
        // Begins with the lowest direction, whichever the search has met first.
        let first = cycle.iter().enumerate().min_by_key(|(_, d)| **d).map_or(0, |(i, _)| i);
        let edge = |d: &u32| (self.directions[*d as usize].edge.from, self.directions[*d as usize].edge.to);
        let wires: Vec<_> = cycle[first..].iter().chain(&cycle[..first]).map(edge).collect();
        let priority = priority as u8;
        if self.deadlocks.iter().all(|known| known.priority != priority || known.wires != wires) {
            let at_ns = self.now_ns();
            self.deadlocks.push(Deadlock { at_ns, priority, wires });
        }
    }

    /// Returns the paused directions on which `direction` waits, directly or indirectly, with itself.
    fn paused_behind(&self, direction: u32, priority: usize) -> Vec<u32> {
        let mut found = Vec::new();
        if !self.is_blocked(direction, priority) {
            return found;
        }
        found.push(direction);
        let mut next = 0;
        while next < found.len() {
            let from = found[next];
            next += 1;
            for output in self.outputs_behind(from) {
                if self.is_blocked(*output, priority)
                    && !found.contains(output)
                    && self.held(from, *output, priority) > 0
                {
                    found.push(*output);
                }
            }
        }
        found
    }

    /// Reports whether the end of a direction has told its beginning to pause, and it has done so.
    fn is_blocked(&self, direction: u32, priority: usize) -> bool {
        let d = &self.directions[direction as usize];
        d.output.is_paused(priority) && d.input.as_ref().is_some_and(|input| input.is_paused(priority))
    }

    fn outputs_behind(&self, direction: u32) -> &[u32] {
        match self.directions[direction as usize].edge.to {
            Node::Switch(i) => &self.switches[i].outputs,
            Node::Host(_) => &[],
        }
    }

    /// Returns the number of bytes that have arrived by `input` and wait for `output`.
    fn held(&self, input: u32, output: u32, priority: usize) -> u64 {
        let packets = &self.directions[output as usize].output.queues[priority].packets;
        packets.iter().filter(|packet| packet.input == input).map(|packet| packet.frame).sum()
    }

    fn stays_paused(&self, direction: u32, priority: usize, stuck: &[u32]) -> bool {
        let Node::Switch(i) = self.directions[direction as usize].edge.to else { return false };
        let xon = self.switches[i].config.pfc_of(priority).map_or(0, |pfc| pfc.xon as u64);
        stuck.iter().map(|output| self.held(direction, *output, priority)).sum::<u64>() > xon
    }
}

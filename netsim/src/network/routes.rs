//! Routes of a simulated network: all shortest paths, and the choice between them by a hash of the flow.

use std::collections::VecDeque;
use std::net::IpAddr;

use urxe::sys::rng::splitmix64;
use urxe::wire::Flow;

use super::config::Node;

/// One direction of a wire, as the routes see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub from: Node,
    pub to: Node,
    pub up: bool,
}

/// Output directions on the shortest paths from each switch to each other one, and from there to the hosts.
#[derive(Debug, Default)]
pub(super) struct Routes {
    switches: usize,
    /// For each host, the node at the other end of its wire and the direction from there to the host.
    homes: Vec<Option<(Node, u32)>>,
    /// For each pair of switches, the range of equivalent directions in `choices`.
    ranges: Vec<(u32, u32)>,
    choices: Vec<u32>,
}

impl Routes {
    /// Computes the routes over the edges that are up.
    pub fn new(hosts: usize, switches: usize, edges: &[Edge]) -> Routes {
        let mut homes = vec![None; hosts];
        let mut into = vec![Vec::new(); switches];
        for (direction, edge) in edges.iter().enumerate().filter(|(_, edge)| edge.up) {
            match (edge.from, edge.to) {
                (from, Node::Host(host)) => homes[host] = Some((from, direction as u32)),
                (Node::Switch(from), Node::Switch(to)) => into[to].push((from, direction as u32)),
                (Node::Host(_), Node::Switch(_)) => {}
            }
        }
        let mut routes =
            Routes { switches, homes, ranges: vec![(0, 0); switches * switches], choices: Vec::new() };
        (0..switches).for_each(|to| routes.add_routes_to(to, &into));
        routes
    }

    /// Adds the routes to one switch by a breadth-first search from it.
    fn add_routes_to(&mut self, to: usize, into: &[Vec<(usize, u32)>]) {
        let mut distance = vec![usize::MAX; self.switches];
        let mut next: Vec<Vec<u32>> = vec![Vec::new(); self.switches];
        distance[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(near) = queue.pop_front() {
            for (far, direction) in &into[near] {
                if distance[*far] == usize::MAX {
                    distance[*far] = distance[near] + 1;
                    queue.push_back(*far);
                }
                if distance[*far] == distance[near] + 1 {
                    next[*far].push(*direction);
                }
            }
        }
        for (from, mut directions) in next.into_iter().enumerate() {
            directions.sort_unstable();
            self.ranges[from * self.switches + to] = (self.choices.len() as u32, directions.len() as u32);
            self.choices.extend(directions);
        }
    }

    /// Returns the direction in which switch `at` sends a packet of `flow` to `host`; `None` if no path is
    /// up.
    pub fn next(&self, at: usize, host: u32, flow: &Flow, seed: u64) -> Option<u32> {
        let (home, last) = self.homes.get(host as usize).copied().flatten()?;
        let Node::Switch(home) = home else { return None };
        if home == at {
            return Some(last);
        }
        let (start, len) = self.ranges[at * self.switches + home];
        let choices = &self.choices[start as usize..][..len as usize];
        match choices {
            [] => None,
            [only] => Some(*only),
            _ => Some(choices[(hash(flow, splitmix64(seed, at as u64)) % u64::from(len)) as usize]),
        }
    }
}

/// Hashes what ECMP distinguishes: the addresses and the UDP source port; the other port and the protocol are
/// those of RoCEv2. Each switch has a seed, or all switches of a path would choose alike.
fn hash(flow: &Flow, seed: u64) -> u64 {
    let fold = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
    };
    let h = splitmix64(seed ^ fold(flow.src), 1);
    splitmix64(splitmix64(h ^ fold(flow.dst), 1) ^ u64::from(flow.src_port), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;

    fn edges(topology: &Topology) -> Vec<Edge> {
        let both = |(a, b, _): &(Node, Node, _)| {
            [Edge { from: *a, to: *b, up: true }, Edge { from: *b, to: *a, up: true }]
        };
        topology.wires.iter().flat_map(both).collect()
    }

    #[test]
    fn every_switch_of_a_fat_tree_reaches_every_host_over_all_shortest_paths() {
        let topology = Topology::fat_tree(4);
        assert_eq!((topology.host_count(), topology.switch_count()), (16, 20));
        assert_eq!(topology.wires.len(), 16 + 16 + 16);
        topology.check().unwrap();
        let edges = edges(&topology);
        let routes = Routes::new(16, 20, &edges);
        let address = |i: u8| IpAddr::from([10, 0, 0, i]);
        let mut used = vec![0; edges.len()];
        for port in 0..400 {
            let flow = Flow::new(address(1), address(2), port);
            let (mut at, mut hops) = (0, 0);
            loop {
                let direction = routes.next(at, 15, &flow, 7).unwrap() as usize;
                used[direction] += 1;
                hops += 1;
                match edges[direction].to {
                    Node::Switch(next) => at = next,
                    Node::Host(host) => break assert_eq!((host, hops), (15, 5)),
                }
            }
        }
        // Two of the four core switches lie behind each aggregation switch of the first pod.
        let first: Vec<_> = used.iter().zip(&edges).filter(|(_, e)| e.from == Node::Switch(0)).collect();
        assert!(first.iter().filter(|(n, _)| (150..250).contains(*n)).count() == 2, "{first:?}");
        let cores = used.iter().zip(&edges).filter(|(n, e)| matches!(e.to, Node::Switch(16..)) && **n > 60);
        assert_eq!(cores.count(), 4);
    }

    #[test]
    fn host_behind_wires_that_are_down_has_no_route() {
        let mut edges = edges(&Topology::dumbbell(1));
        let flow = Flow::new(IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]), 1);
        assert!(Routes::new(2, 2, &edges).next(0, 1, &flow, 0).is_some());
        for edge in &mut edges {
            edge.up &= !matches!((edge.from, edge.to), (Node::Switch(_), Node::Switch(_)));
        }
        assert_eq!(Routes::new(2, 2, &edges).next(0, 1, &flow, 0), None);
    }
}

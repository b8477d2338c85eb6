//! Topologies of simulated networks: hosts, switches, and the wires between them.

use std::time::Duration;

use urxe::setters;

use super::config::{Node, SwitchConfig, TopologyError, Wire};

/// A network of hosts, switches and wires, for [`Simulation`](super::simulation::Simulation).
///
/// The constructors connect everything with wires of 100 Gb/s and 1 µs; [`wires`](Self::wires),
/// [`wire`](Self::wire), [`switches`](Self::switches) and [`switch`](Self::switch) change that.
///
/// ```
/// # use std::time::Duration;
/// use urxe_netsim::{Node, Pfc, Red, SwitchConfig, Topology, Wire};
///
/// let wire = Wire::new(40_000_000_000, Duration::from_micros(2));
/// let switch = SwitchConfig::default().ecn(Red::new(50_000, 200_000, 0.01)).pfc(Pfc::default());
/// let leaf_spine = Topology::leaf_spine(2, 4, 8).wires(wire).switches(switch);
/// assert_eq!((leaf_spine.host_count(), leaf_spine.switch_count()), (32, 6));
///
/// let mut own = Topology::new();
/// let (a, b, switch) = (own.add_host(), own.add_host(), own.add_switch(switch));
/// own.connect(a, switch, wire);
/// own.connect(switch, b, wire.bandwidth(10_000_000_000));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    pub(super) hosts: usize,
    pub(super) switches: Vec<SwitchConfig>,
    pub(super) wires: Vec<(Node, Node, Wire)>,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Limit on the number of bytes in flight from one NIC to another, before congestion control.
    pub window: usize,
}

setters!(Topology { mtu: usize, window: usize });

impl Default for Topology {
    fn default() -> Topology {
        Topology::new()
    }
}

impl Topology {
    /// Returns a topology without hosts, whose NICs have an IP MTU of 4500 bytes and a window of 1 MiB.
    pub fn new() -> Topology {
        Topology { hosts: 0, switches: Vec::new(), wires: Vec::new(), mtu: 4500, window: 1 << 20 }
    }

    /// Adds a host.
    pub fn add_host(&mut self) -> Node {
        self.hosts += 1;
        Node::Host(self.hosts - 1)
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, config: SwitchConfig) -> Node {
        self.switches.push(config);
        Node::Switch(self.switches.len() - 1)
    }

    /// Connects two nodes with a full-duplex wire. Two switches may have several wires between them, a host
    /// has one wire.
    pub fn connect(&mut self, a: Node, b: Node, wire: Wire) {
        self.wires.push((a, b, wire));
    }

    /// Returns two hosts that are connected directly.
    pub fn pair() -> Topology {
        let mut t = Topology::new();
        let (a, b) = (t.add_host(), t.add_host());
        t.connect(a, b, Wire::default());
        t
    }

    /// Returns `hosts` hosts at one switch.
    pub fn star(hosts: usize) -> Topology {
        let mut t = Topology::new();
        let switch = t.add_switch(SwitchConfig::default());
        t.add_hosts(hosts, switch);
        t
    }

    /// Returns a star for an incast: host 0 is the receiver, hosts 1 to `senders` send to it.
    pub fn incast(senders: usize) -> Topology {
        Topology::star(senders + 1)
    }

    /// Returns `hosts` hosts at each of two switches, which one wire connects. Hosts 0 to `hosts` - 1 are at
    /// switch 0.
    pub fn dumbbell(hosts: usize) -> Topology {
        Topology::chain(&[hosts, hosts])
    }

    /// Returns a parking lot: a chain of `switches` switches with one host each. If every host sends to the
    /// last one, their flows join at one switch after the other.
    pub fn parking_lot(switches: usize) -> Topology {
        Topology::chain(&vec![1; switches])
    }

    /// Returns a ring of `switches` switches with one host each.
    pub fn ring(switches: usize) -> Topology {
        let mut t = Topology::parking_lot(switches);
        if switches > 2 {
            t.connect(Node::Switch(switches - 1), Node::Switch(0), Wire::default());
        }
        t
    }

    /// Returns `hosts` hosts at each of `leaves` switches, each of which is connected to all of `spines`
    /// switches. The leaves are the first switches.
    pub fn leaf_spine(spines: usize, leaves: usize, hosts: usize) -> Topology {
        let mut t = Topology::new();
        for _ in 0..leaves {
            let leaf = t.add_switch(SwitchConfig::default());
            t.add_hosts(hosts, leaf);
        }
        for _ in 0..spines {
            let spine = t.add_switch(SwitchConfig::default());
            t.connect_all(0..leaves, spine);
        }
        t
    }

    /// Returns a fat tree of switches with `k` ports: `k` pods of `k`/2 edge and `k`/2 aggregation switches,
    /// (`k`/2)² core switches and `k`³/4 hosts. An odd `k` counts as the even number below it. The first
    /// `k`²/2 switches are the edge switches, followed by the aggregation and the core switches.
    pub fn fat_tree(k: usize) -> Topology {
        let half = k / 2;
        let mut t = Topology::new();
        for _ in 0..2 * half * half {
            let edge = t.add_switch(SwitchConfig::default());
            t.add_hosts(half, edge);
        }
        let edges = t.switches.len();
        for i in 0..edges {
            let aggregation = t.add_switch(SwitchConfig::default());
            let pod = i / half.max(1);
            t.connect_all(pod * half..(pod + 1) * half, aggregation);
        }
        for i in 0..half * half {
            let core = t.add_switch(SwitchConfig::default());
            let group = i / half;
            for pod in 0..2 * half {
                t.connect(Node::Switch(edges + pod * half + group), core, Wire::default());
            }
        }
        t
    }

    fn chain(hosts: &[usize]) -> Topology {
        let mut t = Topology::new();
        for (i, hosts) in hosts.iter().enumerate() {
            let switch = t.add_switch(SwitchConfig::default());
            if i > 0 {
                t.connect(Node::Switch(i - 1), switch, Wire::default());
            }
            t.add_hosts(*hosts, switch);
        }
        t
    }

    fn add_hosts(&mut self, hosts: usize, switch: Node) {
        for _ in 0..hosts {
            let host = self.add_host();
            self.connect(host, switch, Wire::default());
        }
    }

    fn connect_all(&mut self, switches: std::ops::Range<usize>, to: Node) {
        switches.for_each(|i| self.connect(Node::Switch(i), to, Wire::default()));
    }

    /// Replaces all wires.
    #[must_use]
    pub fn wires(mut self, wire: Wire) -> Topology {
        self.wires.iter_mut().for_each(|(_, _, own)| *own = wire);
        self
    }

    /// Replaces the wires between two nodes.
    #[must_use]
    pub fn wire(mut self, a: Node, b: Node, wire: Wire) -> Topology {
        for (x, y, own) in &mut self.wires {
            if (*x, *y) == (a, b) || (*x, *y) == (b, a) {
                *own = wire;
            }
        }
        self
    }

    /// Replaces the configuration of all switches.
    #[must_use]
    pub fn switches(mut self, config: SwitchConfig) -> Topology {
        self.switches.fill(config);
        self
    }

    /// Replaces the configuration of switch `i`, if there is one.
    #[must_use]
    pub fn switch(mut self, i: usize, config: SwitchConfig) -> Topology {
        if let Some(own) = self.switches.get_mut(i) {
            *own = config;
        }
        self
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.hosts
    }

    /// Returns the number of switches.
    pub fn switch_count(&self) -> usize {
        self.switches.len()
    }

    /// Returns the node at the other end of a host's wire; `None` if there is no such host, or it has no
    /// wire.
    pub fn neighbour(&self, host: usize) -> Option<Node> {
        self.wires.iter().find_map(|(a, b, _)| match (a, b) {
            (Node::Host(n), other) | (other, Node::Host(n)) if *n == host => Some(*other),
            _ => None,
        })
    }

    /// Checks that the topology can be simulated.
    ///
    /// # Errors
    /// [`TopologyError`] that names the first thing that is wrong.
    pub fn check(&self) -> Result<(), TopologyError> {
        let mut wires = vec![0; self.hosts];
        for (a, b, wire) in &self.wires {
            for node in [*a, *b] {
                match node {
                    Node::Host(i) if i < self.hosts => wires[i] += 1,
                    Node::Switch(i) if i < self.switches.len() => {}
                    _ => return Err(TopologyError::NoSuchNode(node)),
                }
            }
            if a == b {
                return Err(TopologyError::Loop(*a));
            }
            wire.check()?;
        }
        if let Some((host, count)) = wires.into_iter().enumerate().find(|(_, count)| *count != 1) {
            return Err(TopologyError::HostWires { host, count });
        }
        self.switches.iter().try_for_each(SwitchConfig::check)
    }
}

/// Returns the latency of a wire in picoseconds.
pub(super) fn picos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX / 4)
}

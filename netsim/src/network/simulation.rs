//! Handle of a simulated network: its fabric, counters, samples of queues, and wires that go down.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use urxe::fabric::{Fabric, FabricConfig, FabricError, FabricPort};

use super::config::{Node, TopologyError};
use super::input::InputCounters;
use super::queues::{PRIORITIES, QueueCounters, Samples};
use super::state::{Deadlock, NetworkCounters, State};
use super::topology::{Topology, picos};

/// A simulated network. Clones refer to the same network.
///
/// ```
/// # use std::time::Duration;
/// use urxe::verbs::*;
/// use urxe_netsim::{Node, Simulation, Topology};
///
/// let simulation = Simulation::new(&Topology::star(2), 1)?;
/// let (a, b) = simulation.fabric().pair()?;
/// b.qp.post_recv(&RecvWr::empty(1))?;
/// a.qp.post_send(&SendWr::send(2, &[]))?;
/// b.cq.wait(Duration::from_secs(1))?;
/// // Two wires of 1 µs, and the time in which they take up the bits.
/// assert!((2_000..2_050).contains(&b.context.clock()));
/// assert_eq!(simulation.queue(Node::Switch(0), Node::Host(1), 0)?.packets, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Simulation {
    fabric: Fabric,
    state: Arc<Mutex<State>>,
}

impl Simulation {
    /// Creates a simulated network in virtual time. The ports of its fabric, and with them NICs, belong to
    /// the topology's hosts in order of creation. The seed determines random losses, marks and the choice
    /// between equivalent paths; with the same seed, a program sends the same packets at the same times.
    ///
    /// # Errors
    /// See [`Topology::check`].
    pub fn new(topology: &Topology, seed: u64) -> Result<Simulation, TopologyError> {
        topology.check()?;
        let config = FabricConfig::default().mtu(topology.mtu).window(topology.window).seed(seed);
        let queue = Arc::default();
        let state = Arc::new(Mutex::new(State::new(topology, seed, Arc::clone(&queue))));
        Ok(Simulation { fabric: Fabric::simulated(config, (queue, state.clone()))?, state })
    }

    /// Returns the fabric, on which NICs are created and which moves time.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Creates the port of a host.
    ///
    /// # Errors
    /// [`FabricError::NoHost`] if there is no such host, or it has a port; the errors of [`Fabric::port`].
    pub fn port(&self, host: usize, addresses: &[IpAddr]) -> Result<FabricPort, FabricError> {
        self.fabric.host_port(host, addresses)
    }

    /// Takes the wire between two nodes down or up; if there are several, the first. What is on the wire or
    /// waits for it is lost, and packets take other paths from now on. The NIC of a host whose wire it is
    /// raises `PortError` or `PortActive`.
    ///
    /// # Errors
    /// [`TopologyError::NoWire`].
    pub fn set_wire_up(&self, a: Node, b: Node, up: bool) -> Result<(), TopologyError> {
        let mut state = self.state();
        let direction = find(&state, a, b)?;
        state.set_up(direction as u32, up);
        let port = match (a, b) {
            (Node::Host(host), _) | (_, Node::Host(host)) => state.hosts[host].port.clone(),
            _ => None,
        };
        drop(state);
        if let Some(port) = port {
            self.fabric.set_host_port_up(&port, up);
        }
        Ok(())
    }

    /// Returns the counters of the network.
    pub fn counters(&self) -> NetworkCounters {
        self.state().counters
    }

    /// Returns the counters of the queue of a priority, 0 to 7, in which packets wait at `from` for the wire
    /// to `to`.
    ///
    /// # Errors
    /// [`TopologyError::NoWire`].
    pub fn queue(&self, from: Node, to: Node, priority: u8) -> Result<QueueCounters, TopologyError> {
        let state = self.state();
        let direction = find(&state, from, to)?;
        Ok(state.directions[direction].output.queues[index(priority)].counters)
    }

    /// Returns the counters of switch `at` about what has arrived from `from` with a priority, 0 to 7.
    ///
    /// # Errors
    /// [`TopologyError::NoWire`]; also if `at` is a host.
    pub fn input(&self, from: Node, at: Node, priority: u8) -> Result<InputCounters, TopologyError> {
        let state = self.state();
        let input = state.directions[find(&state, from, at)?].input.as_ref();
        Ok(input.ok_or(TopologyError::NoWire(from, at))?.counters(index(priority)))
    }

    /// Records the length in bytes of a queue from now on, at every multiple of `interval`, which counts as
    /// at least 1 ns.
    ///
    /// # Errors
    /// [`TopologyError::NoWire`].
    pub fn sample(
        &self,
        from: Node,
        to: Node,
        priority: u8,
        interval: Duration,
    ) -> Result<(), TopologyError> {
        let mut state = self.state();
        let direction = find(&state, from, to)?;
        let samples = Samples { interval: picos(interval).max(1000), next: state.now, lengths: Vec::new() };
        state.directions[direction].output.queues[index(priority)].samples = Some(Box::new(samples));
        Ok(())
    }

    /// Returns the lengths of a queue that were recorded up to now, and forgets them.
    ///
    /// # Errors
    /// [`TopologyError::NoWire`].
    pub fn take_samples(&self, from: Node, to: Node, priority: u8) -> Result<Vec<u64>, TopologyError> {
        let mut state = self.state();
        let (direction, now) = (find(&state, from, to)?, state.now);
        let queue = &mut state.directions[direction].output.queues[index(priority)];
        queue.sample(now);
        Ok(queue.samples.as_mut().map(|samples| std::mem::take(&mut samples.lengths)).unwrap_or_default())
    }

    /// Returns the deadlocks by flow control that were found.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.state().deadlocks.clone()
    }

    /// Returns the state of the network at the time of the clock.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.set_now(self.fabric.now());
        state
    }
}

/// Returns the index of the direction from one node to another.
fn find(state: &State, from: Node, to: Node) -> Result<usize, TopologyError> {
    let found = state.directions.iter().position(|d| d.edge.from == from && d.edge.to == to);
    found.ok_or(TopologyError::NoWire(from, to))
}

/// Returns the index of a priority's queue; a number above 7 counts as 7.
fn index(priority: u8) -> usize {
    usize::from(priority).min(PRIORITIES - 1)
}

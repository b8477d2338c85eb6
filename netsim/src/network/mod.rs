//! Simulated network of many NICs in virtual time: switches, wires, ECN marking, priority flow control and
//! ECMP.
//!
//! Hosts and switches are store-and-forward. A NIC sends at the rate of its host's wire: at most a few
//! packets of each priority wait in front of it, and the NIC runs again when they have become fewer. A switch
//! drops a packet or puts it into the output queue of its priority; when the packet leaves the queue, the
//! switch may mark it.

mod config;
mod deadlock;
mod input;
mod queues;
mod routes;
mod simulation;
mod state;
mod topology;

pub use config::{Node, Pfc, Red, Scheduler, SwitchConfig, TopologyError, Wire};
pub use input::InputCounters;
pub use queues::QueueCounters;
pub use simulation::Simulation;
pub use state::{Deadlock, NetworkCounters};
pub use topology::Topology;

//! Nodes of a simulated network, configuration of wires and switches, and errors of topologies.

use std::time::Duration;

use urxe::fabric::FabricError;
use urxe::fabric::hosts::check_probability;
use urxe::setters;

/// A host or a switch, counted from 0 in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A host, which has one NIC.
    Host(usize),
    /// A switch.
    Switch(usize),
}

/// A full-duplex wire.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Wire {
    /// Bandwidth of each direction in bits per second. A packet occupies the wire for the length of its
    /// Ethernet frame plus 20 bytes of preamble and gap.
    pub bandwidth: u64,
    /// Propagation delay.
    pub latency: Duration,
    /// Probability that a packet is lost. Pause frames are never lost.
    pub loss: f64,
}

setters!(Wire { bandwidth: u64, latency: Duration, loss: f64 });

impl Default for Wire {
    /// Returns a wire of 100 Gb/s and 1 µs without losses.
    fn default() -> Wire {
        Wire::new(100_000_000_000, Duration::from_micros(1))
    }
}

impl Wire {
    /// Returns a wire without losses. The bandwidth is in bits per second.
    pub fn new(bandwidth: u64, latency: Duration) -> Wire {
        Wire { bandwidth, latency, loss: 0.0 }
    }

    pub(super) fn check(&self) -> Result<(), FabricError> {
        match self {
            Wire { bandwidth: 0, .. } => Err(FabricError::Zero { field: "bandwidth" }),
            Wire { loss, .. } => check_probability("loss", *loss),
        }
    }
}

/// Order in which a switch serves the queues of an output. A queue holds the packets of one priority, 0 to 7:
/// the three highest bits of the DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Scheduler {
    /// Deficit round robin: all queues get the same share of bytes.
    #[default]
    RoundRobin,
    /// The queue of the highest priority comes first.
    Strict,
}

/// ECN marking as by RED, but on the current queue length. A packet that leaves a queue with `k_min` bytes or
/// less is not marked, one that leaves `k_max` bytes or more is; in between the probability rises linearly
/// from 0 to `p_max`. Only ECN-capable packets are marked.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Red {
    /// Queue length in bytes up to which nothing is marked.
    pub k_min: usize,
    /// Queue length in bytes from which everything is marked.
    pub k_max: usize,
    /// Probability of a mark just below `k_max`.
    pub p_max: f64,
}

impl Red {
    /// Returns the parameters of marking: two queue lengths in bytes and a probability.
    pub fn new(k_min: usize, k_max: usize, p_max: f64) -> Red {
        Red { k_min, k_max, p_max }
    }

    /// Returns the probability of a mark at a queue length of `bytes`.
    pub(super) fn probability(&self, bytes: u64) -> f64 {
        let (bytes, min, max) = (bytes as f64, self.k_min as f64, self.k_max as f64);
        if bytes <= min {
            0.0
        } else if bytes >= max {
            1.0
        } else {
            self.p_max * (bytes - min) / (max - min)
        }
    }
}

/// Priority flow control (IEEE 802.1Qbb). Thresholds apply to the bytes in the switch that arrived at one
/// input with one priority. Above `xoff`, further packets take up headroom, and the switch sends a pause
/// frame to the other end of the wire; when the headroom is empty and `xon` reached, it sends a resume frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pfc {
    /// Lossless priorities, as a bit mask; all by default.
    pub priorities: u8,
    /// Number of bytes above which the input is paused.
    pub xoff: usize,
    /// Number of bytes at which the input is resumed.
    pub xon: usize,
    /// Headroom in bytes, for packets that arrive until the pause takes effect. `None` stands for what the
    /// wire's bandwidth and latency require.
    pub headroom: Option<usize>,
}

setters!(Pfc { priorities: u8, xoff: usize, xon: usize } optional { headroom: usize });

impl Default for Pfc {
    /// Returns flow control of all priorities with an XOFF threshold of 100 kB and an XON threshold of 90 kB.
    fn default() -> Pfc {
        Pfc { priorities: 0xff, xoff: 100_000, xon: 90_000, headroom: None }
    }
}

/// A store-and-forward switch whose outputs have a queue for each priority.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct SwitchConfig {
    /// Memory in bytes that all queues share, without headroom. A frame takes up its length with Ethernet
    /// header and FCS. Packets of priorities without flow control that find it full are dropped.
    pub buffer: usize,
    /// Maximum length in bytes of a queue of a priority without flow control; `None` means only `buffer`
    /// limits it.
    pub queue_limit: Option<usize>,
    /// Order in which an output's queues are served.
    pub scheduler: Scheduler,
    /// ECN marking; `None` for none.
    pub ecn: Option<Red>,
    /// Priority flow control; `None` for none.
    pub pfc: Option<Pfc>,
}

setters!(SwitchConfig { buffer: usize, scheduler: Scheduler } optional { queue_limit: usize, ecn: Red, pfc: Pfc });

impl Default for SwitchConfig {
    /// Returns a switch with 12 MB of memory, without marking and flow control.
    fn default() -> SwitchConfig {
        SwitchConfig {
            buffer: 12_000_000,
            queue_limit: None,
            scheduler: Scheduler::RoundRobin,
            ecn: None,
            pfc: None,
        }
    }
}

impl SwitchConfig {
    pub(super) fn check(&self) -> Result<(), TopologyError> {
        if let Some(Red { k_min, k_max, p_max }) = self.ecn {
            check_probability("p_max", p_max)?;
            if k_min > k_max {
                return Err(TopologyError::Thresholds {
                    low: "k_min",
                    high: "k_max",
                    values: (k_min, k_max),
                });
            }
        }
        match self.pfc {
            Some(Pfc { xon, xoff, .. }) if xon > xoff => {
                Err(TopologyError::Thresholds { low: "xon", high: "xoff", values: (xon, xoff) })
            }
            _ => Ok(()),
        }
    }

    /// Returns the flow control of a priority, if it is lossless.
    pub(super) fn pfc_of(&self, priority: usize) -> Option<&Pfc> {
        self.pfc.as_ref().filter(|pfc| pfc.priorities >> priority & 1 != 0)
    }
}

/// Error in a topology, or in a call that names its nodes.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A wire ends at a node that was not added.
    #[error("{0:?} does not exist: add hosts and switches before the wires, and count them from 0")]
    NoSuchNode(Node),
    /// A wire connects a node to itself.
    #[error("a wire connects {0:?} to itself: connect two different nodes")]
    Loop(Node),
    /// A host without a wire, or with several.
    #[error("host {host} has {count} wires: give each host exactly one")]
    HostWires {
        /// Index of the host.
        host: usize,
        /// Number of wires.
        count: usize,
    },
    /// A lower threshold above the upper one.
    #[error("{low} is {}, above {high}, which is {}: use a value of at most {high}", values.0, values.1)]
    Thresholds {
        /// Name of the lower threshold.
        low: &'static str,
        /// Name of the upper threshold.
        high: &'static str,
        /// Values of both, in bytes.
        values: (usize, usize),
    },
    /// No wire connects the nodes.
    #[error("no wire connects {0:?} and {1:?}: name two nodes that Topology::connect has connected")]
    NoWire(Node, Node),
    /// A value of a wire, a switch or the NICs is invalid.
    #[error(transparent)]
    Value(#[from] FabricError),
}

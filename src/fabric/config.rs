//! Fabric configuration, and errors when creating or changing a fabric.

use std::net::IpAddr;
use std::time::Duration;

use crate::sys::setters::setters;
use crate::transport::AsyncEvent;

/// Impairments that a fabric, or one direction through it, applies to packets. By default there are none, and
/// bursts arrive whole and immediately.
///
/// Each direction has its own random number generator, so what happens to the packets from one port to
/// another depends on the seed and on those packets alone.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// let config = FabricConfig::default().loss(0.01).latency(Duration::from_micros(5)).seed(7);
/// let (a, b) = Fabric::virtual_time(config)?.pair()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct FabricConfig {
    /// Largest IP packet in bytes, 256..=65535. Larger packets are dropped.
    pub mtu: usize,
    /// Number of unread bytes that each port advertises to its peers as its limit
    /// ([`crate::link::LinkInfo::window`]).
    pub window: usize,
    /// Seed for the random number generators.
    pub seed: u64,
    /// One-way latency of every packet.
    pub latency: Duration,
    /// Maximum additional delay, which is random and uniformly distributed. Jitter never reorders packets;
    /// use `reorder` for that.
    pub jitter: Duration,
    /// Bandwidth of the wire to each port in bits per second, including IP and UDP headers. `None` means
    /// unlimited, without a queue.
    pub bandwidth: Option<u64>,
    /// Maximum length in bytes of the queue in front of the wire to each port; packets that would exceed it
    /// are dropped. `None` means unlimited.
    pub queue_bytes: Option<usize>,
    /// Queue length in bytes above which ECN-capable packets are marked "congestion experienced". `None`
    /// disables marking.
    pub ecn_threshold: Option<usize>,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed by `reorder_by`, so that later packets can overtake it.
    pub reorder: f64,
    /// Additional delay of packets selected by `reorder`.
    pub reorder_by: Duration,
    /// Probability that one bit of a packet is flipped. The bit is always one that the ICRC covers.
    pub corrupt: f64,
}

setters!(FabricConfig {
    mtu: usize,
    window: usize,
    seed: u64,
    latency: Duration,
    jitter: Duration,
    loss: f64,
    duplicate: f64,
    reorder: f64,
    reorder_by: Duration,
    corrupt: f64,
} optional { bandwidth: u64, queue_bytes: usize, ecn_threshold: usize });

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig {
            mtu: 9000,
            window: 1 << 20,
            seed: 0,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: None,
            queue_bytes: None,
            ecn_threshold: None,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_micros(50),
            corrupt: 0.0,
        }
    }
}

impl FabricConfig {
    /// Checks that the configuration is valid.
    ///
    /// # Errors
    /// [`FabricError`] that names the first invalid field.
    pub fn check(&self) -> Result<(), FabricError> {
        let probabilities = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        probabilities.into_iter().try_for_each(|(field, value)| check_probability(field, value))?;
        if !(256..=65_535).contains(&self.mtu) {
            return Err(FabricError::Mtu(self.mtu));
        }
        if self.window == 0 {
            return Err(FabricError::Zero { field: "window" });
        }
        if self.bandwidth == Some(0) {
            return Err(FabricError::Zero { field: "bandwidth" });
        }
        for (field, set) in
            [("queue_bytes", self.queue_bytes.is_some()), ("ecn_threshold", self.ecn_threshold.is_some())]
        {
            if set && self.bandwidth.is_none() {
                return Err(FabricError::NoQueue { field });
            }
        }
        Ok(())
    }

    /// Reports whether all packets are treated alike, which allows bursts to be delivered whole.
    pub(super) fn is_uniform(&self) -> bool {
        self.jitter.is_zero()
            && self.bandwidth.is_none()
            && [self.loss, self.duplicate, self.reorder, self.corrupt].iter().all(|p| *p == 0.0)
    }

    /// Reports whether packets arrive unimpaired and without delay.
    pub(super) fn is_instant(&self) -> bool {
        self.is_uniform() && self.latency.is_zero()
    }
}

/// Checks that the value of a field is a probability.
///
/// # Errors
/// [`FabricError::Probability`].
pub fn check_probability(field: &'static str, value: f64) -> Result<(), FabricError> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(FabricError::Probability { field, value }),
    }
}

/// Error when creating or changing a fabric.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A probability outside 0..=1.
    #[error("{field} is {value}; a probability must be from 0 to 1: write 1 % as 0.01")]
    Probability {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: f64,
    },
    /// An MTU outside 256..=65535.
    #[error("MTU of {0} bytes is invalid: use a value from 256 to 65535")]
    Mtu(usize),
    /// The field is 0, which would stop all traffic.
    #[error("{field} is 0, which would stop all traffic: use a positive value")]
    Zero {
        /// Name of the field.
        field: &'static str,
    },
    /// A queue limit is set without a bandwidth limit, so there is no queue.
    #[error("{field} has no effect without a bandwidth limit: set bandwidth too")]
    NoQueue {
        /// The field of [`FabricConfig`].
        field: &'static str,
    },
    /// No address was given for the port.
    #[error("a port needs at least one address: use Fabric::auto_address")]
    NoAddress,
    /// Another port already has the address, or the address was given twice.
    #[error("address {0} is already in use on this fabric: use different addresses for each port")]
    AddressInUse(IpAddr),
    /// Not a unicast address.
    #[error("{0} is not a unicast address: a port needs unicast addresses")]
    NotUnicast(IpAddr),
    /// The host does not exist, or already has a port, or all hosts of the simulated network have one.
    #[error("the simulated network has no such host without a NIC: use a topology with more hosts")]
    NoHost,
    /// The fabric is a simulated network, whose wires are those of its topology.
    #[error(
        "paths of a simulated network are given by its topology: set bandwidth, latency and loss of its wires"
    )]
    Simulated,
    /// No port has the address.
    #[error("no port of this fabric has the address {0}: create the port first")]
    UnknownAddress(IpAddr),
    /// No context is open on the port with the address.
    #[error("no context is open on the port with the address {0}: open one with Context::on_port")]
    NoDevice(IpAddr),
    /// An injected event refers to an object that does not exist.
    #[error("the NIC at {address} has no object to which {event:?} refers")]
    NoObject {
        /// An address of the NIC.
        address: IpAddr,
        /// The injected event.
        event: AsyncEvent,
    },
}

use std::net::IpAddr;
use std::time::Duration;

use crate::transport::AsyncEvent;

/// What a fabric, or one direction through it, does to packets. The default does nothing: bursts arrive
/// whole and at once.
///
/// All that is random is drawn from a generator of each direction's own, so what happens to the packets
/// from one port to another depends on the seed and on those packets alone.
#[derive(Clone, PartialEq, Debug)]
pub struct FabricConfig {
    /// The largest IP packet; larger ones are lost. 256..=65535.
    pub mtu: usize,
    /// Unread bytes that a port tells its peers to stay below ([`crate::link::LinkInfo::window`]).
    pub window: usize,
    /// Where the random generators start.
    pub seed: u64,
    /// Time that every packet travels.
    pub latency: Duration,
    /// Up to how much longer a packet may take, evenly spread. It never reorders: see `reorder` for that.
    pub jitter: Duration,
    /// Bits a second of the wire to each port, counted over IP packets. `None`: unlimited, so no queue.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for that wire; what comes on top is dropped. `None`: unlimited.
    pub queue_bytes: Option<usize>,
    /// With more than this many bytes waiting, ECN-capable packets are marked "congestion experienced".
    pub ecn_threshold: Option<usize>,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held up by `reorder_by` while those behind it pass.
    pub reorder: f64,
    /// How long that is.
    pub reorder_by: Duration,
    /// Probability that one bit of a packet flips, where the ICRC sees it.
    pub corrupt: f64,
}

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
    /// Whether it is possible.
    ///
    /// # Errors
    /// [`FabricError`] that names the first field that is not.
    pub fn check(&self) -> Result<(), FabricError> {
        let chances = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (field, value) in chances {
            if !(0.0..=1.0).contains(&value) {
                return Err(FabricError::Probability { field, value });
            }
        }
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

    /// Whether every packet meets the same fate, so that bursts travel whole.
    pub(super) fn is_uniform(&self) -> bool {
        self.jitter.is_zero()
            && self.bandwidth.is_none()
            && [self.loss, self.duplicate, self.reorder, self.corrupt].iter().all(|p| *p == 0.0)
    }

    /// Whether it does nothing at all.
    pub(super) fn is_instant(&self) -> bool {
        self.is_uniform() && self.latency.is_zero()
    }
}

/// Why a fabric cannot be made or changed as asked.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FabricError {
    /// A probability outside 0..=1.
    #[error("{field} is {value}, but a probability is between 0 and 1: write 1 % as 0.01")]
    Probability {
        /// The field of [`FabricConfig`].
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// An MTU that IP does not have.
    #[error("an MTU of {0} bytes: give one between 256 and 65535")]
    Mtu(usize),
    /// A zero that would stop all traffic.
    #[error("{field} is 0, so nothing would ever arrive: give a positive value")]
    Zero {
        /// The field of [`FabricConfig`].
        field: &'static str,
    },
    /// A queue limit without a queue.
    #[error("{field} has no effect without a bandwidth, as no queue builds up: set bandwidth too")]
    NoQueue {
        /// The field of [`FabricConfig`].
        field: &'static str,
    },
    /// A port without an address.
    #[error("a port needs at least one address: take one from Fabric::auto_address")]
    NoAddress,
    /// Another port (or the same one) has it.
    #[error("{0} is taken on this fabric: give every port addresses of its own")]
    AddressInUse(IpAddr),
    /// Not an address that a port can have.
    #[error("{0} is no unicast address: a port needs one that packets can be sent to")]
    NotUnicast(IpAddr),
    /// No port has it.
    #[error("no port of this fabric has the address {0}: create the port first")]
    UnknownAddress(IpAddr),
    /// The port has no open context.
    #[error("no context is open on the port with the address {0}: open one with Context::on_port")]
    NoDevice(IpAddr),
    /// An injected event names an object that is not there.
    #[error("the NIC at {address} has no object that {event:?} could be about")]
    NoObject {
        /// An address of the NIC.
        address: IpAddr,
        /// As given.
        event: AsyncEvent,
    },
}

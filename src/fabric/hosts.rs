//! Interface of a fabric for networks outside this package: creation, the ports of hosts, and deliveries to
//! them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::config::check_probability;
pub use super::inbox::BufferPool;
use super::inbox::{Delivery, INBOX_LIMIT};
pub use super::network::{Network, QueuedNetwork};
pub use super::port_queue::PortQueue;
pub use super::port_shared::PortShared;
use super::{Fabric, FabricConfig, FabricError, FabricPort};
use crate::transport::{EgressRoom, Instant};
use crate::wire::{Flow, IpIdent};

impl Fabric {
    /// Creates a fabric in virtual time whose NICs a network connects.
    ///
    /// # Errors
    /// See [`FabricConfig::check`].
    pub fn simulated(config: FabricConfig, network: QueuedNetwork) -> Result<Fabric, FabricError> {
        config.check()?;
        Ok(Fabric::build(config, Some(AtomicU64::new(0)), Some(network)))
    }

    /// Creates the port of a host.
    ///
    /// # Errors
    /// [`FabricError::NoHost`] if there is no such host, or it has a port; the errors of [`Fabric::port`].
    pub fn host_port(&self, host: usize, addresses: &[IpAddr]) -> Result<FabricPort, FabricError> {
        self.port_of_host(addresses, Some(host))
    }

    /// Announces to the NIC at a host's port that the host's wire has gone down or up.
    pub fn set_host_port_up(&self, port: &PortShared, up: bool) {
        self.set_up(port, up);
    }
}

impl PortShared {
    /// Sets the number of packets that the NIC may send now.
    pub fn set_room(&self, room: EgressRoom) {
        self.room.store(room.to_bits(), Ordering::SeqCst);
    }

    /// Delivers a packet at `at`. Its index distinguishes it from the other packets of its burst.
    ///
    /// # Errors
    /// If the inbox is full, the buffer of the packet, which is dropped.
    pub fn deliver(&self, at: Instant, flow: Flow, index: u16, data: Vec<u8>) -> Result<(), Vec<u8>> {
        let mut inbox = self.inbox.lock();
        if inbox.bytes + data.len() > INBOX_LIMIT {
            inbox.counters.queue_full += 1;
            return Err(data);
        }
        let ident = IpIdent::Exact { id: index, flags: IpIdent::DONT_FRAGMENT };
        inbox.counters.carried += 1;
        inbox.push(at, Delivery { flow, ident, segment: data.len(), data });
        self.earliest.store(inbox.earliest(), Ordering::SeqCst);
        Ok(())
    }
}

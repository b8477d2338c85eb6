//! The [`Driver`] trait, through which a fabric calls its NICs' drivers.

use std::io;
use std::net::IpAddr;

use crate::burst::RxBurst;
use crate::transport::{AsyncEvent, Instant};

/// Function that passes bursts to the given receiver, one after the other.
pub(crate) type BurstSource<'a> = dyn FnMut(&mut dyn FnMut(RxBurst<'_>)) + 'a;

/// A NIC's driver, which processes input from the NIC's port, serves timers, and sends.
pub(crate) trait Driver: Send + Sync {
    /// Tries to run one turn. Returns false if another thread is running the NIC; that thread checks for new
    /// input before it finishes.
    fn try_drive(&self) -> bool;

    /// Receives the packets that `bursts` passes, directly from the sender, bypassing the port. Returns false
    /// if no packets were received, for example because another thread is running the NIC, or because there
    /// is middleware between the NIC and the port. Called from within another NIC's turn, so it must not
    /// block. Responses are sent in a turn that the fabric requests.
    fn try_receive_direct(&self, _now: Instant, _bursts: &mut BurstSource<'_>) -> bool {
        false
    }

    /// Makes one of the driver's own threads run a turn soon. Called from within other NICs' turns, so it
    /// must not wait for a lock that a turn holds.
    fn wake(&self);

    /// Returns the earliest time at which the driver wants to run without input.
    fn next_deadline(&self) -> Option<Instant>;

    /// Notifies the driver that the port's cable was plugged in or unplugged; called on the thread that
    /// changed this.
    fn port_up(&self, _up: bool) {}

    /// Notifies the driver that the device is lost for the given reason, as when an adapter is unplugged;
    /// called on the thread that removed the device.
    fn device_lost(&self, _reason: io::Error) {}

    /// Raises an asynchronous event on the NIC, together with the effect that the event reports. Returns
    /// false if the NIC does not have the object that the event is about.
    fn inject_event(&self, _event: AsyncEvent) -> bool {
        false
    }

    /// Notifies the driver of the port's new addresses; called on the thread that changed them.
    fn addresses_changed(&self, _addresses: &[IpAddr]) {}
}

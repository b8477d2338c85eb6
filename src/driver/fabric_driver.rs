//! Calls from a fabric to the shard behind a port: turns on the sending thread or in virtual time, and port
//! changes.

use std::io;
use std::net::IpAddr;

use super::Shard;
use super::shard::ShardState;
use crate::fabric::{BurstSource, Driver};
use crate::transport::{AsyncEvent, Instant};
use crate::wire::Gid;

impl Driver for Shard {
    fn port_up(&self, up: bool) {
        self.with_state(|state, _| state.update_port(up));
    }

    fn addresses_changed(&self, addresses: &[IpAddr]) {
        let gids: Vec<Gid> = addresses.iter().map(|ip| Gid::from(*ip)).collect();
        self.with_nic(|nic| nic.set_gids(&gids));
    }

    fn device_lost(&self, reason: io::Error) {
        self.with_state_and_send(|state, now| self.lose_link(state, reason, now));
    }

    fn inject_event(&self, event: AsyncEvent) -> bool {
        self.with_state_and_send(|state, now| state.inject_event(now, event).is_some())
    }

    fn try_drive(&self) -> bool {
        self.drive(self.clock.now(), false)
    }

    fn try_receive_direct(&self, now: Instant, bursts: &mut BurstSource<'_>) -> bool {
        if !self.is_bare_port {
            return false;
        }
        // Must not block: the caller holds the lock of its own NIC.
        let Some(mut state) = self.try_lock() else { return false };
        let port_is_down = state.faults.port_is_down;
        let ShardState { nic, link, tx, memory, outputs, .. } = &mut *state;
        let attached = link.is_ok();
        if attached {
            bursts(&mut |burst| {
                if port_is_down {
                    return;
                }
                nic.handle_burst(now, &burst, memory, tx);
                outputs.deliver(nic, now);
            });
        }
        attached
    }

    fn wake(&self) {
        self.wake_thread();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        if state.wants_to_transmit() { Some(Instant(0)) } else { self.deadline(&state, self.clock.now()) }
    }
}

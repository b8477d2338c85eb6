//! Reading of rings, and the wait for packets.

use std::time::Duration;

use super::Rings;
use super::connection::{Connection, Role};
use crate::burst::RxBurst;
use crate::rings::memory::CAPACITY;
use crate::transport::Instant;

/// Minimum time between two polls of the connections, which involve a system call. A process that connects
/// wakes the background thread at once, unless the program polls. With 50 µs, the system calls take 3 % of a
/// ping-pong of 8 bytes.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Maximum number of bytes read from all rings at a time.
const BATCH: u64 = CAPACITY as u64 / 4;

impl Rings {
    /// Passes received bursts to `sink`, and returns the number of packets.
    pub fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        if self.full > 0 {
            self.look_for_room(now);
        }
        let mut events = 0;
        if now.since(self.last_poll) >= MIN_POLL_INTERVAL {
            self.last_poll = now;
            events = self.poll_connections();
        }
        let packets = if self.readers == 0 { 0 } else { self.read_rings(sink) };
        if self.is_armed && (events > 0 || packets > 0) {
            // This call may have consumed the notification for the sleeping thread, and later packets come
            // without one.
            self.is_armed = false;
            let _ = self.wake.write(1);
        }
        packets
    }

    fn read_rings(&mut self, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let (mut packets, limit) = (0, BATCH / self.readers as u64);
        for index in 0..self.connections.len() {
            let Some(Connection { role: Role::Reader { ring, has_ended, .. }, .. }) =
                &mut self.connections[index]
            else {
                continue;
            };
            let scratch = &mut self.scratch;
            let received = match self.elides_icrcs {
                true => ring.receive(limit, sink),
                // Withdrawn payloads are lost.
                false => ring.receive(limit, &mut |burst| {
                    burst.with_icrcs(scratch).into_iter().for_each(&mut *sink);
                }),
            };
            match received {
                Ok(received) => {
                    packets += received;
                    if !*has_ended || ring.has_bursts() {
                        continue;
                    }
                }
                Err(error) => trace_event!(WARN, "urxe::link", "ring closed", reason = %error),
            }
            self.close(index);
        }
        packets
    }

    /// Requests that writers wake this thread. Returns true if there is something to read already.
    pub fn prepare_to_sleep(&mut self) -> bool {
        if !std::mem::replace(&mut self.is_armed, true) {
            let _ = self.wake.read();
        }
        let mut is_waiting = self.poll_connections() > 0;
        for connection in self.connections.iter().flatten() {
            if let Role::Reader { ring, has_ended, .. } = &connection.role {
                is_waiting |= ring.prepare_to_sleep() || *has_ended;
            }
        }
        is_waiting
    }
}

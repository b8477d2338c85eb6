//! Writing to rings, and the room in them.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::Rings;
use super::connection::{Connection, Role, Room, path_to, writer_of};
use crate::burst::TxBurst;
use crate::rings::memory::{CAPACITY, RingError, RingWriter};
use crate::rings::messages::{NOTIFICATION, announce_changes};
use crate::sys::fork::CloseOnForkFd;
use crate::transport::{Instant, PeerChange, PeerWindow};

/// Number of bytes that a ring keeps free for packets that the NIC has built before it knows that the ring is
/// full: two turns of 256 KiB (`burst/tx_queue.rs: TURN`), of which the second may follow before the driver
/// asks for changes of paths. With less room, the path is full. The value is not critical for throughput:
/// `ib_send_bw` with messages of 64 KiB and of 1 MiB was equally fast with reserves of 64 KiB, 256 KiB and 1
/// MiB, within the noise.
const RESERVE: u64 = CAPACITY as u64 / 4;

/// Interval at which full rings are polled for room, because their readers do not report it. At 73 Gb/s, a
/// reader takes 450 KiB in this time, nearly [`RESERVE`], and the 1.5 MiB of a full ring in 170 µs: the next
/// poll finds room before the ring is empty. `ib_send_bw` and `ib_write_bw` with messages of 64 KiB and 1 MiB
/// were equally fast with 10 and 250 µs, within the noise, on idle processors and beside 12 busy processes on
/// 2 processors.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);

/// Time without progress of its reader after which a full ring is stalled: as long as a reader may be without
/// a processor on a busy machine. Mostly unacknowledged packets (UC, UD) fill a ring. With 1000 × 64 KiB by
/// `ib_send_bw -c UC` beside 4 busy processes on 2 processors, 4 of 4 runs lost packets with 2 ms, none with
/// 20 and 100 ms.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_millis(50);

/// Window of a peer whose packets take rings, in bytes. A ring holds twice as much: requests of one end, and
/// the responses to those of the other.
pub const RING_WINDOW: usize = CAPACITY / 2;

impl Rings {
    /// Writes a burst to the ring of the connection with the index `ring`. Returns false if there is no room,
    /// or if the ring has been closed. The reader sees the burst after [`publish`](Self::publish).
    pub fn write(&mut self, now: Instant, ring: usize, burst: &TxBurst<'_>) -> bool {
        self.has_written = true;
        let Some(writer) = writer_of(&mut self.connections, ring) else { return false };
        if !self.unpublished.contains(&ring) {
            self.unpublished.push(ring);
        }
        let mut write = || Ok((writer.ring.write(burst)?, writer.ring.has_room(RESERVE)?));
        let (is_written, has_room) = match write() {
            Ok(written) => written,
            Err(error) => {
                self.fail(ring, &error);
                return false;
            }
        };
        match (writer.room, has_room) {
            (Room::Enough, false) => {
                writer.room = Room::Full { since: now, position: 0 };
                self.full += 1;
                self.room_changes.push_back(PeerChange::Full(burst.path()));
            }
            (Room::Stalled, true) => writer.room = Room::Enough,
            _ => {}
        }
        is_written
    }

    /// Closes a ring whose reader has broken the protocol. Later packets take the socket, if they may.
    fn fail(&mut self, ring: usize, error: &RingError) {
        let Some(to) = writer_of(&mut self.connections, ring).map(|writer| writer.to) else { return };
        trace_event!(WARN, "urxe::link", "ring closed", to = %to.0, reason = %error);
        self.close(ring);
        self.give_up(to);
    }

    /// Shows the readers what was written in this turn.
    pub fn publish(&mut self) {
        for index in self.unpublished.drain(..) {
            // The connection may have been closed meanwhile.
            if let Some(Some(Connection { socket, role: Role::Writer(writer), .. })) =
                self.connections.get_mut(index)
            {
                publish(&mut writer.ring, socket);
            }
        }
    }

    /// Returns the next change of a path: of its room, or of the peer's window. The window is that of rings
    /// if all packets to the address and all from it take rings: the responses to READs come from the
    /// peer. Only one shard of a NIC has readers, so the windows of the others are at most that of the
    /// link.
    pub fn next_peer_change(&mut self) -> Option<PeerChange> {
        if let Some(change) = self.room_changes.pop_front() {
            return Some(change);
        }
        let address = self.routes.next_changed()?;
        let is_from_peer =
            |one: &&Connection| matches!(&one.role, Role::Reader { ring, .. } if ring.src() == address);
        let readers = self.connections.iter().flatten().filter(is_from_peer).count();
        let window = match self.routes.count(address) {
            (0, _) => PeerWindow::OfLink,
            (writers, 0) if readers >= writers => PeerWindow::Bytes(RING_WINDOW),
            _ => PeerWindow::AtMost(RING_WINDOW),
        };
        Some(PeerChange::Window(address, window))
    }

    /// Returns the time of the next look at full rings.
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.full > 0).then(|| self.last_look + ROOM_INTERVAL)
    }

    /// Looks whether full rings have room again.
    pub(super) fn look_for_room(&mut self, now: Instant) {
        self.last_look = now;
        for index in 0..self.connections.len() {
            let Some(writer) = writer_of(&mut self.connections, index) else { continue };
            let Room::Full { since, position } = writer.room else { continue };
            let mut look = || Ok((writer.ring.reader_position()?, writer.ring.has_room(RESERVE)?));
            writer.room = match look() {
                Ok((_, true)) => Room::Enough,
                Ok((reached, false)) if reached != position => Room::Full { since: now, position: reached },
                Ok((_, false)) if now.since(since) < STALL_TIMEOUT => continue,
                Ok((_, false)) => Room::Stalled,
                Err(error) => {
                    self.fail(index, &error);
                    continue;
                }
            };
            if !matches!(writer.room, Room::Full { .. }) {
                self.full -= 1;
                self.room_changes.push_back(PeerChange::Room(path_to(self.bind_addr.ip(), writer.to)));
            }
        }
    }
}

/// Publishes what was written to a ring, and notifies a reader that sleeps. If a notification cannot be sent
/// although the reader has not ended and earlier ones are not unread, the next call tries again.
fn publish(ring: &mut RingWriter, socket: &CloseOnForkFd) {
    if ring.publish()
        && let Err(error) = send(socket, NOTIFICATION, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        && !matches!(error, Errno::AGAIN | Errno::PIPE | Errno::CONNRESET)
    {
        ring.cancel_notification();
    }
    // An error is found again by the next write.
    announce_changes(ring, socket);
}

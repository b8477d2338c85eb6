//! Packets that a queue pair has sent and received.

use super::Instant;

/// Packets that a queue pair has sent and received, counted by the NIC for each turn or burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub(super) sent_pkts: u64,
    pub(super) sent_bytes: u64,
    pub(super) rcvd_pkts: u64,
    pub(super) rcvd_bytes: u64,
    pub(super) retransmitted_pkts: u64,
    pub(super) last_sent: Option<Instant>,
    pub(super) last_received: Option<Instant>,
}

impl Traffic {
    /// Counts packets that were sent, their bytes, and those among them that were retransmitted after a loss.
    #[inline]
    pub fn on_sent(&mut self, packets: usize, bytes: usize, retransmitted: u64, now: Instant) {
        if packets > 0 {
            self.sent_pkts += packets as u64;
            self.sent_bytes += bytes as u64;
            self.retransmitted_pkts += retransmitted;
            self.last_sent = Some(now);
        }
    }

    /// Counts packets that were received, and their bytes.
    #[inline]
    pub fn on_received(&mut self, packets: u64, bytes: usize, now: Instant) {
        self.rcvd_pkts += packets;
        self.rcvd_bytes += bytes as u64;
        self.last_received = Some(now);
    }
}

//! Retry counters of a requester.

use std::time::Duration;

use crate::transport::connection::Connection;

/// RNR retry count that means unlimited retries (IBA 9.7.5.2.8).
const INFINITE_RNR_RETRIES: u8 = 7;

/// Retries left before a work request fails. Each acknowledgement of a new packet restores them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Retries {
    pub transport: u8,
    pub rnr: u8,
    /// Consecutive local ACK timeouts.
    pub ack_timeouts: u32,
}

impl Retries {
    pub fn new(conn: &Connection) -> Retries {
        Retries { transport: conn.attr.retry_cnt, rnr: conn.attr.rnr_retry, ack_timeouts: 0 }
    }

    /// Restores the transport retries but not the RNR retries, because an RNR NAK shows that the packet has
    /// arrived.
    pub fn on_arrival(&mut self, conn: &Connection) {
        *self = Retries { rnr: self.rnr, ..Retries::new(conn) };
    }

    /// Uses up one transport retry, and returns false if none was left.
    pub fn take(&mut self) -> bool {
        take(&mut self.transport)
    }

    /// Uses up one RNR retry, and returns false if none was left.
    pub fn take_rnr(&mut self, conn: &Connection) -> bool {
        conn.attr.rnr_retry == INFINITE_RNR_RETRIES || take(&mut self.rnr)
    }

    /// Returns the local ACK timeout with backoff: 1.5 times `timeout` after an expiry (IBA 9.7.6.1.3 allows
    /// up to four times). This gives a slow peer time to process what it has received, while the retries are
    /// exhausted within 1.5 times the nominal time, timeout * (retries + 1).
    pub fn back_off(&self, timeout: Duration) -> Duration {
        if self.ack_timeouts == 0 { timeout } else { timeout * 3 / 2 }
    }
}

fn take(left: &mut u8) -> bool {
    let next = left.checked_sub(1);
    *left = next.unwrap_or(0);
    next.is_some()
}

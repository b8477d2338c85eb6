//! Deferral of expired timers while packets keep arriving.

/// Maximum number of consecutive deferrals. Each turn receives a batch of packets, so a thread that was
/// descheduled has read everything queued in its link long before it reaches this number.
const MAX_DEFERRALS: u32 = 64;

/// Deferral of a NIC's expired timers while each turn receives packets. After the NIC's thread was
/// descheduled, the responses whose absence would trigger a retransmission may already be queued in the link.
#[derive(Debug, Default, Clone, Copy)]
pub struct TimerDeferral {
    /// Number of consecutive turns in which expired timers were deferred.
    deferrals: u32,
}

impl TimerDeferral {
    /// Decides whether this turn defers the expired timers; `received` tells whether it has received packets.
    pub fn defers(&mut self, received: bool) -> bool {
        self.deferrals = if received && self.deferrals < MAX_DEFERRALS { self.deferrals + 1 } else { 0 };
        self.deferrals > 0
    }
}

//! Deferral of expired timers while packets keep arriving.

/// Maximum number of consecutive deferrals. Each turn of a NIC receives a batch of packets, so a thread that
/// was descheduled has read everything that its link held long before this number is reached.
const MAX_DEFERRALS: u32 = 64;

/// Deferral of the expired timers of a NIC while each turn receives packets. After the NIC's thread was
/// descheduled, the link already holds the responses whose absence would otherwise cause a retransmission.
#[derive(Debug, Default, Clone, Copy)]
pub struct TimerDeferral {
    /// Number of turns for which expired timers have been deferred.
    deferrals: u32,
}

impl TimerDeferral {
    /// Decides whether a turn defers the timers that have expired, given whether it `received` packets.
    pub fn defers(&mut self, received: bool) -> bool {
        self.deferrals = if received && self.deferrals < MAX_DEFERRALS { self.deferrals + 1 } else { 0 };
        self.deferrals > 0
    }
}

//! Selective repeat: retransmission of single packets.
//!
//! A responder that keeps the packets behind a gap needs only the missing one. Whether the peer keeps them is
//! not negotiated: the requester retransmits the packet that a sequence error NAK reports, followed by the
//! newest. If the peer then misses the very next packet, it has presumably kept nothing, and the requester
//! goes back to that one. It tries again after a number of losses that doubles with each failure.

use crate::wire::Psn;

/// Maximum binary logarithm of the number of losses between two attempts.
const MAX_DOUBLINGS: u32 = 6;

/// Outcome of the attempts to retransmit single packets.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Repair {
    /// Packet retransmitted alone, until the peer acknowledges more than this one.
    pub last: Option<Psn>,
    /// Number of failures in sequence.
    failures: u32,
    /// Number of losses until the next attempt.
    wait: u32,
}

impl Repair {
    /// Reports whether the peer misses `psn` because it has not kept what followed the packet retransmitted
    /// alone.
    pub fn has_failed(&self, psn: Psn) -> bool {
        self.last.is_some_and(|last| psn == last.next())
    }

    /// Counts a failure if [there is one](Self::has_failed), and returns whether there is.
    pub fn count_failure(&mut self, psn: Psn) -> bool {
        let has_failed = self.has_failed(psn);
        if has_failed {
            self.failures = (self.failures + 1).min(MAX_DOUBLINGS);
            self.wait = 1 << self.failures;
        }
        has_failed
    }

    /// Decides whether to retransmit only `psn`, which the peer misses.
    pub fn attempts(&mut self, psn: Psn) -> bool {
        self.count_failure(psn);
        // A second NAK for the same packet means that its retransmission alone did not help.
        let is_repeated = self.last.take() == Some(psn);
        if self.wait > 0 || is_repeated {
            self.wait = self.wait.saturating_sub(1);
            return false;
        }
        self.last = Some(psn);
        true
    }

    /// Handles an acknowledgement of everything before `snd_una`.
    pub fn on_progress(&mut self, snd_una: Psn) {
        if self.last.is_some_and(|last| snd_una.is_after(last.next())) {
            (self.last, self.failures) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of losses until the next attempt, if the peer never keeps anything.
    fn losses_until_attempt(repair: &mut Repair, psn: &mut u32) -> u32 {
        let mut losses = 1;
        while !repair.attempts(Psn::new(*psn)) {
            (losses, *psn) = (losses + 1, *psn + 10);
        }
        *psn += 1;
        assert!(repair.has_failed(Psn::new(*psn)) && !repair.attempts(Psn::new(*psn)));
        losses
    }

    #[test]
    fn attempts_become_rare_if_the_peer_keeps_nothing() {
        let (mut repair, mut psn) = (Repair::default(), 0);
        let losses = [(); 8].map(|()| losses_until_attempt(&mut repair, &mut psn));
        assert_eq!(losses, [1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn acknowledgement_of_kept_packets_ends_the_backoff() {
        let (mut repair, mut psn) = (Repair::default(), 0);
        for _ in 0..3 {
            losses_until_attempt(&mut repair, &mut psn);
        }
        while !repair.attempts(Psn::new(psn)) {}
        repair.on_progress(Psn::new(psn + 1));
        assert!(repair.has_failed(Psn::new(psn + 1)), "the missing packet alone proves nothing");
        repair.on_progress(Psn::new(psn + 2));
        psn += 2;
        assert_eq!([(); 2].map(|()| losses_until_attempt(&mut repair, &mut psn)), [1, 2]);
    }

    #[test]
    fn packet_reported_twice_is_not_retransmitted_alone_again() {
        let mut repair = Repair::default();
        assert_eq!([5, 5, 5].map(|psn| repair.attempts(Psn::new(psn))), [true, false, true]);
        repair.last = None;
        assert!(!repair.has_failed(Psn::new(6)));
    }
}

//! Inputs of a switch: what the packets of each input and priority occupy, admission, and when to pause.

use super::config::{Pfc, SwitchConfig, Wire};
use super::queues::PRIORITIES;
use super::topology::picos;

/// Bytes of the Ethernet header and FCS.
pub(super) const ETHERNET: u64 = 18;

/// Bytes that a frame occupies on the wire besides its own: preamble and gap.
pub(super) const GAP: u64 = 20;

/// Length of a pause frame in bytes.
pub(super) const PAUSE_FRAME: u64 = 64;

/// Counters of an input of a switch, for one priority. Sizes are lengths of Ethernet frames in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct InputCounters {
    /// Bytes in the switch that have arrived at this input.
    pub queued: u64,
    /// Pause frames sent to the other end of the wire; resume frames are not counted.
    pub pauses: u64,
    /// Size of the headroom; 0 without flow control.
    pub headroom: u64,
    /// Largest number of bytes that were in the headroom.
    pub max_headroom: u64,
    /// Packets dropped because the headroom was full.
    pub headroom_drops: u64,
}

/// Verdict on a packet that arrives at a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Accepted,
    /// Accepted into the headroom; the input must be paused.
    AcceptedPause,
    /// Accepted into the headroom of an input that is paused already.
    AcceptedPaused,
    Dropped,
    /// Dropped, because it does not fit into the headroom; the input must be paused.
    DroppedPause,
}

#[derive(Debug, Default)]
struct Account {
    shared: u64,
    in_headroom: u64,
    /// Whether the last frame to the other end of the wire was a pause frame.
    paused: bool,
    counters: InputCounters,
}

/// An input of a switch.
#[derive(Debug)]
pub(super) struct Input {
    accounts: [Account; PRIORITIES],
}

impl Input {
    /// Returns an input of a switch with the given configuration at a wire, whose packets are at most `mtu`
    /// bytes long.
    pub fn new(config: &SwitchConfig, wire: &Wire, mtu: usize) -> Input {
        let mut accounts: [Account; PRIORITIES] = Default::default();
        for (priority, account) in accounts.iter_mut().enumerate() {
            let needed = |pfc: &Pfc| pfc.headroom.map_or_else(|| headroom_for(wire, mtu), |h| h as u64);
            account.counters.headroom = config.pfc_of(priority).map_or(0, needed);
        }
        Input { accounts }
    }

    /// Decides about a packet. `used` is the number of bytes in the switch's shared memory, `queued` the
    /// length of the queue that the packet would join.
    pub fn admit(
        &mut self,
        config: &SwitchConfig,
        used: &mut u64,
        queued: u64,
        priority: usize,
        frame: u64,
    ) -> Admission {
        let account = &mut self.accounts[priority];
        let fits = *used + frame <= config.buffer as u64;
        let limit = match config.pfc_of(priority) {
            Some(pfc) => account.shared + frame <= pfc.xoff as u64 && account.in_headroom == 0,
            None => config.queue_limit.is_none_or(|limit| queued + frame <= limit as u64),
        };
        if fits && limit {
            *used += frame;
            account.shared += frame;
            return Admission::Accepted;
        }
        if config.pfc_of(priority).is_none() {
            return Admission::Dropped;
        }
        let has_headroom = account.in_headroom + frame <= account.counters.headroom;
        if has_headroom {
            account.in_headroom += frame;
            account.counters.max_headroom = account.counters.max_headroom.max(account.in_headroom);
        } else {
            account.counters.headroom_drops += 1;
        }
        if account.shared + account.in_headroom == 0 {
            // There is no packet whose departure would resume the input.
            return Admission::Dropped;
        }
        let was_paused = std::mem::replace(&mut account.paused, true);
        account.counters.pauses += u64::from(!was_paused);
        match (has_headroom, was_paused) {
            (true, false) => Admission::AcceptedPause,
            (true, true) => Admission::AcceptedPaused,
            (false, false) => Admission::DroppedPause,
            (false, true) => Admission::Dropped,
        }
    }

    /// Releases the memory of a packet. Reports whether the input must be resumed.
    pub fn release(&mut self, config: &SwitchConfig, used: &mut u64, priority: usize, frame: u64) -> bool {
        let account = &mut self.accounts[priority];
        let from_headroom = account.in_headroom.min(frame);
        account.in_headroom -= from_headroom;
        account.shared -= frame - from_headroom;
        *used -= frame - from_headroom;
        let xon = config.pfc_of(priority).map_or(0, |pfc| pfc.xon as u64);
        let resume = account.paused && account.in_headroom == 0 && account.shared <= xon;
        account.paused &= !resume;
        resume
    }

    /// Reports whether the other end of the wire has been told to pause.
    pub fn is_paused(&self, priority: usize) -> bool {
        self.accounts[priority].paused
    }

    /// Forgets all pauses, as when the wire goes down.
    pub fn forget_pauses(&mut self) {
        self.accounts.iter_mut().for_each(|account| account.paused = false);
    }

    pub fn counters(&self, priority: usize) -> InputCounters {
        let account = &self.accounts[priority];
        InputCounters { queued: account.shared + account.in_headroom, ..account.counters }
    }
}

/// Returns the headroom in bytes that a wire needs: what arrives until a pause takes effect. The pause frame
/// may wait for a packet and for pause frames of the other priorities; until it arrives, the other end sends,
/// and then completes the packet that it is sending. The packet that causes the pause is in the headroom too.
fn headroom_for(wire: &Wire, mtu: usize) -> u64 {
    let frame = mtu as u64 + ETHERNET + GAP;
    let round_trip = 2 * u128::from(picos(wire.latency)) * u128::from(wire.bandwidth) / 8_000_000_000_000;
    round_trip as u64 + 3 * frame + PRIORITIES as u64 * (PAUSE_FRAME + GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_paused_once_above_xoff_and_resumed_at_xon() {
        let config = SwitchConfig::default().pfc(Pfc::default().xoff(3000).xon(1000).headroom(2000));
        let mut input = Input::new(&config, &Wire::default(), 1500);
        let mut used = 0;
        let verdicts: Vec<_> = (0..6).map(|_| input.admit(&config, &mut used, 0, 3, 1000)).collect();
        use Admission::*;
        assert_eq!(verdicts, [Accepted, Accepted, Accepted, AcceptedPause, AcceptedPaused, Dropped]);
        let resumes: Vec<_> = (0..5).map(|_| input.release(&config, &mut used, 3, 1000)).collect();
        assert_eq!(resumes, [false, false, false, true, false]);
        let counters = input.counters(3);
        assert_eq!((counters.pauses, counters.max_headroom, counters.headroom_drops), (1, 2000, 1));
        assert_eq!((counters.queued, used), (0, 0));
    }

    #[test]
    fn input_without_enough_headroom_is_paused_all_the_same() {
        for headroom in [0, 500] {
            let config = SwitchConfig::default().pfc(Pfc::default().xoff(1500).xon(500).headroom(headroom));
            let (mut input, mut used) = (Input::new(&config, &Wire::default(), 1500), 0);
            let mut admit = |frame| input.admit(&config, &mut used, 0, 3, frame);
            use Admission::*;
            assert_eq!([2000, 1000, 1000, 1000].map(&mut admit), [Dropped, Accepted, DroppedPause, Dropped]);
            assert!(input.release(&config, &mut used, 3, 1000), "resumed");
            assert_eq!((input.counters(3).pauses, input.counters(3).headroom_drops), (1, 3));
        }
    }

    #[test]
    fn packets_without_flow_control_are_dropped_at_the_queue_limit_and_when_the_memory_is_full() {
        let config = SwitchConfig::default().buffer(4000).queue_limit(2500);
        let mut input = Input::new(&config, &Wire::default(), 1500);
        let mut used = 0;
        assert_eq!(input.admit(&config, &mut used, 2000, 0, 1000), Admission::Dropped);
        for _ in 0..4 {
            assert_eq!(input.admit(&config, &mut used, 0, 0, 1000), Admission::Accepted);
        }
        assert_eq!(input.admit(&config, &mut used, 0, 1, 1000), Admission::Dropped);
        assert_eq!(input.counters(1).headroom_drops, 0);
    }
}

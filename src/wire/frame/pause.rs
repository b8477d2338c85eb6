//! Pause frames: MAC control frames by which a station makes its neighbour stop sending, for some priorities
//! (priority flow control, PFC; IEEE 802.1Q annex 36D) or for all (IEEE 802.3 annex 31B).

use std::time::Duration;

use etherparse::EtherType;

use super::{FrameError, Mac, append_ethernet};

/// EtherType of MAC control frames.
pub(super) const MAC_CONTROL: EtherType = EtherType(0x8808);
/// Opcode of a frame that pauses all priorities.
const PAUSE: u16 = 0x0001;
/// Opcode of a frame that pauses some priorities.
const PFC: u16 = 0x0101;
/// Number of priorities.
pub const PRIORITIES: usize = 8;
/// Minimum length of a frame, without the frame check sequence.
const MIN_FRAME: usize = 60;
/// Duration of a quantum, in bit times.
const QUANTUM_BITS: u64 = 512;

/// Pause frame: for each priority, the time for which the receiver stops sending, in quanta of 512 bit times.
/// `None` leaves the priority as it is; 0 ends its pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PauseFrame {
    /// Times by priority.
    pub times: [Option<u16>; PRIORITIES],
}

impl PauseFrame {
    /// Group address of pause frames, which bridges do not forward.
    pub const DESTINATION: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0x01]);

    /// Returns a frame with the same time, in quanta, for all priorities in a bit mask.
    pub fn new(priorities: u8, quanta: u16) -> PauseFrame {
        PauseFrame { times: std::array::from_fn(|p| (priorities >> p & 1 != 0).then_some(quanta)) }
    }

    /// Decodes the content of a MAC control frame, from the opcode on. Returns `None` for another opcode.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<PauseFrame>, FrameError> {
        let field = |index: usize| {
            let at = 2 * index;
            let field = bytes.get(at..at + 2).and_then(|field| field.first_chunk());
            field.map(|field| u16::from_be_bytes(*field)).ok_or(FrameError::Truncated {
                layer: "MAC control",
                needed: at + 2,
                have: bytes.len(),
            })
        };
        match field(0)? {
            PAUSE => Ok(Some(PauseFrame { times: [Some(field(1)?); PRIORITIES] })),
            PFC => {
                // The high byte is reserved.
                let enabled = field(1)?;
                let mut times = [None; PRIORITIES];
                for (priority, time) in times.iter_mut().enumerate() {
                    let quanta = field(2 + priority)?;
                    *time = (enabled >> priority & 1 != 0).then_some(quanta);
                }
                Ok(Some(PauseFrame { times }))
            }
            _ => Ok(None),
        }
    }

    /// Appends the frame, as one for some priorities, from the MAC address `src`.
    pub fn append(&self, out: &mut Vec<u8>, src: Mac) {
        let start = out.len();
        append_ethernet(out, PauseFrame::DESTINATION, src, MAC_CONTROL);
        let enabled = self.times.iter().rev().fold(0u16, |mask, time| mask << 1 | u16::from(time.is_some()));
        for field in [PFC, enabled].into_iter().chain(self.times.map(Option::unwrap_or_default)) {
            out.extend_from_slice(&field.to_be_bytes());
        }
        out.resize(start + MIN_FRAME, 0);
    }

    /// Returns the duration of `quanta` on a link with the given speed in bits per second.
    pub fn duration(quanta: u16, speed: u64) -> Duration {
        let ns = u128::from(u64::from(quanta) * QUANTUM_BITS) * 1_000_000_000 / u128::from(speed.max(1));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Checksums, Content, parse};
    use super::*;

    const SRC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn content(frame: &[u8]) -> Result<Content, FrameError> {
        parse(frame, Checksums::Verify).map(|frame| frame.content)
    }

    #[test]
    fn frame_has_the_layout_of_the_standard() {
        let mut frame = vec![7];
        PauseFrame::new(1 << 3, 0x1234).append(&mut frame, SRC);
        let mut expected = vec![0x01, 0x80, 0xc2, 0, 0, 0x01, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01, 0, 8];
        expected.extend([0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        expected.resize(60, 0);
        assert_eq!(frame[1..], expected);
    }

    #[test]
    fn frame_for_all_priorities_sets_the_time_of_each() {
        let mut frame = Vec::new();
        append_ethernet(&mut frame, PauseFrame::DESTINATION, SRC, MAC_CONTROL);
        frame.extend([0, 1, 0xff, 0xfe]);
        frame.resize(60, 0);
        assert_eq!(content(&frame), Ok(Content::Pause(PauseFrame::new(0xff, 0xfffe))));
    }

    #[test]
    fn other_opcodes_and_destinations_are_foreign_and_short_frames_are_errors() {
        let mut frame = Vec::new();
        PauseFrame::new(0xff, 1).append(&mut frame, SRC);
        for len in 14..34 {
            assert!(matches!(content(&frame[..len]), Err(FrameError::Truncated { .. })), "{len}");
        }
        assert!(content(&frame[..34]).is_ok());
        // The gate opcode of EPON.
        frame[15] = 0x02;
        frame[14] = 0;
        assert_eq!(content(&frame), Ok(Content::Foreign));
        frame[14..16].copy_from_slice(&[1, 1]);
        frame[5] = 0x0e;
        assert_eq!(content(&frame), Ok(Content::Foreign));
    }

    #[test]
    fn duration_of_a_quantum_is_512_bit_times() {
        assert_eq!(PauseFrame::duration(1, 1_000_000_000), Duration::from_nanos(512));
        assert_eq!(PauseFrame::duration(u16::MAX, 100_000_000_000), Duration::from_nanos(335_539));
        assert_eq!(PauseFrame::duration(0, 0), Duration::ZERO);
        assert!(PauseFrame::duration(u16::MAX, 0) > Duration::from_secs(3600));
    }
}

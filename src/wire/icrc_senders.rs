//! Detection of how senders assign IPv4 identifications, for links that do not expose the IP header.
//!
//! | Link | Identification | Bits of the ICRC that are checked |
//! |---|---|---|
//! | any, IPv6 | none | 32 |
//! | packet, frames, fabric | read from the header | 32 |
//! | UDP socket, IPv4: the expected one (the packet's index in its burst) | found by trial | 32 |
//! | UDP socket, IPv4: another, unknown sender | any that fits the ICRC, DF set or clear | 15 |
//! | UDP socket, IPv4: another, known sender | any below 64 that fits the ICRC, with DF | 26 |
//!
//! A sender is known if it is known to count from 0.
//!
//! An urxe on UDP sockets counts from 0 in each burst, and the kernel segments a burst into at most 64
//! packets. A receiver may get only a part of a burst, if packets were lost or merged differently; the index
//! of a packet is then not its identification, but the identification is still below 64. The rxe of a kernel
//! has a counter that runs through all 65,536 values. Such a counter is below 64 at most 64 times in a row,
//! so a sender is known to count from 0 after more packets than that.
//!
//! A router that rewrites the header does no harm, as the ICRC yields the identification that the sender
//! used. A different sender may later use the same address and port, so three packets in a row with another
//! identification discard the knowledge. Corrupt packets do so with probability 2^-45.

use std::net::IpAddr;

use super::{Flow, IpIdent};

/// Maximum number of packets in a burst. Identifications that count from 0 in each burst are below this
/// number.
const MAX_BURST_PACKETS: u16 = 64;
/// Number of consecutive packets with identifications below `MAX_BURST_PACKETS` after which a sender becomes
/// known. Of packets with the expected identification, those behind another one in a received burst do not
/// count.
const KNOWN_AFTER: u8 = 100;
/// Number of consecutive packets with other identifications after which a known sender becomes unknown again.
const FORGET_AFTER: u8 = 3;
const SLOTS: usize = 256;

/// Table of the senders of recently seen flows. A sender becomes unknown again when another flow takes its
/// slot.
#[derive(Clone, Debug)]
pub(super) struct Senders([Sender; SLOTS]);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Key {
    src: u32,
    dst: u32,
    port: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    key: Key,
    /// Number of consecutive packets with identifications below `MAX_BURST_PACKETS`, counted up to
    /// `KNOWN_AFTER`.
    run: u8,
    /// Number of consecutive packets with other identifications since the sender became known.
    others: u8,
}

impl Default for Senders {
    fn default() -> Senders {
        Senders([Sender::default(); SLOTS])
    }
}

impl Senders {
    /// Returns the entry for an IPv4 flow, which is reset if the slot held another flow. Returns `None` for
    /// IPv6.
    #[inline]
    fn of(&mut self, flow: &Flow) -> Option<&mut Sender> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else { return None };
        let key = Key { src: src.to_bits(), dst: dst.to_bits(), port: flow.src_port };
        let mixed = (key.src ^ key.dst.rotate_left(9) ^ u32::from(key.port) << 7).wrapping_mul(0x9e37_79b1);
        let sender = &mut self.0[(mixed >> 24) as usize % SLOTS];
        if sender.key != key {
            *sender = Sender { key, ..Sender::default() };
        }
        Some(sender)
    }

    /// Records a packet with the expected identification.
    #[inline]
    pub fn on_expected_id(&mut self, flow: &Flow) {
        if let Some(sender) = self.of(flow) {
            sender.run = (sender.run + 1).min(KNOWN_AFTER);
            sender.others = 0;
        }
    }

    /// Decides whether to accept a packet whose ICRC is correct only with an unexpected identification.
    pub fn accepts_id(&mut self, flow: &Flow, id: u16, flags: u16) -> bool {
        if id < MAX_BURST_PACKETS && flags == IpIdent::DONT_FRAGMENT {
            self.on_expected_id(flow);
            return true;
        }
        let Some(sender) = self.of(flow) else { return true };
        if sender.run < KNOWN_AFTER {
            sender.run = 0;
            return true;
        }
        sender.others += 1;
        let is_another = sender.others >= FORGET_AFTER;
        if is_another {
            *sender = Sender { key: sender.key, ..Sender::default() };
        }
        is_another
    }

    /// Records a packet whose ICRC is incorrect with every identification, and returns false.
    #[cold]
    pub fn on_corrupt(&mut self, flow: &Flow) -> bool {
        if let Some(sender) = self.of(flow) {
            sender.others = 0;
        }
        false
    }
}

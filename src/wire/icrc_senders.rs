//! How senders assign the IPv4 identification, learned where a receiver cannot see it.
//!
//! | Link | Identification | Bits of the ICRC that are checked |
//! |---|---|---|
//! | any, IPv6 | none | 32 |
//! | packet, frames, fabric | seen in the header | 32 |
//! | UDP socket, IPv4: the one expected (the packet's index in its burst) | found by trying | 32 |
//! | UDP socket, IPv4: another, of a sender not known to count from 0 | any that explains the ICRC, DF set or clear | 15 |
//! | UDP socket, IPv4: another, of a sender known to count from 0 | any below 64 that explains it, with DF | 26 |
//!
//! An urxe on UDP sockets counts from 0 in each burst, and the kernel segments a burst into at most 64 packets. A receiver may
//! get a part of a burst, when packets were lost or merged otherwise, so that a packet's index there is not its identification;
//! but it is below 64. A kernel's rxe has a counter that goes through all 65,536. Such a counter is below 64 at most 64 times
//! in a row, so a sender is known to count from 0 after more than that.
//!
//! Rewriting of the header by a router does not matter: the ICRC tells the identification that the sender used. But another sender
//! may follow at the same address and port, so three packets in a row with another identification end what is known. Corrupt
//! packets do that with probability 2^-45.

use std::net::IpAddr;

use super::{Flow, IpIdent};

/// Identifications that the packets of a burst have.
const OF_A_BURST: u16 = 64;
/// So many of those in a row make a sender known.
const KNOWN: u8 = 100;
/// So many others in a row make it unknown again.
const FORGOTTEN: u8 = 3;
const SLOTS: usize = 256;

/// State of the flows seen last; a flow whose slot another flow takes is unknown again.
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
    /// Packets in a row with an identification of a burst, up to `KNOWN`.
    run: u8,
    /// Packets in a row with others since then.
    others: u8,
}

impl Default for Senders {
    fn default() -> Senders {
        Senders([Sender::default(); SLOTS])
    }
}

impl Senders {
    /// Of IPv4.
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

    /// A packet had the identification expected.
    #[inline]
    pub fn expected(&mut self, flow: &Flow) {
        if let Some(sender) = self.of(flow) {
            sender.run = (sender.run + 1).min(KNOWN);
            sender.others = 0;
        }
    }

    /// Whether a packet is accepted whose ICRC another identification explains.
    pub fn admit(&mut self, flow: &Flow, id: u16, flags: u16) -> bool {
        if id < OF_A_BURST && flags == IpIdent::DONT_FRAGMENT {
            self.expected(flow);
            return true;
        }
        let Some(sender) = self.of(flow) else { return true };
        if sender.run < KNOWN {
            sender.run = 0;
            return true;
        }
        sender.others += 1;
        let is_another = sender.others >= FORGOTTEN;
        if is_another {
            *sender = Sender { key: sender.key, ..Sender::default() };
        }
        is_another
    }

    /// No identification explains a packet's ICRC; returns false.
    #[cold]
    pub fn corrupt(&mut self, flow: &Flow) -> bool {
        if let Some(sender) = self.of(flow) {
            sender.others = 0;
        }
        false
    }
}

//! Changes of single bytes of a packet.

use std::fmt;

use crate::wire::{BTH_LEN, Flow, HeaderSet, ICRC_LEN, IpIdent, Packet, icrc};

/// Change of one byte of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alteration {
    /// The byte.
    pub at: Place,
    /// Bits to invert.
    pub xor: u8,
    /// Whether the ICRC is corrected, so that the receiver accepts the changed packet.
    pub repair_icrc: bool,
}

/// Position of a byte in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Place {
    /// The middle of what follows the BTH, which the ICRC does not cover completely.
    Middle,
    /// The given number of bytes after the beginning of the BTH.
    Offset(u16),
    /// The least significant byte of a header field.
    Field(HeaderField),
    /// The first byte of the payload.
    Payload,
}

/// Field of a transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderField {
    /// Opcode.
    Opcode,
    /// Partition key.
    PKey,
    /// Destination queue pair.
    DestQp,
    /// Packet sequence number.
    Psn,
    /// Queue key.
    QKey,
    /// Source queue pair of a datagram.
    SrcQp,
    /// Virtual address of an RDMA operation or atomic.
    Va,
    /// Remote key.
    RKey,
    /// Length of an RDMA operation.
    Length,
    /// Syndrome of an acknowledgement.
    Syndrome,
    /// Message sequence number.
    Msn,
    /// Immediate data.
    Imm,
}

/// Fields with their names, their headers (`None` for the BTH) and the offset of their last byte in those.
const FIELDS: [(HeaderField, &str, Option<HeaderSet>, usize); 14] = [
    (HeaderField::Opcode, "opcode", None, 0),
    (HeaderField::PKey, "pkey", None, 3),
    (HeaderField::DestQp, "qp", None, 7),
    (HeaderField::Psn, "psn", None, 11),
    (HeaderField::QKey, "qkey", Some(HeaderSet::DETH), 3),
    (HeaderField::SrcQp, "src-qp", Some(HeaderSet::DETH), 7),
    (HeaderField::Va, "va", Some(HeaderSet::RETH), 7),
    (HeaderField::Va, "va", Some(HeaderSet::ATOMIC), 7),
    (HeaderField::RKey, "rkey", Some(HeaderSet::RETH), 11),
    (HeaderField::RKey, "rkey", Some(HeaderSet::ATOMIC), 11),
    (HeaderField::Length, "length", Some(HeaderSet::RETH), 15),
    (HeaderField::Syndrome, "syndrome", Some(HeaderSet::AETH), 0),
    (HeaderField::Msn, "msn", Some(HeaderSet::AETH), 3),
    (HeaderField::Imm, "imm", Some(HeaderSet::IMMDT), 3),
];

impl Place {
    /// Returns the place with a name as [`Display`](fmt::Display) prints it.
    pub(super) fn named(name: &str) -> Option<Place> {
        let field = FIELDS.iter().find(|(_, field_name, ..)| *field_name == name);
        let other = [Place::Middle, Place::Payload].into_iter().find(|place| place.to_string() == name);
        field.map(|(field, ..)| Place::Field(*field)).or(other)
    }

    /// Returns the names of all fields.
    pub(super) fn names() -> String {
        let mut names: Vec<_> = FIELDS.iter().map(|(_, name, ..)| *name).collect();
        names.dedup();
        names.join(", ")
    }

    /// Returns the offset in a packet, or `None` if the packet has no such byte before its ICRC.
    pub(super) fn offset(self, packet: &[u8]) -> Option<usize> {
        let end = packet.len().checked_sub(ICRC_LEN)?;
        match self {
            // A packet that is too short for this has no valid ICRC anyway.
            Place::Middle => Some((BTH_LEN + end.saturating_sub(BTH_LEN) / 2).min(packet.len() - 1)),
            Place::Offset(at) => Some(usize::from(at)).filter(|at| *at < end),
            Place::Payload => {
                let start = end - padded_payload(packet)?;
                (start < end).then_some(start)
            }
            Place::Field(field) => {
                let headers = Packet::parse(packet).ok()?.row().headers;
                FIELDS.iter().find_map(|(candidate, _, header, at)| match header {
                    _ if *candidate != field => None,
                    None => Some(*at),
                    Some(header) => {
                        headers.contains(*header).then(|| BTH_LEN + headers.offset_of(*header) + at)
                    }
                })
            }
        }
    }
}

/// Returns the length of a packet's payload with its padding; `None` if it has no payload.
fn padded_payload(packet: &[u8]) -> Option<usize> {
    let packet = Packet::parse(packet).ok()?;
    let payload = packet.payload().len();
    (payload > 0).then(|| payload + packet.padding().len())
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Middle => f.write_str("middle"),
            Place::Offset(at) => write!(f, "{at}"),
            Place::Payload => f.write_str("payload"),
            Place::Field(field) => {
                let row = FIELDS.iter().find(|(candidate, ..)| candidate == field);
                f.write_str(row.map_or("", |(_, name, ..)| name))
            }
        }
    }
}

impl Alteration {
    /// Bits that are inverted unless a rule says otherwise.
    pub const DEFAULT_XOR: u8 = 0x20;

    /// Corruption that the ICRC check detects.
    pub const CORRUPTION: Alteration =
        Alteration { at: Place::Middle, xor: Alteration::DEFAULT_XOR, repair_icrc: false };

    /// Changes a packet that is sent with the given addresses and identification.
    pub(crate) fn apply(&self, flow: &Flow, ident: IpIdent, packet: &mut [u8]) {
        let Some(at) = self.at.offset(packet) else { return };
        packet[at] ^= self.xor;
        if let (true, IpIdent::Exact { id, flags }) = (self.repair_icrc, ident)
            && packet.len() >= BTH_LEN + ICRC_LEN
        {
            write_icrc(flow, id, flags, packet);
        }
    }
}

/// Writes the ICRC at the end of a packet.
pub(crate) fn write_icrc(flow: &Flow, id: u16, flags: u16, packet: &mut [u8]) {
    let icrc = icrc::compute(flow, id, flags, packet);
    if let Some(tail) = packet.last_chunk_mut() {
        *tail = icrc.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Headers, Opcode};

    #[test]
    fn alteration_inverts_the_given_bits_of_one_byte_and_repairs_the_icrc_on_request() {
        let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 7);
        let mut intact = vec![0x55; 64];
        let mut headers = Headers::default();
        headers.bth.opcode = Opcode(0x0a);
        headers.emit(&mut intact);
        write_icrc(&flow, 3, IpIdent::DONT_FRAGMENT, &mut intact);
        let ident = IpIdent::Exact { id: 3, flags: IpIdent::DONT_FRAGMENT };
        assert!(icrc::verify(&flow, ident, 0, &intact));
        for at in 0..60 {
            for repair_icrc in [false, true] {
                let mut packet = intact.clone();
                Alteration { at: Place::Offset(at), xor: 0x81, repair_icrc }.apply(&flow, ident, &mut packet);
                let changed: Vec<usize> = (0..60).filter(|i| packet[*i] != intact[*i]).collect();
                assert_eq!(changed, [usize::from(at)]);
                assert_eq!(packet[usize::from(at)], intact[usize::from(at)] ^ 0x81);
                // The ICRC does not cover the congestion bits and the reserved bits next to them.
                assert_eq!(icrc::verify(&flow, ident, 0, &packet), repair_icrc || at == 4, "at {at}");
            }
        }
        let mut packet = intact.clone();
        Alteration { at: Place::Offset(60), xor: 0x81, repair_icrc: true }.apply(&flow, ident, &mut packet);
        assert_eq!(packet, intact, "the ICRC itself is not altered");
    }

    #[test]
    fn field_is_found_in_every_header_that_contains_it() {
        let packet = |opcode: u8| {
            let mut bytes = vec![0; 64];
            bytes[0] = opcode;
            bytes
        };
        let offset = |name: &str, opcode: u8| Place::named(name).unwrap().offset(&packet(opcode));
        let (write, cmpswap, ack, datagram) = (0x0a, 0x13, 0x11, 0x64);
        assert_eq!(
            [offset("psn", write), offset("qp", ack), offset("pkey", ack)],
            [Some(11), Some(7), Some(3)]
        );
        assert_eq!(
            [offset("rkey", write), offset("rkey", cmpswap), offset("rkey", ack)],
            [Some(23), Some(23), None]
        );
        assert_eq!([offset("length", write), offset("length", cmpswap)], [Some(27), None]);
        assert_eq!(
            [offset("syndrome", ack), offset("msn", ack), offset("msn", write)],
            [Some(12), Some(15), None]
        );
        assert_eq!([offset("qkey", datagram), offset("src-qp", datagram)], [Some(15), Some(19)]);
        assert_eq!([offset("payload", write), offset("payload", datagram)], [Some(28), Some(20)]);
    }
}

//! Opcode table: the single definition of what each of the 256 opcodes means and what its packets contain.
//!
//! Parser, builder, sequence check and names are all driven by it; other code compares raw opcodes only with
//! the constants of [`Opcode`].

use std::fmt;

use bitflags::bitflags;

/// Transport service of an opcode, given by its upper three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. No RoCE device implements it, but its packets are decoded.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification (RoCEv2 annex A17).
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Reserved or manufacturer-specific opcodes.
    Reserved,
}

/// Operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledgement, positive or negative.
    Acknowledge,
    /// Response to an atomic.
    AtomicAcknowledge,
    /// Compare-and-swap request.
    CompareSwap,
    /// Fetch-and-add request.
    FetchAdd,
    /// Resynchronisation of RD.
    Resync,
    /// FLUSH (memory placement extensions).
    Flush,
    /// ATOMIC WRITE (memory placement extensions).
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
    /// Not assigned.
    Reserved,
}

impl Operation {
    /// Reports whether the packet is a request to a responder, rather than a response to a requester.
    pub const fn is_request(self) -> bool {
        !matches!(
            self,
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::Cnp
                | Operation::Reserved
        )
    }

    /// Reports whether the request occupies one of the responder's READ/atomic resources.
    pub const fn takes_read_resource(self) -> bool {
        matches!(
            self,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        )
    }
}

/// Position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither the first nor the last of several packets.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet of the message.
    Only,
}

impl Position {
    /// Reports whether the packet starts a message.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Reports whether the packet ends a message.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// Returns the position of packet `index`, counted from 0, in a message of `count` packets.
    pub const fn of(index: u32, count: u32) -> Position {
        const POSITIONS: [Position; 4] = [Position::Middle, Position::Last, Position::First, Position::Only];
        POSITIONS[(index == 0) as usize * 2 + (index + 1 == count) as usize]
    }
}

bitflags! {
    /// Set of extension headers. On the wire, they follow the BTH in the order of their bits, lowest first.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct HeaderSet: u16 {
        /// Reliable datagram extended transport header, 4 bytes.
        const RDETH = 1 << 0;
        /// Datagram extended transport header, 8 bytes.
        const DETH = 1 << 1;
        /// XRC extended transport header, 4 bytes.
        const XRCETH = 1 << 2;
        /// FLUSH extended transport header, 4 bytes.
        const FETH = 1 << 3;
        /// RDMA extended transport header, 16 bytes.
        const RETH = 1 << 4;
        /// Atomic extended transport header, 28 bytes.
        const ATOMIC = 1 << 5;
        /// ACK extended transport header, 4 bytes.
        const AETH = 1 << 6;
        /// Atomic ACK extended transport header, 8 bytes.
        const ATOMIC_ACK = 1 << 7;
        /// Immediate data, 4 bytes.
        const IMMDT = 1 << 8;
        /// Invalidate extended transport header, 4 bytes.
        const IETH = 1 << 9;
    }
}

impl HeaderSet {
    /// No extension header.
    pub const NONE: HeaderSet = HeaderSet::empty();

    const LENGTHS: [u8; 10] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4];

    /// Returns the total length in bytes of the headers in the set.
    pub const fn wire_len(self) -> usize {
        SET_LENGTHS[(self.bits() & HeaderSet::all().bits()) as usize] as usize
    }

    /// Returns the offset in bytes of `header` from the end of the BTH: the total length of the headers
    /// before it.
    pub const fn offset_of(self, header: HeaderSet) -> usize {
        SET_LENGTHS[(self.bits() & (header.bits() - 1)) as usize] as usize
    }
}

/// Total length in bytes of the headers in each set, indexed by the set's bits.
static SET_LENGTHS: [u8; 1 << HeaderSet::LENGTHS.len()] = {
    let mut lengths = [0; 1 << HeaderSet::LENGTHS.len()];
    let mut set = 1;
    while set < lengths.len() {
        // Adds the length of the lowest header to that of the set without it.
        let lowest = set.trailing_zeros() as usize;
        lengths[set] = lengths[set & (set - 1)] + HeaderSet::LENGTHS[lowest];
        set += 1;
    }
    lengths
};

/// Payload lengths that an opcode allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// Exactly the given number of bytes.
    Exactly(u8),
    /// Exactly the path MTU.
    FullMtu,
    /// From 1 byte to the path MTU.
    OneToMtu,
    /// From 0 bytes to the path MTU.
    ZeroToMtu,
    /// Any length; used for reserved opcodes.
    Any,
}

impl PayloadRule {
    /// Reports whether the rule allows `len` payload bytes at a path MTU of `mtu` bytes.
    pub const fn allows(self, len: usize, mtu: usize) -> bool {
        match self {
            PayloadRule::Exactly(n) => len == n as usize,
            PayloadRule::FullMtu => len == mtu,
            PayloadRule::OneToMtu => len >= 1 && len <= mtu,
            PayloadRule::ZeroToMtu => len <= mtu,
            PayloadRule::Any => true,
        }
    }
}

/// Row of the opcode table, which describes one opcode.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeRow {
    /// Name in the specification and in Wireshark, without the transport.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// Operation of the packet.
    pub operation: Operation,
    /// Position of the packet in its message.
    pub position: Position,
    /// Extension headers that follow the BTH.
    pub headers: HeaderSet,
    /// Allowed payload lengths.
    pub payload: PayloadRule,
}

impl OpcodeRow {
    /// Reports whether the opcode is assigned.
    pub const fn is_valid(&self) -> bool {
        !matches!(self.operation, Operation::Reserved)
    }
}

/// Opcode of a BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Congestion notification packet.
    pub const CNP: Opcode = Opcode(0x81);
    /// FLUSH on the reliable connection service.
    pub const FLUSH: Opcode = Opcode(0x1c);
    /// RC SEND Middle.
    pub const RC_SEND_MIDDLE: Opcode = Opcode(0x01);
    /// RC WRITE Middle.
    pub const RC_WRITE_MIDDLE: Opcode = Opcode(0x07);
    /// RC READ Response Middle.
    pub const RC_READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);

    /// Returns the table row.
    pub const fn row(self) -> &'static OpcodeRow {
        &TABLE[self.0 as usize]
    }

    /// Returns the opcode for a packet with the given service, operation and position, and with the ImmDt or
    /// IETH in `extra`, if any. Returns `None` if the service has no such packet.
    pub const fn find(
        transport: Transport,
        operation: Operation,
        position: Position,
        extra: HeaderSet,
    ) -> Option<Opcode> {
        match INVERSE[inverse_index(transport, operation, position, extra)] {
            0xff => None,
            opcode => Some(Opcode(opcode)),
        }
    }
}

/// Opcodes, indexed by `inverse_index` from the contents of their table rows; 0xff, a reserved opcode, where
/// there is no such row.
const INVERSE: [u8; 8 * 16 * 4 * 4] = {
    let mut inverse = [0xff; 8 * 16 * 4 * 4];
    let mut opcode = 0;
    while opcode < 256 {
        let r = &TABLE[opcode];
        if r.is_valid() {
            let index = inverse_index(r.transport, r.operation, r.position, r.headers);
            assert!(inverse[index] == 0xff, "`inverse_index` does not tell two opcodes apart");
            inverse[index] = opcode as u8;
        }
        opcode += 1;
    }
    inverse
};

const fn inverse_index(t: Transport, o: Operation, p: Position, extra: HeaderSet) -> usize {
    // ImmDt and IETH are bits 8 and 9.
    let tail = (extra.bits() >> 8 & 3) as usize;
    ((t as usize * 16 + o as usize) * 4 + p as usize) * 4 + tail
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row();
        match row.transport {
            Transport::Reserved => write!(f, "reserved opcode {:#04x}", self.0),
            Transport::Cnp => write!(f, "CNP"),
            _ if !row.is_valid() => write!(f, "reserved opcode {:#04x}", self.0),
            t => write!(f, "{} {}", format!("{t:?}").to_uppercase(), row.name),
        }
    }
}

/// Table rows common to RC, RD and XRC (the first twelve also to UC), each with the low five bits of its
/// opcode.
const CONNECTED: [(u8, &str, Operation, Position, HeaderSet, PayloadRule); 26] = {
    use HeaderSet as H;
    use Operation::*;
    use PayloadRule::*;
    use Position::*;
    [
        (0x00, "SEND First", Send, First, H::NONE, FullMtu),
        (0x01, "SEND Middle", Send, Middle, H::NONE, FullMtu),
        (0x02, "SEND Last", Send, Last, H::NONE, OneToMtu),
        (0x03, "SEND Last Immediate", Send, Last, H::IMMDT, OneToMtu),
        (0x04, "SEND Only", Send, Only, H::NONE, ZeroToMtu),
        (0x05, "SEND Only Immediate", Send, Only, H::IMMDT, ZeroToMtu),
        (0x06, "RDMA WRITE First", Write, First, H::RETH, FullMtu),
        (0x07, "RDMA WRITE Middle", Write, Middle, H::NONE, FullMtu),
        (0x08, "RDMA WRITE Last", Write, Last, H::NONE, OneToMtu),
        (0x09, "RDMA WRITE Last Immediate", Write, Last, H::IMMDT, OneToMtu),
        (0x0a, "RDMA WRITE Only", Write, Only, H::RETH, ZeroToMtu),
        (0x0b, "RDMA WRITE Only Immediate", Write, Only, H::RETH.union(H::IMMDT), ZeroToMtu),
        (0x0c, "RDMA READ Request", ReadRequest, Only, H::RETH, Exactly(0)),
        (0x0d, "RDMA READ response First", ReadResponse, First, H::AETH, FullMtu),
        (0x0e, "RDMA READ response Middle", ReadResponse, Middle, H::NONE, FullMtu),
        (0x0f, "RDMA READ response Last", ReadResponse, Last, H::AETH, OneToMtu),
        (0x10, "RDMA READ response Only", ReadResponse, Only, H::AETH, ZeroToMtu),
        (0x11, "Acknowledge", Acknowledge, Only, H::AETH, Exactly(0)),
        (0x12, "ATOMIC Acknowledge", AtomicAcknowledge, Only, H::AETH.union(H::ATOMIC_ACK), Exactly(0)),
        (0x13, "CmpSwap", CompareSwap, Only, H::ATOMIC, Exactly(0)),
        (0x14, "FetchAdd", FetchAdd, Only, H::ATOMIC, Exactly(0)),
        (0x15, "RESYNC", Resync, Only, H::NONE, Exactly(0)),
        (0x16, "SEND Last Invalidate", Send, Last, H::IETH, OneToMtu),
        (0x17, "SEND Only Invalidate", Send, Only, H::IETH, ZeroToMtu),
        (0x1c, "FLUSH", Flush, Only, H::FETH.union(H::RETH), Exactly(0)),
        (0x1d, "ATOMIC WRITE", AtomicWrite, Only, H::RETH, Exactly(8)),
    ]
};

const RESERVED: OpcodeRow = OpcodeRow {
    name: "reserved",
    transport: Transport::Reserved,
    operation: Operation::Reserved,
    position: Position::Only,
    headers: HeaderSet::NONE,
    payload: PayloadRule::Any,
};

/// Table of all 256 opcodes.
pub const TABLE: [OpcodeRow; 256] = build();

const fn build() -> [OpcodeRow; 256] {
    let mut table = [RESERVED; 256];
    let mut i = 0;
    while i < CONNECTED.len() {
        let (low, name, operation, position, headers, payload) = CONNECTED[i];
        let base = OpcodeRow { name, transport: Transport::Rc, operation, position, headers, payload };
        let resync = matches!(operation, Operation::Resync);
        if !resync {
            table[low as usize] = base;
            let xrc = if operation.is_request() { headers.union(HeaderSet::XRCETH) } else { headers };
            table[0xa0 | low as usize] = OpcodeRow { transport: Transport::Xrc, headers: xrc, ..base };
        }
        if low <= 0x0b {
            table[0x20 | low as usize] = OpcodeRow { transport: Transport::Uc, ..base };
        }
        if low <= 0x15 {
            let rd = if operation.is_request() {
                headers.union(HeaderSet::RDETH).union(HeaderSet::DETH)
            } else {
                headers.union(HeaderSet::RDETH)
            };
            table[0x40 | low as usize] = OpcodeRow { transport: Transport::Rd, headers: rd, ..base };
        }
        if low == 0x04 || low == 0x05 {
            let headers = headers.union(HeaderSet::DETH);
            table[0x60 | low as usize] = OpcodeRow { transport: Transport::Ud, headers, ..base };
        }
        i += 1;
    }
    table[0x81] = OpcodeRow {
        name: "CNP",
        transport: Transport::Cnp,
        operation: Operation::Cnp,
        position: Position::Only,
        headers: HeaderSet::NONE,
        payload: PayloadRule::Exactly(16),
    };
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_match_known_packets() {
        let len = |o: u8| Opcode(o).row().headers.wire_len();
        assert_eq!(len(0x04), 0);
        assert_eq!(len(0x0b), 20);
        assert_eq!(len(0x13), 28);
        assert_eq!(len(0x12), 12);
        assert_eq!(len(0x64), 8);
        assert_eq!(len(0xab), 24);
        assert_eq!(len(0xb1), 4);
        assert_eq!(len(0x1c), 20);
    }

    #[test]
    fn assigned_opcodes_are_valid_and_all_others_reserved() {
        let valid = (0..=255u8).filter(|o| Opcode(*o).row().is_valid()).count();
        // 25 of RC, 12 of UC, 22 of RD, 2 of UD, the CNP, 25 of XRC.
        assert_eq!(valid, 25 + 12 + 22 + 2 + 1 + 25);
        for o in [0x15, 0x18, 0x1b, 0x1e, 0x1f, 0x2c, 0x36, 0x63, 0x66, 0x80, 0x82, 0xb5, 0xc0, 0xff] {
            assert!(!Opcode(o).row().is_valid(), "{o:#x}");
        }
    }

    #[test]
    fn longest_headers_have_length_max_headers_len() {
        let longest = TABLE.iter().map(|r| crate::wire::BTH_LEN + r.headers.wire_len()).max();
        assert_eq!(longest, Some(crate::wire::MAX_HEADERS_LEN));
    }

    #[test]
    fn opcode_find_returns_the_opcode_of_each_row_of_the_table() {
        for o in (0..=255).map(Opcode).filter(|o| o.row().is_valid()) {
            let r = o.row();
            let extra = r.headers & (HeaderSet::IMMDT | HeaderSet::IETH);
            assert_eq!(Opcode::find(r.transport, r.operation, r.position, extra), Some(o));
        }
        assert_eq!(
            Opcode::find(Transport::Uc, Operation::ReadRequest, Position::Only, HeaderSet::NONE),
            None
        );
    }

    #[test]
    fn opcode_names_match_the_specification() {
        assert_eq!(Opcode(0x0b).to_string(), "RC RDMA WRITE Only Immediate");
        assert_eq!(Opcode(0x64).to_string(), "UD SEND Only");
        assert_eq!(Opcode(0x81).to_string(), "CNP");
        assert_eq!(Opcode(0xff).to_string(), "reserved opcode 0xff");
    }
}

//! Wire format of stream rsockets, identical to librdmacm's: the private data of the handshake, the immediate
//! data of RDMA WRITEs, and the entries of the tables that each end writes in the other's memory.

/// Protocol violation by the peer, which ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    /// The private data is that of another protocol or another version.
    #[error("the private data of the peer is not that of rsockets version 1")]
    ConnData,
    /// The message type is unknown.
    #[error("unknown message type in immediate data {0:#010x}")]
    Message(u32),
    /// The peer reports more bytes written than it was granted.
    #[error("the peer wrote {got} bytes, but was granted only {room}")]
    Overrun {
        /// Value from the peer.
        got: usize,
        /// Number of bytes that the peer was granted.
        room: usize,
    },
    /// The peer announces more targets than a target SGL has entries.
    #[error("the peer announced more than {TARGET_SGL_LEN} targets at once")]
    TooManyTargets,
    /// The peer reports a change of an entry that the table does not have.
    #[error("the peer named entry {got} of a table with {len} entries")]
    Entry {
        /// Value from the peer.
        got: usize,
        /// Number of entries in the table.
        len: usize,
    },
}

/// Target: memory that the other end may write to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TargetSge {
    /// Virtual address.
    pub addr: u64,
    /// R_Key.
    pub key: u32,
    /// Length in bytes; in the description of a table, its number of entries.
    pub len: u32,
}

/// Length of a target SGL entry, in bytes.
pub(crate) const TARGET_SGE_LEN: usize = 16;
/// Length of a mapped-memory table entry, in bytes: the offset that memory is mapped to, and the address, key
/// and length of that memory.
pub(crate) const MAPPING_LEN: usize = 24;
/// Number of entries in a target SGL.
pub(crate) const TARGET_SGL_LEN: usize = 2;
/// Length of the private data, in bytes.
pub(crate) const CONN_DATA_LEN: usize = 40;
/// Maximum number of bytes that a data message can announce.
pub(crate) const MAX_TRANSFER: usize = (1 << 29) - 1;

const VERSION: u8 = 1;
/// Flag: the sender's tables are big-endian.
const BIG_ENDIAN: u8 = 1;
/// Flag: the sender supports mapped memory.
const SUPPORTS_IOMAP: u8 = 2;

/// Byte order of one end's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// Byte order of this machine.
    pub(crate) const OWN: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    /// Converts between this machine's byte order and `self`.
    fn u64(self, value: u64) -> u64 {
        if self == Order::OWN { value } else { value.swap_bytes() }
    }

    /// Like [`u64`](Order::u64).
    fn u32(self, value: u32) -> u32 {
        if self == Order::OWN { value } else { value.swap_bytes() }
    }
}

impl TargetSge {
    /// Encodes a table entry in the given byte order.
    pub(crate) fn bytes(self, order: Order) -> [u8; TARGET_SGE_LEN] {
        let mut out = [0; TARGET_SGE_LEN];
        out[..8].copy_from_slice(&order.u64(self.addr).to_ne_bytes());
        out[8..12].copy_from_slice(&order.u32(self.key).to_ne_bytes());
        out[12..].copy_from_slice(&order.u32(self.len).to_ne_bytes());
        out
    }

    /// Decodes a table entry in the given byte order.
    pub(crate) fn decode(bytes: [u8; TARGET_SGE_LEN], order: Order) -> TargetSge {
        let addr = order.u64(u64::from_ne_bytes(*bytes.first_chunk().expect("16 bytes")));
        let word = |at: usize| order.u32(u32::from_ne_bytes(*bytes[at..].first_chunk().expect("16 bytes")));
        TargetSge { addr, key: word(8), len: word(12) }
    }
}

/// Memory mapped to an offset, to which the other end writes directly (`riowrite`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mapping {
    pub offset: u64,
    pub target: TargetSge,
}

impl Mapping {
    /// Encodes a table entry in the given byte order.
    pub(crate) fn bytes(self, order: Order) -> [u8; MAPPING_LEN] {
        let mut out = [0; MAPPING_LEN];
        out[..8].copy_from_slice(&order.u64(self.offset).to_ne_bytes());
        out[8..].copy_from_slice(&self.target.bytes(order));
        out
    }

    /// Decodes a table entry in the given byte order.
    pub(crate) fn decode(bytes: [u8; MAPPING_LEN], order: Order) -> Mapping {
        let offset = order.u64(u64::from_ne_bytes(*bytes.first_chunk().expect("24 bytes")));
        Mapping { offset, target: TargetSge::decode(*bytes.last_chunk().expect("24 bytes"), order) }
    }
}

/// Message in the immediate data of an RDMA WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// The given number of stream bytes was written.
    Data(usize),
    /// The sender accepts data messages until their total since the start of the connection reaches the given
    /// limit (modulo 65536). The target SGL may have changed.
    Credits(u16),
    /// The entry with the given index in the mapped-memory table has changed.
    Mapped(usize),
    /// The sender has closed both directions.
    Disconnect,
    /// Keepalive, without effect.
    KeepAlive,
    /// The sender will send no more data.
    Shutdown,
}

/// Message types, encoded in the top three bits of the immediate data.
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// Encodes the message.
    pub(crate) fn immediate(self) -> u32 {
        let (kind, value) = match self {
            Message::Data(len) => (DATA, len as u32),
            Message::Credits(limit) => (CREDITS, limit.into()),
            Message::Mapped(index) => (MAPPED, index as u32),
            Message::Disconnect => (CONTROL, 0),
            Message::KeepAlive => (CONTROL, 1),
            Message::Shutdown => (CONTROL, 2),
        };
        kind << 29 | value & MAX_TRANSFER as u32
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`ProtocolError::Message`] if the type is unknown.
    pub(crate) fn decode(immediate: u32) -> Result<Message, ProtocolError> {
        let value = immediate & MAX_TRANSFER as u32;
        Ok(match (immediate >> 29, value) {
            (DATA, len) => Message::Data(len as usize),
            // Higher bits of the value are ignored.
            (CREDITS, limit) => Message::Credits(limit as u16),
            (MAPPED, index) => Message::Mapped(index as usize),
            (CONTROL, 0) => Message::Disconnect,
            (CONTROL, 1) => Message::KeepAlive,
            (CONTROL, 2) => Message::Shutdown,
            _ => return Err(ProtocolError::Message(immediate)),
        })
    }
}

/// Private data of the connection request or reply, which describes the sender's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnData {
    /// Byte order of the sender's tables.
    pub order: Order,
    /// Number of data messages that the sender accepts before it sends more credits.
    pub credits: u16,
    /// Number of entries in the sender's mapped-memory table: the number of areas that the receiver may map.
    pub mappings: usize,
    /// The sender's target SGL, which the mapped-memory table follows.
    pub table: TargetSge,
    /// First target for the receiver to write to.
    pub first: TargetSge,
}

/// Encodes a table size in a byte. Sizes up to 128 are exact; larger ones are rounded down to a multiple of
/// 128, and capped at 16,256.
fn encode_size(size: usize) -> u8 {
    if size <= 128 { size as u8 } else { 128 | (size.min(127 * 128) / 128) as u8 }
}

/// Decodes a table size from a byte.
fn decode_size(byte: u8) -> usize {
    if byte <= 128 { byte.into() } else { usize::from(byte & 127) * 128 }
}

/// Rounds a table size down to the next size that can be encoded.
pub(crate) fn encodable_size(size: usize) -> usize {
    decode_size(encode_size(size))
}

impl ConnData {
    /// Encodes the private data.
    pub(crate) fn bytes(&self) -> [u8; CONN_DATA_LEN] {
        let mut out = [0; CONN_DATA_LEN];
        let order = if self.order == Order::Big { BIG_ENDIAN } else { 0 };
        out[..2].copy_from_slice(&[VERSION, order | SUPPORTS_IOMAP]);
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = encode_size(self.mappings);
        out[8..24].copy_from_slice(&self.table.bytes(Order::Big));
        out[24..].copy_from_slice(&self.first.bytes(Order::Big));
        out
    }

    /// Decodes a peer's private data. Any bytes after it are ignored.
    ///
    /// # Errors
    /// [`ProtocolError::ConnData`].
    pub(crate) fn parse(data: &[u8]) -> Result<ConnData, ProtocolError> {
        let data: &[u8; CONN_DATA_LEN] = data.first_chunk().ok_or(ProtocolError::ConnData)?;
        let target = |at: usize| TargetSge::decode(*data[at..].first_chunk().expect("40 bytes"), Order::Big);
        let conn_data = ConnData {
            order: if data[1] & BIG_ENDIAN != 0 { Order::Big } else { Order::Little },
            credits: u16::from_be_bytes([data[2], data[3]]),
            mappings: if data[1] & SUPPORTS_IOMAP != 0 { decode_size(data[7]) } else { 0 },
            table: target(8),
            first: target(24),
        };
        // A peer whose table has no entries could not receive any update.
        (data[0] == VERSION && conn_data.table.len > 0).then_some(conn_data).ok_or(ProtocolError::ConnData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Private data sent by librdmacm's rstream, from `pcaps/cm_rstream.pcap`. The first test also decodes
    /// the first target update from that capture.
    const CAPTURED: [u8; CONN_DATA_LEN] = [
        1, 2, 1, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0xe4, 0x9a, 0x62, 0x70, 0, 0, 0, 0x47, 0xf8, 0, 0, 0, 2, 0, 0,
        0x7f, 0x78, 0xe1, 0x12, 0, 0, 0, 0, 0x48, 0xef, 0, 8, 0, 0,
    ];

    #[test]
    fn private_data_is_encoded_and_decoded_as_by_librdmacm() {
        let conn_data = ConnData {
            order: Order::Little,
            credits: 384,
            mappings: 0,
            table: TargetSge { addr: 0x55e4_9a62_7000, key: 0x47f8, len: 2 },
            first: TargetSge { addr: 0x7f78_e112_0000, key: 0x48ef, len: 0x8_0000 },
        };
        assert_eq!(ConnData::parse(&CAPTURED), Ok(conn_data));
        assert_eq!(conn_data.bytes(), CAPTURED);
        let target = [0, 0, 0x1a, 0xe1, 0x78, 0x7f, 0, 0, 0xef, 0x48, 0, 0, 0, 0, 8, 0];
        let captured = TargetSge { addr: 0x7f78_e11a_0000, ..conn_data.first };
        assert_eq!(TargetSge::decode(target, Order::Little), captured);
        assert_eq!(captured.bytes(Order::Little), target);
    }

    #[test]
    fn private_data_of_other_protocols_is_rejected() {
        assert_eq!(ConnData::parse(&[]), Err(ProtocolError::ConnData));
        assert_eq!(ConnData::parse(&CAPTURED[..39]), Err(ProtocolError::ConnData));
        assert_eq!(ConnData::parse(&[0; 56]), Err(ProtocolError::ConnData));
        let mut other = CAPTURED;
        other[0] = 2;
        assert_eq!(ConnData::parse(&other), Err(ProtocolError::ConnData));
        let mut no_table = CAPTURED;
        no_table[20..24].fill(0);
        assert_eq!(ConnData::parse(&no_table), Err(ProtocolError::ConnData));
    }

    #[test]
    fn messages_are_encoded_and_decoded_as_by_librdmacm() {
        let captured = [
            (0x8000_0180, Message::Credits(384)),
            (0x0000_01f4, Message::Data(500)),
            (0xe000_0000, Message::Disconnect),
            (0xe000_0001, Message::KeepAlive),
            (0xe000_0002, Message::Shutdown),
            (0xc000_0003, Message::Mapped(3)),
        ];
        for (immediate, message) in captured {
            assert_eq!((Message::decode(immediate), message.immediate()), (Ok(message), immediate));
        }
        assert_eq!(Message::decode(0x8001_0002), Ok(Message::Credits(2)));
    }

    #[test]
    fn message_of_unknown_type_is_rejected() {
        for immediate in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0007, 0xe000_0003, 0xffff_ffff] {
            assert_eq!(Message::decode(immediate), Err(ProtocolError::Message(immediate)));
        }
    }

    #[test]
    fn table_entries_are_encoded_in_the_byte_order_of_the_table() {
        let target = TargetSge { addr: 0x0102_0304_0506_0708, key: 0x090a_0b0c, len: 0x0d0e_0f10 };
        let mapping = Mapping { offset: 0x1112_1314_1516_1718, target };
        for order in [Order::Little, Order::Big] {
            assert_eq!(TargetSge::decode(target.bytes(order), order), target);
            assert_eq!(Mapping::decode(mapping.bytes(order), order), mapping);
        }
        assert_eq!(target.bytes(Order::Big), core::array::from_fn(|i| i as u8 + 1));
        assert_eq!(mapping.bytes(Order::Little)[..8], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    }

    #[test]
    fn table_size_is_rounded_down_to_what_a_byte_can_encode() {
        for (size, rounded) in [(0, 0), (1, 1), (128, 128), (129, 128), (300, 256), (usize::MAX, 16_256)] {
            assert_eq!(encodable_size(size), rounded);
        }
    }
}

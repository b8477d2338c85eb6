//! What two ends say to each other: the private data of the handshake, the four bytes that come with each write, and the
//! entries of the tables that each end writes to the other's memory. The same as librdmacm's rsockets have them.

/// Why a peer is not to be talked to any longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// Another protocol, or another version of this one.
    #[error("the peer's private data is none of rsockets' version 1")]
    Hello,
    /// A message of a type that there is not.
    #[error("message {0:#010x} means nothing")]
    Message(u32),
    /// It says that it wrote more than it was given room for.
    #[error("{got} bytes were written, and there was room for {room}")]
    Overrun {
        /// As the peer says.
        got: usize,
        /// What it was given.
        room: usize,
    },
    /// It says that it has more places to write to than it can have.
    #[error("the peer has more than {PLACES} places at once")]
    Places,
    /// It says that it changed an entry that the table does not have.
    #[error("entry {got} of a table of {len}")]
    Entry {
        /// As the peer says.
        got: usize,
        /// Entries.
        len: usize,
    },
}

/// Memory of one end that the other may write to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    pub addr: u64,
    pub key: u32,
    /// Bytes; of a table, entries.
    pub len: u32,
}

/// Bytes of an entry of the table of places.
pub const PLACE_LEN: usize = 16;
/// Bytes of an entry of the table of mapped memory: the offset that it is mapped to, and the place.
pub const MAPPING_LEN: usize = 24;
/// Places in a table.
pub const PLACES: usize = 2;
/// Bytes of private data.
pub const HELLO_LEN: usize = 40;
/// The most that one message can tell of.
pub const MAX_TRANSFER: usize = (1 << 29) - 1;

const VERSION: u8 = 1;
/// Its memory is big-endian.
const BIG_ENDIAN: u8 = 1;
/// It knows mapped memory.
const MAPS: u8 = 2;

/// The order of bytes in which an end has its tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    /// Of this machine.
    pub const OWN: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }
}

impl Place {
    /// As an entry of a table that is in this order.
    pub fn bytes(self, order: Order) -> [u8; PLACE_LEN] {
        let mut out = [0; PLACE_LEN];
        out[..8].copy_from_slice(&order.u64(self.addr));
        out[8..12].copy_from_slice(&order.u32(self.key));
        out[12..].copy_from_slice(&order.u32(self.len));
        out
    }

    /// An entry of a table that is in this order.
    pub fn of(bytes: [u8; PLACE_LEN], order: Order) -> Place {
        let word = |at: usize| {
            let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            if order == Order::Big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        };
        let (low, high) = if order == Order::Big { (word(4), word(0)) } else { (word(0), word(4)) };
        Place { addr: u64::from(high) << 32 | u64::from(low), key: word(8), len: word(12) }
    }
}

/// Memory that is mapped to an offset, for the other end to write to directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    pub offset: u64,
    pub place: Place,
}

impl Mapping {
    /// As an entry of a table that is in this order.
    pub fn bytes(self, order: Order) -> [u8; MAPPING_LEN] {
        let mut out = [0; MAPPING_LEN];
        out[..8].copy_from_slice(&order.u64(self.offset));
        out[8..].copy_from_slice(&self.place.bytes(order));
        out
    }

    /// An entry of a table that is in this order.
    pub fn of(bytes: [u8; MAPPING_LEN], order: Order) -> Mapping {
        let (mut offset, mut place) = ([0; PLACE_LEN], [0; PLACE_LEN]);
        offset[..8].copy_from_slice(&bytes[..8]);
        place.copy_from_slice(&bytes[8..]);
        // In big-endian order the upper half comes first, as in any place's address.
        Mapping { offset: Place::of(offset, order).addr, place: Place::of(place, order) }
    }
}

/// What comes with a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// So many bytes of the stream were written.
    Data(usize),
    /// Data messages may be sent until this many were, counted from the connection's beginning, modulo 65536. The table of
    /// places may have changed.
    Credits(u16),
    /// An entry of the table of mapped memory has changed.
    Mapped(usize),
    /// The sender is gone.
    Disconnect,
    /// It is still there.
    KeepAlive,
    /// It sends no more.
    Shutdown,
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    pub fn immediate(self) -> u32 {
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

    /// # Errors
    /// [`ProtocolError::Message`].
    pub fn of(immediate: u32) -> Result<Message, ProtocolError> {
        let value = immediate & MAX_TRANSFER as u32;
        Ok(match (immediate >> 29, value) {
            (DATA, len) => Message::Data(len as usize),
            // Those before the last 16 bits do not count.
            (CREDITS, limit) => Message::Credits(limit as u16),
            (MAPPED, index) => Message::Mapped(index as usize),
            (CONTROL, 0) => Message::Disconnect,
            (CONTROL, 1) => Message::KeepAlive,
            (CONTROL, 2) => Message::Shutdown,
            _ => return Err(ProtocolError::Message(immediate)),
        })
    }
}

/// What each end says first: the private data of the request and of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Of its tables.
    pub order: Order,
    /// Data messages that it takes until it says more.
    pub credits: u16,
    /// Memory that the peer may map for it.
    pub mappings: usize,
    /// Its table of places, and behind that the one of mapped memory.
    pub table: Place,
    /// The first place.
    pub first: Place,
}

/// The size of a table in a byte: exactly up to 128, above that in steps of 128.
fn size_byte(size: usize) -> u8 {
    if size <= 128 { size as u8 } else { 128 | (size.min(127 * 128) / 128) as u8 }
}

fn size_of_byte(byte: u8) -> usize {
    if byte <= 128 { byte.into() } else { usize::from(byte & 127) * 128 }
}

/// The largest table that can be told of which has at most so many entries.
pub fn told_size(size: usize) -> usize {
    size_of_byte(size_byte(size))
}

impl Hello {
    pub fn bytes(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        let order = if self.order == Order::Big { BIG_ENDIAN } else { 0 };
        out[..2].copy_from_slice(&[VERSION, order | MAPS]);
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = size_byte(self.mappings);
        out[8..24].copy_from_slice(&self.table.bytes(Order::Big));
        out[24..].copy_from_slice(&self.first.bytes(Order::Big));
        out
    }

    /// What a peer says; there may be zeros behind it.
    ///
    /// # Errors
    /// [`ProtocolError::Hello`].
    pub fn parse(data: &[u8]) -> Result<Hello, ProtocolError> {
        let data: &[u8; HELLO_LEN] = data.first_chunk().ok_or(ProtocolError::Hello)?;
        let place = |at: usize| {
            let mut bytes = [0; PLACE_LEN];
            bytes.copy_from_slice(&data[at..at + PLACE_LEN]);
            Place::of(bytes, Order::Big)
        };
        let hello = Hello {
            order: if data[1] & BIG_ENDIAN != 0 { Order::Big } else { Order::Little },
            credits: u16::from_be_bytes([data[2], data[3]]),
            mappings: if data[1] & MAPS != 0 { size_of_byte(data[7]) } else { 0 },
            table: place(8),
            first: place(24),
        };
        // Without a place in its table there is no second word to it.
        (data[0] == VERSION && hello.table.len > 0).then_some(hello).ok_or(ProtocolError::Hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The private data of librdmacm's rstream, and its first update of a place (`pcaps/cm_rstream.pcap`).
    const SEEN: [u8; HELLO_LEN] = [
        1, 2, 1, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0xe4, 0x9a, 0x62, 0x70, 0, 0, 0, 0x47, 0xf8, 0, 0, 0, 2, 0, 0,
        0x7f, 0x78, 0xe1, 0x12, 0, 0, 0, 0, 0x48, 0xef, 0, 8, 0, 0,
    ];

    #[test]
    fn what_librdmacm_says_first_is_understood_and_said() {
        let hello = Hello {
            order: Order::Little,
            credits: 384,
            mappings: 0,
            table: Place { addr: 0x55e4_9a62_7000, key: 0x47f8, len: 2 },
            first: Place { addr: 0x7f78_e112_0000, key: 0x48ef, len: 0x8_0000 },
        };
        assert_eq!(Hello::parse(&SEEN), Ok(hello));
        assert_eq!(hello.bytes(), SEEN);
        let place = [0, 0, 0x1a, 0xe1, 0x78, 0x7f, 0, 0, 0xef, 0x48, 0, 0, 0, 0, 8, 0];
        let seen = Place { addr: 0x7f78_e11a_0000, ..hello.first };
        assert_eq!(Place::of(place, Order::Little), seen);
        assert_eq!(seen.bytes(Order::Little), place);
    }

    #[test]
    fn other_protocols_are_refused() {
        assert_eq!(Hello::parse(&[]), Err(ProtocolError::Hello));
        assert_eq!(Hello::parse(&SEEN[..39]), Err(ProtocolError::Hello));
        assert_eq!(Hello::parse(&[0; 56]), Err(ProtocolError::Hello));
        let mut other = SEEN;
        other[0] = 2;
        assert_eq!(Hello::parse(&other), Err(ProtocolError::Hello));
        let mut no_table = SEEN;
        no_table[20..24].fill(0);
        assert_eq!(Hello::parse(&no_table), Err(ProtocolError::Hello));
    }

    #[test]
    fn messages_are_what_librdmacm_sends() {
        let seen = [
            (0x8000_0180, Message::Credits(384)),
            (0x0000_01f4, Message::Data(500)),
            (0xe000_0000, Message::Disconnect),
            (0xe000_0001, Message::KeepAlive),
            (0xe000_0002, Message::Shutdown),
            (0xc000_0003, Message::Mapped(3)),
        ];
        for (immediate, message) in seen {
            assert_eq!((Message::of(immediate), message.immediate()), (Ok(message), immediate));
        }
        assert_eq!(Message::of(0x8001_0002), Ok(Message::Credits(2)));
    }

    #[test]
    fn messages_without_a_meaning_are_refused() {
        for immediate in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0007, 0xe000_0003, 0xffff_ffff] {
            assert_eq!(Message::of(immediate), Err(ProtocolError::Message(immediate)));
        }
    }

    #[test]
    fn entries_are_in_the_order_of_whose_table_it_is() {
        let place = Place { addr: 0x0102_0304_0506_0708, key: 0x090a_0b0c, len: 0x0d0e_0f10 };
        let mapping = Mapping { offset: 0x1112_1314_1516_1718, place };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Place::of(place.bytes(order), order), place);
            assert_eq!(Mapping::of(mapping.bytes(order), order), mapping);
        }
        assert_eq!(place.bytes(Order::Big), core::array::from_fn(|i| i as u8 + 1));
        assert_eq!(mapping.bytes(Order::Little)[..8], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    }

    #[test]
    fn sizes_of_tables_fit_a_byte() {
        for (size, told) in [(0, 0), (1, 1), (128, 128), (129, 128), (300, 256), (usize::MAX, 16_256)] {
            assert_eq!(told_size(size), told);
        }
    }
}

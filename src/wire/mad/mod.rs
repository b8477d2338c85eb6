//! Management datagrams of the communication manager (IBA 13.4, 12.6 to 12.11): bytes to messages and back.
//!
//! A [`Mad`] is a header and a [`Message`]; the messages are plain structs made from the specification's tables. [`ip`] is
//! what `rdma_cm` adds: ports as service IDs, and addresses in the private data.

mod code;
mod field;
pub mod ip;
mod message;

pub use code::{
    Acknowledged, AprStatus, CommId, Ece, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use field::Field;
pub use message::{Apr, Drep, Dreq, Lap, Mra, PathInfo, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Bytes of its header.
pub const MAD_HEADER_LEN: usize = 24;

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// A datagram of the communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Which exchange it is of: an answer has that of what it answers.
    pub transaction: u64,
    /// The attribute modifier: the options of [`Ece`], in REQ, REP and SIDR_REP.
    pub modifier: u32,
    /// What it says.
    pub message: Message,
}

/// Why bytes are no MAD of the communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MadError {
    /// A MAD has [`MAD_LEN`] bytes.
    #[error("{0} bytes are no MAD, which has {MAD_LEN}")]
    Length(usize),
    /// Base version.
    #[error("MAD base version {0}, and only {BASE_VERSION} is known")]
    BaseVersion(u8),
    /// Another management class.
    #[error("management class {0:#04x} is not the communication manager's, {CLASS:#04x}")]
    Class(u8),
    /// Another version of the class.
    #[error("version {0} of the communication management class, and only {CLASS_VERSION} is known")]
    ClassVersion(u8),
    /// The communication manager's messages are all sent, none asked for or answered as an attribute is.
    #[error("method {0:#04x} where communication management has only Send, {METHOD_SEND:#04x}")]
    Method(u8),
    /// No such message.
    #[error("attribute {0:#06x} is no message of communication management")]
    Attribute(u16),
}

/// The recipient of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// The listener of a service.
    Service(ServiceId),
    /// The end of a connection, or of a service ID resolution, that has this ID. 0 in a REJ of one that never learned it.
    Connection(CommId),
}

macro_rules! message {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal, $text:literal;)*) => {
        /// A message of the communication manager.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "they are all of the size of a MAD")]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        /// Which message.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum MessageKind {
            $($(#[$doc])* $name,)*
        }

        impl MessageKind {
            /// Every message.
            pub const ALL: &'static [MessageKind] = &[$(MessageKind::$name),*];

            /// As the specification writes it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(MessageKind::$name => $text,)*
                }
            }

            /// The attribute ID.
            pub const fn attribute(self) -> u16 {
                match self {
                    $(MessageKind::$name => $attribute,)*
                }
            }
        }

        impl Message {
            /// Which it is.
            pub const fn kind(&self) -> MessageKind {
                match self {
                    $(Message::$name(_) => MessageKind::$name,)*
                }
            }

            fn read(attribute: u16, data: &field::Data) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$name($name::read(data, 0, field::DATA_BITS))),)*
                    _ => None,
                }
            }

            fn write(&self, data: &mut field::Data) {
                match self {
                    $(Message::$name(message) => message.write(data, 0, field::DATA_BITS),)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

message! {
    /// Request for communication.
    Req = 0x10, "REQ";
    /// Message receipt acknowledgement.
    Mra = 0x11, "MRA";
    /// Reject.
    Rej = 0x12, "REJ";
    /// Reply to a request for communication.
    Rep = 0x13, "REP";
    /// Ready to use.
    Rtu = 0x14, "RTU";
    /// Request for communication release.
    Dreq = 0x15, "DREQ";
    /// Reply to a request for communication release.
    Drep = 0x16, "DREP";
    /// Service ID resolution request.
    SidrReq = 0x17, "SIDR_REQ";
    /// Service ID resolution reply.
    SidrRep = 0x18, "SIDR_REP";
    /// Load alternate path.
    Lap = 0x19, "LAP";
    /// Alternate path response.
    Apr = 0x1a, "APR";
}

impl Message {
    /// The recipient, by which a process is found where several share QP1.
    pub fn recipient(&self) -> Recipient {
        Recipient::Connection(match self {
            Message::Req(m) => return Recipient::Service(m.service),
            Message::SidrReq(m) => return Recipient::Service(m.service),
            Message::Mra(m) => m.remote,
            Message::Rej(m) => m.remote,
            Message::Rep(m) => m.remote,
            Message::Rtu(m) => m.remote,
            Message::Dreq(m) => m.remote,
            Message::Drep(m) => m.remote,
            Message::SidrRep(m) => m.request,
            Message::Lap(m) => m.remote,
            Message::Apr(m) => m.remote,
        })
    }
}

impl Mad {
    /// The message in `bytes`. Reserved fields may be anything, as may be what the message does not use of its values.
    ///
    /// # Errors
    /// [`MadError`]
    pub fn parse(bytes: &[u8]) -> Result<Mad, MadError> {
        let Ok(bytes) = <&[u8; MAD_LEN]>::try_from(bytes) else {
            return Err(MadError::Length(bytes.len()));
        };
        let (header, data) = bytes.split_first_chunk::<MAD_HEADER_LEN>().expect("a MAD is longer");
        let data: &field::Data = data.try_into().expect("a MAD is a header and data");
        let [base_version, class, class_version, method, ..] = *header;
        let attribute = u16::from_be_bytes([header[16], header[17]]);
        match () {
            () if base_version != BASE_VERSION => Err(MadError::BaseVersion(base_version)),
            () if class != CLASS => Err(MadError::Class(class)),
            () if class_version != CLASS_VERSION => Err(MadError::ClassVersion(class_version)),
            () if method != METHOD_SEND => Err(MadError::Method(method)),
            () => Ok(Mad {
                transaction: u64::from_be_bytes(*header[8..].first_chunk().expect("24 bytes")),
                modifier: u32::from_be_bytes(*header[20..].first_chunk().expect("24 bytes")),
                message: Message::read(attribute, data).ok_or(MadError::Attribute(attribute))?,
            }),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let (header, data) = bytes.split_at_mut(MAD_HEADER_LEN);
        header[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        header[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        header[16..18].copy_from_slice(&self.message.kind().attribute().to_be_bytes());
        header[20..].copy_from_slice(&self.modifier.to_be_bytes());
        self.message.write(data.try_into().expect("a MAD is a header and data"));
        bytes
    }
}

impl Rep {
    /// The vendor of the sender's [`Ece`].
    pub fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low])
    }

    /// Sets the vendor, of which 24 bits count.
    pub fn set_vendor_id(&mut self, vendor: u32) {
        [_, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low] = vendor.to_be_bytes();
    }
}

impl SidrRep {
    /// The vendor of the sender's [`Ece`].
    pub fn vendor_id(&self) -> u32 {
        u32::from(self.vendor_id_high) << 8 | u32::from(self.vendor_id_low)
    }

    /// Sets the vendor, of which 24 bits count.
    pub fn set_vendor_id(&mut self, vendor: u32) {
        (self.vendor_id_high, self.vendor_id_low) = ((vendor >> 8) as u16, vendor as u8);
    }
}

macro_rules! info {
    ($($name:ident)*) => {
        $(impl $name {
            /// The part of `info` that counts.
            pub fn info(&self) -> &[u8] {
                &self.info[..usize::from(self.info_len).min(self.info.len())]
            }
        })*
    };
}

info!(Rej Apr SidrRep);

#[cfg(test)]
mod tests;

//! Decoding and encoding of communication manager messages in management datagrams (MADs; IBA 13.4, 12.6 to
//! 12.11).
//!
//! A [`Mad`] is a header and a [`Message`]; the messages are plain structs generated from the specification's
//! tables. [`ip`] implements the additions of `rdma_cm`: ports as service IDs, and addresses in the private
//! data.

mod code;
mod field;
pub mod ip;
mod message;

pub use code::{
    Acknowledged, AprStatus, CommId, Ece, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use field::Field;
pub use message::{Apr, Drep, Dreq, Lap, Mra, PathInfo, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;
/// Length of a MAD's header in bytes.
pub const MAD_HEADER_LEN: usize = 24;

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// Management datagram (MAD) that carries a communication manager message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Transaction ID. A response carries the transaction ID of its request.
    pub transaction: u64,
    /// Attribute modifier, which contains the [`Ece`] options in a REQ, REP or SIDR_REP.
    pub modifier: u32,
    /// Message in the MAD's data.
    pub message: Message,
}

/// Reason why bytes are not a communication manager MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// The length is not [`MAD_LEN`].
    #[error("MAD length is {0} bytes, must be {MAD_LEN}")]
    Length(usize),
    /// The base version is unknown.
    #[error("MAD base version is {0}, must be {BASE_VERSION}")]
    BaseVersion(u8),
    /// The management class is not communication management.
    #[error("management class is {0:#04x}, must be {CLASS:#04x} (communication management)")]
    Class(u8),
    /// The management class version is unknown.
    #[error("version of the communication management class is {0}, must be {CLASS_VERSION}")]
    ClassVersion(u8),
    /// The method is not Send, which all communication manager messages use.
    #[error("method is {0:#04x}, must be {METHOD_SEND:#04x} (Send)")]
    Method(u8),
    /// The attribute ID does not identify a communication manager message.
    #[error("attribute {0:#06x} is not a message of communication management")]
    Attribute(u16),
}

/// Recipient of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// The listener on the given service ID.
    Service(ServiceId),
    /// The end that assigned the given ID to a connection or a service ID resolution. The ID is 0 in a REJ
    /// whose sender never received it.
    Connection(CommId),
}

macro_rules! message {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal, $text:literal;)*) => {
        /// Communication manager message.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "most variants have the size of a MAD")]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        /// Kind of a message.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum MessageKind {
            $($(#[$doc])* $name,)*
        }

        impl MessageKind {
            /// All kinds.
            pub const ALL: &'static [MessageKind] = &[$(MessageKind::$name),*];

            /// Returns the message's name in the specification.
            pub const fn name(self) -> &'static str {
                match self {
                    $(MessageKind::$name => $text,)*
                }
            }

            /// Returns the attribute ID.
            pub const fn attribute(self) -> u16 {
                match self {
                    $(MessageKind::$name => $attribute,)*
                }
            }
        }

        impl Message {
            /// Returns the message's kind.
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
    /// Returns the recipient, which determines the process that gets the message if several share QP1.
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
    /// Decodes the MAD in `bytes`. Reserved fields and unused bits may have any value.
    ///
    /// # Errors
    /// [`MadError`] if the length, a field of the header or the attribute is not that of a known message.
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

    /// Encodes the MAD.
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
    /// Returns the vendor ID from the sender's [`Ece`].
    pub fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low])
    }

    /// Sets the vendor ID to the low 24 bits of `vendor`.
    pub fn set_vendor_id(&mut self, vendor: u32) {
        [_, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low] = vendor.to_be_bytes();
    }
}

impl SidrRep {
    /// Returns the vendor ID from the sender's [`Ece`].
    pub fn vendor_id(&self) -> u32 {
        u32::from(self.vendor_id_high) << 8 | u32::from(self.vendor_id_low)
    }

    /// Sets the vendor ID to the low 24 bits of `vendor`.
    pub fn set_vendor_id(&mut self, vendor: u32) {
        (self.vendor_id_high, self.vendor_id_low) = ((vendor >> 8) as u16, vendor as u8);
    }
}

macro_rules! info {
    ($($name:ident)*) => {
        $(impl $name {
            /// Returns the significant bytes of `info`.
            pub fn info(&self) -> &[u8] {
                &self.info[..usize::from(self.info_len).min(self.info.len())]
            }
        })*
    };
}

info!(Rej Apr SidrRep);

#[cfg(test)]
mod tests;

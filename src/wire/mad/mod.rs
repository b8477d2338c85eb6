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
use field::{Bits, Field};
pub use message::{
    Apr, Drep, Dreq, Lap, Message, MessageKind, Mra, PathInfo, Recipient, Rej, Rep, Req, Rtu, SidrRep,
    SidrReq,
};

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;
/// Length of a MAD's header in bytes.
pub const MAD_HEADER_LEN: usize = 24;

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

// Positions in the header (IBA 13.4.3).
const TRANSACTION: &[Bits] = &[(8, 0, 64)];
const ATTRIBUTE: &[Bits] = &[(16, 0, 16)];
const MODIFIER: &[Bits] = &[(20, 0, 32)];

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

impl Mad {
    /// Decodes the MAD in `bytes`. Reserved fields and unused bits may have any value.
    ///
    /// # Errors
    /// [`MadError`] if the length, a field of the header or the attribute is not that of a known message.
    pub fn parse(bytes: &[u8]) -> Result<Mad, MadError> {
        let Ok(bytes) = <&[u8; MAD_LEN]>::try_from(bytes) else {
            return Err(MadError::Length(bytes.len()));
        };
        let [base_version, class, class_version, method, ..] = *bytes;
        let attribute = Field::read(bytes, ATTRIBUTE);
        match () {
            () if base_version != BASE_VERSION => Err(MadError::BaseVersion(base_version)),
            () if class != CLASS => Err(MadError::Class(class)),
            () if class_version != CLASS_VERSION => Err(MadError::ClassVersion(class_version)),
            () if method != METHOD_SEND => Err(MadError::Method(method)),
            () => Ok(Mad {
                transaction: Field::read(bytes, TRANSACTION),
                modifier: Field::read(bytes, MODIFIER),
                message: Message::read(attribute, bytes).ok_or(MadError::Attribute(attribute))?,
            }),
        }
    }

    /// Encodes the MAD.
    pub fn bytes(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        self.transaction.write(&mut bytes, TRANSACTION);
        self.message.kind().attribute().write(&mut bytes, ATTRIBUTE);
        self.modifier.write(&mut bytes, MODIFIER);
        self.message.write(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests;

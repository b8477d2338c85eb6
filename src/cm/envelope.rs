//! Received and outgoing MADs with their addresses.

use crate::transport::AddressVector;
use crate::wire::Qpn;
use crate::wire::mad::MAD_LEN;

/// Origin of a received MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadSource {
    /// Address vector back to the sender, with the GID that the MAD was sent to as source.
    pub from: AddressVector,
    /// Queue pair of the sender: messages come from QP1, and responses go to QP1.
    pub src_qpn: Qpn,
}

/// A MAD to send from QP1 to QP1, with the Q_Key of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingMad {
    /// Destination.
    pub to: AddressVector,
    /// Bytes of the MAD.
    pub mad: [u8; MAD_LEN],
}

//! Received and outgoing MADs with their addresses.

use crate::transport::AddressVector;
use crate::wire::Qpn;
use crate::wire::mad::MAD_LEN;

/// Origin of a received MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadSource {
    /// Address vector back to the sender, whose source is the GID that the MAD was sent to.
    pub from: AddressVector,
    /// The sender's queue pair number; only MADs from QP1 are accepted.
    pub src_qpn: Qpn,
}

/// A MAD to send from QP1 to QP1 with the well-known Q_Key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingMad {
    /// Destination.
    pub to: AddressVector,
    /// Bytes of the MAD.
    pub mad: [u8; MAD_LEN],
}

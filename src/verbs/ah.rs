//! Address handles, and the path back to a datagram's sender.

use super::faults::Call;
use super::{Context, CreateError, Pd};
use crate::transport::{AddressVector, Completion, Destination};
use crate::wire::{Flow, Gid, QKey, Qpn, grh};

/// An address handle: the path along which datagrams reach a port.
#[derive(Clone, Debug)]
pub struct Ah {
    pd: Pd,
    av: AddressVector,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// [`CreateError::Address`] if the port has no such GID, or that GID is of another IP version than the
    /// destination; [`CreateError::DeviceFatal`].
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, CreateError> {
        let unused_qpn = Qpn::default();
        let context = self.context();
        context.inject(Call::ibv_create_ah)?;
        context.check_device()?;
        context.0.shards.with_nic(|nic| nic.config().port.flow(av, unused_qpn, unused_qpn))?;
        Ok(Ah { pd: self.clone(), av: *av })
    }

    /// Creates an address handle for the sender of a datagram (`ibv_create_ah_from_wc`). `header` is the
    /// first [`grh::LEN`] bytes of the receive buffer.
    ///
    /// # Errors
    /// [`CreateError::NoGrh`] if the completion is not of a datagram, or the header is invalid or names no
    /// address of the port; [`CreateError::Address`]; [`CreateError::DeviceFatal`].
    pub fn create_ah_from_wc(&self, wc: &Completion, header: &[u8; grh::LEN]) -> Result<Ah, CreateError> {
        let path = self.context().reverse_path(header).filter(|_| wc.grh).ok_or(CreateError::NoGrh)?;
        self.create_ah(&path)
    }
}

impl Context {
    /// Returns the path back to the sender of a datagram. `header` is the first [`grh::LEN`] bytes of the
    /// receive buffer. Returns `None` if these bytes are not a routing header, or if the port does not have
    /// the datagram's destination address.
    pub fn reverse_path(&self, header: &[u8; grh::LEN]) -> Option<AddressVector> {
        let from = grh::flow(header)?;
        Some(AddressVector {
            dgid: Gid::from(from.src),
            sgid_index: index_of(self, &from)?,
            hop_limit: 64,
            traffic_class: from.traffic_class,
            flow_label: from.flow_label,
        })
    }
}

/// Returns the index of the GID to which a datagram was sent or, if that is a multicast group, of the GID
/// that best matches its sender.
fn index_of(context: &Context, from: &Flow) -> Option<u8> {
    if from.dst.is_multicast() {
        return context.gid_towards(from.src.into());
    }
    u8::try_from(context.gids().iter().position(|gid| gid.ip() == from.dst)?).ok()
}

impl Ah {
    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the path.
    pub fn address(&self) -> &AddressVector {
        &self.av
    }

    /// Returns a datagram destination: the queue pair `qpn` at this handle's address. Use [`Qpn::MULTICAST`]
    /// if the address is a multicast group.
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination {
        Destination::Qp { pd: self.pd.id(), av: self.av, qpn, qkey }
    }
}

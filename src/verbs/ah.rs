use super::{Context, CreateError, Pd};
use crate::transport::{AddressVector, Completion, Destination};
use crate::wire::{Flow, Gid, QKey, Qpn, grh};

/// An address handle: a path to a port, for datagrams.
#[derive(Clone, Debug)]
pub struct Ah {
    pd: Pd,
    av: AddressVector,
}

impl Pd {
    /// An address handle.
    ///
    /// # Errors
    /// [`CreateError::Address`] where the port has no such GID, or one of the other IP version.
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, CreateError> {
        let nowhere = Qpn::default();
        let context = self.context();
        context.check_device()?;
        context.0.shards.look(|nic| nic.config().port.flow(av, nowhere, nowhere))?;
        Ok(Ah { pd: self.clone(), av: *av })
    }

    /// An address handle back to where a datagram came from; `header` is the first [`grh::LEN`] bytes of its
    /// receive.
    ///
    /// # Errors
    /// [`CreateError::NoGrh`] if the completion is of no datagram, or the header is none;
    /// [`CreateError::Address`].
    pub fn create_ah_from_wc(&self, wc: &Completion, header: &[u8; grh::LEN]) -> Result<Ah, CreateError> {
        let path = self.context().path_back(header).filter(|_| wc.grh).ok_or(CreateError::NoGrh)?;
        self.create_ah(&path)
    }
}

impl Context {
    /// The path back to where a datagram came from; `header` is the first [`grh::LEN`] bytes of its receive. `None` if
    /// they are no such header, or it came to no address of the port's.
    pub fn path_back(&self, header: &[u8; grh::LEN]) -> Option<AddressVector> {
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

/// The GID that a datagram came to; of one to a group, that from which its sender is answered.
fn index_of(context: &Context, from: &Flow) -> Option<u8> {
    if from.dst.is_multicast() {
        return context.gid_towards(from.src.into());
    }
    u8::try_from(context.gids().iter().position(|gid| gid.ip() == from.dst)?).ok()
}

impl Ah {
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The path.
    pub fn address(&self) -> &AddressVector {
        &self.av
    }

    /// A queue pair there, as the destination of a datagram; [`Qpn::MULTICAST`] where the path leads to a group.
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination {
        Destination::Qp { pd: self.pd.id(), av: self.av, qpn, qkey }
    }
}

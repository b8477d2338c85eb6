use std::fmt;
use std::sync::Arc;

use super::{Context, Cq, CreateError, Pd, Qp, QpOptions};
use crate::transport::{Destination, QpType, SendWr, SrqId, XrcdId};

/// An XRC domain: target queue pairs and the shared receive queues that they serve. Cheap to clone; it lives as long
/// as anything made in it.
#[derive(Clone)]
pub struct Xrcd(Arc<XrcdInner>);

struct XrcdInner {
    id: XrcdId,
    /// Of targets, which have neither by themselves.
    pd: Pd,
    cq: Cq,
}

impl Context {
    /// An XRC domain.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn open_xrcd(&self) -> Result<Xrcd, CreateError> {
        let (pd, cq) = (self.alloc_pd()?, self.create_cq(1)?);
        // Its protection domain is its own, so that domain's number serves for both.
        Ok(Xrcd(Arc::new(XrcdInner { id: XrcdId(pd.id().0), pd, cq })))
    }
}

impl Xrcd {
    /// The context that it is of.
    pub fn context(&self) -> &Context {
        self.0.pd.context()
    }

    pub(super) fn id(&self) -> XrcdId {
        self.0.id
    }

    /// The receiving end of an XRC connection. It has no work requests; what arrives completes the receives of the
    /// shared receive queues that its packets name, in their protection domains.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_target_qp(&self) -> Result<Qp, CreateError> {
        let XrcdInner { id, pd, cq } = &*self.0;
        let options = QpOptions { qp_type: QpType::XrcRecv, ..QpOptions::default() };
        Qp::new(pd, cq, cq, None, Some(*id), &options)
    }
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xrcd({})", self.0.id.0)
    }
}

impl<'a> SendWr<'a> {
    /// This request to a shared receive queue at the peer (XRC).
    pub fn to_srq(self, srq: SrqId) -> SendWr<'a> {
        SendWr { to: Some(Destination::Srq(srq)), ..self }
    }
}

//! XRC domains, for extended reliable connections.

use std::fmt;
use std::sync::Arc;

use super::faults::Call;
use super::{Context, Cq, CreateError, Pd};
use crate::transport::XrcdId;

/// An XRC domain: a set of target queue pairs, and the shared receive queues from which they take receives.
/// Cheap to clone; it lives as long as anything created in it.
#[derive(Clone)]
pub struct Xrcd(pub(super) Arc<XrcdInner>);

pub(super) struct XrcdInner {
    id: XrcdId,
    /// Protection domain passed when target queue pairs are created; they do not use it.
    pub pd: Pd,
    /// Completion queue passed when target queue pairs are created; they do not use it.
    pub cq: Cq,
}

impl Context {
    /// Opens an XRC domain (`ibv_open_xrcd`).
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if all protection domains or completion queues of the device are in use;
    /// [`CreateError::DeviceFatal`].
    pub fn open_xrcd(&self) -> Result<Xrcd, CreateError> {
        self.inject(Call::ibv_open_xrcd)?;
        let (pd, cq) = (self.alloc_pd()?, self.create_cq(1)?);
        // The XRC domain has a protection domain of its own, so that domain's number identifies both.
        Ok(Xrcd(Arc::new(XrcdInner { id: XrcdId(pd.id().0), pd, cq })))
    }
}

impl Xrcd {
    /// Returns the context on which the XRC domain was opened.
    pub fn context(&self) -> &Context {
        self.0.pd.context()
    }

    pub(super) fn id(&self) -> XrcdId {
        self.0.id
    }
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xrcd({})", self.0.id.0)
    }
}

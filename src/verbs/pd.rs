//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::faults::Call;
use super::{Context, CreateError};
use crate::memory::PdId;

/// A protection domain: objects of different protection domains cannot be used together. Cheap to clone; it
/// lives as long as anything created in it.
///
/// ```
/// # use urxe::verbs::*;
/// # let context = Context::on_fabric(&Fabric::new())?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// mr.write(0, b"hello")?;
/// assert_eq!(mr.sge(0..5).length, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pd(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    context: Context,
    id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.context.0.pds.release(1);
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn alloc_pd(&self) -> Result<Pd, CreateError> {
        self.inject(Call::ibv_alloc_pd)?;
        self.check_device()?;
        self.0.pds.acquire(1)?;
        let id = PdId(self.0.next_pd.fetch_add(1, Ordering::Relaxed));
        Ok(Pd(Arc::new(PdInner { context: self.clone(), id })))
    }
}

impl Pd {
    /// Returns the context on which the protection domain was allocated.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(super) fn id(&self) -> PdId {
        self.0.id
    }
}

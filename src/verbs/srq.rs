//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use super::faults::{Call, Injector};
use super::{Cq, CreateError, Pd, Xrcd};
use crate::driver::{EventSubject, Shard};
use crate::sys::setters::setters;
use crate::transport::{Output, PostError, RecvCaps, RecvWr, SharedReceives, SrqId};

/// A shared receive queue. Cheap to clone; it lives as long as any queue pair that takes receives from it.
///
/// ```
/// # use urxe::verbs::*;
/// # let context = Context::on_fabric(&Fabric::new())?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let srq = pd.create_srq(RecvCaps { max_wr: 16, max_sge: 1 })?;
/// let qps = [(); 3].map(|()| pd.create_qp(&cq, &cq, &QpOptions::default().srq(&srq)));
/// srq.post_recv(&RecvWr::empty(1))?;
/// assert_eq!(srq.query().len, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Srq(Arc<SrqInner>);

struct SrqInner {
    pd: Pd,
    /// Shard that contains this queue and all queue pairs that use it.
    shard: Arc<Shard>,
    id: SrqId,
    /// XRC domain and completion queue of an XRC shared receive queue, which keeps both alive; otherwise
    /// `None`.
    xrc: Option<(Xrcd, Cq)>,
    calls: Injector,
}

/// Attributes for creating a shared receive queue with [`Pd::create_srq`] (`ibv_srq_init_attr_ex`).
///
/// ```
/// # use urxe::verbs::*;
/// # let context = Context::on_fabric(&Fabric::new())?;
/// # let (pd, cq, xrcd) = (context.alloc_pd()?, context.create_cq(16)?, context.open_xrcd()?);
/// let caps = RecvCaps { max_wr: 16, max_sge: 1 };
/// let plain = pd.create_srq(caps)?;
/// let xrc = pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, &cq))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SrqOptions {
    /// Limits of the queue.
    pub caps: RecvCaps,
    /// XRC domain whose target queue pairs use the queue, and completion queue for its receives; `None` if
    /// the queue is not for XRC.
    pub xrc: Option<(Xrcd, Cq)>,
}

setters!(SrqOptions { caps: RecvCaps });

impl SrqOptions {
    /// Returns options for a non-XRC queue with the given limits.
    pub fn new(caps: RecvCaps) -> SrqOptions {
        SrqOptions { caps, xrc: None }
    }

    /// Makes the queue an XRC shared receive queue, used by the target queue pairs of `xrcd`. Peers address
    /// it by its number, and its receives complete to `cq`.
    #[must_use]
    pub fn xrc(mut self, xrcd: &Xrcd, cq: &Cq) -> SrqOptions {
        self.xrc = Some((xrcd.clone(), cq.clone()));
        self
    }
}

impl Default for SrqOptions {
    /// Returns options for a queue of 128 receives with up to 4 scatter/gather elements each.
    fn default() -> SrqOptions {
        SrqOptions::new(RecvCaps { max_wr: 128, max_sge: 4 })
    }
}

impl From<RecvCaps> for SrqOptions {
    fn from(caps: RecvCaps) -> SrqOptions {
        SrqOptions::new(caps)
    }
}

/// Attributes of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Limits of the queue.
    pub caps: RecvCaps,
    /// Event threshold: [`super::AsyncEvent::SrqLimit`] is raised once when fewer receives than this are
    /// left; 0 if no event is requested.
    pub limit: u32,
    /// Number of receives in the queue.
    pub len: usize,
}

impl Pd {
    /// Creates a shared receive queue. `options` is either its limits ([`RecvCaps`]) or [`SrqOptions`].
    ///
    /// # Errors
    /// [`CreateError::Value`] for a limit above the device's; [`CreateError::OtherContext`];
    /// [`CreateError::Exhausted`]; [`CreateError::DeviceFatal`].
    pub fn create_srq(&self, options: impl Into<SrqOptions>) -> Result<Srq, CreateError> {
        let (context, SrqOptions { caps, xrc }) = (self.context(), options.into());
        context.inject(Call::ibv_create_srq)?;
        context.check_device()?;
        if xrc.as_ref().is_some_and(|(xrcd, cq)| !xrcd.context().is(context) || !cq.context().is(context)) {
            return Err(CreateError::OtherContext("XRC domain or completion queue"));
        }
        let l = context.0.limits;
        CreateError::check("max_wr", caps.max_wr.into(), 1..=l.max_srq_wr.into())?;
        CreateError::check("max_sge", caps.max_sge.into(), 0..=l.max_srq_sge.into())?;
        context.0.srqs.acquire(1)?;
        // XRC packets name the shared receive queue and any target queue pair of the domain, so one shard
        // holds all of them.
        let shard = if xrc.is_some() { context.0.shards.first() } else { context.0.shards.next_for_srq() };
        let made = shard.with_state(|state, _| {
            let made = match &xrc {
                Some((xrcd, cq)) => state.create_xrc_srq(self.id(), xrcd.id(), &cq.0.queue, caps),
                None => state.nic.create_srq(self.id(), caps),
            };
            made.inspect(|id| context.0.asynchronous.own(EventSubject::Srq(*id), context.0.reader))
        });
        let Some(id) = made else {
            context.0.srqs.release(1);
            return Err(CreateError::Exhausted { kind: "SRQs", max: l.max_srq });
        };
        if let Some((_, cq)) = &xrc {
            cq.0.users.add(shard);
        }
        let calls = context.0.calls.clone();
        Ok(Srq(Arc::new(SrqInner { pd: self.clone(), shard: shard.clone(), id, xrc, calls })))
    }
}

impl Srq {
    /// Returns the XRC domain and the completion queue for receives, or `None` if this is not an XRC shared
    /// receive queue.
    pub fn xrc(&self) -> Option<(&Xrcd, &Cq)> {
        self.0.xrc.as_ref().map(|(xrcd, cq)| (xrcd, cq))
    }

    /// Returns the queue's number, which identifies it in events and XRC work requests.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.0.shard
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Posts a receive work request, which is consumed by the first queue pair that needs one.
    ///
    /// # Errors
    /// [`PostError`]; then the work request was not posted.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.0.calls.inject(Call::ibv_post_srq_recv).map_err(PostError::Injected)?;
        self.0.shard.with_nic(|nic| match nic.has_failed() {
            true => Err(PostError::DeviceFatal),
            false => nic
                .with_srq(self.0.id, |queue, _| queue.post(wr))
                .expect("the NIC has the queue as long as its handle"),
        })
    }

    /// Requests one event for when fewer than `limit` receives are left. Raises it at once if that is already
    /// the case.
    pub fn arm_limit(&self, limit: u32) {
        self.with(|queue, out| queue.arm(limit, out));
    }

    /// Changes the maximum number of receives in the queue.
    ///
    /// # Errors
    /// [`CreateError::Value`] for 0, above the device's limit, or below the number of queued receives;
    /// [`CreateError::DeviceFatal`].
    pub fn resize(&self, max_wr: u32) -> Result<(), CreateError> {
        self.0.pd.context().check_device()?;
        let max = self.0.pd.context().0.limits.max_srq_wr.into();
        let check = |min| CreateError::check("max_wr", max_wr.into(), min..=max);
        check(1)?;
        self.with(|queue, _| queue.resize(max_wr)).or_else(|queued| check(queued as u64))
    }

    /// Returns the current attributes (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        self.with(|queue, _| SrqAttr { caps: queue.caps(), limit: queue.limit(), len: queue.len() })
    }

    fn with<R>(&self, f: impl FnOnce(&mut SharedReceives, &mut Vec<Output>) -> R) -> R {
        let result = self.0.shard.with_nic(|nic| nic.with_srq(self.0.id, f));
        result.expect("the NIC has the queue as long as its handle")
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Some((_, cq)) = &self.xrc {
            cq.0.users.remove(&self.shard);
        }
        self.shard.with_state(|state, _| state.destroy_srq(self.id));
        self.pd.context().0.srqs.release(1);
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.0.id.0)
    }
}

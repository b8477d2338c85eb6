//! Work requests as futures: each resolves to the completion of its request.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use urxe::Error;
use urxe::verbs::errors::{CreateError, MemoryAccessError, PostError, WaitError};
use urxe::verbs::service::{Connected, Reliable, Service};
use urxe::verbs::{Access, Completion, Mr, Pd, Qp, QpOptions, Rc, RecvWr, RemoteAddr, SendWr, Sge};

use crate::AsyncCq;
use crate::waiter::first_of;

/// A queue pair whose work requests are futures, of the service [`Rc`](urxe::verbs::Rc) or
/// [`Uc`](urxe::verbs::Uc). It has its own completion queue. Cheap to clone; any number of tasks may have
/// requests in flight.
///
/// A future posts its request when it is first polled, waiting for room if the send or receive queue is full,
/// and ends with the completion of the request. So requests are posted in the order in which their futures
/// are first polled: that of the arguments of `tokio::join!`, for example. After an error of the queue pair,
/// all futures end with the completions of their flushed requests.
///
/// **Dropped futures.** The request of a future that has posted it stays in flight, and takes effect like any
/// other: a dropped future of [`recv`](Self::recv) still consumes a message. The queue pair holds the regions
/// of the request until it completes, so the NIC never accesses a region that no longer exists, and counts
/// the request in its queue until then. The contents of a region are accessed only by copying ([`Mr::read`],
/// [`Mr::write`]), also while the NIC writes to it. To stop waiting without giving up the result, poll the
/// future by reference: `timeout(limit, &mut future)`. A future that is kept and not polled delays no other.
///
/// ```
/// # use std::sync::Arc;
/// use urxe::verbs::*;
/// use urxe_tokio::AsyncQp;
///
/// # fn main() -> Result<(), urxe::Error> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let fabric = Fabric::new();
/// # let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
/// let (a, b) = (
///     AsyncQp::<Rc>::new(&local.alloc_pd()?, &QpOptions::default())?,
///     AsyncQp::<Rc>::new(&remote.alloc_pd()?, &QpOptions::default())?,
/// );
/// a.qp().connect(&b.qp().endpoint(), &ConnectOptions::default())?;
/// b.qp().connect(&a.qp().endpoint(), &ConnectOptions::default())?;
/// let (source, target) =
///     (Arc::new(a.qp().pd().reg_mr(64, Access::ALL)?), Arc::new(b.qp().pd().reg_mr(64, Access::ALL)?));
/// source.write(0, b"hello")?;
/// a.write(&source, 0..5, target.remote(0)).await?;
/// assert_eq!(target.read_vec(0..5)?, b"hello");
/// assert_eq!(a.fetch_add(target.remote(8), 3).await?, 0);
/// let (received, sent) = tokio::join!(b.recv(&target, 16..64), a.send(&source, 0..5));
/// assert_eq!((received?.byte_len, sent?), (5, ()));
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncQp<S = Rc>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    /// Declared first: the regions of the requests in flight are dropped after the queue pair.
    qp: Qp<S>,
    cq: AsyncCq,
    /// Whether the completion queue was empty when an event was last requested. Held while completions are
    /// taken.
    is_drained: Mutex<bool>,
    next_wr_id: AtomicU64,
    in_flight: Mutex<HashMap<u64, Request>>,
    /// Free slots of the send queue and of the receive queue.
    send_room: Arc<Semaphore>,
    recv_room: Arc<Semaphore>,
}

/// Request in flight, whether or not its future still exists.
#[derive(Debug)]
struct Request {
    completed: oneshot::Sender<Completion>,
    _slot: OwnedSemaphorePermit,
    _regions: Vec<Arc<Mr>>,
}

impl<S: Service + Connected> AsyncQp<S> {
    /// Creates a queue pair in the RESET state, with the service `S`. The service and a shared receive queue
    /// in the options are ignored.
    ///
    /// # Errors
    /// Those of [`Pd::create_qp`] and [`AsyncCq::new`], whose capacity is the sum of the depths of both
    /// queues.
    pub fn new(pd: &Pd, options: &QpOptions) -> Result<AsyncQp<S>, CreateError> {
        let depths = [options.send.max_wr, options.recv.max_wr].map(|depth| depth as usize);
        let cq = AsyncCq::new(pd.context(), depths.iter().sum::<usize>().max(1))?;
        let mut options = options.clone();
        options.srq = None;
        let qp = pd.create_typed_qp(cq.cq(), cq.cq(), &options)?;
        let [send_room, recv_room] = depths.map(|depth| Arc::new(Semaphore::new(depth)));
        let (is_drained, next_wr_id, in_flight) = Default::default();
        Ok(AsyncQp(Arc::new(Inner { qp, cq, is_drained, next_wr_id, in_flight, send_room, recv_room })))
    }

    /// Returns the queue pair, for connecting it and for queries:
    /// [`AsyncSession::connect`](crate::AsyncSession) takes `qp.qp().untyped()`. Requests that are posted to
    /// it directly have no futures, and must not have the `wr_id` of one that has. Do not move it to RESET
    /// while requests are in flight: that discards their completions.
    pub fn qp(&self) -> &Qp<S> {
        &self.0.qp
    }

    /// Writes the range of the local region to the peer's memory.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute), and [`Error::Memory`] for a range outside of the region.
    pub async fn write(&self, mr: &Arc<Mr>, range: Range<usize>, to: RemoteAddr) -> Result<(), Error> {
        self.execute(SendWr::write(0, &[sge(mr, range)?], to), &[mr]).await.map(drop)
    }

    /// Sends the range of the region to the peer's next receive; with immediate data by
    /// [`execute`](Self::execute).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn send(&self, mr: &Arc<Mr>, range: Range<usize>) -> Result<(), Error> {
        self.execute(SendWr::send(0, &[sge(mr, range)?]), &[mr]).await.map(drop)
    }

    /// Receives a message into the range of the region. The completion has the number of bytes received and
    /// the immediate data.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn recv(&self, mr: &Arc<Mr>, range: Range<usize>) -> Result<Completion, Error> {
        let sges = [sge(mr, range)?];
        let post = |wr_id| self.0.qp.post_recv(&RecvWr::new(wr_id, &sges));
        self.0.complete(&self.0.recv_room, &[mr], post).await
    }

    /// Executes any send work request, and returns its completion. Its `wr_id` is replaced, and it is always
    /// signaled. `regions` are those of its scatter/gather elements, which are held until it completes.
    ///
    /// # Errors
    /// [`Error::Post`]; [`Error::Wait`] with [`WaitError::Failed`] if the completion has an error status, and
    /// with another error, as [`AsyncCq::wait_any`], if the wait ends while the request is in flight.
    pub async fn execute(&self, wr: SendWr<'_, S>, regions: &[&Arc<Mr>]) -> Result<Completion, Error> {
        let mut wr = wr.signaled(true);
        let post = |wr_id| {
            wr.wr_id = wr_id;
            self.0.qp.post_send(&wr)
        };
        self.0.complete(&self.0.send_room, regions, post).await
    }
}

/// Verbs of reliable services.
impl<S: Service + Reliable> AsyncQp<S> {
    /// Reads the peer's memory into the range of the local region.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn read(&self, mr: &Arc<Mr>, range: Range<usize>, from: RemoteAddr) -> Result<(), Error> {
        self.execute(SendWr::read(0, &[sge(mr, range)?], from), &[mr]).await.map(drop)
    }

    /// Adds to 8 bytes of the peer's memory, and returns their previous value.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute), and [`Error::Create`] if the NIC has no key left for the result.
    pub async fn fetch_add(&self, at: RemoteAddr, add: u64) -> Result<u64, Error> {
        self.atomic(SendWr::fetch_add(0, &[], at, add)).await
    }

    /// Replaces 8 bytes of the peer's memory by `swap` if their value is `compare`, and returns their
    /// previous value.
    ///
    /// # Errors
    /// As for [`fetch_add`](Self::fetch_add).
    pub async fn compare_swap(&self, at: RemoteAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.atomic(SendWr::compare_swap(0, &[], at, compare, swap)).await
    }

    async fn atomic(&self, wr: SendWr<'_, S>) -> Result<u64, Error> {
        let result = Arc::new(self.0.qp.pd().reg_mr(8, Access::LOCAL_WRITE)?);
        self.execute(wr.sges(&[result.sge(0..8)]), &[&result]).await?;
        Ok(result.buffer().load_u64(0)?)
    }
}

impl<S> Inner<S> {
    /// Posts a request when its queue has room, and waits for its completion.
    ///
    /// Meanwhile it dispatches the completions of all requests, as every waiting task does: if a single one
    /// did, the others would wait in vain while the future of that task exists and is not polled. An event of
    /// the completion queue wakes all of them, and the first finds the completions.
    async fn complete(
        &self,
        room: &Arc<Semaphore>,
        regions: &[&Arc<Mr>],
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<Completion, Error> {
        let request = async {
            let slot = room.clone().acquire_owned().await.expect("the semaphores are never closed");
            let (completed, completion) = oneshot::channel();
            let regions = regions.iter().map(|&mr| mr.clone()).collect();
            let wr_id = self.next_wr_id.fetch_add(1, Ordering::Relaxed);
            self.in_flight.lock().insert(wr_id, Request { completed, _slot: slot, _regions: regions });
            post(wr_id).inspect_err(|_| drop(self.in_flight.lock().remove(&wr_id)))?;
            let completion =
                completion.await.expect("a request in flight keeps its sender until it completes");
            Ok(completion.successful()?)
        };
        let dispatch = async {
            let (Ok(error) | Err(error)) = self.cq.wait_until(|| self.dispatch()).await;
            Err(error.into())
        };
        first_of(request, dispatch).await
    }

    /// Passes the completions in the queue to their futures. Returns an error of the queue.
    fn dispatch(&self) -> Option<WaitError> {
        let mut is_drained = self.is_drained.lock();
        if *is_drained && !self.cq.take_event() {
            return None;
        }
        *is_drained = false;
        while let Some(taken) = self.cq.take() {
            let Ok(completion) = taken else { return taken.err() };
            let request = self.in_flight.lock().remove(&completion.wr_id);
            // If the future was dropped, its completion is not needed.
            let _ = request.map(|request| request.completed.send(completion));
        }
        *is_drained = true;
        None
    }
}

/// Returns the element for a range, which must lie in the region.
fn sge(mr: &Mr, range: Range<usize>) -> Result<Sge, Error> {
    let (offset, len, size) = (range.start, range.len(), mr.len());
    match range.end <= size && u32::try_from(len).is_ok() {
        true => Ok(mr.sge(range)),
        false => Err(MemoryAccessError { offset, len, size }.into()),
    }
}

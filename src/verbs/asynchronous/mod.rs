//! Asynchronous counterparts of the blocking waits for completions, events and connections (feature `async`),
//! based on tokio's `AsyncFd`.
//!
//! | blocking | here |
//! | --- | --- |
//! | [`Cq::wait`](super::Cq::wait) | [`AsyncCq::wait`] |
//! | [`CompletionChannel::get_event`](super::CompletionChannel::get_event) | [`AsyncCompletionChannel::get_event`] |
//! | [`Context::wait_event`](super::Context::wait_event) | [`EventStream::next`] |
//! | [`EventChannel::get_event`](super::cm::EventChannel::get_event) | [`AsyncEventChannel::get_event`] |
//! | [`Listener`](super::cm::Listener), [`ConnectionManager::connect`](super::cm::ConnectionManager::connect) | [`AsyncListener`], [`ConnectionManager::connect_async`](super::cm::ConnectionManager::connect_async) |
//!
//! **Timeouts** are those of tokio: `tokio::time::timeout(limit, cq.wait())`. They and `select!` drop pending
//! futures, so every wait is cancel-safe unless its documentation says otherwise: a completion or event is
//! taken only in the poll that returns it, and a dropped future takes none.
//!
//! **In real time** a wait needs a tokio runtime with I/O, and panics outside of one. While tasks wait, the
//! background thread of the NIC receives packets and serves timers.
//!
//! **In virtual time** a waiting task steps the fabric's clock and lets the other tasks run between the steps,
//! so a program of several tasks in a current-thread runtime replays from its seed. A wait ends with
//! [`WaitError::Idle`](super::WaitError::Idle) when the fabric has nothing to do and the other tasks did not
//! change that. Timers of tokio run in real time even then.
//!
//! ```
//! use urxe::verbs::asynchronous::AsyncCq;
//! use urxe::verbs::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let (a, b) = Fabric::new().pair()?;
//! let mut cq = AsyncCq::new(&a.context, 16)?;
//! let qp = a.pd.create_qp(cq.cq(), cq.cq(), &QpOptions::default())?;
//! let peer = b.pd.create_qp(&b.cq, &b.cq, &QpOptions::default())?;
//! qp.connect(&peer.endpoint(), &ConnectOptions::default())?;
//! peer.connect(&qp.endpoint(), &ConnectOptions::default())?;
//! peer.post_recv(&RecvWr::empty(1))?;
//! qp.post_send(&SendWr::send(2, &[]))?;
//! assert_eq!(cq.wait().await?.wr_id, 2);
//! # Ok(())
//! # })
//! # }
//! ```

mod completions;
mod events;
mod waiter;

pub use super::cm::asynchronous::{AsyncEventChannel, AsyncListener, AsyncSession};
pub use completions::{AsyncCompletionChannel, AsyncCq};
pub use events::EventStream;
pub(super) use waiter::Waiter;

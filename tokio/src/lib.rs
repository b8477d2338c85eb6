//! Asynchronous counterparts of the blocking waits of [`urxe::verbs`] for completions, events and
//! connections, based on tokio's `AsyncFd`; futures for work requests, and byte streams.
//!
//! | blocking | here |
//! | --- | --- |
//! | [`Cq::wait`](urxe::verbs::Cq::wait) | [`AsyncCq::wait`] |
//! | [`CompletionChannel::get_event`](urxe::verbs::CompletionChannel::get_event) | [`AsyncCompletionChannel::get_event`] |
//! | [`Qp::post_send`](urxe::verbs::Qp::post_send), [`Qp::post_recv`](urxe::verbs::Qp::post_recv), and a wait for the completion | [`AsyncQp`]: a future for each verb |
//! | [`Context::wait_event`](urxe::verbs::Context::wait_event) | [`EventStream::next`] |
//! | [`EventChannel::get_event`](urxe::verbs::cm::EventChannel::get_event) | [`AsyncEventChannel::get_event`] |
//! | sends and receives over a session | [`RdmaStream`]: tokio's `AsyncRead` and `AsyncWrite` |
//! | [`Listener`](urxe::verbs::cm::Listener), [`Incoming::accept`](urxe::verbs::cm::Incoming::accept), [`ConnectionManager::connect`](urxe::verbs::cm::ConnectionManager::connect) | [`AsyncListener`], [`AsyncSession::accept`], [`AsyncSession::connect`] |
//!
//! **Timeouts** are those of tokio: `tokio::time::timeout(limit, cq.wait())`. They and `select!` drop pending
//! futures, so every wait is cancel-safe unless its documentation says otherwise: a completion or event is
//! taken only in the poll that returns it, and a dropped future takes none. A work request that [`AsyncQp`]
//! has posted takes effect even if its future is dropped.
//!
//! **In real time** a wait needs a tokio runtime with I/O, and panics outside of one. While tasks wait, the
//! background thread of the NIC receives packets and serves timers.
//!
//! **In virtual time** a waiting task steps the fabric's clock and lets the other tasks run between the
//! steps, so a program of several tasks in a current-thread runtime replays from its seed. A wait ends with
//! [`WaitError::Idle`](urxe::verbs::errors::WaitError::Idle) when the fabric has nothing to do and the other
//! tasks did not change that. Timers of tokio run in real time even then.
//!
//! ```
//! use urxe::verbs::*;
//! use urxe_tokio::AsyncCq;
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
mod connections;
mod events;
mod requests;
mod stream;
mod waiter;
mod watched_fd;

pub use completions::{AsyncCompletionChannel, AsyncCq};
pub use connections::{AsyncEventChannel, AsyncListener, AsyncSession};
pub use events::EventStream;
pub use requests::AsyncQp;
pub use stream::RdmaStream;
use waiter::Waiter;

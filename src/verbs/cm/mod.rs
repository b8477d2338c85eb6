//! Connection manager API: connections by IP address and port, modelled on librdmacm.
//!
//! A [`ConnectionManager`] has a set of devices and creates [`CmId`]s, whose events are delivered to
//! [`EventChannel`]s. An id listens, or resolves an address and connects; each incoming connection request
//! creates an id of its own. A queue pair that is [attached](CmId::attach_qp) to an id is moved through its
//! states by the handshake.
//!
//! In real time a background thread handles the messages of peers. On a fabric in virtual time the steps of
//! the fabric do, and [`EventChannel::get_event`] runs them.
//!
//! [`Listener`] and [`ConnectionManager::connect`] are a blocking interface for programs that do not need
//! events:
//!
//! ```
//! use std::time::Duration;
//! use urxe::verbs::cm::*;
//! use urxe::verbs::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (fabric, timeout) = (Fabric::new(), Duration::from_secs(5));
//! let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
//! let address = (remote.address().ok_or("no address")?, 7471).into();
//! let new_qp = |context: &Context| {
//!     let cq = context.create_cq(64)?;
//!     context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
//! };
//!
//! let server = ConnectionManager::new(vec![remote])?;
//! let listener = Listener::bind(&server, address)?;
//! let server_thread = std::thread::spawn(move || -> Result<(), SessionError> {
//!     let incoming = listener.next(timeout)?;
//!     assert_eq!(&incoming.private_data()[..5], b"hello");
//!     let qp = new_qp(&incoming.context().expect("an incoming connection has a device"))?;
//!     let session = incoming.accept(qp, &ConnParam::with_data(b"welcome"), timeout)?;
//!     session.wait_for_disconnect(timeout)?;
//!     session.disconnect(timeout)
//! });
//!
//! let client = ConnectionManager::new(vec![local])?;
//! let session = client.connect(address, new_qp, &ConnParam::with_data(b"hello"), timeout)?;
//! assert_eq!(&session.private_data()[..7], b"welcome");
//! session.qp().post_send(&SendWr::send(1, &[]))?;
//! session.disconnect(timeout)?;
//! server_thread.join().expect("the server thread does not panic")?;
//! # Ok(())
//! # }
//! ```

mod address;
mod alternate;
mod channel;
mod connect;
mod datagram;
mod device_events;
mod error;
mod event;
mod id;
mod listen;
mod manager;
mod multicast;
mod param;
mod peer_to_peer;
mod ports;
mod qp_transitions;
mod session;
mod state;

pub use crate::cm::{CmCounters, CmError, ConnId, ConnectionInfo, State};
pub use crate::wire::mad::ip::PortSpace;
pub use crate::wire::mad::{Ece, RejReason};
pub use channel::EventChannel;
pub use error::IdError;
pub use event::{CmEvent, CmEventKind, Datagram, EventParam};
pub use id::CmId;
pub use manager::ConnectionManager;
pub use param::{ConnParam, MAX_RD_ATOMIC, Membership, PathRecord, UDP_QKEY};
pub use session::{Incoming, Listener, Session, SessionError};

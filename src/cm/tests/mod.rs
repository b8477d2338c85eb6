//! Tests of the connection manager.

mod alternate;
mod bench;
mod disconnect;
mod handshake;
mod hostile;
mod lossy;
mod peer_to_peer;
mod pending_listener;
mod sidr;
mod silence;

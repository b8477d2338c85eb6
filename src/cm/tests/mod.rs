//! Connection manager tests: against a scripted peer, and against another connection manager over a lossy
//! network.

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

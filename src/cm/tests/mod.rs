//! Tests of the connection manager.

mod alternate;
mod bench;
mod crossing;
mod handshake;
mod hostile;
mod leaving;
mod lossy;
mod sidr;
mod silence;
mod vacancy;

//! Tests of the connection manager through the Rust API: over the in-memory fabric in real and virtual time,
//! and over UDP on the loopback interface.

mod connections;
mod datagrams;
mod device_changes;
mod failures;
mod hostile;
mod ids;
mod listeners;
mod many;
mod paths;
mod sessions;
mod shared_address;

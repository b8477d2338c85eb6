//! Tests of the connection manager through the Rust API: over the in-memory fabric in real and virtual time,
//! and over UDP on the loopback interface.

#[path = "connection_manager/connections.rs"]
mod connections;
#[path = "connection_manager/datagrams.rs"]
mod datagrams;
#[path = "connection_manager/device_changes.rs"]
mod device_changes;
#[path = "connection_manager/failures.rs"]
mod failures;
#[path = "connection_manager/fixture.rs"]
mod fixture;
#[path = "connection_manager/hostile.rs"]
mod hostile;
#[path = "connection_manager/ids.rs"]
mod ids;
#[path = "connection_manager/listeners.rs"]
mod listeners;
#[path = "connection_manager/many.rs"]
mod many;
#[path = "connection_manager/paths.rs"]
mod paths;
#[path = "connection_manager/sessions.rs"]
mod sessions;
#[path = "connection_manager/shared_address.rs"]
mod shared_address;

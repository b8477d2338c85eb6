//! Tests of the connection manager through the Rust API: over the in-memory fabric, in real and in virtual
//! time, and over UDP on the loopback interface.

#[path = "connection_manager/changes.rs"]
mod changes;
#[path = "connection_manager/connections.rs"]
mod connections;
#[path = "connection_manager/datagrams.rs"]
mod datagrams;
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
#[path = "connection_manager/shared.rs"]
mod shared;
#[path = "connection_manager/stage.rs"]
mod stage;
#[path = "connection_manager/trouble.rs"]
mod trouble;

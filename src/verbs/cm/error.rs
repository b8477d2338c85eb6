//! Errors returned by calls on an id.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::cm::CmError;
use crate::transport::{InjectedError, ModifyError, QpState, QpType};
use crate::verbs::ClaimError;
use crate::verbs::errors::{CreateError, OpenError};

/// Error returned by a connection manager call. Later failures are reported as events.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum IdError {
    /// The id's state does not permit the call.
    #[error("cannot call {call}: the id {state}")]
    State {
        /// Name of the call.
        call: &'static str,
        /// Phase of the id.
        state: &'static str,
    },
    /// Another id is bound to the port.
    #[error("port {0} is in use: bind another port, or port 0 for any free port")]
    PortInUse(SocketAddr),
    /// Another id is bound to the port, and one of the two addresses is the wildcard address.
    #[error(
        "port {0} is in use by an id, and one of the addresses is a wildcard: bind another port, or port 0"
    )]
    PortInUseByWildcard(SocketAddr),
    /// No port in the ephemeral range is free.
    #[error("no ephemeral port is free on {0}")]
    NoPort(IpAddr),
    /// No device has the address.
    #[error("no device has the address {0}")]
    NoDevice(IpAddr),
    /// The system has no route to the destination.
    #[error("no route to {dst}: {source}")]
    NoRoute {
        /// Destination address.
        dst: IpAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The port could not be claimed, for example because another process uses it.
    #[error("cannot claim port {addr}: {source}")]
    Claim {
        /// Address and port.
        addr: SocketAddr,
        /// Cause.
        source: ClaimError,
    },
    /// The address is not unicast, so it does not identify a host.
    #[error("{0} is not a unicast address")]
    NoHost(IpAddr),
    /// Source and destination have different IP versions.
    #[error("{src} and {dst} are of different IP versions")]
    Family {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
    },
    /// The private data does not fit into the message.
    #[error("{given} bytes of private data exceed the maximum of {max}")]
    PrivateData {
        /// Number of bytes given.
        given: usize,
        /// Maximum number of private data bytes in the message.
        max: usize,
    },
    /// The id has no queue pair to connect.
    #[error("the id has no queue pair: attach one, or set qp_num")]
    NoQp,
    /// The queue pair and the id have different transport services.
    #[error("a {qp:?} queue pair does not match the {id:?} service of the id")]
    QpType {
        /// Transport service of the queue pair.
        qp: QpType,
        /// Transport service of the id.
        id: QpType,
    },
    /// The queue pair belongs to a device other than the id's.
    #[error("the queue pair and the id belong to different devices")]
    OtherDevice,
    /// The attributes for the requested transition are not yet known.
    #[error("the attributes for the transition to {0} are not known yet")]
    NoAttributes(QpState),
    /// The queue pair could not change state.
    #[error("cannot modify the queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// A parameter is out of range.
    #[error("invalid {name}: {value}")]
    Value {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: u64,
    },
    /// The id has already joined the multicast group.
    #[error("group {0} is already joined")]
    Joined(IpAddr),
    /// The address is not a multicast address, or the id has not joined the group.
    #[error("{0} is not a multicast address, or the group is not joined")]
    NoGroup(IpAddr),
    /// The id has been destroyed.
    #[error("the id is destroyed")]
    Ended,
    /// The manager belongs to the parent process; its copy in a forked child does nothing.
    #[error("the connection manager belongs to the parent process: create another after fork")]
    Inherited,
    /// The device's protocol layer rejected the call.
    Protocol(#[from] CmError),
    /// The device's QP1 could not be opened.
    #[error("cannot open QP1 of the device: {0}")]
    Device(#[from] CreateError),
    /// The device could not be reopened for the manager.
    Open(#[from] OpenError),
    /// A system call failed.
    System(#[from] io::Error),
    /// A fault on the call, which was not executed.
    Injected(InjectedError),
}

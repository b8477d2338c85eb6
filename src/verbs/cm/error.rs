//! Errors of calls on an id.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::cm::CmError;
use crate::transport::{ModifyError, QpState, QpType};
use crate::verbs::{ClaimError, CreateError, OpenError};

/// Error of a connection manager call. Later failures are reported as events.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    /// The phase of the id does not permit the call.
    #[error("{call} of an id that {state}")]
    State {
        /// Name of the call.
        call: &'static str,
        /// Phase of the id.
        state: &'static str,
    },
    /// Another id has the port.
    #[error("port {0} is taken: bind to another, or to 0 for any")]
    PortTaken(SocketAddr),
    /// Another id has the port, and one of the two is bound to the wildcard address.
    #[error(
        "port {0} is taken by an id with a wildcard address, or this is the wildcard: bind to another, or to 0 for any"
    )]
    PortTakenByWildcard(SocketAddr),
    /// No port of the ephemeral range is free.
    #[error("no port is free on {0}")]
    NoPort(IpAddr),
    /// No device has the address.
    #[error("no device has the address {0}")]
    NoDevice(IpAddr),
    /// The port could not be claimed, for example because another process has it.
    #[error("port {addr}: {source}")]
    Claim {
        /// Address and port.
        addr: SocketAddr,
        /// Cause.
        source: ClaimError,
    },
    /// The address cannot be that of a host.
    #[error("{0} is no host's address: a path leads to one host")]
    NoHost(IpAddr),
    /// Source and destination are of different IP versions.
    #[error("{src} and {dst} are of different IP versions")]
    Family {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
    },
    /// The private data do not fit the message.
    #[error("{given} bytes of private data, and there is room for {max}")]
    PrivateData {
        /// Number of bytes given.
        given: usize,
        /// Number of bytes that the message holds.
        max: usize,
    },
    /// The id has no queue pair to connect.
    #[error("no queue pair: attach one, or give its number")]
    NoQp,
    /// The transport service of the queue pair is not that of the id.
    #[error("a {qp:?} queue pair on an id of {id:?}")]
    QpType {
        /// Transport service of the queue pair.
        qp: QpType,
        /// Transport service of the id.
        id: QpType,
    },
    /// The queue pair belongs to a device other than the id's.
    #[error("the queue pair is of another device than the id")]
    OtherDevice,
    /// The attributes for the transition to this state are not known.
    #[error("there are no attributes for {0} yet")]
    NoAttributes(QpState),
    /// The state change of the queue pair failed.
    #[error("the queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// A parameter is out of range.
    #[error("{name} cannot be {value}")]
    Value {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: u64,
    },
    /// The multicast group is joined already.
    #[error("{0} is joined already")]
    Joined(IpAddr),
    /// The address is not a multicast group, or the group is not joined.
    #[error("{0} is no group, or not joined")]
    NoGroup(IpAddr),
    /// The id has been destroyed.
    #[error("the id has ended")]
    Ended,
    /// The manager belongs to the parent process; its copy in a child of fork does nothing.
    #[error("the connection manager is of the process that this one was forked from")]
    Inherited,
    /// The protocol layer of the device refuses the call.
    #[error(transparent)]
    Protocol(#[from] CmError),
    /// The QP1 of the device could not be taken.
    #[error("the device's QP1: {0}")]
    Device(#[from] CreateError),
    /// The device could not be opened again for the manager.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

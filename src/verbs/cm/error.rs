//! Why a call on an id failed.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::cm::CmError;
use crate::transport::{ModifyError, QpState, QpType};
use crate::verbs::{ClaimError, CreateError, OpenError};

/// Why a call of the connection manager failed. What goes wrong later comes as an event.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    /// Not now.
    #[error("{call} of an id that {state}")]
    State {
        /// The call.
        call: &'static str,
        /// What the id is doing.
        state: &'static str,
    },
    /// The port has another id.
    #[error("port {0} is taken: bind to another, or to 0 for any")]
    PortTaken(SocketAddr),
    /// The port has another id, and one of the two is bound to all addresses.
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
    /// Another process has the port.
    #[error("port {addr}: {source}")]
    Claim {
        /// The port.
        addr: SocketAddr,
        /// Why not.
        source: ClaimError,
    },
    /// No host has such an address.
    #[error("{0} is no host's address: a path leads to one host")]
    NoHost(IpAddr),
    /// Source and destination are of different IP versions.
    #[error("{src} and {dst} are of different IP versions")]
    Family {
        /// The source.
        src: IpAddr,
        /// The destination.
        dst: IpAddr,
    },
    /// Too much private data.
    #[error("{given} bytes of private data, and there is room for {max}")]
    PrivateData {
        /// As given.
        given: usize,
        /// What the message holds.
        max: usize,
    },
    /// There is no queue pair to connect.
    #[error("no queue pair: attach one, or give its number")]
    NoQp,
    /// The queue pair does not suit the id.
    #[error("a {qp:?} queue pair on an id of {id:?}")]
    QpType {
        /// Of the queue pair.
        qp: QpType,
        /// Of the id.
        id: QpType,
    },
    /// The queue pair is of another device than the id.
    #[error("the queue pair is of another device than the id")]
    OtherDevice,
    /// There are no attributes for that.
    #[error("there are no attributes for {0} yet")]
    NoAttributes(QpState),
    /// The queue pair could not change its state.
    #[error("the queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// A value that is not possible.
    #[error("{name} cannot be {value}")]
    Value {
        /// What.
        name: &'static str,
        /// As given.
        value: u64,
    },
    /// The group is joined already.
    #[error("{0} is joined already")]
    Joined(IpAddr),
    /// The address is no group, or was not joined.
    #[error("{0} is no group, or not joined")]
    NoGroup(IpAddr),
    /// The id was destroyed.
    #[error("the id has ended")]
    Ended,
    /// A child of fork has but a copy of it, which does nothing.
    #[error("the connection manager is of the process that this one was forked from")]
    Inherited,
    /// The connection manager of the device refuses.
    #[error(transparent)]
    Protocol(#[from] CmError),
    /// The device's QP1 could not be had.
    #[error("the device's QP1: {0}")]
    Device(#[from] CreateError),
    /// The device could not be opened for the manager.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

//! Broker for shared addresses: several processes use the same IP address, each with a part of the queue pair
//! number space.
//!
//! UDP port 4791 of an address can belong to one socket only, or to a reuseport group of sockets among which
//! a BPF program in the kernel selects by the order in which they were bound (`steering`). The broker, a
//! small daemon (`urxe broker`), binds a whole group at once, one socket for each `QpnPartition` (QPN
//! partition), and leases partitions to processes: it passes them the sockets. The queue pair numbers of a
//! process begin with its partition's number, so its packets find it. Partition 0 belongs to the broker.
//!
//! ```text
//!   client process (client/)                                     broker process (server/)
//!  ┌────────────────────────────────────┐                       ┌──────────────────────────────────┐
//!  │ SharedUdpLink ─── Lease ─── thread │ <── SOCK_SEQPACKET ─> │ Server: partitions of clients    │
//!  │    │                 "urxe lease"  │    Request, Response  │    │                             │
//!  │    │                               │                       │ ServedAddress: socket group,     │
//!  │    │                               │                       │    │   keepalive descriptor      │
//!  │ ServiceRegistry: socket of each    │ <──── SOCK_DGRAM ──── │ GsiListener ─── Mailboxes        │
//!  │    registered service              │      ForwardedMad     │                                  │
//!  └────────────────────────────────────┘                       └──────────────────────────────────┘
//!       ▲ packets and MADs for the partition                         ▲ requests for services (QP1)
//!       └───────────── kernel: reuseport group, BPF program ─────────┘
//! ```
//!
//! # Protocol
//!
//! Every message on a connection is one datagram: a line of text (`protocol`) with descriptors (SCM_RIGHTS,
//! `host::unix_sockets::fd_message`). The first word of each line is the version of the protocol; messages of
//! another version are refused.
//!
//! | message | direction | fields | descriptors |
//! | --- | --- | --- | --- |
//! | `acquire` | client to broker | number of shards, addresses | the memory of the last acknowledgements |
//! | `reattach` | client to a new broker | first partition, number of shards, addresses | the memory of the last acknowledgements, then the keepalive descriptor of each address |
//! | `granted` | broker to client | first partition; `any` or `own`: users that the broker serves | for `acquire`: a token for each shard; then for each address the sockets of all shards and the keepalive descriptor. For `reattach`: none |
//! | `refused` | broker to client | errno value, reason | none |
//! | `ForwardedMad` | broker to the socket of a service | version (1 byte), traffic class (1), source port (2), source and destination address (16 each), packet from BTH to ICRC | none |
//!
//! A client holds its connection as long as it has the lease; the end of the connection releases it. A token
//! is a socket with a unique name that marks a partition as in use, also for a broker that does not know the
//! client.
//!
//! # Connection management
//!
//! All processes share QP1, through which connections are established. A response finds its process by the
//! communication ID that the process has assigned, which begins with its partition's number as queue pair
//! numbers do: the BPF program looks at that ID instead. Only requests for a service go to the broker, which
//! forwards them to the Unix socket of the process that has registered the service. The broker keeps no list
//! of the services, but it remembers which client recently requested which service: a client that gives up
//! before it gets a response knows no ID of the server to name.
//!
//! # Shared memory
//!
//! Processes of one user exchange packets through rings in shared memory instead of the sockets, unless one
//! of them forbids it (`rings`). The broker has no part in it: a process listens for rings on a Unix socket
//! named after its partition.
//!
//! # Death of a client
//!
//! A program may end as soon as it has polled a receive completion. The acknowledgement may still be delayed
//! until a response carries it; an adapter sends it nevertheless. Therefore a client records its last
//! acknowledgements in memory of which the broker has the descriptor (`LastAcks`), and the broker sends them
//! when the connection ends. On a link without a broker (packet sockets, frames) they are lost.
//!
//! # Death of the broker
//!
//! The index of a socket in its group must not change while any process uses one: when a socket is closed,
//! the kernel moves the last one to its index. Therefore every process keeps all of them open, through one
//! descriptor, the keepalive descriptor (`FdKeepalive`): a Unix socket with an unread message that carries
//! them all. It gives access to the whole group, so a new broker can take over from any process that has a
//! partition.
//!
//! The broker listens on a Unix socket that has the address in its name (`SocketNames`), which belongs to a
//! network namespace as addresses do. A process that finds no broker starts one; the broker exits when no
//! process has a partition any more.
//!
//! Depends on `link` (sockets of UDP links), `rings`, `host` (Unix sockets), `cm` (responses to unmatched
//! MADs), `nic` (QPN partitions), `sys`, `transport`, `burst` and `wire`. `client` and `server` do not depend
//! on each other.

mod client;
mod forwarded_mad;
mod keepalive;
mod owner;
mod protocol;
mod server;
mod status;
mod steering;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::link::udp::BindAddr;
pub use crate::rings::SharedMemory;
#[doc(hidden)]
pub use client::start_detached;
pub use client::{SharedUdpLink, SharingError};
pub use owner::{QpOwner, owner_of};
pub use server::{ServeError, serve};
pub use status::{BrokerStatus, statuses};

/// Options for sharing an address with other processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Path of the `urxe` program, which runs the broker when called as `urxe broker`.
    pub program: PathBuf,
    /// Whether processes of any user may share the address, and brokers run by other users are trusted.
    pub any_user: bool,
    /// Whether to exchange packets with other processes of this host through rings in shared memory.
    pub shared_memory: SharedMemory,
}

/// Returns the name of the socket on which the broker for an address listens.
fn broker_name(bind_addr: &BindAddr) -> String {
    format!("urxe-broker/{}", bind_addr.key())
}

//! The host's network configuration, and what stands in for the host on links that carry frames.
//!
//! Interfaces with their addresses, routes and state, and the socket options that links set; Unix sockets
//! between the processes of the host; for links with an address of their own, the host stack (ARP, NDP, ICMP,
//! IGMP, MLD); for links that carry Ethernet frames, priority flow control.

pub(crate) mod bpf;
pub(crate) mod frame_queue;
pub(crate) mod host_stack;
mod interfaces;
pub(crate) mod link_state;
pub(crate) mod membership;
pub(crate) mod netlink;
pub(crate) mod pfc;
pub(crate) mod route;
pub(crate) mod socket_calls;
pub(crate) mod system_udp;
pub(crate) mod unix_sockets;
pub(crate) mod unresolved_queue;

pub use host_stack::{HostStackConfig, IfAddr, IfAddrError};
pub(crate) use interfaces::gid_table_order;
pub use interfaces::{Interface, interfaces, primary_address};
pub use pfc::PfcConfig;

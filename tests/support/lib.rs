//! Fixtures of the tests: NICs, wires, processes, namespaces and the guest. `tests/README.md` lists them.

pub mod addresses;
pub mod artifacts;
pub mod breakable;
pub mod cnp;
pub mod connections;
pub mod cq;
pub mod dumps;
pub mod ends;
pub mod engine;
pub mod guest;
pub mod huge_pages;
pub mod in_flight;
pub mod netns;
pub mod nic;
pub mod numbered;
pub mod pair;
pub mod pauses;
pub mod peer;
pub mod programs;
pub mod ring;
pub mod rng;
pub mod shared_address;
pub mod stock;
pub mod table;
pub mod tcp_port;
pub mod testbed;
pub mod transfer;
pub mod urxe_traffic;
pub mod wire;

pub use netns::requirement;

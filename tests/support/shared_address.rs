//! Contexts that share a loopback address as separate processes would, with the `urxe` command as the broker;
//! and MADs sent to them from another address.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::artifacts::urxe_program;
use urxe::broker::{SharedMemory, SharedUdpLink, Sharing};
use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::{AddressVector, Context, ContextOptions, Gid, MAD_LEN, ManagementPort, ServiceId};
use urxe::wire::mad::{CommId, Mad, Message, Req};

pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between transmissions of a MAD in [`send_until_received`].
pub const RETRY_INTERVAL: Duration = Duration::from_millis(100);

fn sharing() -> Sharing {
    Sharing { program: urxe_program(), any_user: false, shared_memory: SharedMemory::Auto }
}

pub fn open_shared(ip: IpAddr, wrap: impl Fn(SharedUdpLink) -> Box<dyn Link>) -> Context {
    let links = SharedUdpLink::bind(ip, &UdpOptions::default(), 1, &sharing()).unwrap();
    Context::open_shards(links.into_iter().map(wrap).collect(), &ContextOptions::default()).unwrap()
}

pub fn foreign_host(ip: &str) -> ManagementPort {
    let link = UdpLink::bind(ip.parse().unwrap(), &UdpOptions::default()).unwrap();
    Context::open(Box::new(link), &ContextOptions::default()).unwrap().management_port().unwrap()
}

pub fn bytes(transaction: u64, message: impl Into<Message>) -> [u8; MAD_LEN] {
    Mad { transaction, modifier: 0, message: message.into() }.bytes()
}

pub fn request(transaction: u64, service: u64) -> [u8; MAD_LEN] {
    bytes(transaction, Req { local: CommId(1), service: ServiceId(service), ..Req::default() })
}

/// Sends a MAD every [`RETRY_INTERVAL`] until it arrives at `at`.
pub fn send_until_received(from: &ManagementPort, to: IpAddr, mad: &[u8; MAD_LEN], at: &ManagementPort) {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        from.send(&AddressVector::to(Gid::from(to)), mad).unwrap();
        if at.recv(RETRY_INTERVAL).is_ok_and(|got| got.bytes == *mad) {
            return;
        }
    }
    panic!("the MAD did not arrive within {TIMEOUT:?}");
}

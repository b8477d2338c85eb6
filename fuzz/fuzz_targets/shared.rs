//! A broker in this process, and this process's lease of its address.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use urxe::broker::{SharedMemory, SharedUdpLink, Sharing, serve};
use urxe::link::udp::UdpOptions;

/// Maximum time until the broker listens.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns an address of loopback that no other fuzzer uses at the same time.
pub fn address() -> Ipv4Addr {
    let [_, _, a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | a & 0x3f, b, 1)
}

/// Starts the broker in a thread. It serves processes of any user, so that the names of its sockets are
/// abstract.
pub fn start_broker(shared_memory: SharedMemory) -> SharedUdpLink {
    let ip = IpAddr::from(address());
    thread::spawn(move || {
        let result = serve(&ip.to_string(), true);
        // It ends only if all clients are gone, but one lease is held.
        panic!("the broker ended: {result:?}");
    });
    let begin = Instant::now();
    loop {
        match join(ip, shared_memory) {
            Ok(link) => return link,
            Err(e) => assert!(begin.elapsed() < START_TIMEOUT, "no lease: {e}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Leases a partition of the address, as an honest client does.
pub fn join(ip: IpAddr, shared_memory: SharedMemory) -> Result<SharedUdpLink, urxe::broker::SharingError> {
    // The broker runs already: a client must not start one.
    let sharing = Sharing { program: "/nonexistent".into(), any_user: true, shared_memory };
    SharedUdpLink::bind(ip, &UdpOptions::default(), 1, &sharing).map(|mut links| links.swap_remove(0))
}

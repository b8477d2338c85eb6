//! Test of a broker whose user has too many descriptors in flight to send any (ETOOMANYREFS).

#[path = "../support/in_flight.rs"]
mod in_flight;

use std::net::IpAddr;
use std::time::Duration;

use in_flight::{InFlight, limited};
use urxe::broker::{SharedMemory, SharedUdpLink, Sharing, SharingError};
use urxe::link::udp::UdpOptions;

/// Opens a link once a broker listens, which is not started.
fn open(ip: IpAddr) -> Result<Vec<SharedUdpLink>, SharingError> {
    let sharing =
        Sharing { program: "/nonexistent".into(), any_user: false, shared_memory: SharedMemory::Off };
    loop {
        match SharedUdpLink::bind(ip, &UdpOptions::default(), 1, &sharing) {
            Err(SharingError::System { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

#[test]
fn lease_waits_until_descriptors_in_flight_have_been_received_and_is_refused_in_the_end() {
    let address = "127.18.229.1";
    let ip: IpAddr = address.parse().unwrap();
    let mut broker = limited(env!("CARGO_BIN_EXE_urxe")).args(["broker", address]).spawn().unwrap();
    let mut links = Vec::new();
    // The first lease needs a message with all sockets of the address too.
    for _ in 0..2 {
        let in_flight = InFlight::new();
        let opening = std::thread::spawn(move || open(ip));
        std::thread::sleep(Duration::from_millis(300));
        drop(in_flight);
        links.push(opening.join().unwrap().unwrap());
    }
    let _in_flight = InFlight::new();
    let error = open(ip).map(|_| ()).unwrap_err();
    let errno = if let SharingError::Refused { errno, .. } = error { errno } else { 0 };
    assert_eq!(errno, libc::ETOOMANYREFS, "{error}");
    assert!(error.to_string().contains("raise the limit on open files"), "{error}");
    drop(links);
    // It ends without clients.
    assert!(broker.wait().unwrap().success());
}

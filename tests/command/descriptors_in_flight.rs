//! Tests of processes whose user has too many descriptors in flight to send any (ETOOMANYREFS).

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use urxe::broker::{SharedMemory, SharedUdpLink, Sharing, SharingError};
use urxe::link::udp::UdpOptions;
use urxe_test_support::ends::{End, LONG, connect, run_end};
use urxe_test_support::in_flight::{InFlight, limited};

/// Runs one end of a connection if another test has started this program as a child process.
#[test]
fn one_end() {
    run_end();
}

/// Serialises the tests, because the limit applies to all processes of the user.
static ALONE: Mutex<()> = Mutex::new(());

/// Opens a link as soon as the broker listens. Does not start a broker.
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
    let _alone = ALONE.lock();
    let address = "127.20.229.1";
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
    // The broker exits when it has no clients.
    assert!(broker.wait().unwrap().success());
}

#[test]
fn region_is_shared_once_descriptors_in_flight_have_been_received() {
    let _alone = ALONE.lock();
    let mut writer = End::start_by(limited(std::env::current_exe().unwrap()), module_path!(), "127.20.227.1");
    let mut reader = End::start(module_path!(), "127.20.227.2");
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    let in_flight = InFlight::new();
    writer.ask("send shareable", "sends");
    reader.wait_for_messages();
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 1));
    drop(in_flight);
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    reader.wait_for_messages();
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

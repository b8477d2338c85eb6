//! The port of a NIC on a real interface follows that interface: down, up, and gone. Needs root.

use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::link::{Link, PacketConfig, PacketLink};
use urxe::verbs::*;

const SOON: Duration = Duration::from_secs(10);

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.unwrap_or_else(|e| panic!("this test needs iproute2 (apt-get install iproute2): {e}"));
    assert!(
        out.status.success(),
        "this test makes a network namespace and needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): ip {args}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// A namespace with `v0`, whose cable's other end is `v1` beside it.
struct Net(String);

impl Net {
    fn new() -> Net {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let net = Net(format!("urxe-port-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        ip(&format!("netns add {}", net.0));
        net.set("link add v0 type veth peer name v1");
        net.set("addr add 10.77.0.1/24 dev v0");
        net.set("link set v1 up");
        net.set("link set v0 up");
        net
    }

    fn set(&self, args: &str) {
        ip(&format!("-n {} {args}", self.0));
    }

    /// A context on a link that is opened in the namespace. Its background thread is elsewhere.
    fn open(&self, link: impl FnOnce() -> Box<dyn Link> + Send) -> Context {
        let path = format!("/run/netns/{}", self.0);
        let link = std::thread::scope(|s| {
            let inside = move || {
                let ns = std::fs::File::open(&path).unwrap();
                nix::sched::setns(ns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                link()
            };
            s.spawn(inside).join().unwrap()
        });
        Context::open(link, &ContextOptions::default()).unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn udp() -> Box<dyn Link> {
    let address: IpAddr = "10.77.0.1".parse().unwrap();
    Box::new(UdpLink::bind(address, &UdpOptions::default()).unwrap())
}

fn packet() -> Box<dyn Link> {
    let config: PacketConfig = "packet:v0".parse().unwrap();
    Box::new(PacketLink::open(config).unwrap())
}

fn follows(net: &Net, context: &Context) {
    let next = |expected: AsyncEvent| {
        assert_eq!(context.wait_event(SOON), Ok(expected));
        assert_eq!(context.query_port().active, expected == AsyncEvent::PortActive);
    };
    let none = Duration::from_millis(100);
    assert_eq!(context.wait_event(none), Err(WaitError::TimedOut(none)));
    assert!(context.query_port().active);
    net.set("link set v0 down");
    next(AsyncEvent::PortError);
    net.set("link set v0 up");
    next(AsyncEvent::PortActive);
    // The interface is up, but nobody is at the cable's other end.
    net.set("link set v1 down");
    next(AsyncEvent::PortError);
    net.set("link set v1 up");
    next(AsyncEvent::PortActive);
    // Of another interface.
    net.set("link add other type veth peer name end");
    net.set("link set other up");
    net.set("link set other down");
    assert_eq!(context.wait_event(none), Err(WaitError::TimedOut(none)));
}

#[test]
fn a_udp_port_follows_its_interface() {
    let net = Net::new();
    let context = net.open(udp);
    follows(&net, &context);
    net.set("link del v0");
    assert_eq!(context.wait_event(SOON), Ok(AsyncEvent::PortError));
}

#[test]
fn a_packet_port_follows_its_interface_and_goes_with_it() {
    let net = Net::new();
    let context = net.open(packet);
    follows(&net, &context);
    net.set("link del v0");
    let events = [(); 2].map(|()| context.wait_event(SOON).unwrap());
    assert!(events.contains(&AsyncEvent::DeviceFatal), "{events:?}");
    assert!(!context.query_port().active && context.link_state().1.is_some());
}

#[test]
fn an_interface_without_a_carrier_is_down_from_the_beginning() {
    let net = Net::new();
    net.set("link set v1 down");
    let context = net.open(udp);
    assert_eq!(context.wait_event(SOON), Ok(AsyncEvent::PortError));
    net.set("link set v1 up");
    assert_eq!(context.wait_event(SOON), Ok(AsyncEvent::PortActive));
}

#[test]
fn an_application_that_polls_is_told_too() {
    let net = Net::new();
    let context = net.open(udp);
    let deadline = std::time::Instant::now() + SOON;
    net.set("link set v0 down");
    while context.next_event() != Some(AsyncEvent::PortError) {
        context.poll();
        assert!(std::time::Instant::now() < deadline, "nobody has told");
    }
}

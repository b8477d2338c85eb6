//! Tests that a NIC's port state follows the state of its network interface: down, up, and removed. Needs
//! root.

use std::net::IpAddr;
use std::time::Duration;

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::link::{Link, PacketConfig, PacketLink};
use urxe::verbs::cm::{CmEventKind, ConnectionManager, EventChannel, PortSpace};
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe_test_support::netns::Netns;
use urxe_test_support::nic::SpreadNic;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A namespace with both ends of a veth pair, `v0` and `v1`.
struct Net(Netns);

impl Net {
    fn new() -> Net {
        let net = Net(Netns::new());
        net.set("link add v0 type veth peer name v1");
        net.set("addr add 10.77.0.1/24 dev v0");
        net.set("link set v1 up");
        net.set("link set v0 up");
        net.wait_for_carrier();
        net
    }

    /// Waits until the kernel has noticed that both ends are up, which it does in a thread.
    fn wait_for_carrier(&self) {
        let start = std::time::Instant::now();
        while !self.0.is_up("v0") {
            assert!(start.elapsed() < TIMEOUT, "v0 has no carrier");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn set(&self, args: &str) {
        self.0.ip(args);
    }

    /// Opens a context on links in the namespace, one for each shard. The context's background threads run
    /// outside the namespace.
    fn open(&self, links: impl FnOnce() -> Vec<Box<dyn Link>> + Send) -> Context {
        Context::open_shards(self.0.run(links), &ContextOptions::default()).unwrap()
    }
}

fn udp(shards: usize) -> Vec<Box<dyn Link>> {
    let address: IpAddr = "10.77.0.1".parse().unwrap();
    let links = UdpLink::bind_shards(address, &UdpOptions::default(), shards).unwrap();
    links.into_iter().map(|link| Box::new(link) as _).collect()
}

fn packet(shards: usize) -> Vec<Box<dyn Link>> {
    let config: PacketConfig = "packet:v0".parse().unwrap();
    let links = PacketLink::open_shards(config, shards).unwrap();
    links.into_iter().map(|link| Box::new(link) as _).collect()
}

fn check_port_follows_interface(net: &Net, context: &Context) {
    let next = |expected: AsyncEvent| {
        assert_eq!(context.wait_event(TIMEOUT), Ok(expected));
        assert_eq!(context.query_port().active, expected == AsyncEvent::PortActive);
    };
    let no_event_time = Duration::from_millis(100);
    assert_eq!(context.wait_event(no_event_time), Err(WaitError::TimedOut(no_event_time)));
    assert!(context.query_port().active);
    net.set("link set v0 down");
    next(AsyncEvent::PortError);
    net.set("link set v0 up");
    next(AsyncEvent::PortActive);
    // The interface is up but has no carrier.
    net.set("link set v1 down");
    next(AsyncEvent::PortError);
    net.set("link set v1 up");
    next(AsyncEvent::PortActive);
    // An event of another interface has no effect.
    net.set("link add other type veth peer name end");
    net.set("link set other up");
    net.set("link set other down");
    assert_eq!(context.wait_event(no_event_time), Err(WaitError::TimedOut(no_event_time)));
}

#[test]
fn port_state_of_a_udp_link_follows_state_and_removal_of_its_interface() {
    for shards in [1, 2] {
        let net = Net::new();
        let context = net.open(|| udp(shards));
        check_port_follows_interface(&net, &context);
        net.set("link del v0");
        let events = [(); 2].map(|()| context.wait_event(TIMEOUT).unwrap());
        assert!(events.contains(&AsyncEvent::DeviceFatal), "{events:?}");
        assert!(!context.query_port().active && context.link_state().1.is_some());
    }
}

#[test]
fn port_state_of_a_packet_link_follows_state_and_removal_of_its_interface() {
    for shards in [1, 4] {
        let net = Net::new();
        let context = net.open(|| packet(shards));
        // The queue pairs are in all shards, because each has a completion queue of its own.
        let nic = SpreadNic::new(context.clone(), 1);
        let qps = [(); 4].map(|()| nic.qp(QpType::Rc));
        qps.iter().for_each(|qp| qp.enter_init(Access::ALL).unwrap());
        check_port_follows_interface(&net, &context);
        net.set("link del v0");
        let events = [(); 2].map(|()| context.wait_event(TIMEOUT).unwrap());
        assert!(events.contains(&AsyncEvent::DeviceFatal), "{events:?}");
        assert!(!context.query_port().active && context.link_state().1.is_some());
        let deadline = std::time::Instant::now() + TIMEOUT;
        while qps.iter().any(|qp| qp.state() != QpState::Err) {
            assert!(std::time::Instant::now() < deadline, "a shard did not move its QPs to ERR");
            std::thread::yield_now();
        }
        assert_eq!(context.next_event(), None, "the event must be raised once");
    }
}

#[test]
fn interface_removal_raises_device_removal_for_cm_ids() {
    for links in [packet, udp] {
        let net = Net::new();
        let manager = ConnectionManager::new(vec![net.open(|| links(1))]).unwrap();
        let channel = EventChannel::new().unwrap();
        let id = manager.create_id(&channel, PortSpace::Tcp).unwrap();
        id.bind_addr("10.77.0.1:7".parse().unwrap()).unwrap();
        id.listen(0).unwrap();
        net.set("link set v0 down");
        net.set("link set v0 up");
        let no_event_time = Duration::from_millis(100);
        assert!(
            matches!(channel.get_event(Some(no_event_time)), Err(WaitError::TimedOut(_))),
            "the interface still exists"
        );
        net.set("link del v0");
        let event = channel.get_event(Some(TIMEOUT)).unwrap();
        assert_eq!((event.id, event.kind), (id, CmEventKind::DeviceRemoval));
    }
}

#[test]
fn port_of_interface_without_carrier_starts_down() {
    let net = Net::new();
    net.set("link set v1 down");
    let context = net.open(|| udp(1));
    assert_eq!(context.wait_event(TIMEOUT), Ok(AsyncEvent::PortError));
    net.set("link set v1 up");
    assert_eq!(context.wait_event(TIMEOUT), Ok(AsyncEvent::PortActive));
}

#[test]
fn polling_application_receives_port_events() {
    let net = Net::new();
    let context = net.open(|| udp(1));
    let deadline = std::time::Instant::now() + TIMEOUT;
    net.set("link set v0 down");
    while context.next_event() != Some(AsyncEvent::PortError) {
        context.poll();
        assert!(std::time::Instant::now() < deadline, "no PortError event was raised");
    }
}

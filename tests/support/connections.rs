//! Test fixture: devices with a connection manager, and connections between them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::breakable::{BreakablePort, Receive};
use super::nic;
use urxe::link::Link;
use urxe::verbs::cm::*;
use urxe::verbs::*;

/// Time limit for operations that must succeed.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Virtual time limit, longer than the sum of all protocol timeouts.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// A device with one CQ for all queue pairs, a connection manager and an event channel.
pub struct Side {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub manager: ConnectionManager,
    pub channel: EventChannel,
}

impl Side {
    pub fn new(context: Context) -> Side {
        let manager = ConnectionManager::new(vec![context.clone()]).unwrap();
        Side::with(context, &manager)
    }

    /// Creates a side that uses a connection manager shared with other sides.
    pub fn with(context: Context, manager: &ConnectionManager) -> Side {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4096).unwrap());
        Side { context, pd, cq, manager: manager.clone(), channel: EventChannel::new().unwrap() }
    }

    pub fn on(fabric: &Fabric) -> Side {
        Side::new(Context::on_fabric(fabric).unwrap())
    }

    /// Creates a side on a fabric port whose receive function is replaced by `receive` while `is_broken` is
    /// set.
    pub fn breakable(
        fabric: &Fabric,
        addresses: &[IpAddr],
        is_broken: &Arc<AtomicBool>,
        receive: Receive,
    ) -> Side {
        let port = fabric.port(addresses).unwrap();
        let wrap = |inner| {
            let is_broken = is_broken.clone();
            Box::new(BreakablePort { inner, is_broken, transmit: Link::transmit, receive }) as Box<dyn Link>
        };
        Side::new(Context::on_port(port, &ContextOptions::default(), wrap).unwrap())
    }

    /// Creates a side on a UDP socket. `ip` is a loopback address that no other test uses.
    pub fn on_udp(ip: &str) -> Side {
        Side::new(nic::on_udp(ip, 1))
    }

    pub fn ip(&self, v4: bool) -> IpAddr {
        let ips = self.context.gids().into_iter().map(|gid| gid.ip());
        ips.into_iter().find(|ip| ip.is_ipv4() == v4).unwrap()
    }

    pub fn addr(&self, port: u16) -> SocketAddr {
        (self.context.query_gid(0).unwrap().ip(), port).into()
    }

    pub fn id(&self, space: PortSpace) -> CmId {
        self.manager.create_id(&self.channel, space).unwrap()
    }

    pub fn qp(&self, qp_type: QpType) -> Qp {
        let options = QpOptions::default().qp_type(qp_type);
        self.pd.create_qp(&self.cq, &self.cq, &options).unwrap()
    }

    pub fn listen(&self, space: PortSpace, addr: SocketAddr) -> CmId {
        let id = self.id(space);
        id.bind_addr(addr).unwrap();
        id.listen(0).unwrap();
        id
    }

    /// Waits for the next event, which must have the given kind.
    pub fn event(&self, kind: CmEventKind) -> CmEvent {
        self.event_within(kind, TIMEOUT)
    }

    pub fn event_within(&self, kind: CmEventKind, timeout: Duration) -> CmEvent {
        let event = self.channel.get_event(Some(timeout));
        let event = event.unwrap_or_else(|e| panic!("{kind:?} of {:?}: {e}", self.context));
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// Creates a CM id, and resolves the address `to` and the route to it.
    pub fn resolved(&self, space: PortSpace, to: SocketAddr) -> CmId {
        let id = self.id(space);
        id.resolve_addr(None, to, TIMEOUT).unwrap();
        assert_eq!(self.event(CmEventKind::AddrResolved).id, id);
        id.resolve_route(TIMEOUT).unwrap();
        assert_eq!(self.event(CmEventKind::RouteResolved).id, id);
        id
    }

    /// Sends a connection request to `to` for a new queue pair.
    pub fn connecting(&self, to: SocketAddr, private_data: &[u8]) -> End {
        let id = self.resolved(PortSpace::Tcp, to);
        let qp = self.qp(QpType::Rc);
        id.attach_qp(&qp).unwrap();
        id.connect(&ConnParam::with_data(private_data)).unwrap();
        End { id, qp }
    }

    /// Waits for the next connection request, and accepts it with a new queue pair.
    pub fn accept(&self, private_data: &[u8]) -> End {
        let request = self.event(CmEventKind::ConnectRequest);
        let qp = self.qp(QpType::Rc);
        request.id.attach_qp(&qp).unwrap();
        request.id.accept(&ConnParam::with_data(private_data)).unwrap();
        End { id: request.id, qp }
    }
}

/// One end of a connection.
pub struct End {
    pub id: CmId,
    pub qp: Qp,
}

/// Connects two sides; `server` must have a listener at `at`.
pub fn connected(client: &Side, server: &Side, at: SocketAddr) -> (End, End) {
    let client_end = client.connecting(at, b"hello");
    let server_end = server.accept(b"welcome");
    client.event(CmEventKind::Established);
    server.event(CmEventKind::Established);
    (client_end, server_end)
}

/// Checks that a SEND, a WRITE and a READ between two connected ends transfer their data.
pub fn check_transfer(from: (&Side, &End), to: (&Side, &End)) {
    let (source, target) =
        (from.0.pd.reg_mr(4096, Access::ALL).unwrap(), to.0.pd.reg_mr(4096, Access::ALL).unwrap());
    source.write(0, b"over a connection by name").unwrap();
    to.1.qp.post_recv(&RecvWr::new(1, &[target.sge(0..100)])).unwrap();
    from.1.qp.post_send(&SendWr::send(2, &[source.sge(0..25)])).unwrap();
    assert_eq!(to.0.cq.wait(TIMEOUT).unwrap().wr_id, 1);
    assert_eq!(from.0.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    assert_eq!(&target.to_vec()[..25], b"over a connection by name");
    // WRITE to the remote memory and READ from it.
    from.1.qp.post_send(&SendWr::write(3, &[source.sge(0..25)], target.remote(1000))).unwrap();
    assert_eq!(from.0.cq.wait(TIMEOUT).unwrap().wr_id, 3);
    from.1.qp.post_send(&SendWr::read(4, &[source.sge(2000..2025)], target.remote(1000))).unwrap();
    assert_eq!(from.0.cq.wait(TIMEOUT).unwrap().wr_id, 4);
    assert_eq!(&source.to_vec()[2000..2025], b"over a connection by name");
}

pub fn virtual_fabric(config: FabricConfig) -> Fabric {
    Fabric::virtual_time(config).unwrap()
}

/// Returns a fabric configuration with a latency of 10 µs from port to port.
pub fn slow() -> FabricConfig {
    FabricConfig::default().latency(Duration::from_micros(10))
}

/// Acts as the passive side: accepts connection requests, and disconnects after the peer has disconnected,
/// until `ends` connections have ended.
pub fn serve(side: &Side, ends: usize) {
    let (mut open, mut ended) = (HashMap::new(), 0);
    while ended < ends {
        let event = side.channel.get_event(Some(TIMEOUT)).unwrap();
        match event.kind {
            CmEventKind::ConnectRequest => {
                let qp = side.qp(QpType::Rc);
                event.id.attach_qp(&qp).unwrap();
                event.id.accept(&ConnParam::default()).unwrap();
                open.insert(event.id.number(), End { id: event.id, qp });
            }
            CmEventKind::Established => {}
            CmEventKind::Disconnected => {
                let end = open.remove(&event.id.number()).unwrap();
                end.id.disconnect().unwrap();
                ended += 1;
            }
            kind => panic!("{kind:?}: {event:?}"),
        }
    }
    assert!(open.is_empty());
}

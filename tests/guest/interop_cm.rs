//! Connection manager interoperability with the kernel: rdmacm-utils programs over rxe in a guest, against
//! the Rust API on the host, with either side as the server.
//!
//! Repeated with Linux 6.12.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use urxe::link::LinkSpec;
use urxe::verbs::cm::*;
use urxe::verbs::*;
use urxe_test_support::guest::GuestProcess;
use urxe_test_support::stock::Table;
use urxe_test_support::testbed::{GUEST, HOST, LinkKind, Testbed};

const LIMIT: Duration = Duration::from_secs(30);
/// Port for programs that take the port as an option.
const PORT: u16 = 7471;
/// Port of `udaddy`, which has no option to change it.
const UDADDY: u16 = 7174;

/// Length in bytes of the messages that `rdma_server` and `rdma_client` exchange.
const LEN: usize = 16;

/// The local device.
struct LocalDevice {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    manager: ConnectionManager,
}

impl LocalDevice {
    fn new(testbed: &Testbed) -> LocalDevice {
        let link: LinkSpec = testbed.link_arg(LinkKind::Dgram, 0).parse().unwrap();
        let context = Context::open_shards(link.bind(1).unwrap(), &ContextOptions::default()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let mr = pd.reg_mr(4096, Access::ALL).unwrap();
        let manager = ConnectionManager::new(vec![context.clone()]).unwrap();
        LocalDevice { context, pd, cq, mr, manager }
    }

    fn qp(&self, qp_type: QpType) -> Qp {
        let options = QpOptions::default().qp_type(qp_type);
        self.pd.create_qp(&self.cq, &self.cq, &options).unwrap()
    }

    /// Creates an RC queue pair in the INIT state, with receives posted.
    fn qp_with_receives(&self, messages: u64, len: usize) -> Qp {
        let qp = self.qp(QpType::Rc);
        // The queue pair accepts receives from INIT on; attaching it keeps that state.
        qp.enter_init(Access::ALL).unwrap();
        (0..messages).for_each(|i| self.post_recv(&qp, i, len));
        qp
    }

    fn post_recv(&self, qp: &Qp, wr_id: u64, len: usize) {
        qp.post_recv(&RecvWr::new(wr_id, &[self.mr.sge(0..len)])).unwrap();
    }

    fn completion(&self) -> Result<Completion, String> {
        self.cq.wait(LIMIT).map_err(|e| e.to_string())
    }

    /// Connects to a program in the guest, retrying until it listens.
    fn connect(&self, to: SocketAddr, messages: u64, len: usize) -> Result<Session, String> {
        let start = Instant::now();
        loop {
            let qp = |_: &Context| Ok(self.qp_with_receives(messages, len));
            match self.manager.connect(to, qp, &ConnParam::with_data(b"from here"), LIMIT) {
                Err(SessionError::Rejected { reason: RejReason::InvalidServiceId, .. })
                    if start.elapsed() < LIMIT =>
                {
                    std::thread::sleep(Duration::from_millis(200));
                }
                other => return other.map_err(|e| e.to_string()),
            }
        }
    }
}

fn wait_success(mut program: GuestProcess) -> Result<String, String> {
    let out = program.wait(LIMIT).map_err(|e| e.to_string())?;
    match out.status {
        0 => Ok(out.stdout),
        status => Err(format!("status {status}: {}{}", out.stdout, out.stderr)),
    }
}

fn spawn(testbed: &Testbed, command: &str) -> Result<GuestProcess, String> {
    testbed.guest.spawn(command).map_err(|e| e.to_string())
}

/// Exchanges a message in each direction with `rdma_server` in the guest, which then disconnects.
fn client_of_rdma_server(testbed: &Testbed, local: &LocalDevice, at: SocketAddr) -> Result<String, String> {
    let server = spawn(testbed, &format!("rdma_server -s {}", at.ip()))?;
    let session = local.connect(at, 1, LEN)?;
    session.qp().post_send(&SendWr::send(9, &[local.mr.sge(0..LEN)])).map_err(|e| e.to_string())?;
    let mut completions = [local.completion()?, local.completion()?];
    completions.sort_by_key(|wc| wc.wr_id);
    assert_eq!((completions[0].byte_len as usize, completions[1].wr_id), (LEN, 9));
    session.wait_for_disconnect(LIMIT).map_err(|e| e.to_string())?;
    session.disconnect(LIMIT).map_err(|e| e.to_string())?;
    wait_success(server)
}

/// Accepts a connection from `rdma_client` in the guest, and exchanges a message in each direction.
fn server_of_rdma_client(testbed: &Testbed, local: &LocalDevice, at: SocketAddr) -> Result<String, String> {
    let listener = Listener::bind(&local.manager, at).map_err(|e| e.to_string())?;
    let client = spawn(testbed, &format!("rdma_client -s {}", at.ip()))?;
    let incoming = listener.next(LIMIT).map_err(|e| e.to_string())?;
    let qp = local.qp_with_receives(1, LEN);
    let session = incoming.accept(qp, &ConnParam::default(), LIMIT).map_err(|e| e.to_string())?;
    assert_eq!(local.completion()?.byte_len as usize, LEN);
    session.qp().post_send(&SendWr::send(9, &[local.mr.sge(0..LEN)])).map_err(|e| e.to_string())?;
    assert_eq!(local.completion()?.wr_id, 9);
    session.wait_for_disconnect(LIMIT).map_err(|e| e.to_string())?;
    session.disconnect(LIMIT).map_err(|e| e.to_string())?;
    wait_success(client)
}

/// Checks that requests are rejected: by the local program and, if there is no listener, by the local
/// connection manager and by the kernel's.
fn check_rejections(
    testbed: &Testbed,
    local: &LocalDevice,
    host_addr: SocketAddr,
    guest_addr: SocketAddr,
) -> Result<String, String> {
    let check_rejected = |testbed: &Testbed, reason: u16| {
        let command = format!("ucmatose -s {} -p {PORT} -C 1 -c 1", host_addr.ip());
        let out = spawn(testbed, &command)?.wait(LIMIT).map_err(|e| e.to_string())?;
        let output = format!("{}{}", out.stdout, out.stderr);
        let event = format!("RDMA_CM_EVENT_REJECTED, error: {reason}");
        if out.status != 0 && output.contains(&event) {
            Ok(())
        } else {
            Err(format!("the output does not contain '{event}': {output}"))
        }
    };
    check_rejected(testbed, 8)?;
    let listener = Listener::bind(&local.manager, host_addr).map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let rejecting = scope.spawn(|| listener.next(LIMIT).unwrap().reject(b"no").unwrap());
        check_rejected(testbed, 28)?;
        rejecting.join().map_err(|_| String::from("the local server panicked"))
    })?;
    let result =
        local.manager.connect(guest_addr, |_| Ok(local.qp(QpType::Rc)), &ConnParam::default(), LIMIT);
    match result {
        Err(SessionError::Rejected { reason: RejReason::InvalidServiceId, .. }) => Ok("all rejected".into()),
        other => Err(format!("{other:?}")),
    }
}

/// Sends three datagrams to `udaddy` in the guest, which takes the return address from them, and receives
/// three replies.
fn client_of_udaddy(testbed: &Testbed, local: &LocalDevice, at: SocketAddr) -> Result<String, String> {
    let (count, len) = (3, 100);
    let at = SocketAddr::new(at.ip(), UDADDY);
    let server = spawn(testbed, &format!("udaddy -b {} -C {count} -S {len} -c 1", at.ip()))?;
    let text = |e: &dyn std::error::Error| e.to_string();
    let channel = EventChannel::new().map_err(|e| text(&e))?;
    let next_event = |kind| match channel.get_event(Some(LIMIT)) {
        Ok(event) if event.kind == kind => Ok(event),
        other => Err(format!("expected {kind:?}, got {other:?}")),
    };
    let start = Instant::now();
    let (_id, qp, destination) = loop {
        let id = local.manager.create_id(&channel, PortSpace::Udp).map_err(|e| text(&e))?;
        id.resolve_addr(None, at, LIMIT).map_err(|e| text(&e))?;
        next_event(CmEventKind::AddrResolved)?;
        id.resolve_route(LIMIT).map_err(|e| text(&e))?;
        next_event(CmEventKind::RouteResolved)?;
        let qp = local.qp(QpType::Ud);
        id.attach_qp(&qp).map_err(|e| text(&e))?;
        (0..count).for_each(|i| local.post_recv(&qp, i, 40 + len));
        id.connect(&ConnParam::default()).map_err(|e| text(&e))?;
        let event = channel.get_event(Some(LIMIT)).map_err(|e| text(&e))?;
        match (event.kind, event.param) {
            (CmEventKind::Established, EventParam::Datagram(destination)) => break (id, qp, destination),
            // The guest does not listen yet.
            (CmEventKind::Unreachable, _) if event.status == 1 && start.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(200));
            }
            other => return Err(format!("{other:?}")),
        }
    };
    let ah = local.pd.create_ah(&destination.address).map_err(|e| text(&e))?;
    let sge = [local.mr.sge(1000..1000 + len)];
    for i in 0..count {
        let wr = SendWr::send_imm(100 + i, &sge, qp.qpn().get());
        qp.post_send(&wr.to(ah.to(destination.qp_num, destination.qkey))).map_err(|e| text(&e))?;
    }
    let mut received = 0;
    for _ in 0..2 * count {
        let wc = local.completion()?;
        received += u64::from(wc.opcode == WcOpcode::Recv && wc.byte_len as usize == 40 + len);
    }
    assert_eq!(received, count);
    wait_success(server)
}

#[test]
fn rdmacm_programs_interoperate_over_frames() {
    let testbed = Testbed::start(LinkKind::Dgram);
    let local = LocalDevice::new(&testbed);
    let mut table = Table::default();
    for version in 0..2 {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (host_addr, guest_addr) =
            (SocketAddr::new(ip(HOST[version]), PORT), SocketAddr::new(ip(GUEST[version]), PORT));
        let key = |program, side| [program, side, "frames", ["IPv4", "IPv6"][version]];
        table.case(key("rdma_server", "server"), String::new(), || {
            client_of_rdma_server(&testbed, &local, guest_addr)
        });
        table.case(key("rdma_client", "client"), String::new(), || {
            server_of_rdma_client(&testbed, &local, host_addr)
        });
        table.case(key("ucmatose", "client"), "rejected".into(), || {
            check_rejections(&testbed, &local, host_addr, guest_addr)
        });
        table.case(key("udaddy", "server"), String::new(), || client_of_udaddy(&testbed, &local, guest_addr));
    }
    assert_eq!(local.manager.connections(), 0);
    assert!(local.context.link_state().1.is_none());
    table.finish();
}

//! Interoperation of the connection manager with the kernel's: programs of rdmacm-utils in a guest with rxe,
//! and sessions of the Rust API on the host, with either side as the server.

#[path = "support/guest.rs"]
mod guest;
#[path = "support/stand.rs"]
mod stand;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use guest::GuestProcess;
use stand::{GUEST, HOST, Stand, Table, Via};
use urxe::link::LinkSpec;
use urxe::verbs::cm::*;
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(30);
/// Port of the programs that can be configured.
const PORT: u16 = 7471;
/// Port of `udaddy`, which cannot be configured.
const UDADDY: u16 = 7174;

/// Length of the messages of `rdma_server` and `rdma_client`.
const LEN: usize = 16;

/// The local device.
struct Here {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    manager: ConnectionManager,
}

impl Here {
    fn new(stand: &Stand) -> Here {
        let link: LinkSpec = stand.link(Via::Frames, 0).parse().unwrap();
        let context = Context::open_shards(link.bind(1).unwrap(), &ContextOptions::default()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let mr = pd.reg_mr(4096, Access::ALL).unwrap();
        let manager = ConnectionManager::new(vec![context.clone()]).unwrap();
        Here { context, pd, cq, mr, manager }
    }

    fn qp(&self, qp_type: QpType) -> Qp {
        let options = QpOptions { qp_type, ..QpOptions::default() };
        self.pd.create_qp(&self.cq, &self.cq, &options).unwrap()
    }

    /// Creates a queue pair for connections, with receives posted.
    fn receiving(&self, messages: u64, len: usize) -> Qp {
        let qp = self.qp(QpType::Rc);
        // The queue pair accepts receives from INIT on; attaching it keeps that state.
        qp.to_init(Access::ALL).unwrap();
        (0..messages).for_each(|i| self.post_recv(&qp, i, len));
        qp
    }

    fn post_recv(&self, qp: &Qp, wr_id: u64, len: usize) {
        qp.post_recv(&RecvWr { wr_id, sges: &[self.mr.sge(0..len)] }).unwrap();
    }

    fn completion(&self) -> Result<Completion, String> {
        self.cq.wait(LIMIT).map_err(|e| e.to_string())
    }

    /// Connects to a program that may not listen yet.
    fn connect(&self, to: SocketAddr, messages: u64, len: usize) -> Result<Session, String> {
        let begun = Instant::now();
        loop {
            let qp = |_: &Context| Ok(self.receiving(messages, len));
            match self.manager.connect(to, qp, &ConnParam::with_data(b"from here"), LIMIT) {
                Err(SessionError::Refused { reason: RejReason::InvalidServiceId, .. })
                    if begun.elapsed() < LIMIT =>
                {
                    std::thread::sleep(Duration::from_millis(200));
                }
                other => return other.map_err(|e| e.to_string()),
            }
        }
    }
}

fn ended(mut program: GuestProcess) -> Result<String, String> {
    let out = program.wait(LIMIT).map_err(|e| e.to_string())?;
    match out.status {
        0 => Ok(out.stdout),
        status => Err(format!("status {status}: {}{}", out.stdout, out.stderr)),
    }
}

fn spawn(stand: &Stand, command: &str) -> Result<GuestProcess, String> {
    stand.guest.spawn(command).map_err(|e| e.to_string())
}

/// Exchanges a message in each direction; then the server in the guest disconnects.
fn client_of_rdma_server(stand: &Stand, here: &Here, at: SocketAddr) -> Result<String, String> {
    let server = spawn(stand, &format!("rdma_server -s {}", at.ip()))?;
    let session = here.connect(at, 1, LEN)?;
    session.qp().post_send(&SendWr::send(9, &[here.mr.sge(0..LEN)])).map_err(|e| e.to_string())?;
    let mut done = [here.completion()?, here.completion()?];
    done.sort_by_key(|wc| wc.wr_id);
    assert_eq!((done[0].byte_len as usize, done[1].wr_id), (LEN, 9));
    session.wait_for_disconnect(LIMIT).map_err(|e| e.to_string())?;
    session.disconnect(LIMIT).map_err(|e| e.to_string())?;
    ended(server)
}

/// As `client_of_rdma_server`, with the client in the guest.
fn server_of_rdma_client(stand: &Stand, here: &Here, at: SocketAddr) -> Result<String, String> {
    let listener = Listener::bind(&here.manager, at).map_err(|e| e.to_string())?;
    let client = spawn(stand, &format!("rdma_client -s {}", at.ip()))?;
    let incoming = listener.next(LIMIT).map_err(|e| e.to_string())?;
    let qp = here.receiving(1, LEN);
    let session = incoming.accept(qp, &ConnParam::default(), LIMIT).map_err(|e| e.to_string())?;
    assert_eq!(here.completion()?.byte_len as usize, LEN);
    session.qp().post_send(&SendWr::send(9, &[here.mr.sge(0..LEN)])).map_err(|e| e.to_string())?;
    assert_eq!(here.completion()?.wr_id, 9);
    session.wait_for_disconnect(LIMIT).map_err(|e| e.to_string())?;
    session.disconnect(LIMIT).map_err(|e| e.to_string())?;
    ended(client)
}

/// Checks a rejection by the local program, and rejections by the local and the kernel's connection manager
/// without a listener.
fn refusals(stand: &Stand, here: &Here, ours: SocketAddr, theirs: SocketAddr) -> Result<String, String> {
    let refused = |stand: &Stand, reason: u16| {
        let command = format!("ucmatose -s {} -p {PORT} -C 1 -c 1", ours.ip());
        let out = spawn(stand, &command)?.wait(LIMIT).map_err(|e| e.to_string())?;
        let told = format!("{}{}", out.stdout, out.stderr);
        let event = format!("RDMA_CM_EVENT_REJECTED, error: {reason}");
        if out.status != 0 && told.contains(&event) { Ok(()) } else { Err(format!("no {event} in {told}")) }
    };
    refused(stand, 8)?;
    let listener = Listener::bind(&here.manager, ours).map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let says_no = scope.spawn(|| listener.next(LIMIT).unwrap().reject(b"no").unwrap());
        refused(stand, 28)?;
        says_no.join().map_err(|_| String::from("the server here"))
    })?;
    let nobody = here.manager.connect(theirs, |_| Ok(here.qp(QpType::Rc)), &ConnParam::default(), LIMIT);
    match nobody {
        Err(SessionError::Refused { reason: RejReason::InvalidServiceId, .. }) => Ok("all refused".into()),
        other => Err(format!("{other:?}")),
    }
}

/// Sends three datagrams to the guest, which takes the return address from them, and receives three.
fn client_of_udaddy(stand: &Stand, here: &Here, at: SocketAddr) -> Result<String, String> {
    let (count, len) = (3, 100);
    let at = SocketAddr::new(at.ip(), UDADDY);
    let server = spawn(stand, &format!("udaddy -b {} -C {count} -S {len} -c 1", at.ip()))?;
    let text = |e: &dyn std::error::Error| e.to_string();
    let channel = EventChannel::new().map_err(|e| text(&e))?;
    let next = |kind| match channel.get_event(Some(LIMIT)) {
        Ok(event) if event.kind == kind => Ok(event),
        other => Err(format!("{kind:?}: {other:?}")),
    };
    let begun = Instant::now();
    let (_id, qp, there) = loop {
        let id = here.manager.create_id(&channel, PortSpace::Udp).map_err(|e| text(&e))?;
        id.resolve_addr(None, at, LIMIT).map_err(|e| text(&e))?;
        next(CmEventKind::AddrResolved)?;
        id.resolve_route(LIMIT).map_err(|e| text(&e))?;
        next(CmEventKind::RouteResolved)?;
        let qp = here.qp(QpType::Ud);
        id.attach_qp(&qp).map_err(|e| text(&e))?;
        (0..count).for_each(|i| here.post_recv(&qp, i, 40 + len));
        id.connect(&ConnParam::default()).map_err(|e| text(&e))?;
        let event = channel.get_event(Some(LIMIT)).map_err(|e| text(&e))?;
        match (event.kind, event.param) {
            (CmEventKind::Established, EventParam::Datagram(there)) => break (id, qp, there),
            // The guest does not listen yet.
            (CmEventKind::Unreachable, _) if event.status == 1 && begun.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(200));
            }
            other => return Err(format!("{other:?}")),
        }
    };
    let ah = here.pd.create_ah(&there.address).map_err(|e| text(&e))?;
    let sge = [here.mr.sge(1000..1000 + len)];
    for i in 0..count {
        let wr = SendWr::send_with_imm(100 + i, &sge, qp.qpn().get());
        qp.post_send(&SendWr { to: Some(ah.to(there.qp_num, there.qkey)), ..wr }).map_err(|e| text(&e))?;
    }
    let mut received = 0;
    for _ in 0..2 * count {
        let wc = here.completion()?;
        received += u64::from(wc.opcode == WcOpcode::Recv && wc.byte_len as usize == 40 + len);
    }
    assert_eq!(received, count);
    ended(server)
}

#[test]
fn rdmacm_programs_interoperate_over_frames() {
    let stand = Stand::frames();
    let here = Here::new(&stand);
    let mut table = Table::default();
    for version in 0..2 {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (ours, theirs) =
            (SocketAddr::new(ip(HOST[version]), PORT), SocketAddr::new(ip(GUEST[version]), PORT));
        let key = |program, side| [program, side, "frames", ["IPv4", "IPv6"][version]];
        table.case(key("rdma_server", "server"), String::new(), || {
            client_of_rdma_server(&stand, &here, theirs)
        });
        table
            .case(key("rdma_client", "client"), String::new(), || server_of_rdma_client(&stand, &here, ours));
        table.case(key("ucmatose", "client"), "refused".into(), || refusals(&stand, &here, ours, theirs));
        table.case(key("udaddy", "server"), String::new(), || client_of_udaddy(&stand, &here, theirs));
    }
    assert_eq!(here.manager.connections(), 0);
    assert!(here.context.link_state().1.is_none());
    table.finish();
}

//! Traffic over every service between two urxe NICs in virtual time, identical in every run.

use super::nic::{Nic, connect_with};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::errors::{PostError, WaitError};
use urxe::verbs::memory::{Bind, WindowKind};
use urxe::verbs::*;
use urxe::wire::Transport;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Path MTU of connected queue pairs; datagrams use the fabric's MTU.
const MTU: Mtu = Mtu::Mtu256;
/// Payload lengths: an empty message, one packet with padding, and three packets.
const LENGTHS: [usize; 3] = [0, 101, 600];
const REGION_LEN: usize = 4096;
const QKEY: QKey = QKey(0x0bad_cafe);
const PLACEMENTS: [Placement; 3] = [Placement::GLOBAL, Placement::PERSISTENT, Placement::all()];

/// A capture: file name without the IP version, description for the README, and the function that generates
/// the traffic.
pub struct Traffic {
    pub name: &'static str,
    pub description: &'static str,
    run: fn(&Hosts),
}

pub const ALL: [Traffic; 4] = [
    Traffic {
        name: "rc_memory",
        description: "SEND WITH INVALIDATE (Only, Last), FLUSH of each placement, a range and the whole \
                      region, ATOMIC WRITE; ACKs with end-to-end credits",
        run: rc_memory,
    },
    Traffic { name: "uc", description: "SEND and WRITE, without and with immediate", run: uc },
    Traffic { name: "ud", description: "SEND without and with immediate", run: ud },
    Traffic {
        name: "xrc",
        description: "all requests: SEND without and with immediate and with invalidate, WRITE without and \
                      with immediate, READ, COMPARE SWAP, FETCH ADD, FLUSH, ATOMIC WRITE; an RNR NAK; an \
                      invalid R_Key",
        run: xrc,
    },
];

/// Introduction of the README for the captures.
pub const README: &str = "# Captures of urxe to urxe

Traffic between two urxe NICs on the in-memory fabric in virtual time (`tests/support/urxe_traffic.rs`),
recorded at the requester: services and operations that rxe in the test guest lacks, and some that it has.
pcapng, link type RAW, path MTU 256. `tests/pure/pcaps.rs` generates the traffic again and compares every byte;
`URXE_BLESS=1 cargo test --test pure pcaps` rewrites the files.
";

/// Returns the maximum number of payload bytes in a packet.
pub fn mtu(transport: Transport) -> usize {
    if transport == Transport::Ud { 4096 } else { MTU.bytes() }
}

impl Traffic {
    /// Generates the traffic, and returns the contents of a pcapng file recorded at the requester.
    pub fn record(&self, v6: bool) -> Vec<u8> {
        let bytes = SharedBuffer::default();
        let file = CaptureFile::to_writer(bytes.clone(), Timestamps::Virtual).unwrap();
        let hosts = Hosts::new(&file, v6);
        (self.run)(&hosts);
        drop(hosts);
        file.flush().unwrap();
        drop(file);
        let bytes = bytes.0.lock();
        bytes.clone()
    }

    /// Returns the capture's file name.
    pub fn file(&self, v6: bool) -> String {
        format!("{}_{}.pcapng", self.name, if v6 { "v6" } else { "v4" })
    }
}

#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Nic {
    /// Posts a work request, and waits for its completion.
    fn post_and_wait(&self, qp: &Qp, wr: &SendWr<'_>) {
        qp.post_send(wr).unwrap();
        assert_eq!(self.cq.wait(TIMEOUT).unwrap().wr_id, wr.wr_id);
    }
}

/// Two NICs: `a` sends the requests and records the capture, `b` responds.
struct Hosts {
    a: Nic,
    b: Nic,
}

impl Hosts {
    fn new(file: &CaptureFile, v6: bool) -> Hosts {
        let config = FabricConfig::default().latency(Duration::from_micros(5)).seed(7);
        let fabric = Fabric::virtual_time(config).unwrap();
        let host = |n: u8| {
            let ip: IpAddr = match v6 {
                true => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into(),
                false => [10, 77, 0, n].into(),
            };
            let port = fabric.port(&[ip]).unwrap();
            let options = ContextOptions::default().seed(u64::from(n));
            let context = Context::on_port(port, &options, |port| match n {
                1 => Box::new(file.capture(port, "a")),
                _ => Box::new(port),
            });
            let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
            let access = Access::ALL | Access::MW_BIND | flushes;
            let nic = Nic::with_access(context.unwrap(), REGION_LEN, access);
            nic.mr.write(0, &(0..REGION_LEN).map(|i| (i + (i >> 8)) as u8 ^ n).collect::<Vec<_>>()).unwrap();
            nic
        };
        Hosts { a: host(1), b: host(2) }
    }

    fn options() -> ConnectOptions {
        let access = Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        ConnectOptions::default().access(access).mtu(MTU)
    }

    fn connect(&self, qp_type: QpType) -> (Qp, Qp) {
        let (x, y) = (self.a.qp(qp_type), self.b.qp(qp_type));
        connect_with(&x, &y, &Self::options());
        (x, y)
    }

    /// Posts a receive at `b` with the function `post`, which selects the queue.
    fn post_recv(&self, post: impl Fn(&RecvWr<'_>) -> Result<(), PostError>) {
        post(&RecvWr::new(100, &[self.b.mr.sge(2048..REGION_LEN)])).unwrap();
    }

    /// Waits for a receive completion at `b`.
    fn wait_received(&self) -> Completion {
        let wc = self.b.cq.wait(TIMEOUT).unwrap();
        assert_eq!(wc.wr_id, 100);
        wc
    }
}

fn rc_memory(hosts: &Hosts) {
    let Hosts { a, b } = hosts;
    let (x, y) = hosts.connect(QpType::Rc);
    // More receives than needed, so that acknowledgements advertise credits.
    (0..3).for_each(|_| hosts.post_recv(|wr| y.post_recv(wr)));
    let mw = b.pd.alloc_mw(WindowKind::Type2B).unwrap();
    for (id, len) in LENGTHS.into_iter().enumerate() {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (rkey, region, addr) = (mw.next_rkey(), b.mr.lkey(), b.mr.addr());
        b.post_and_wait(&y, &SendWr::bind_mw(1, Bind { rkey, region, addr, len: 2048, access }));
        let sges = [a.mr.sge(0..len)];
        let at = RemoteAddr { va: addr + 5, rkey };
        a.post_and_wait(&x, &SendWr::write(id as u64, &sges, at));
        hosts.post_recv(|wr| y.post_recv(wr));
        a.post_and_wait(&x, &SendWr::send_inval(10 + id as u64, &sges, rkey));
        assert_eq!(hosts.wait_received().invalidated, Some(rkey));
    }
    for placement in PLACEMENTS {
        a.post_and_wait(&x, &SendWr::flush(20, b.mr.remote(0), 600, placement));
    }
    let (RemoteAddr { va, rkey }, placement) = (b.mr.remote(0), PLACEMENTS[0]);
    let flush_region = WrOp::Flush { va, rkey, len: 0, placement, whole_region: true };
    a.post_and_wait(&x, &SendWr::new(21, flush_region, &[]));
    a.post_and_wait(&x, &SendWr::atomic_write(22, b.mr.remote(64), *b"all of 8"));
}

fn uc(hosts: &Hosts) {
    let a = &hosts.a;
    let (x, y) = hosts.connect(QpType::Uc);
    for len in LENGTHS {
        let sges = [a.mr.sge(0..len)];
        let at = hosts.b.mr.remote(0);
        a.post_and_wait(&x, &SendWr::write(1, &sges, at));
        for wr in [
            SendWr::send(2, &sges),
            SendWr::send_imm(3, &sges, 0x0102_0304),
            SendWr::write_imm(4, &sges, at, 0x8000_0001),
        ] {
            hosts.post_recv(|wr| y.post_recv(wr));
            a.post_and_wait(&x, &wr);
            hosts.wait_received();
        }
    }
}

fn ud(hosts: &Hosts) {
    let (x, y) = (hosts.a.qp(QpType::Ud), hosts.b.qp(QpType::Ud));
    [&x, &y].into_iter().for_each(|qp| qp.activate(QKEY).unwrap());
    let ah = hosts.a.pd.create_ah(&AddressVector::to(hosts.b.context.query_gid(0).unwrap())).unwrap();
    for len in LENGTHS {
        let sges = [hosts.a.mr.sge(0..len)];
        for wr in [SendWr::send(1, &sges), SendWr::send_imm(2, &sges, 0x0102_0304)] {
            hosts.post_recv(|wr| y.post_recv(wr));
            hosts.a.post_and_wait(&x, &wr.to(ah.to(y.qpn(), QKEY)));
            assert_eq!(hosts.wait_received().byte_len as usize, 40 + len);
        }
    }
}

fn xrc(hosts: &Hosts) {
    let Hosts { a, b } = hosts;
    let xrcd = b.context.open_xrcd().unwrap();
    let srq = b.pd.create_srq(SrqOptions::new(RecvCaps { max_wr: 8, max_sge: 1 }).xrc(&xrcd, &b.cq)).unwrap();
    let (x, y) = (a.qp(QpType::XrcSend), xrcd.create_target_qp().unwrap());
    connect_with(&x, &y, &Hosts::options());
    // Another queue pair of `b` registers the region that a SEND invalidates, because the target cannot post.
    let (_other, fast_qp) = hosts.connect(QpType::Rc);
    let fast = b.pd.alloc_mr(REGION_LEN).unwrap();
    let post = |wr: SendWr<'_>| a.post_and_wait(&x, &wr.to_srq(srq.id()));
    let at = b.mr.remote(8);
    for len in LENGTHS {
        let sges = [a.mr.sge(0..len)];
        post(SendWr::write(1, &sges, at));
        post(SendWr::read(2, &sges, at));
        b.post_and_wait(&fast_qp, &SendWr::reg_mr(3, fast.reg(0, REGION_LEN as u64, 0x10_0000, Access::ALL)));
        for wr in [
            SendWr::send(4, &sges),
            SendWr::send_imm(5, &sges, 0x0102_0304),
            SendWr::send_inval(6, &sges, fast.rkey()),
            SendWr::write_imm(7, &sges, at, 0x8000_0001),
        ] {
            hosts.post_recv(|wr| srq.post_recv(wr));
            post(wr);
            assert_eq!(hosts.wait_received().invalidated.is_some(), matches!(wr.op, WrOp::SendWithInv(_)));
        }
    }
    let word = [a.mr.sge(0..8)];
    post(SendWr::fetch_add(8, &word, at, u64::MAX));
    post(SendWr::compare_swap(9, &word, at, 1 << 63, 0x0102_0304_0506_0708));
    post(SendWr::flush(10, at, 100, PLACEMENTS[2]));
    post(SendWr::atomic_write(11, at, *b"all of 8"));
    // RNR, until a receive is posted.
    x.post_send(&SendWr::send(12, &word).to_srq(srq.id())).unwrap();
    assert!(matches!(b.cq.wait(Duration::from_micros(100)), Err(WaitError::TimedOut(_) | WaitError::Idle)));
    hosts.post_recv(|wr| srq.post_recv(wr));
    assert_eq!((a.cq.wait(TIMEOUT).unwrap().wr_id, hosts.wait_received().wr_id), (12, 100));
    let wrong = RemoteAddr { rkey: RKey(at.rkey.0 ^ 1), ..at };
    x.post_send(&SendWr::write(13, &word, wrong).to_srq(srq.id())).unwrap();
    assert_eq!(a.cq.wait_any(TIMEOUT).unwrap().status, WcStatus::RemAccessErr);
}

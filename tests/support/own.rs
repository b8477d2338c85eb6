//! Traffic of every service between two urxe NICs, in virtual time: the same bytes in each run.
#![allow(dead_code, reason = "each test target uses its part")]

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use urxe::link::capture::{CaptureFile, Timestamps};
use urxe::verbs::*;
use urxe::wire::Transport;

const SOON: Duration = Duration::from_secs(5);
/// Path MTU; datagrams use the fabric's.
const MTU: Mtu = Mtu::Mtu256;
/// Payload lengths: none, one packet with padding, and three packets.
const LENGTHS: [usize; 3] = [0, 101, 600];
const AREA: usize = 4096;
const QKEY: QKey = QKey(0x0bad_cafe);
const PLACEMENTS: [Placement; 3] = [
    Placement { global: true, persistent: false },
    Placement { global: false, persistent: true },
    Placement { global: true, persistent: true },
];

/// A capture: its name, its description in the README, and the traffic.
pub struct Traffic {
    pub name: &'static str,
    pub about: &'static str,
    run: fn(&Ends),
}

pub const ALL: [Traffic; 4] = [
    Traffic {
        name: "rc_memory",
        about: "SEND WITH INVALIDATE (Only, Last), FLUSH of each placement, a range and the whole region, ATOMIC \
                WRITE; ACKs with end-to-end credits",
        run: rc_memory,
    },
    Traffic { name: "uc", about: "SEND and WRITE, without and with immediate", run: uc },
    Traffic { name: "ud", about: "SEND without and with immediate", run: ud },
    Traffic {
        name: "xrc",
        about: "every request: SEND without and with immediate and with invalidate, WRITE without and with immediate, \
                READ, COMPARE SWAP, FETCH ADD, FLUSH, ATOMIC WRITE; a receiver that is not ready; a wrong key",
        run: xrc,
    },
];

/// Head of the captures' README.
pub const README: &str = "# Captures of urxe to urxe

What the kernel's rxe of the test guest does not have, and what it has beside that, between two NICs on the in-memory
fabric in virtual time (`tests/support/own.rs`), as the one sees it that asks. pcapng, link type RAW, path MTU 256.
`tests/pcaps.rs` makes them anew and compares every byte; `URXE_BLESS=1 cargo test --test pcaps` writes them.
";

/// Maximum number of payload bytes of a packet.
pub fn mtu(transport: Transport) -> usize {
    if transport == Transport::Ud { 4096 } else { MTU.bytes() }
}

impl Traffic {
    /// Returns the capture, a pcapng file, as seen by one of the two NICs.
    pub fn record(&self, v6: bool) -> Vec<u8> {
        let bytes = Shared::default();
        let file = CaptureFile::to_writer(bytes.clone(), Timestamps::Virtual).unwrap();
        let ends = Ends::new(&file, v6);
        (self.run)(&ends);
        drop(ends);
        file.flush().unwrap();
        drop(file);
        let bytes = bytes.0.lock().unwrap();
        bytes.clone()
    }

    /// Returns the name of its file.
    pub fn file(&self, v6: bool) -> String {
        format!("{}_{}.pcapng", self.name, if v6 { "v6" } else { "v4" })
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn qp(&self, qp_type: QpType) -> Qp {
        self.pd.create_qp(&self.cq, &self.cq, &QpOptions { qp_type, ..QpOptions::default() }).unwrap()
    }

    /// Posts a work request, and waits for its completion.
    fn done(&self, qp: &Qp, wr: &SendWr<'_>) {
        qp.post_send(wr).unwrap();
        assert_eq!(self.cq.wait(SOON).unwrap().wr_id, wr.wr_id);
    }
}

/// Two NICs. `a` sends the requests, `b` responds; the capture is taken at `a`.
struct Ends {
    a: End,
    b: End,
}

impl Ends {
    fn new(file: &CaptureFile, v6: bool) -> Ends {
        let config = FabricConfig { latency: Duration::from_micros(5), seed: 7, ..FabricConfig::default() };
        let fabric = Fabric::virtual_time(config).unwrap();
        let end = |n: u8| {
            let ip: IpAddr = match v6 {
                true => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into(),
                false => [10, 77, 0, n].into(),
            };
            let port = fabric.port(&[ip]).unwrap();
            let options = ContextOptions { seed: Some(n.into()), ..ContextOptions::default() };
            let context = Context::on_port(port, &options, |port| match n {
                1 => Box::new(file.capture(port, "a")),
                _ => Box::new(port),
            });
            let context = context.unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
            let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
            let mr = pd.reg_mr(AREA, Access::ALL | Access::MW_BIND | flushes).unwrap();
            mr.write(0, &(0..AREA).map(|i| (i + (i >> 8)) as u8 ^ n).collect::<Vec<_>>()).unwrap();
            End { context, pd, cq, mr }
        };
        Ends { a: end(1), b: end(2) }
    }

    fn options() -> ConnectOptions {
        let access = Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        ConnectOptions { access, mtu: Some(MTU), ..ConnectOptions::default() }
    }

    fn connect(&self, qp_type: QpType) -> (Qp, Qp) {
        let (x, y) = (self.a.qp(qp_type), self.b.qp(qp_type));
        x.connect(&y.endpoint(), &Self::options()).unwrap();
        y.connect(&x.endpoint(), &Self::options()).unwrap();
        (x, y)
    }

    /// Posts a receive at `b` to the queue of `take`.
    fn receive(&self, take: impl Fn(&RecvWr<'_>) -> Result<(), PostError>) {
        take(&RecvWr { wr_id: 100, sges: &[self.b.mr.sge(2048..AREA)] }).unwrap();
    }

    /// Waits for a receive completion at `b`.
    fn received(&self) -> Completion {
        let wc = self.b.cq.wait(SOON).unwrap();
        assert_eq!(wc.wr_id, 100);
        wc
    }
}

fn rc_memory(ends: &Ends) {
    let Ends { a, b } = ends;
    let (x, y) = ends.connect(QpType::Rc);
    // More receives than needed, so that acknowledgements advertise credits.
    (0..3).for_each(|_| ends.receive(|wr| y.post_recv(wr)));
    let mw = b.pd.alloc_mw(WindowKind::Type2B).unwrap();
    for (id, len) in LENGTHS.into_iter().enumerate() {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (rkey, region, addr) = (mw.next_rkey(), b.mr.lkey(), b.mr.addr());
        b.done(&y, &SendWr::bind_mw(1, Bind { rkey, region, addr, len: 2048, access }));
        let sges = [a.mr.sge(0..len)];
        let at = RemoteAddr { va: addr + 5, rkey };
        a.done(&x, &SendWr::write(id as u64, &sges, at));
        ends.receive(|wr| y.post_recv(wr));
        a.done(&x, &SendWr::send_with_inv(10 + id as u64, &sges, rkey));
        assert_eq!(ends.received().invalidated, Some(rkey));
    }
    for placement in PLACEMENTS {
        a.done(&x, &SendWr::flush(20, b.mr.remote(0), 600, placement));
    }
    let (RemoteAddr { va, rkey }, placement) = (b.mr.remote(0), PLACEMENTS[0]);
    let whole = WrOp::Flush { va, rkey, len: 0, placement, whole_region: true };
    a.done(&x, &SendWr::new(21, whole, &[]));
    a.done(&x, &SendWr::atomic_write(22, b.mr.remote(64), *b"all of 8"));
}

fn uc(ends: &Ends) {
    let a = &ends.a;
    let (x, y) = ends.connect(QpType::Uc);
    for len in LENGTHS {
        let sges = [a.mr.sge(0..len)];
        let at = ends.b.mr.remote(0);
        a.done(&x, &SendWr::write(1, &sges, at));
        for wr in [
            SendWr::send(2, &sges),
            SendWr::send_with_imm(3, &sges, 0x0102_0304),
            SendWr::write_with_imm(4, &sges, at, 0x8000_0001),
        ] {
            ends.receive(|wr| y.post_recv(wr));
            a.done(&x, &wr);
            ends.received();
        }
    }
}

fn ud(ends: &Ends) {
    let (x, y) = (ends.a.qp(QpType::Ud), ends.b.qp(QpType::Ud));
    [&x, &y].into_iter().for_each(|qp| qp.activate(QKEY).unwrap());
    let there = ends.a.pd.create_ah(&AddressVector::to(ends.b.context.query_gid(0).unwrap())).unwrap();
    for len in LENGTHS {
        let sges = [ends.a.mr.sge(0..len)];
        for wr in [SendWr::send(1, &sges), SendWr::send_with_imm(2, &sges, 0x0102_0304)] {
            ends.receive(|wr| y.post_recv(wr));
            ends.a.done(&x, &SendWr { to: Some(there.to(y.qpn(), QKEY)), ..wr });
            assert_eq!(ends.received().byte_len as usize, 40 + len);
        }
    }
}

fn xrc(ends: &Ends) {
    let Ends { a, b } = ends;
    let xrcd = b.context.open_xrcd().unwrap();
    let srq = b.pd.create_xrc_srq(&xrcd, &b.cq, RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
    let (x, y) = (a.qp(QpType::XrcSend), xrcd.create_target_qp().unwrap());
    x.connect(&y.endpoint(), &Ends::options()).unwrap();
    y.connect(&x.endpoint(), &Ends::options()).unwrap();
    // Another queue pair of `b` registers the region that a SEND invalidates, because the target cannot post.
    let (_other, opener) = ends.connect(QpType::Rc);
    let fast = b.pd.alloc_mr(AREA).unwrap();
    let ask = |wr: SendWr<'_>| a.done(&x, &wr.to_srq(srq.id()));
    let at = b.mr.remote(8);
    for len in LENGTHS {
        let sges = [a.mr.sge(0..len)];
        ask(SendWr::write(1, &sges, at));
        ask(SendWr::read(2, &sges, at));
        b.done(&opener, &SendWr::reg_mr(3, fast.reg(0, AREA as u64, 0x10_0000, Access::ALL)));
        for wr in [
            SendWr::send(4, &sges),
            SendWr::send_with_imm(5, &sges, 0x0102_0304),
            SendWr::send_with_inv(6, &sges, fast.rkey()),
            SendWr::write_with_imm(7, &sges, at, 0x8000_0001),
        ] {
            ends.receive(|wr| srq.post_recv(wr));
            ask(wr);
            assert_eq!(ends.received().invalidated.is_some(), matches!(wr.op, WrOp::SendWithInv(_)));
        }
    }
    let word = [a.mr.sge(0..8)];
    ask(SendWr::fetch_add(8, &word, at, u64::MAX));
    ask(SendWr::compare_swap(9, &word, at, 1 << 63, 0x0102_0304_0506_0708));
    ask(SendWr::flush(10, at, 100, PLACEMENTS[2]));
    ask(SendWr::atomic_write(11, at, *b"all of 8"));
    // RNR, until a receive is posted.
    x.post_send(&SendWr::send(12, &word).to_srq(srq.id())).unwrap();
    assert!(matches!(b.cq.wait(Duration::from_micros(100)), Err(WaitError::TimedOut(_) | WaitError::Idle)));
    ends.receive(|wr| srq.post_recv(wr));
    assert_eq!((a.cq.wait(SOON).unwrap().wr_id, ends.received().wr_id), (12, 100));
    let wrong = RemoteAddr { rkey: RKey(at.rkey.0 ^ 1), ..at };
    x.post_send(&SendWr::write(13, &word, wrong).to_srq(srq.id())).unwrap();
    assert_eq!(a.cq.wait_any(SOON).unwrap().status, WcStatus::RemAccessErr);
}

//! Table of what transfers cost in virtual time: transport × congestion control × path MTU × message size ×
//! window × latency × loss.

use std::fmt::Write as _;
use std::time::Duration;

use urxe::fabric::Outcome;
use urxe::verbs::*;

use crate::scenario::CONTROLS;

/// Operation of a transfer, on the transport that its name begins with.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    RcWrite,
    RcRead,
    XrcSend,
    UcWrite,
    UdSend,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::RcWrite, Kind::RcRead, Kind::XrcSend, Kind::UcWrite, Kind::UdSend];

    fn qp_type(self) -> QpType {
        match self {
            Kind::RcWrite | Kind::RcRead => QpType::Rc,
            Kind::XrcSend => QpType::XrcSend,
            Kind::UcWrite => QpType::Uc,
            Kind::UdSend => QpType::Ud,
        }
    }

    fn is_reliable(self) -> bool {
        !matches!(self, Kind::UcWrite | Kind::UdSend)
    }
}

const MTUS: [Mtu; 2] = [Mtu::Mtu1024, Mtu::Mtu4096];
/// Message lengths in bytes, with the number of messages.
const MESSAGES: [(usize, u64); 4] = [(64, 64), (4096, 64), (64 << 10, 16), (1 << 20, 4)];
/// Bytes in flight to the peer.
const WINDOWS: [usize; 2] = [16 << 10, 1 << 20];
/// One-way latencies in microseconds.
const LATENCIES: [u64; 3] = [1, 20, 500];
/// Length of the wire's queue in bytes above which packets are marked.
const MARKED_FROM: usize = 64 << 10;
/// Probabilities that a packet is lost.
const LOSSES: [f64; 4] = [0.0, 0.001, 0.01, 0.05];

/// Parameters of one transfer.
#[derive(Clone, Copy, Debug)]
struct Cell {
    kind: Kind,
    control: Congestion,
    mtu: Mtu,
    len: usize,
    messages: u64,
    window: usize,
    latency: u64,
    loss: f64,
}

/// Returns all combinations with the default congestion control, and some with the others.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (kind, control) in Kind::ALL.iter().flat_map(|kind| CONTROLS.map(|control| (*kind, control))) {
        let is_default = control == Congestion::default();
        if !is_default && !matches!(kind, Kind::RcWrite | Kind::RcRead | Kind::UcWrite) {
            continue;
        }
        for mtu in if is_default { &MTUS[..] } else { &[Mtu::Mtu4096] } {
            for (len, messages) in MESSAGES {
                if kind == Kind::UdSend && len > mtu.bytes() {
                    continue;
                }
                for (window, latency) in WINDOWS.iter().flat_map(|w| LATENCIES.map(|l| (*w, l))) {
                    let cell = |loss| Cell { kind, control, mtu: *mtu, len, messages, window, latency, loss };
                    cells.extend(LOSSES.map(cell));
                }
            }
        }
    }
    cells
}

impl Cell {
    /// Runs the transfer over a wire of 40 Gb/s between NICs of 100 Gb/s, and returns a line of the table.
    fn run(&self) -> String {
        let Cell { kind, control, mtu, len, messages, window, latency, loss } = *self;
        let config = FabricConfig::default()
            .mtu(mtu.bytes() + 200)
            .loss(loss)
            .latency(Duration::from_micros(latency))
            .bandwidth(100_000_000_000)
            .ecn_threshold(MARKED_FROM)
            .seed(1);
        let fabric = Fabric::virtual_time(config.clone()).unwrap();
        let options = QpOptions::default().qp_type(kind.qp_type());
        let open = |n: u64| {
            fabric.open(&ContextOptions::default().seed(n).window(window).congestion(control)).unwrap()
        };
        let a = TestEndpoint::with_options(open(0), &options).unwrap();
        let (mut to, mut srq, mut target) = (None, None, None);
        let b = if kind == Kind::XrcSend {
            TestEndpoint::new(open(1))
        } else {
            TestEndpoint::with_options(open(1), &options)
        };
        let b = b.unwrap();
        // Data packets are ECN-capable, ECT(0), if marks matter.
        let ecn = if control.uses_marks() { 2 } else { 0 };
        let connect = ConnectOptions::default().timeout(AckTimeout::new(12)).mtu(mtu).traffic_class(ecn);
        let both = |b_qp: &Qp| {
            a.qp.connect(&b_qp.endpoint(), &connect).unwrap();
            b_qp.connect(&a.qp.endpoint(), &connect).unwrap();
        };
        match kind {
            Kind::UdSend => {
                [&a, &b].iter().for_each(|end| end.qp.activate(QKey(1)).unwrap());
                let ah = a.pd.create_ah(&AddressVector::to(b.qp.endpoint().gid)).unwrap();
                to = Some(ah.to(b.qp.qpn(), QKey(1)));
            }
            Kind::XrcSend => {
                let xrcd = b.context.open_xrcd().unwrap();
                let queue = b.pd.create_srq(SrqOptions::default().xrc(&xrcd, &b.cq)).unwrap();
                to = Some(Destination::Srq(queue.id()));
                both(target.insert(xrcd.create_target_qp().unwrap()));
                srq = Some(queue);
            }
            _ => both(&b.qp),
        }
        let [from, back] = [&a, &b].map(|end| end.context.address().unwrap());
        fabric.set_path(from, back, config.clone().bandwidth(40_000_000_000)).unwrap();
        fabric.set_path(back, from, config.bandwidth(40_000_000_000)).unwrap();
        let [source, place] = [&a, &b].map(|end| end.pd.reg_mr(len + grh::LEN, Access::ALL).unwrap());
        let (data, room) = ([source.sge(0..len)], [place.sge(0..len + grh::LEN)]);
        for id in 0..messages {
            let wr = RecvWr::new(id, &room);
            srq.as_ref().map_or_else(|| b.qp.post_recv(&wr), |srq| srq.post_recv(&wr)).unwrap();
        }
        for id in 0..messages {
            let wr = match kind {
                Kind::RcWrite => SendWr::write(id, &data, place.remote(0)),
                Kind::RcRead => SendWr::read(id, &data, place.remote(0)),
                Kind::UcWrite => SendWr::write_imm(id, &data, place.remote(0), 0),
                Kind::XrcSend | Kind::UdSend => SendWr::send(id, &data),
            };
            a.qp.post_send(&wr.to(to)).unwrap();
        }
        let mut completions = Vec::new();
        let (mut complete, mut end) = (0, fabric.now());
        let counted = if kind.is_reliable() { &a.cq } else { &b.cq };
        loop {
            counted.poll(64, &mut completions).unwrap();
            if !completions.is_empty() {
                assert!(
                    completions.iter().all(|c| c.status == WcStatus::Success),
                    "{self:?}: {completions:?}"
                );
                complete += completions.drain(..).count();
                end = fabric.now();
            }
            if fabric.step().is_none() {
                break;
            }
        }
        assert_eq!(fabric.run_until_idle(Duration::ZERO), Outcome::Idle, "{self:?}");
        let (c, peer) = (a.context.counters(), b.context.counters());
        format!(
            "{:9} {:15} {:4} {len:7} {window:7} {latency:5} {:6.2} {complete:9} {:8} {:6} {:10} {:9} {:13.3}\n",
            format!("{kind:?}"),
            control.to_string(),
            mtu.bytes(),
            loss * 100.0,
            c.sent_pkts + peer.sent_pkts,
            c.retransmitted_pkts,
            c.requester_retry,
            c.local_ack_timeout_err,
            end.0 as f64 / 1e3,
        )
    }
}

/// Returns the table; the transfers run on all processors.
pub fn grid() -> String {
    let cells = cells();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let parts: Vec<String> = std::thread::scope(|scope| {
        let part = |cells| scope.spawn(move || <[Cell]>::iter(cells).map(Cell::run).collect());
        let threads: Vec<_> = cells.chunks(cells.len().div_ceil(workers)).map(part).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut out = String::from(
        "transport control         MTU    bytes  window    us loss % completed  packets  again recoveries  timeouts       time us\n",
    );
    parts.iter().for_each(|part| out.write_str(part).unwrap());
    out
}

//! One side of a simulation: a NIC with its queue pairs, regions and receives, and the results expected of
//! its work requests.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use urxe::link::Link;
use urxe::middleware::faults::Faults;
use urxe::verbs::*;

use crate::ring_link::RingLink;
use crate::scenario::Scenario;
use urxe_test_support::ring::Ring;

/// Maximum number of send work requests on each side.
pub const MAX_WORK: usize = 24;
/// Maximum message length in bytes.
pub const MAX_LEN: usize = 6 << 10;
/// Number of receives that each side posts at most before it is known how many messages arrive.
pub const EARLY_RECVS: usize = 15;
const MAX_RECVS: usize = EARLY_RECVS + MAX_WORK + 9;
/// Number of bytes reserved for a receive: the message, and the GRH of a datagram.
const RECV_SLOT: usize = MAX_LEN + 64;
/// Number of bytes reserved for a send work request: what a WRITE stores at the peer, and a READ locally.
const SLOT: usize = 2 * MAX_LEN;
/// Length of the source region.
pub const SOURCE: usize = 64 << 10;
const QKEY: QKey = QKey(0x77);

/// Returns the contents of a side's source region, which nothing modifies.
pub fn source(side: usize) -> &'static [u8] {
    static BYTES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let bytes = |side: usize| (0..SOURCE).map(|i| (side * 101 + i * 7 + (i >> 8) * 3) as u8).collect();
    &BYTES.get_or_init(|| [0, 1].map(bytes))[side]
}

/// Returns where the peer's WRITE `id` stores its data in the target region.
pub fn write_place(id: usize, len: usize) -> Range<usize> {
    id * SLOT..id * SLOT + len
}

/// Returns where the local READ `id` stores its data in the target region.
pub fn read_place(id: usize, len: usize) -> Range<usize> {
    id * SLOT + MAX_LEN..id * SLOT + MAX_LEN + len
}

/// Returns where receive `id` stores a message in the region for receives.
pub fn recv_place(id: usize, transport: QpType, len: usize) -> Range<usize> {
    let header = if transport == QpType::Ud { grh::LEN } else { 0 };
    id * RECV_SLOT + header..id * RECV_SLOT + header + len
}

/// Effect of a send work request on memory.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Send,
    Write,
    Read,
    /// Value of the word before and after an atomic.
    Atomic {
        before: u64,
        after: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Index of the connection.
    pub end: usize,
    pub opcode: WcOpcode,
    /// Offset and length of the data in a source region.
    pub from: usize,
    pub len: usize,
    pub imm: Option<u32>,
    pub signaled: bool,
    pub effect: Effect,
    /// Number of earlier messages of the connection that consume receives, if this one does.
    pub message: Option<usize>,
    pub succeeded: bool,
}

/// One end of a connection.
pub struct End {
    pub transport: QpType,
    /// Queue pair that sends and, except for XRC, receives.
    pub qp: Qp,
    /// Receiving queue pair of XRC.
    pub target: Option<Qp>,
    /// Index of the queue from which receives are taken.
    pub queue: usize,
    /// Posted work requests, as indices of [`Side::works`].
    pub sends: Vec<usize>,
    /// Number of elements of `sends` known to be complete.
    pub completed: usize,
    /// Status of the first work request that failed.
    pub error: Option<WcStatus>,
    /// Number of messages sent that consume receives.
    pub messages: usize,
    /// Number of messages received; for an unreliable service on an ordered wire, including lost ones.
    pub arrived: usize,
    /// Value of the word at the peer that this end's atomics modify, once all of them are executed.
    pub word: u64,
}

impl End {
    pub fn is_reliable(&self) -> bool {
        matches!(self.transport, QpType::Rc | QpType::XrcSend)
    }

    pub fn receiver(&self) -> &Qp {
        self.target.as_ref().unwrap_or(&self.qp)
    }

    fn connect(&self, peer: &End, options: &ConnectOptions) {
        if self.transport == QpType::Ud {
            return self.qp.activate(QKEY).unwrap();
        }
        self.qp.connect(&peer.receiver().endpoint(), options).unwrap();
        if let Some(target) = &self.target {
            target.connect(&peer.qp.endpoint(), options).unwrap();
        }
    }
}

/// A receive queue, shared or of one queue pair.
pub struct Queue {
    pub srq: Option<Srq>,
    transport: QpType,
    pub posted: usize,
}

pub struct Recv {
    pub queue: usize,
    pub status: Option<WcStatus>,
    /// The peer's work request whose message was received.
    pub message: Option<usize>,
}

pub struct Side {
    pub context: Context,
    pub pd: Pd,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub source: Mr,
    /// Memory for the peer's WRITEs and for local READs.
    pub target: Mr,
    pub recv_buffers: Mr,
    /// Words that the peer's atomics modify, one for each connection, then results of local atomics.
    pub words: Mr,
    pub ends: Vec<End>,
    pub queues: Vec<Queue>,
    pub works: Vec<Work>,
    pub recvs: Vec<Recv>,
    /// Whether the device was removed.
    pub is_removed: bool,
    xrcd: Option<Xrcd>,
}

impl Side {
    /// Creates side `n` of those with the given addresses. `rings` are those that each side writes, if there
    /// are any.
    pub fn new(
        fabric: &Fabric,
        scenario: &Scenario,
        n: usize,
        addresses: &[Vec<IpAddr>; 2],
        rings: Option<&[Arc<Mutex<Ring>>; 2]>,
    ) -> Side {
        let port = fabric.port(&addresses[n]).unwrap();
        let rules = scenario.faults[n].clone();
        let context = Context::on_port(port, &scenario.contexts[n], |port| {
            let link: Box<dyn Link> = match (rings, scenario.rings) {
                (Some(rings), Some(options)) => {
                    let first = addresses.each_ref().map(|addresses| addresses[0]);
                    Box::new(RingLink::new(port, n, first, rings, options))
                }
                _ => Box::new(port),
            };
            match rules.is_empty() {
                true => link,
                false => Box::new(Faults::new(link, rules, scenario.wire.seed)),
            }
        });
        let context = context.unwrap();
        let pd = context.alloc_pd().unwrap();
        let region = |len| pd.reg_mr(len, Access::ALL).unwrap();
        let mut side = Side {
            send_cq: context.create_cq(256).unwrap(),
            recv_cq: context.create_cq(256).unwrap(),
            source: region(SOURCE),
            target: region(MAX_WORK * SLOT),
            recv_buffers: region(MAX_RECVS * RECV_SLOT),
            words: region(8 * (scenario.transports.len() + MAX_WORK)),
            ends: Vec::new(),
            queues: Vec::new(),
            works: Vec::new(),
            recvs: Vec::new(),
            is_removed: false,
            xrcd: None,
            context,
            pd,
        };
        side.source.write(0, source(n)).unwrap();
        for transport in &scenario.transports {
            side.add_end(*transport, scenario.has_srqs);
        }
        side
    }

    fn add_end(&mut self, transport: QpType, has_srqs: bool) {
        let is_xrc = transport == QpType::XrcSend;
        let is_shared = is_xrc || has_srqs && transport != QpType::Uc;
        let same = self.queues.iter().position(|q| is_shared && q.transport == transport);
        let queue = same.unwrap_or_else(|| {
            let mut options = SrqOptions::default();
            if is_xrc {
                let xrcd = self.xrcd.insert(self.context.open_xrcd().unwrap());
                options = options.xrc(xrcd, &self.recv_cq);
            }
            let srq = is_shared.then(|| self.pd.create_srq(options).unwrap());
            self.queues.push(Queue { srq, transport, posted: 0 });
            self.queues.len() - 1
        });
        let mut options = QpOptions::default().qp_type(transport);
        if let (false, Some(srq)) = (is_xrc, &self.queues[queue].srq) {
            options = options.srq(srq);
        }
        let xrcd = self.xrcd.as_ref().filter(|_| is_xrc);
        self.ends.push(End {
            transport,
            qp: self.pd.create_qp(&self.send_cq, &self.recv_cq, &options).unwrap(),
            target: xrcd.map(|xrcd| xrcd.create_target_qp().unwrap()),
            queue,
            sends: Vec::new(),
            completed: 0,
            error: None,
            messages: 0,
            arrived: 0,
            word: 0,
        });
    }

    pub fn connect(&self, peer: &Side, options: &ConnectOptions) {
        for (end, to) in self.ends.iter().zip(&peer.ends) {
            end.connect(to, options);
        }
    }

    /// Returns the destination that work requests of connection `f` need, if they need one.
    pub fn destination(&self, f: usize, peer: &Side) -> Option<Destination> {
        let to = &peer.ends[f];
        match self.ends[f].transport {
            QpType::Ud => {
                let ah = self.pd.create_ah(&AddressVector::to(to.qp.endpoint().gid)).unwrap();
                Some(ah.to(to.qp.qpn(), QKEY))
            }
            QpType::XrcSend => peer.queues[to.queue].srq.as_ref().map(|srq| Destination::Srq(srq.id())),
            _ => None,
        }
    }

    /// Posts the next receive to a queue, in a slot of its own.
    pub fn post_recv(&mut self, queue: usize) {
        if self.is_removed {
            return;
        }
        let id = self.recvs.len();
        assert!(id < MAX_RECVS, "more receives than the test may need");
        let (at, end) = (id * RECV_SLOT, (id + 1) * RECV_SLOT);
        let sges = [self.recv_buffers.sge(at..at + 100), self.recv_buffers.sge(at + 100..end)];
        let wr = RecvWr::new(id as u64, &sges);
        let Queue { srq, posted, .. } = &mut self.queues[queue];
        match srq {
            Some(srq) => srq.post_recv(&wr).unwrap(),
            None => self.ends.iter().find(|end| end.queue == queue).unwrap().qp.post_recv(&wr).unwrap(),
        }
        *posted += 1;
        self.recvs.push(Recv { queue, status: None, message: None });
    }

    /// Returns the connection whose local queue pair has the given number.
    pub fn end_of(&self, qpn: Qpn) -> usize {
        let found = self.ends.iter().position(|end| end.qp.qpn() == qpn || end.receiver().qpn() == qpn);
        found.unwrap_or_else(|| panic!("completion of an unknown queue pair {qpn}"))
    }

    /// Moves all queue pairs to ERR, which flushes what is outstanding.
    pub fn stop(&self) {
        if !self.is_removed {
            for qp in self.ends.iter().flat_map(|end| [Some(&end.qp), end.target.as_ref()]).flatten() {
                qp.modify(&QpAttr::new(QpState::Err)).unwrap();
            }
        }
    }
}

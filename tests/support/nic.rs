//! NICs on any link, and connections between their queue pairs. For two connected NICs on a fabric, use the
//! library's `Fabric::pair` or `Fabric::pair_builder`.

use std::ops::Deref;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A NIC with a protection domain, a CQ of 4096 entries for all its QPs, and a region.
pub struct Nic {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

impl Nic {
    /// Creates the protection domain, CQ and region on an open context; the region has `len` bytes.
    pub fn new(context: Context, len: usize) -> Nic {
        Nic::with_access(context, len, Access::ALL)
    }

    /// Like [`new`](Self::new), with the given access rights for the region.
    pub fn with_access(context: Context, len: usize, access: Access) -> Nic {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4096).unwrap());
        let mr = pd.reg_mr(len, access).unwrap();
        Nic { context, pd, cq, mr }
    }

    /// Creates a QP of the given type.
    pub fn qp(&self, qp_type: QpType) -> Qp {
        self.pd.create_qp(&self.cq, &self.cq, &QpOptions::default().qp_type(qp_type)).unwrap()
    }
}

/// A NIC whose QPs have a CQ each, so that they are spread over its shards.
pub struct SpreadNic {
    nic: Nic,
    cqs: Mutex<Vec<Cq>>,
}

impl Deref for SpreadNic {
    type Target = Nic;

    fn deref(&self) -> &Nic {
        &self.nic
    }
}

impl SpreadNic {
    /// Like [`Nic::new`].
    pub fn new(context: Context, len: usize) -> SpreadNic {
        let nic = Nic::new(context, len);
        let cqs = Mutex::new(vec![nic.cq.clone()]);
        SpreadNic { nic, cqs }
    }

    /// Creates a QP of the given type, with a CQ of its own.
    pub fn qp(&self, qp_type: QpType) -> Qp {
        let cq = self.context.create_cq(256).unwrap();
        let qp = self.pd.create_qp(&cq, &cq, &QpOptions::default().qp_type(qp_type)).unwrap();
        self.cqs.lock().unwrap().push(cq);
        qp
    }

    /// Waits for `count` completions in all CQs together, and returns them. All must be successful.
    pub fn completions(&self, count: usize) -> Vec<Completion> {
        let (mut out, cqs) = (Vec::new(), self.cqs.lock().unwrap().clone());
        let start = Instant::now();
        while out.len() < count {
            for cq in &cqs {
                cq.poll(count - out.len(), &mut out).unwrap();
            }
            let (received, counters) = (out.len(), self.context.counters());
            assert!(
                start.elapsed() < TIMEOUT,
                "{received} of {count} completions in {TIMEOUT:?}: {counters:?}"
            );
        }
        assert!(out.iter().all(|wc| wc.status == WcStatus::Success), "{out:?}");
        out
    }
}

/// Opens a context on links, one for each shard.
pub fn open<L: Link + 'static>(links: impl IntoIterator<Item = L>) -> Context {
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    Context::open_shards(links, &ContextOptions::default()).unwrap()
}

/// Opens a context on UDP sockets bound to a local address, one for each shard.
pub fn on_udp(ip: &str, shards: usize) -> Context {
    let links = UdpLink::bind_shards(ip.parse().unwrap(), &UdpOptions::default(), shards).unwrap();
    assert_eq!(links.len(), shards);
    open(links)
}

/// Connects two QPs.
pub fn connect(a: &Qp, b: &Qp) {
    connect_with(a, b, &ConnectOptions::default());
}

/// Connects two QPs with the same options at both ends.
pub fn connect_with(a: &Qp, b: &Qp, options: &ConnectOptions) {
    a.connect(&b.endpoint(), options).unwrap();
    b.connect(&a.endpoint(), options).unwrap();
}

/// Creates an endpoint on each context, and connects their QPs.
pub fn pair(contexts: [Context; 2]) -> [TestEndpoint; 2] {
    let [a, b] = contexts.map(|context| TestEndpoint::new(context).unwrap());
    connect(&a.qp, &b.qp);
    [a, b]
}

/// Creates two connected QPs, each in the given protection domain and with the given CQ for sends and
/// receives.
pub fn qp_pair(a: (&Pd, &Cq), b: (&Pd, &Cq)) -> (Qp, Qp) {
    let [a, b] = [a, b].map(|(pd, cq)| pd.create_qp(cq, cq, &QpOptions::default()).unwrap());
    connect(&a, &b);
    (a, b)
}

//! Ready-made test topologies: two connected NICs, or a mesh, on a fabric.

use std::fmt;

use super::faults::Fault;
use super::{
    ConnectError, ConnectOptions, Context, ContextOptions, Cq, CreateError, Fabric, OpenError, Pd,
    Personality, Qp, QpOptions,
};
use crate::middleware::capture::CaptureFile;

/// A NIC with the objects that nearly every test needs: one protection domain, one completion queue for both
/// directions, and one queue pair.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestEndpoint {
    /// The device.
    pub context: Context,
    /// Protection domain of the queue pair.
    pub pd: Pd,
    /// Completion queue of 1024 entries, for sends and receives.
    pub cq: Cq,
    /// Queue pair, connected to the other endpoint by [`Fabric::pair`].
    pub qp: Qp,
}

/// Reason why a pair or mesh of NICs could not be created.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum PairError {
    /// A context could not be opened.
    Open(#[from] OpenError),
    /// An object could not be created.
    Create(#[from] CreateError),
    /// The queue pairs could not be connected.
    Connect(#[from] ConnectError),
}

impl TestEndpoint {
    /// Creates an endpoint on an open context, with its queue pair in the RESET state.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if the device has no object of a kind left; [`CreateError::DeviceFatal`].
    pub fn new(context: Context) -> Result<TestEndpoint, CreateError> {
        TestEndpoint::with_options(context, &QpOptions::default())
    }

    /// Creates an endpoint on an open context, with a queue pair that has the given options and is in the
    /// RESET state.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if the device has no object of a kind left; [`CreateError::DeviceFatal`];
    /// the errors of [`Pd::create_qp`] for the options.
    pub fn with_options(context: Context, options: &QpOptions) -> Result<TestEndpoint, CreateError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024)?;
        let qp = pd.create_qp(&cq, &cq, options)?;
        Ok(TestEndpoint { context, pd, cq, qp })
    }

    /// Connects the queue pairs of two endpoints, both in the RESET state, with the same options.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use urxe::verbs::*;
    /// let fabric = Fabric::new();
    /// let (a, b) = (
    ///     TestEndpoint::new(Context::on_fabric(&fabric)?)?,
    ///     TestEndpoint::new(Context::on_fabric(&fabric)?)?,
    /// );
    /// a.connect(&b, &ConnectOptions::default())?;
    /// b.qp.post_recv(&RecvWr::empty(1))?;
    /// a.qp.post_send(&SendWr::send(2, &[]))?;
    /// assert_eq!(b.cq.wait(Duration::from_secs(5))?.wr_id, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Qp::connect`]; then the queue pairs may be in any state.
    pub fn connect(&self, peer: &TestEndpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        self.qp.connect(&peer.qp.endpoint(), options)?;
        peer.qp.connect(&self.qp.endpoint(), options)
    }
}

/// A NIC in a mesh: one protection domain, one completion queue for all queue pairs, and a queue pair to each
/// other NIC.
#[derive(Debug)]
#[non_exhaustive]
pub struct MeshNode {
    /// The device.
    pub context: Context,
    /// Protection domain of all queue pairs.
    pub pd: Pd,
    /// Completion queue for the sends and receives of all queue pairs, with 1024 entries per NIC in the
    /// mesh, up to the device's limit.
    pub cq: Cq,
    /// Queue pairs, indexed by peer; `None` at the NIC's own index.
    qps: Vec<Option<Qp>>,
}

impl MeshNode {
    /// Returns the queue pair connected to the NIC with index `peer` in the mesh, or `None` if that is the
    /// NIC's own index or out of range.
    pub fn qp(&self, peer: usize) -> Option<&Qp> {
        self.qps.get(peer)?.as_ref()
    }
}

impl Fabric {
    /// Creates `n` NICs on this fabric, each with one queue pair connected to each of the others.
    ///
    /// # Errors
    /// [`PairError::Open`] if packets of the fabric cannot hold a path MTU of 256, or the system is out of
    /// descriptors or threads; [`PairError::Create`] for more queue pairs than a device has.
    pub fn mesh(&self, n: usize) -> Result<Vec<MeshNode>, PairError> {
        self.mesh_with(n, &ContextOptions::default())
    }

    /// Creates NICs like [`mesh`](Self::mesh), but with the given options, without a seed.
    ///
    /// # Errors
    /// As for [`mesh`](Self::mesh).
    pub fn mesh_with(&self, n: usize, options: &ContextOptions) -> Result<Vec<MeshNode>, PairError> {
        let node = |own| {
            let context = self.open(options)?;
            let (pd, cq) = (
                context.alloc_pd()?,
                context.create_cq((1024 * n.max(1)).min(context.0.limits.max_cqe as usize))?,
            );
            let qp = |peer| (peer != own).then(|| pd.create_qp(&cq, &cq, &QpOptions::default())).transpose();
            let qps = (0..n).map(qp).collect::<Result<_, _>>()?;
            Ok(MeshNode { context, pd, cq, qps })
        };
        let nodes = (0..n).map(node).collect::<Result<Vec<_>, PairError>>()?;
        for (own, node) in nodes.iter().enumerate() {
            for (qp, peer) in node.qps.iter().zip(&nodes) {
                if let (Some(qp), Some(back)) = (qp, peer.qp(own)) {
                    qp.connect(&back.endpoint(), &ConnectOptions::default())?;
                }
            }
        }
        Ok(nodes)
    }

    /// Creates two NICs on this fabric with connected queue pairs, all with default options.
    /// [`pair_builder`](Self::pair_builder) accepts other options.
    ///
    /// # Errors
    /// [`PairError::Open`] if packets of the fabric cannot hold a path MTU of 256, or the system is out of
    /// descriptors or threads.
    pub fn pair(&self) -> Result<(TestEndpoint, TestEndpoint), PairError> {
        self.pair_builder().build()
    }

    /// Returns a builder for two connected NICs with a given personality, fault rules, packet capture or
    /// other options.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use urxe::middleware::faults::{Action, Direction, Rule, When};
    /// use urxe::verbs::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let lose_the_first = Rule::new(Direction::Tx, Action::Drop, When::Nth(1));
    /// let (a, b) = Fabric::new().pair_builder().faults([lose_the_first]).build()?;
    /// b.qp.post_recv(&RecvWr::empty(1))?;
    /// a.qp.post_send(&SendWr::send(2, &[]))?;
    /// b.cq.wait(Duration::from_secs(5))?;
    /// assert!(a.context.counters().sent_pkts > 1, "the lost packet was sent again");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pair_builder(&self) -> PairBuilder {
        PairBuilder {
            fabric: self.clone(),
            context: ContextOptions::default(),
            qp: QpOptions::default(),
            connect: ConnectOptions::default(),
            faults: Vec::new(),
            capture: None,
        }
    }
}

/// Builder for two connected NICs on a fabric, created by [`Fabric::pair_builder`].
#[must_use = "no NIC is created before `build`"]
pub struct PairBuilder {
    fabric: Fabric,
    context: ContextOptions,
    qp: QpOptions,
    connect: ConnectOptions,
    faults: Vec<Fault>,
    capture: Option<CaptureFile>,
}

impl PairBuilder {
    /// Sets the options of both NICs, such as a personality. If they include a seed, the second NIC uses the
    /// seed plus 1.
    pub fn context(mut self, options: ContextOptions) -> PairBuilder {
        self.context = options;
        self
    }

    /// Sets the personality of both NICs: the limits and quirks of a class of devices.
    pub fn personality(mut self, personality: Personality) -> PairBuilder {
        self.context.personality = personality;
        self
    }

    /// Sets the options of both queue pairs, which must use a connected service.
    pub fn qp(mut self, options: QpOptions) -> PairBuilder {
        self.qp = options;
        self
    }

    /// Sets the connection options, which apply at both ends.
    pub fn connect(mut self, options: ConnectOptions) -> PairBuilder {
        self.connect = options;
        self
    }

    /// Adds faults to the first NIC: on packets at its port ([`Direction::Tx`] to packets that it sends,
    /// [`Direction::Rx`] to packets that it receives), on calls and on objects. Random decisions are derived
    /// from the seed of the NIC.
    ///
    /// [`Direction::Tx`]: crate::middleware::faults::Direction::Tx
    /// [`Direction::Rx`]: crate::middleware::faults::Direction::Rx
    pub fn faults(mut self, faults: impl IntoIterator<Item = impl Into<Fault>>) -> PairBuilder {
        self.faults.extend(faults.into_iter().map(Into::into));
        self
    }

    /// Captures all packets between the NICs, as sent and received by the first one. Each packet to which a
    /// fault was applied carries a comment.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use urxe::middleware::capture::{CaptureFile, Timestamps};
    /// use urxe::verbs::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("urxe-doc-{}.pcapng", std::process::id()));
    /// let file = CaptureFile::create(&path, Timestamps::Wall)?;
    /// let (a, b) = Fabric::new().pair_builder().capture(&file).build()?;
    /// b.qp.post_recv(&RecvWr::empty(1))?;
    /// a.qp.post_send(&SendWr::send(2, &[]))?;
    /// a.cq.wait(Duration::from_secs(5))?;
    /// file.flush()?;
    /// # assert!(std::fs::metadata(&path)?.len() > 200);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture(mut self, file: &CaptureFile) -> PairBuilder {
        self.capture = Some(file.clone());
        self
    }

    /// Creates the NICs, applies the faults and the capture to the first one, and connects their queue pairs.
    ///
    /// # Errors
    /// [`PairError::Open`] if packets of the fabric cannot hold a path MTU of 256, or the system is out of
    /// descriptors or threads; [`PairError::Create`] or [`PairError::Connect`] for options that the device
    /// does not support.
    pub fn build(self) -> Result<(TestEndpoint, TestEndpoint), PairError> {
        let PairBuilder { fabric, context: options, qp, connect, faults, capture } = self;
        let mut first = options.clone().faults(faults);
        first.capture = capture.map(|file| (file, "a".into())).or(first.capture);
        let seed = options.seed.map(|seed| seed.wrapping_add(1));
        let a = TestEndpoint::with_options(fabric.open(&first)?, &qp)?;
        let b = TestEndpoint::with_options(fabric.open(&options.seed(seed))?, &qp)?;
        a.connect(&b, &connect)?;
        Ok((a, b))
    }
}

impl fmt::Debug for PairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PairBuilder({} fault rules, captured: {})", self.faults.len(), self.capture.is_some())
    }
}

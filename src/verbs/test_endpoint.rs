//! Ready-made test topologies: two connected NICs, or a mesh, on a fabric.

use super::{ConnectError, ConnectOptions, Context, Cq, CreateError, Fabric, OpenError, Pd, Qp, QpOptions};

/// A NIC with the objects that nearly every test needs: one protection domain, one completion queue for both
/// directions, one queue pair.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestEndpoint {
    /// The device.
    pub context: Context,
    /// Protection domain of the queue pair.
    pub pd: Pd,
    /// Completion queue of 1024 entries, for sends and receives.
    pub cq: Cq,
    /// Queue pair, connected to the other node by [`Fabric::pair`].
    pub qp: Qp,
}

/// Reason why the nodes could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// A context could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An object could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The queue pairs could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl TestEndpoint {
    /// Creates a node on an open context, with its queue pair in RESET.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn new(context: Context) -> Result<TestEndpoint, CreateError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024)?;
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        Ok(TestEndpoint { context, pd, cq, qp })
    }
}

/// A NIC of a mesh: one protection domain, one completion queue for all queue pairs, and a queue pair to each
/// other NIC.
#[derive(Debug)]
#[non_exhaustive]
pub struct MeshNode {
    /// The device.
    pub context: Context,
    /// Protection domain of all queue pairs.
    pub pd: Pd,
    /// Completion queue for sends and receives of all queue pairs: 1024 entries per NIC of the mesh, up to
    /// the device's limit.
    pub cq: Cq,
    /// Queue pairs by index of the peer; `None` at the NIC's own index.
    qps: Vec<Option<Qp>>,
}

impl MeshNode {
    /// Returns the queue pair to the NIC with index `peer` in the mesh; `None` for its own index and beyond
    /// the last.
    pub fn qp(&self, peer: usize) -> Option<&Qp> {
        self.qps.get(peer)?.as_ref()
    }
}

impl Fabric {
    /// Creates `n` NICs on this fabric, each with a queue pair connected to every other one.
    ///
    /// # Errors
    /// [`PairError`].
    pub fn mesh(&self, n: usize) -> Result<Vec<MeshNode>, PairError> {
        let node = |own| {
            let context = Context::on_fabric(self)?;
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

    /// Creates two NICs on this fabric with connected queue pairs.
    ///
    /// # Errors
    /// [`PairError`].
    pub fn pair(&self) -> Result<(TestEndpoint, TestEndpoint), PairError> {
        let a = TestEndpoint::new(Context::on_fabric(self)?)?;
        let b = TestEndpoint::new(Context::on_fabric(self)?)?;
        a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
        b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
        Ok((a, b))
    }
}

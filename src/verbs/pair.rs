use super::{ConnectError, ConnectOptions, Context, Cq, CreateError, Fabric, OpenError, Pd, Qp, QpOptions};

/// A NIC with the objects that nearly every test needs: one protection domain, one completion queue for
/// both directions, one connected queue pair.
#[derive(Debug)]
pub struct Node {
    /// The device.
    pub context: Context,
    /// Its domain.
    pub pd: Pd,
    /// 1024 entries, for sends and receives.
    pub cq: Cq,
    /// Connected to the other node.
    pub qp: Qp,
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
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

impl Node {
    /// A node on an open context, its queue pair in RESET.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn new(context: Context) -> Result<Node, CreateError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024)?;
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        Ok(Node { context, pd, cq, qp })
    }
}

impl Fabric {
    /// Two NICs on this fabric with connected queue pairs.
    ///
    /// # Errors
    /// [`PairError`].
    pub fn pair(&self) -> Result<(Node, Node), PairError> {
        let a = Node::new(Context::on_fabric(self)?)?;
        let b = Node::new(Context::on_fabric(self)?)?;
        a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
        b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
        Ok((a, b))
    }
}

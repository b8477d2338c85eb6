//! Fabrics, the NICs on them, and captures of their packets.

use std::net::IpAddr;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};
use urxe::fabric::Outcome;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::Rules;
use urxe::verbs::errors::OpenError;
use urxe::verbs::faults::Fault;
use urxe::verbs::{self, ContextOptions, FabricConfig, Personality};

use crate::context::{Context, Pd};
use crate::convert::{OrRaise, duration, invalid};
use crate::cq::Cq;
use crate::held::Held;
use crate::options::{ConnectOptions, QpOptions, connect_options, qp_options};
use crate::qp::Qp;

/// An in-memory switch, and the NICs on it.
///
/// With virtual_time, its clock starts at 0, and only waits, step, advance and run_until_idle move it; the
/// same seed and the same calls produce the same packets.
///
/// Impairments of every direction: latency, a random jitter on top of it, and reorder_by, the additional
/// delay of packets selected by reorder, in seconds; loss, duplicate, reorder and corrupt, probabilities from
/// 0 to 1; bandwidth in bits per second, and for its queue the length queue_bytes and the ECN marking
/// threshold ecn_threshold, in bytes; mtu, the largest IP packet in bytes. seed initializes all random
/// numbers.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Fabric(verbs::Fabric);

/// Returns the options of NICs with a personality.
fn nic_options(personality: &str) -> PyResult<ContextOptions> {
    let personality = Personality::named(personality)
        .ok_or_else(|| invalid("personality", personality, "default, strict, mlx5, rxe or throughput"))?;
    Ok(ContextOptions::default().personality(personality))
}

/// Parses fault rules, each of which may be a file of rules.
fn parse_faults(py: Python<'_>, faults: Vec<String>) -> PyResult<Vec<Fault>> {
    let faults = faults.iter().map(|text| text.parse()).collect::<Result<Vec<Rules<Fault>>, _>>();
    Ok(faults.or_raise(py)?.into_iter().flat_map(|Rules(faults)| faults).collect())
}

#[pymethods]
impl Fabric {
    #[new]
    #[pyo3(signature = (*, virtual_time=false, seed=0, latency=0.0, jitter=0.0, bandwidth=None, queue_bytes=None, ecn_threshold=None, loss=0.0, duplicate=0.0, reorder=0.0, reorder_by=50e-6, corrupt=0.0, mtu=9000))]
    fn new(
        py: Python<'_>,
        virtual_time: bool,
        seed: u64,
        latency: f64,
        jitter: f64,
        bandwidth: Option<u64>,
        queue_bytes: Option<usize>,
        ecn_threshold: Option<usize>,
        loss: f64,
        duplicate: f64,
        reorder: f64,
        reorder_by: f64,
        corrupt: f64,
        mtu: usize,
    ) -> PyResult<Fabric> {
        let config = FabricConfig::default()
            .seed(seed)
            .latency(duration("latency", latency)?)
            .jitter(duration("jitter", jitter)?)
            .bandwidth(bandwidth)
            .queue_bytes(queue_bytes)
            .ecn_threshold(ecn_threshold)
            .loss(loss)
            .duplicate(duplicate)
            .reorder(reorder)
            .reorder_by(duration("reorder_by", reorder_by)?)
            .corrupt(corrupt)
            .mtu(mtu);
        let fabric = match virtual_time {
            true => verbs::Fabric::virtual_time(config),
            false => verbs::Fabric::with_config(config),
        };
        Ok(Fabric(fabric.or_raise(py)?))
    }

    /// Creates two NICs with connected queue pairs. `faults` and `capture` apply at the first NIC's port.
    #[pyo3(signature = (*, personality="default", faults=Vec::new(), capture=None, qp=None, connect=None))]
    fn pair(
        &self,
        py: Python<'_>,
        personality: &str,
        faults: Vec<String>,
        capture: Option<&Capture>,
        qp: Option<Bound<'_, QpOptions>>,
        connect: Option<Bound<'_, ConnectOptions>>,
    ) -> PyResult<(Endpoint, Endpoint)> {
        let pair = self.0.pair_builder().context(nic_options(personality)?).faults(parse_faults(py, faults)?);
        let mut pair = pair.qp(qp_options(qp)).connect(connect_options(connect));
        if let Some(capture) = capture {
            pair = pair.capture(&capture.0);
        }
        let (a, b) = pair.build().or_raise(py)?;
        Ok((Endpoint::new(py, a)?, Endpoint::new(py, b)?))
    }

    /// Creates `n` NICs, each with one queue pair connected to each of the others.
    #[pyo3(signature = (n, *, personality="default"))]
    fn mesh(&self, py: Python<'_>, n: usize, personality: &str) -> PyResult<Vec<Node>> {
        let nodes = self.0.mesh_with(n, &nic_options(personality)?).or_raise(py)?;
        let new = |node: verbs::MeshNode| {
            let qp = |peer| {
                node.qp(peer).map(|qp| Py::new(py, Qp(Held::new(qp.clone(), &node.context)))).transpose()
            };
            let qps: Vec<_> = (0..n).map(qp).collect::<PyResult<_>>()?;
            let (context, pd, cq) = objects(py, &node.context, &node.pd, &node.cq)?;
            Ok(Node { context, pd, cq, qps: PyTuple::new(py, qps)?.unbind() })
        };
        nodes.into_iter().map(new).collect()
    }

    /// Opens a NIC. Without `addresses`, the fabric chooses an IPv6 and an IPv4 address.
    #[pyo3(signature = (addresses=Vec::new(), *, personality="default", seed=None, window=None, min_ack_timeout=None, faults=Vec::new(), capture=None))]
    fn open_device(
        &self,
        py: Python<'_>,
        addresses: Vec<IpAddr>,
        personality: &str,
        seed: Option<u64>,
        window: Option<usize>,
        min_ack_timeout: Option<f64>,
        faults: Vec<String>,
        capture: Option<&Capture>,
    ) -> PyResult<Context> {
        let min_ack_timeout =
            min_ack_timeout.map(|seconds| duration("min_ack_timeout", seconds)).transpose()?;
        let options = nic_options(personality)?.faults(parse_faults(py, faults)?);
        let mut options = options.seed(seed).window(window).min_ack_timeout(min_ack_timeout);
        options.capture = capture.map(|capture| (capture.0.clone(), "nic".into()));
        let chosen = self.0.auto_address();
        let port = self.0.port(if addresses.is_empty() { &chosen } else { &addresses });
        let port = port.map_err(OpenError::from).or_raise(py)?;
        let context = verbs::Context::on_port(port, &options, |port| Box::new(port)).or_raise(py)?;
        Ok(Context::new(&context))
    }

    /// Creates a pcapng file for the packets of NICs, or replaces an existing one. In virtual time, its
    /// timestamps are virtual too.
    fn capture(&self, py: Python<'_>, path: PathBuf) -> PyResult<Capture> {
        let timestamps = if self.0.is_virtual() { Timestamps::Virtual } else { Timestamps::Wall };
        Ok(Capture(CaptureFile::create(path, timestamps).or_raise(py)?))
    }

    /// Current time in nanoseconds: of the fabric's clock in virtual time, otherwise since the first use in
    /// the process.
    #[getter]
    fn now_ns(&self) -> u64 {
        self.0.now().0
    }

    /// Whether the fabric is in virtual time.
    #[getter]
    fn is_virtual(&self) -> bool {
        self.0.is_virtual()
    }

    /// Seed of the random number generators.
    #[getter]
    fn seed(&self) -> u64 {
        self.0.config().seed
    }

    /// Advances virtual time to the next packet arrival or timer. Returns the new time in nanoseconds, or
    /// None if nothing is pending or the fabric is in real time.
    fn step(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.0.step()).map(|at| at.0)
    }

    /// Advances virtual time by `seconds`, and runs everything that becomes due.
    fn advance(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.check_virtual()?;
        let time = duration("seconds", seconds)?;
        py.detach(|| self.0.advance(time));
        Ok(())
    }

    /// Runs until nothing is pending or virtual time has advanced by `limit` seconds. Returns whether nothing
    /// is pending.
    #[pyo3(signature = (limit=10.0))]
    fn run_until_idle(&self, py: Python<'_>, limit: f64) -> PyResult<bool> {
        self.check_virtual()?;
        let limit = duration("limit", limit)?;
        Ok(matches!(py.detach(|| self.0.run_until_idle(limit)), Outcome::Idle))
    }

    /// Unplugs the cable of the port with the given address, or plugs it in.
    fn set_port_up(&self, py: Python<'_>, address: IpAddr, up: bool) -> PyResult<()> {
        self.0.set_port_up(address, up).or_raise(py)
    }

    /// Removes the device on the port with the given address, as if an adapter were unplugged.
    fn remove_device(&self, py: Python<'_>, address: IpAddr) -> PyResult<()> {
        self.0.remove_device(address).or_raise(py)
    }

    /// Returns the fabric's packet counters by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.counters().iter().into_py_dict(py)
    }
}

impl Fabric {
    fn check_virtual(&self) -> PyResult<()> {
        if self.0.is_virtual() {
            return Ok(());
        }
        Err(PyValueError::new_err("the fabric is in real time: create it with virtual_time=True"))
    }
}

/// A NIC with one protection domain, completion queue and queue pair.
#[pyclass(frozen, get_all, module = "urxe")]
pub(crate) struct Endpoint {
    /// The device.
    context: Py<Context>,
    /// Protection domain of the queue pair.
    pd: Py<Pd>,
    /// Completion queue for sends and receives.
    cq: Py<Cq>,
    /// Queue pair, connected to the other endpoint.
    qp: Py<Qp>,
}

impl Endpoint {
    fn new(py: Python<'_>, endpoint: verbs::TestEndpoint) -> PyResult<Endpoint> {
        let (context, pd, cq) = objects(py, &endpoint.context, &endpoint.pd, &endpoint.cq)?;
        Ok(Endpoint {
            context,
            pd,
            cq,
            qp: Py::new(py, Qp(Held::new(endpoint.qp.clone(), &endpoint.context)))?,
        })
    }
}

/// Returns the Python objects of a NIC with one protection domain and completion queue.
fn objects(
    py: Python<'_>,
    context: &verbs::Context,
    pd: &verbs::Pd,
    cq: &verbs::Cq,
) -> PyResult<(Py<Context>, Py<Pd>, Py<Cq>)> {
    Ok((
        Py::new(py, Context::new(context))?,
        Py::new(py, Pd(Held::new(pd.clone(), context)))?,
        Py::new(py, Cq(Held::new(cq.clone(), context)))?,
    ))
}

/// A NIC in a mesh.
#[pyclass(frozen, get_all, module = "urxe")]
pub(crate) struct Node {
    /// The device.
    context: Py<Context>,
    /// Protection domain of all queue pairs.
    pd: Py<Pd>,
    /// Completion queue for the sends and receives of all queue pairs.
    cq: Py<Cq>,
    /// Queue pairs by index of the peer; None at the NIC's own index.
    qps: Py<PyTuple>,
}

/// A pcapng file, created by Fabric.capture. As a context manager, it flushes the file at the end of the
/// block.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Capture(CaptureFile);

#[pymethods]
impl Capture {
    /// Writes all captured packets to the file.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.0.flush().or_raise(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.flush(py)
    }
}

//! Fabrics, the NICs on them, and captures of their packets.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use urxe::fabric::{FabricPort, Outcome};
use urxe::link::Link;
use urxe::middleware::capture::{CaptureFile, CaptureHandle, Timestamps};
use urxe::middleware::faults::{FaultCounters, Faults, Rule, Rules};
use urxe::verbs::faults::Fault;
use urxe::verbs::{self, ContextOptions, FabricConfig, OpenError, Personality};

use crate::context::{Context, Pd};
use crate::convert::{OrRaise, checked, duration, invalid};
use crate::cq::Cq;
use crate::held::{Device, Held};
use crate::options::{ConnectOptions, QpOptions, connect_options, qp_options};
use crate::qp::Qp;

/// An in-memory switch, and the NICs on it.
///
/// With virtual_time, its clock starts at 0, and only waits, step, advance and run_until_idle move it; the same seed
/// and the same calls produce the same packets.
///
/// Impairments of every direction: latency, a random jitter on top of it, and reorder_by, the additional delay of
/// packets selected by reorder, in seconds; loss, duplicate, reorder and corrupt, probabilities from 0 to 1; bandwidth in
/// bits per second, and for its queue the length queue_bytes and the ECN marking threshold ecn_threshold, in bytes; mtu,
/// the largest IP packet in bytes. seed initializes all random numbers.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Fabric(verbs::Fabric);

/// Options of a NIC on a fabric, with the middleware around its port.
#[derive(Default)]
struct NicOptions {
    context: ContextOptions,
    rules: Vec<Rule>,
    capture: Option<CaptureFile>,
}

impl NicOptions {
    fn new(
        py: Python<'_>,
        personality: &str,
        faults: Vec<String>,
        capture: Option<&Capture>,
    ) -> PyResult<NicOptions> {
        let personality = Personality::named(personality)
            .ok_or_else(|| invalid("personality", personality, "default, strict, mlx5, rxe or throughput"))?;
        let faults = faults.iter().map(|text| text.parse()).collect::<Result<Vec<Rules<Fault>>, _>>();
        let faults: Vec<Fault> = faults.or_raise(py)?.into_iter().flat_map(|Rules(faults)| faults).collect();
        let rules = Fault::packet_rules(&faults);
        let others = faults.into_iter().filter(|fault| !matches!(fault, Fault::Packet(_)));
        Ok(NicOptions {
            context: ContextOptions::default().personality(personality).faults(others),
            rules,
            capture: capture.map(|capture| capture.0.clone()),
        })
    }
}

impl Fabric {
    /// Opens a NIC with the given addresses, by default with those that the fabric chooses. `name` is that of its
    /// interface in captures.
    fn open(&self, options: NicOptions, addresses: &[IpAddr], name: &str) -> Result<Context, OpenError> {
        let chosen = self.0.auto_address();
        let port = self.0.port(if addresses.is_empty() { &chosen } else { addresses })?;
        let NicOptions { context, rules, capture } = options;
        let (mut counters, seed) = (None, self.0.config().seed);
        let context = verbs::Context::on_port(port, &context, |port| {
            wrap(port, rules, seed, capture.as_ref().map(|file| (file, name)), &mut counters)
        })?;
        let device = Device { context, is_virtual: self.0.is_virtual() };
        Ok(Context { device: Held::new((), &device), faults: counters })
    }
}

/// Wraps a port in fault injection and packet capture. The capture is on the NIC side, so it shows packets as the NIC
/// sends them, with a comment on each packet to which a fault is applied.
fn wrap(
    port: FabricPort,
    rules: Vec<Rule>,
    seed: u64,
    capture: Option<(&CaptureFile, &str)>,
    counters: &mut Option<FaultCounters>,
) -> Box<dyn Link> {
    if rules.is_empty() {
        return match capture {
            Some((file, name)) => Box::new(file.capture(port, name)),
            None => Box::new(port),
        };
    }
    let handle: Arc<OnceLock<CaptureHandle>> = Arc::default();
    let commented = handle.clone();
    let faults = Faults::new(port, rules, seed).with_observer(move |event| {
        if let Some(handle) = commented.get() {
            handle.comment(event);
        }
    });
    *counters = Some(faults.fault_counters());
    let Some((file, name)) = capture else { return Box::new(faults) };
    let link = file.capture(faults, name);
    handle.get_or_init(|| link.handle());
    Box::new(link)
}

#[pymethods]
impl Fabric {
    #[new]
    #[pyo3(signature = (*, virtual_time=false, seed=0, latency=0.0, jitter=0.0, bandwidth=None, queue_bytes=None, ecn_threshold=None, loss=0.0, duplicate=0.0, reorder=0.0, reorder_by=50e-6, corrupt=0.0, mtu=9000))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
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
        let config = checked(py, config)?;
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
        let (qp, connect) = (qp_options(qp), connect_options(connect));
        let first = self.open(NicOptions::new(py, personality, faults, capture)?, &[], "a").or_raise(py)?;
        let second = self.open(NicOptions::new(py, personality, Vec::new(), None)?, &[], "b").or_raise(py)?;
        let new = |context: &Context| {
            verbs::TestEndpoint::with_options(context.device.device().context.clone(), &qp).or_raise(py)
        };
        let (a, b) = (new(&first)?, new(&second)?);
        a.connect(&b, &connect).or_raise(py)?;
        Ok((Endpoint::new(py, first, a)?, Endpoint::new(py, second, b)?))
    }

    /// Creates `n` NICs, each with one queue pair connected to each of the others.
    #[pyo3(signature = (n, *, personality="default"))]
    fn mesh(&self, py: Python<'_>, n: usize, personality: &str) -> PyResult<Vec<Node>> {
        let mut nodes = Vec::new();
        for own in 0..n {
            let context =
                self.open(NicOptions::new(py, personality, Vec::new(), None)?, &[], "nic").or_raise(py)?;
            let device = context.device.device().clone();
            let pd = device.context.alloc_pd().or_raise(py)?;
            let max = device.context.query_device().limits.max_cqe as usize;
            let cq = device.context.create_cq(n.saturating_mul(1024).clamp(1, max)).or_raise(py)?;
            let mut qps = Vec::new();
            for peer in 0..n {
                let qp = (peer != own).then(|| pd.create_qp(&cq, &cq, &verbs::QpOptions::default()));
                qps.push(qp.transpose().or_raise(py)?);
            }
            nodes.push((context, device, pd, cq, qps));
        }
        for (own, (.., qps)) in nodes.iter().enumerate() {
            for (qp, (.., peers)) in qps.iter().zip(&nodes) {
                if let (Some(qp), Some(back)) = (qp, &peers[own]) {
                    qp.connect(&back.endpoint(), &verbs::ConnectOptions::default()).or_raise(py)?;
                }
            }
        }
        let node = |(context, device, pd, cq, qps): (Context, Device, verbs::Pd, verbs::Cq, Vec<_>)| {
            let qp = |qp: Option<verbs::Qp>| qp.map(|qp| Py::new(py, Qp(Held::new(qp, &device)))).transpose();
            let qps: Vec<_> = qps.into_iter().map(qp).collect::<PyResult<_>>()?;
            Ok(Node {
                context: Py::new(py, context)?,
                pd: Py::new(py, Pd(Held::new(pd, &device)))?,
                cq: Py::new(py, Cq(Held::new(cq, &device)))?,
                qps: PyTuple::new(py, qps)?.unbind(),
            })
        };
        nodes.into_iter().map(node).collect()
    }

    /// Opens a NIC. Without `addresses`, the fabric chooses an IPv6 and an IPv4 address.
    #[pyo3(signature = (addresses=Vec::new(), *, personality="default", seed=None, window=None, min_ack_timeout=None, faults=Vec::new(), capture=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
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
        let mut options = NicOptions::new(py, personality, faults, capture)?;
        options.context = options.context.seed(seed).window(window).min_ack_timeout(min_ack_timeout);
        self.open(options, &addresses, "nic").or_raise(py)
    }

    /// Creates a pcapng file for the packets of NICs, or replaces an existing one. In virtual time, its timestamps are
    /// virtual too.
    fn capture(&self, py: Python<'_>, path: PathBuf) -> PyResult<Capture> {
        let timestamps = if self.0.is_virtual() { Timestamps::Virtual } else { Timestamps::Wall };
        Ok(Capture(CaptureFile::create(path, timestamps).or_raise(py)?))
    }

    /// Current time in nanoseconds: of the fabric's clock in virtual time, otherwise since the first use in the process.
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

    /// Advances virtual time to the next packet arrival or timer. Returns the new time in nanoseconds, or None if nothing
    /// is pending or the fabric is in real time.
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

    /// Runs until nothing is pending or virtual time has advanced by `limit` seconds. Returns whether nothing is
    /// pending.
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
        let c = self.0.counters();
        let counters = PyDict::new(py);
        for (name, value) in [
            ("carried", c.carried),
            ("lost", c.lost),
            ("duplicated", c.duplicated),
            ("reordered", c.reordered),
            ("corrupted", c.corrupted),
            ("marked", c.marked),
            ("queue_full", c.queue_full),
            ("too_big", c.too_big),
            ("unknown", c.unknown),
            ("unplugged", c.unplugged),
        ] {
            counters.set_item(name, value)?;
        }
        Ok(counters)
    }
}

impl Fabric {
    fn check_virtual(&self) -> PyResult<()> {
        match self.0.is_virtual() {
            true => Ok(()),
            false => {
                Err(PyValueError::new_err("the fabric is in real time: create it with virtual_time=True"))
            }
        }
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
    fn new(py: Python<'_>, context: Context, endpoint: verbs::TestEndpoint) -> PyResult<Endpoint> {
        let device = context.device.device().clone();
        let verbs::TestEndpoint { pd, cq, qp, .. } = endpoint;
        Ok(Endpoint {
            context: Py::new(py, context)?,
            pd: Py::new(py, Pd(Held::new(pd, &device)))?,
            cq: Py::new(py, Cq(Held::new(cq, &device)))?,
            qp: Py::new(py, Qp(Held::new(qp, &device)))?,
        })
    }
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

/// A pcapng file, created by Fabric.capture. As a context manager, it flushes the file at the end of the block.
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

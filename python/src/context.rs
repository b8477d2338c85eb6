//! Contexts, protection domains, address handles and asynchronous events.

use std::net::IpAddr;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use urxe::verbs::{self, Access, AddressVector, Gid, QKey, Qpn, faults};

use crate::convert::{OrRaise, member};
use crate::cq::{Cq, wait};
use crate::held::Held;
use crate::options::{QpOptions, qp_options};
use crate::qp::{Destination, Qp};
use crate::region::Region;

/// An open device: one NIC on a fabric.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Context(Held<verbs::Context>);

impl Context {
    pub fn new(context: &verbs::Context) -> Context {
        crate::explain::watch(context);
        Context(Held::new(context.clone(), context))
    }
}

#[pymethods]
impl Context {
    /// Allocates a protection domain.
    fn alloc_pd(&self, py: Python<'_>) -> PyResult<Pd> {
        Ok(Pd(Held::new(self.0.alloc_pd().or_raise(py)?, &self.0)))
    }

    /// Creates a completion queue for up to `capacity` completions.
    #[pyo3(signature = (capacity=256))]
    fn create_cq(&self, py: Python<'_>, capacity: usize) -> PyResult<Cq> {
        Ok(Cq(Held::new(self.0.create_cq(capacity).or_raise(py)?, &self.0)))
    }

    /// Address at which peers reach the NIC; None while it has none.
    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address().map(|address| address.to_string())
    }

    /// The port's GIDs, as IPv6 addresses.
    #[getter]
    fn gids(&self) -> Vec<String> {
        self.0.gids().iter().map(|gid| gid.to_string()).collect()
    }

    /// Returns the NIC's counters by name. A counter with an equivalent in the kernel's hw_counters has its
    /// name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.counters().iter().into_py_dict(py)
    }

    /// Returns the counters of the NIC's faults: those on packets, on calls and on objects, in this order.
    fn fault_counts(&self) -> Vec<FaultCount> {
        self.0.fault_counts().into_iter().map(FaultCount).collect()
    }

    /// Returns the oldest queued asynchronous event, or None. Never blocks.
    fn next_event(&self) -> Option<AsyncEvent> {
        self.0.next_event().map(AsyncEvent)
    }

    /// Returns the report of the oldest queue pair that refused a request of its peer, or None. Never blocks.
    fn next_refusal(&self, py: Python<'_>) -> Option<String> {
        let context: &verbs::Context = &self.0;
        py.detach(|| context.next_refusal()).map(|report| report.to_string())
    }

    /// Blocks until there is an asynchronous event, and returns it.
    #[pyo3(signature = (timeout=5.0))]
    fn wait_event(&self, py: Python<'_>, timeout: f64) -> PyResult<AsyncEvent> {
        let context: &verbs::Context = &self.0;
        wait(py, context, timeout, |timeout| context.wait_event(timeout)).map(AsyncEvent)
    }

    fn __repr__(&self) -> String {
        match self.address() {
            Some(address) => format!("<Context {address}>"),
            None => "<Context without an address>".into(),
        }
    }
}

/// Counters of a fault.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct FaultCount(faults::FaultCount);

#[pymethods]
impl FaultCount {
    /// The fault, as it was given.
    #[getter]
    fn rule(&self) -> &str {
        &self.0.rule
    }

    /// Number of packets, calls or objects that matched.
    #[getter]
    fn matched(&self) -> u64 {
        self.0.matched
    }

    /// Number of those to which the fault was applied.
    #[getter]
    fn affected(&self) -> u64 {
        self.0.struck
    }

    fn __repr__(&self) -> String {
        format!("<FaultCount {}>", self.0)
    }
}

/// An asynchronous event.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct AsyncEvent(verbs::AsyncEvent);

#[pymethods]
impl AsyncEvent {
    /// Kind of event.
    #[getter]
    #[pyo3(name = "type")]
    fn event_type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        member(py, "EventType", self.0.code())
    }

    /// Number of the affected queue pair, if any.
    #[getter]
    fn qp_num(&self) -> Option<u32> {
        self.0.qpn().map(Qpn::get)
    }

    fn __repr__(&self) -> String {
        match self.0.qpn() {
            Some(qpn) => format!("<AsyncEvent {} of QP {qpn}>", self.0.name()),
            None => format!("<AsyncEvent {}>", self.0.name()),
        }
    }
}

/// A protection domain, created by Context.alloc_pd.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Pd(pub Held<verbs::Pd>);

#[pymethods]
impl Pd {
    /// Allocates `length` zero bytes, and registers them as a region.
    #[pyo3(signature = (length, access=0xf))]
    fn reg_mr(&self, py: Python<'_>, length: usize, access: u32) -> PyResult<Region> {
        Region::allocate(py, self, length, Access::from_bits_retain(access))
    }

    /// Registers the memory of an object with a C-contiguous buffer, such as a bytearray or a numpy array,
    /// without a copy. The buffer stays exported until the region is deregistered or destroyed.
    #[pyo3(signature = (buffer, access=0xf))]
    fn reg_buffer(&self, buffer: &Bound<'_, PyAny>, access: u32) -> PyResult<Region> {
        Region::register(self, buffer, Access::from_bits_retain(access))
    }

    /// Creates a queue pair in the RESET state.
    #[pyo3(signature = (send_cq, recv_cq=None, options=None))]
    fn create_qp(
        &self,
        py: Python<'_>,
        send_cq: &Cq,
        recv_cq: Option<&Cq>,
        options: Option<Bound<'_, QpOptions>>,
    ) -> PyResult<Qp> {
        let recv_cq = recv_cq.unwrap_or(send_cq);
        let qp = self.0.create_qp(&send_cq.0, &recv_cq.0, &qp_options(options)).or_raise(py)?;
        Ok(Qp(Held::new(qp, self.0.context())))
    }

    /// Creates an address handle for datagrams to an IP address.
    fn create_ah(&self, py: Python<'_>, address: IpAddr) -> PyResult<Ah> {
        let gid = Gid::from(address);
        let sgid_index = self.0.context().gid_towards(gid).unwrap_or_default();
        let ah = self.0.create_ah(&AddressVector::to(gid).sgid_index(sgid_index)).or_raise(py)?;
        Ok(Ah(Held::new(ah, self.0.context())))
    }
}

/// An address handle, created by Pd.create_ah: the path along which datagrams reach a port.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Ah(Held<verbs::Ah>);

#[pymethods]
impl Ah {
    /// Returns a queue pair at this address as the destination of a datagram.
    #[pyo3(signature = (qp_num, qkey=0x1111_1111))]
    fn to(&self, qp_num: u32, qkey: u32) -> Destination {
        Destination(self.0.to(Qpn::new(qp_num), QKey(qkey)))
    }
}

//! Queue pairs: connection and posting.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use urxe::verbs::{self, Endpoint, LKey, QKey, QpAttr, RecvWr, SendFlags, SendWr};

use crate::convert::{OrRaise, copy_bytes, member, qp_state};
use crate::held::Held;
use crate::options::{ConnectOptions, connect_options};
use crate::region::{Region, RemoteAddr, Sge};

/// Address of a queue pair, which its peer needs in order to connect.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct QpAddress(Endpoint);

#[pymethods]
impl QpAddress {
    /// GID of the port, as an IPv6 address.
    #[getter]
    fn gid(&self) -> String {
        self.0.gid.to_string()
    }

    /// Number of the queue pair.
    #[getter]
    fn qp_num(&self) -> u32 {
        self.0.qpn.get()
    }

    /// Starting PSN of the queue pair's send queue.
    #[getter]
    fn psn(&self) -> u32 {
        self.0.psn.get()
    }

    fn __repr__(&self) -> String {
        format!("<QpAddress {} QP {}>", self.0.gid, self.0.qpn)
    }
}

/// Destination of a datagram, created by Ah.to.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Destination(pub verbs::Destination);

/// Data of a work request.
enum Data {
    Sges(Vec<verbs::Sge>),
    Inline(Vec<u8>),
}

impl<'py> FromPyObject<'_, 'py> for Data {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Data> {
        if let Some(sge) = element(&object)? {
            return Ok(Data::Sges(vec![sge]));
        }
        if PyUntypedBuffer::get(&object).is_ok() {
            return Ok(Data::Inline(copy_bytes(&object)?));
        }
        let expected =
            "expected a Region, an Sge, a sequence of these, or a bytes-like object for inline data";
        let items = object.try_iter().map_err(|_| PyTypeError::new_err(expected))?;
        let sges = items.map(|item| element(&item?)?.ok_or_else(|| PyTypeError::new_err(expected)));
        Ok(Data::Sges(sges.collect::<PyResult<_>>()?))
    }
}

/// Returns the scatter/gather element for an object; `None` if the object is neither an Sge nor a Region.
fn element(object: &Bound<'_, PyAny>) -> PyResult<Option<verbs::Sge>> {
    if let Ok(sge) = object.cast::<Sge>() {
        let Sge { addr, length, lkey } = *sge.get();
        return Ok(Some(verbs::Sge { addr, length, lkey: LKey(lkey) }));
    }
    let Ok(region) = object.cast::<Region>() else { return Ok(None) };
    let too_long =
        || PyValueError::new_err("the region is longer than 2^32-1 bytes: give a part of it, by sge()");
    region.get().whole().map(Some).ok_or_else(too_long)
}

/// A queue pair.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Qp(pub Held<verbs::Qp>);

impl Qp {
    fn post(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        flags: SendFlags,
        create: impl FnOnce(&[verbs::Sge]) -> SendWr<'_>,
    ) -> PyResult<()> {
        let data = data.unwrap_or(Data::Sges(Vec::new()));
        let wr = match &data {
            Data::Sges(sges) => create(sges),
            Data::Inline(bytes) => create(&[]).inline(bytes),
        };
        // On a fabric, the posting thread may copy the data to the peer.
        let (qp, wr): (&verbs::Qp, _) = (&self.0, wr.flags(flags));
        py.detach(|| qp.post_send(&wr)).or_raise(py)
    }
}

#[pymethods]
impl Qp {
    /// Number of the queue pair.
    #[getter]
    fn qp_num(&self) -> u32 {
        self.0.qpn().get()
    }

    /// Current state.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        member(py, "QpState", self.0.state() as u32)
    }

    /// Address that a peer needs in order to connect.
    #[getter]
    fn address(&self) -> QpAddress {
        QpAddress(self.0.endpoint())
    }

    /// Explains why the queue pair failed: a report of several lines, or None if it has not failed.
    fn explain(&self, py: Python<'_>) -> Option<String> {
        let qp: &verbs::Qp = &self.0;
        py.detach(|| qp.explain()).map(|report| report.to_string())
    }

    /// Moves the queue pair from RESET through INIT and RTR to RTS, connected to `peer`.
    #[pyo3(signature = (peer, options=None))]
    fn connect(
        &self,
        py: Python<'_>,
        peer: &QpAddress,
        options: Option<Bound<'_, ConnectOptions>>,
    ) -> PyResult<()> {
        self.0.connect(&peer.0, &connect_options(options)).or_raise(py)
    }

    /// Moves a UD queue pair from RESET to RTS. It then receives datagrams with the given queue key.
    #[pyo3(signature = (qkey=0x1111_1111))]
    fn activate(&self, py: Python<'_>, qkey: u32) -> PyResult<()> {
        self.0.activate(QKey(qkey)).or_raise(py)
    }

    /// Changes the state alone, for example to QpState.ERR, which flushes all work requests.
    fn modify(&self, py: Python<'_>, state: u32) -> PyResult<()> {
        let mut attr = QpAttr::default();
        attr.state = Some(qp_state(state)?);
        self.0.modify(&attr).map_err(verbs::errors::ConnectError::from).or_raise(py)
    }

    /// Posts a SEND. `to` is the destination of a datagram.
    #[pyo3(signature = (data=None, *, wr_id=0, imm=None, to=None, signaled=true, solicited=false, fence=false))]
    fn post_send(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        wr_id: u64,
        imm: Option<u32>,
        to: Option<&Destination>,
        signaled: bool,
        solicited: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited, fence };
        self.post(py, data, flags, |sges| {
            let wr = match imm {
                Some(imm) => SendWr::send_imm(wr_id, sges, imm),
                None => SendWr::send(wr_id, sges),
            };
            wr.to(to.map(|to| to.0))
        })
    }

    /// Posts an RDMA WRITE.
    #[pyo3(signature = (data, remote, *, wr_id=0, imm=None, signaled=true, solicited=false, fence=false))]
    fn post_write(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        remote: &RemoteAddr,
        wr_id: u64,
        imm: Option<u32>,
        signaled: bool,
        solicited: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited, fence };
        self.post(py, data, flags, |sges| match imm {
            Some(imm) => SendWr::write_imm(wr_id, sges, remote.0, imm),
            None => SendWr::write(wr_id, sges, remote.0),
        })
    }

    /// Posts an RDMA READ.
    #[pyo3(signature = (data, remote, *, wr_id=0, signaled=true, fence=false))]
    fn post_read(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        remote: &RemoteAddr,
        wr_id: u64,
        signaled: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited: false, fence };
        self.post(py, data, flags, |sges| SendWr::read(wr_id, sges, remote.0))
    }

    /// Posts an atomic compare-and-swap on 8 bytes. The original value is stored in `data`, in host byte
    /// order.
    #[pyo3(signature = (data, remote, compare, swap, *, wr_id=0, signaled=true, fence=false))]
    fn post_compare_swap(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        remote: &RemoteAddr,
        compare: u64,
        swap: u64,
        wr_id: u64,
        signaled: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited: false, fence };
        self.post(py, data, flags, |sges| SendWr::compare_swap(wr_id, sges, remote.0, compare, swap))
    }

    /// Posts an atomic fetch-and-add on 8 bytes. The original value is stored in `data`, in host byte order.
    #[pyo3(signature = (data, remote, add, *, wr_id=0, signaled=true, fence=false))]
    fn post_fetch_add(
        &self,
        py: Python<'_>,
        data: Option<Data>,
        remote: &RemoteAddr,
        add: u64,
        wr_id: u64,
        signaled: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited: false, fence };
        self.post(py, data, flags, |sges| SendWr::fetch_add(wr_id, sges, remote.0, add))
    }

    /// Posts an ATOMIC WRITE of 8 bytes.
    #[pyo3(signature = (value, remote, *, wr_id=0, signaled=true, fence=false))]
    fn post_atomic_write(
        &self,
        py: Python<'_>,
        value: [u8; 8],
        remote: &RemoteAddr,
        wr_id: u64,
        signaled: bool,
        fence: bool,
    ) -> PyResult<()> {
        let flags = SendFlags { signaled, solicited: false, fence };
        self.post(py, None, flags, |_| SendWr::atomic_write(wr_id, remote.0, value))
    }

    /// Posts a receive into `data`; without it, for messages without data.
    #[pyo3(signature = (data=None, *, wr_id=0))]
    fn post_recv(&self, py: Python<'_>, data: Option<Data>, wr_id: u64) -> PyResult<()> {
        let sges = match data {
            None => Vec::new(),
            Some(Data::Sges(sges)) => sges,
            Some(Data::Inline(_)) => {
                let message = "a receive needs registered memory: a Region, an Sge or a sequence of these";
                return Err(PyTypeError::new_err(message));
            }
        };
        self.0.post_recv(&RecvWr::new(wr_id, &sges)).or_raise(py)
    }

    fn __repr__(&self) -> String {
        format!("<Qp {}>", self.0.qpn())
    }
}

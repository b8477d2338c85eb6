//! Completion queues and completions.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::{self, Context, WcStatus};

use crate::convert::{OrRaise, Raise, duration, member};
use crate::explain;
use crate::held::Held;

/// A work completion.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Completion(pub verbs::Completion);

#[pymethods]
impl Completion {
    /// Identifier of the work request.
    #[getter]
    fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Status of the work request. If it is an error, only wr_id, status, qp_num and vendor_err are valid.
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        member(py, "WcStatus", self.0.status as u32)
    }

    /// Kind of work request.
    #[getter]
    fn opcode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        member(py, "WcOpcode", self.0.opcode as u32)
    }

    /// Whether the status is success.
    #[getter]
    fn ok(&self) -> bool {
        self.0.status == WcStatus::Success
    }

    /// Number of bytes received, read or swapped; for sends, the message length. For a UD receive, it
    /// includes the 40 bytes of the routing header.
    #[getter]
    fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Immediate data, if the message carried any.
    #[getter]
    fn imm(&self) -> Option<u32> {
        self.0.imm
    }

    /// Number of the queue pair.
    #[getter]
    fn qp_num(&self) -> u32 {
        self.0.qpn.get()
    }

    /// Queue pair number of the peer or, for a datagram, of its sender.
    #[getter]
    fn src_qp(&self) -> u32 {
        self.0.src_qpn.get()
    }

    /// Vendor-specific error code that refines the status; 0 for none.
    #[getter]
    fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    fn __repr__(&self) -> String {
        let verbs::Completion { wr_id, status, opcode, byte_len, .. } = self.0;
        match status {
            WcStatus::Success => format!("<Completion wr_id={wr_id}: {opcode}, {byte_len} bytes>"),
            error => format!("<Completion wr_id={wr_id}: {error}>"),
        }
    }
}

/// A completion queue, created by Context.create_cq.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Cq(pub Held<verbs::Cq>);

impl Cq {
    fn wait_for(&self, py: Python<'_>, timeout: f64) -> PyResult<verbs::Completion> {
        let cq: &verbs::Cq = &self.0;
        let completion = wait(py, self.0.context(), timeout, |timeout| cq.wait_any(timeout))?;
        py.detach(|| explain::completion(cq, &completion));
        Ok(completion)
    }
}

#[pymethods]
impl Cq {
    /// Returns up to `max` completions. Never blocks.
    #[pyo3(signature = (max=256))]
    fn poll(&self, py: Python<'_>, max: usize) -> PyResult<Vec<Completion>> {
        let mut out = Vec::new();
        let cq: &verbs::Cq = &self.0;
        py.detach(|| cq.poll(max, &mut out)).or_raise(py)?;
        py.detach(|| out.iter().for_each(|completion| explain::completion(cq, completion)));
        Ok(out.into_iter().map(Completion).collect())
    }

    /// Blocks until there is a completion, and returns it if its status is success.
    ///
    /// Raises CompletionError if its status is an error, WaitTimeoutError after `timeout` seconds, and
    /// IdleError if nothing in virtual time can end the wait.
    #[pyo3(signature = (timeout=5.0))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Completion> {
        let completion = self.wait_for(py, timeout)?;
        match completion.status {
            WcStatus::Success => Ok(Completion(completion)),
            _ => Err(WaitError::Failed(completion).raise(py)),
        }
    }

    /// Blocks until there is a completion, whatever its status, and returns it.
    #[pyo3(signature = (timeout=5.0))]
    fn wait_any(&self, py: Python<'_>, timeout: f64) -> PyResult<Completion> {
        self.wait_for(py, timeout).map(Completion)
    }

    /// Explains why the work request of a completion from this queue failed: a report of several lines, or
    /// None if it succeeded.
    fn explain(&self, py: Python<'_>, completion: &Completion) -> Option<String> {
        let cq: &verbs::Cq = &self.0;
        py.detach(|| cq.explain(&completion.0)).map(|report| report.to_string())
    }

    /// Maximum number of completions that the queue can hold.
    #[getter]
    fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

/// Longest time during which Ctrl-C has no effect on a wait.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Calls `wait` with the GIL released until it ends other than by a timeout, or `timeout` seconds have
/// passed. In real time, handlers of signals run meanwhile.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    context: &Context,
    timeout: f64,
    wait: impl Fn(Duration) -> Result<T, WaitError> + Sync,
) -> PyResult<T> {
    let timeout = duration("timeout", timeout)?;
    if context.virtual_fabric().is_some() {
        return py.detach(|| wait(timeout)).or_raise(py);
    }
    let begin = Instant::now();
    loop {
        let rest = timeout.saturating_sub(begin.elapsed());
        match py.detach(|| wait(rest.min(SIGNAL_CHECK_INTERVAL))) {
            Err(WaitError::TimedOut(_) | WaitError::Interrupted) => {
                py.check_signals()?;
                if begin.elapsed() >= timeout {
                    return Err(WaitError::TimedOut(timeout).raise(py));
                }
            }
            other => return other.or_raise(py),
        }
    }
}

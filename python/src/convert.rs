//! Conversion of errors, enumerations, durations and buffers between Rust and Python.

use std::fmt::Display;
use std::time::Duration;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urxe::fabric::FabricError;
use urxe::middleware::capture::CaptureError;
use urxe::middleware::faults::{RuleError, RulesError};
use urxe::verbs::errors::{
    ConnectError, CqOverflow, CreateError, MemoryAccessError, OpenError, PairError, PostError, WaitError,
};
use urxe::verbs::{QpState, QpType};

use crate::cq::Completion;

/// Module with the exceptions and enumerations, which are written in Python.
const TYPES: &str = "urxe._types";

/// Creates an exception of the given class of `urxe._types`. If that fails, returns the failure.
fn exception(py: Python<'_>, class: &str, message: String, completion: Option<Completion>) -> PyErr {
    let create = || {
        let class = py.import(TYPES)?.getattr(class)?;
        match completion {
            Some(completion) => class.call1((message, completion)),
            None => class.call1((message,)),
        }
    };
    create().map_or_else(|failure| failure, PyErr::from_value)
}

/// Converts the value of an enumeration to a member of the given class of `urxe._types`.
pub(crate) fn member<'py>(py: Python<'py>, class: &str, value: u32) -> PyResult<Bound<'py, PyAny>> {
    py.import(TYPES)?.getattr(class)?.call1((value,))
}

/// An error that has an exception of its own in Python.
pub(crate) trait Raise: Sized {
    /// Creates the exception.
    fn raise(self, py: Python<'_>) -> PyErr;
}

/// Converts the error of a result to an exception.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raise> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.raise(py))
    }
}

macro_rules! raise {
    ($($error:ty => $class:literal),* $(,)?) => {
        $(impl Raise for $error {
            fn raise(self, py: Python<'_>) -> PyErr {
                exception(py, $class, self.to_string(), None)
            }
        })*
    };
}

raise! {
    CaptureError => "CaptureError",
    ConnectError => "ConnectError",
    CqOverflow => "CqOverflowError",
    CreateError => "CreateError",
    FabricError => "FabricError",
    MemoryAccessError => "MemoryAccessError",
    OpenError => "OpenError",
    PostError => "PostError",
    RulesError<RuleError> => "RuleError",
}

impl Raise for PairError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            PairError::Open(error) => error.raise(py),
            PairError::Create(error) => error.raise(py),
            PairError::Connect(error) => error.raise(py),
            error => exception(py, "Error", error.to_string(), None),
        }
    }
}

impl Raise for WaitError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let message = self.to_string();
        match self {
            WaitError::TimedOut(_) => exception(py, "WaitTimeoutError", message, None),
            WaitError::Idle => exception(py, "IdleError", message, None),
            WaitError::Overflow(overflow) => overflow.raise(py),
            WaitError::Failed(completion) => {
                exception(py, "CompletionError", message, Some(Completion(completion)))
            }
            _ => exception(py, "WaitError", message, None),
        }
    }
}

/// Converts seconds to a duration of at most eight years.
pub(crate) fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "{name} is {seconds}; it must be a number of seconds from 0"
        )));
    }
    // Eight years: the sum of a few such durations is still a number of nanoseconds below 2^64.
    const LONGEST: Duration = Duration::from_secs(1 << 28);
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

/// Copies the bytes of an object with a C-contiguous buffer.
pub(crate) fn copy_bytes(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not C-contiguous"));
    }
    // `bytes(memoryview(object))`, because a typed buffer would restrict the type of the elements.
    let py = object.py();
    let bytes = py.import("builtins")?.getattr("memoryview")?.call1((object,))?.call_method0("tobytes")?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// Converts a value of `enum ibv_qp_type`.
pub(crate) fn qp_type(value: u32) -> PyResult<QpType> {
    match value {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        _ => Err(invalid("qp_type", value, "QpType.RC, QpType.UC or QpType.UD")),
    }
}

/// Converts a value of `enum ibv_qp_state`.
pub(crate) fn qp_state(value: u32) -> PyResult<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let known = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|state| *state as u32 == value);
    known.ok_or_else(|| invalid("state", value, "a member of QpState"))
}

/// Returns the exception for an argument without a meaning.
pub(crate) fn invalid(name: &str, value: impl Display, expected: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is {value}; expected {expected}"))
}

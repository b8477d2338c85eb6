//! The extension module `urxe._native`: the Python API of the mock NIC. `python/urxe/_native.pyi` has its
//! types.
//!
//! The classes are thin: each holds an object of `urxe::verbs`, and converts arguments, results and errors.
//! Doc comments of classes and methods are their docstrings in Python.
#![expect(clippy::too_many_arguments, reason = "Python passes the arguments by keyword")]

mod context;
mod convert;
mod cq;
mod explain;
mod fabric;
mod held;
mod options;
mod qp;
mod region;

use pyo3::prelude::*;

/// Classes of the mock NIC.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        context::{Ah, AsyncEvent, Context, FaultCount, Pd},
        cq::{Completion, Cq},
        fabric::{Capture, Endpoint, Fabric, Node},
        options::{ConnectOptions, QpOptions},
        qp::{Destination, Qp, QpAddress},
        region::{Region, RemoteAddr, Sge},
    };
}

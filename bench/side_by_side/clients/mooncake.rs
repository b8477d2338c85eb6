//! Mooncake's transfer engine, of the PyPI package.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::job::Metrics;
use crate::tools::{Server, client};

/// Reports whether the Python in `PATH`, which may be that of a virtual environment, has the package.
pub fn is_installed() -> bool {
    let out = Command::new("python3").args(["-c", "import mooncake.engine"]).output();
    out.is_ok_and(|out| out.status.success())
}

/// Measures the first transfer of a process, and later ones, of `size` bytes to (`write`) or from (`read`)
/// another process.
pub fn transfer(op: &str, carrier: Carrier, size: usize) -> Result<Metrics> {
    let directory = tempfile::tempdir()?;
    let command = |end: &str| {
        let mut command = carrier.command("python3");
        command.arg(super::directory().join("transfer.py")).args([end, op, &size.to_string()]);
        let (protocol, ip) = if carrier.is_urxe() { ("rdma", IP) } else { ("tcp", "127.0.0.1") };
        command.args([protocol, ip]).arg::<&Path>(&directory.path().join("target"));
        command
    };
    let _server = Server::start(&mut command("target"))?;
    client(&mut command("initiator"), super::metrics)
}

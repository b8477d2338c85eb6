//! fio's rdma engine, and its net engine over TCP.

use serde_json::Value;

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::job::Metrics;
use crate::tools::{Server, client, free_port};

/// The time for which the client of the rdma engine sleeps before its first block, in milliseconds. It is
/// part of the run time that fio prints.
const PAUSE: f64 = 500.0;
/// Blocks that the client has in flight. The net engine has one, which the kernel's buffers hide.
const DEPTH: usize = 16;
/// Blocks of a transfer by SENDs, the greatest depth of the rdma engine. The server posts receives for all of
/// them, because fio retries no RNR NAK, and then waits forever.
const SENDS: usize = 512;

/// Measures a transfer of blocks of `size` bytes from the client (`write`, `send`) or to it (`read`).
pub fn transfer(verb: &str, carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
    let port = free_port()?;
    let command = |name: &str, total: u64| {
        let mut command = carrier.command("fio");
        let engine = if carrier.is_urxe() { "rdma" } else { "net" };
        // A thread ends with the process that is killed; a job that is a process does not.
        command.arg("--thread").arg(format!("--name={name}")).arg(format!("--ioengine={engine}"));
        command.arg(format!("--port={port}")).arg(format!("--bs={size}")).arg(format!("--size={total}"));
        command
    };
    // A fast machine needs about the given time.
    let blocks = if verb == "send" { SENDS } else { (seconds * 4e9) as usize / size };
    let total = (blocks.max(DEPTH) * size) as u64;
    let (mut server, mut sender) = match carrier.is_urxe() {
        true => (command("server", total), command("client", total)),
        // The net engine's server counts a short read as a block.
        false => (command("server", 1000 * total), command("client", total)),
    };
    server.arg("--rw=read");
    sender.args(["--rw=write", "--output-format=json"]);
    if carrier.is_urxe() {
        let depth = if verb == "send" { SENDS } else { DEPTH };
        server.arg(format!("--iodepth={depth}"));
        sender.arg(format!("--verb={verb}")).arg(format!("--iodepth={DEPTH}"));
        sender.arg(format!("--hostname={IP}"));
    } else {
        server.args(["--protocol=tcp", "--listen"]);
        sender.args(["--protocol=tcp", "--hostname=127.0.0.1"]);
    }
    let _server = Server::start(&mut server)?;
    let pause = if carrier.is_urxe() { PAUSE } else { 0.0 };
    let milliseconds = client(&mut sender, |out| {
        let out: Value = serde_json::from_str(out.get(out.find('{')?..)?).ok()?;
        let job = &out["jobs"][0];
        let is_complete = job["error"] == 0 && job["write"]["io_bytes"].as_u64() == Some(total);
        let milliseconds = job["write"]["runtime"].as_f64()? - pause;
        (is_complete && milliseconds > 0.0).then_some(milliseconds)
    })?;
    Ok(Metrics::from([("Gb/s".into(), total as f64 * 8e-6 / milliseconds)]))
}

//! Two ranks of Open MPI: over UCX on urxe, and over Open MPI's own TCP and shared memory.

use std::path::Path;

use crate::Result;
use crate::carrier::Carrier;
use crate::job::Metrics;
use crate::tools::client;

/// Measures throughput (`stream`) or half round trips (`ping`) with `pingpong.c`.
pub fn run(pingpong: &Path, carrier: Carrier, test: &str, size: usize, seconds: f64) -> Result<Metrics> {
    let mut command = carrier.ucx_command("mpirun");
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command.args(["-np", "2", "--oversubscribe"]);
    let own = |btl| ["--mca", "pml", "ob1", "--mca", "btl", btl];
    match carrier {
        Carrier::Sockets | Carrier::SharedMemory => {
            command.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx"]);
            command.args(["--mca", "btl", "^vader,tcp,openib,uct"])
        }
        Carrier::Tcp => command.args(own("tcp,self")).args(["--mca", "btl_tcp_if_include", "lo"]),
        Carrier::OwnMemory => command.args(own("vader,self")),
    };
    command.arg(pingpong).args([test, &size.to_string(), &seconds.to_string()]);
    client(&mut command, super::metrics)
}

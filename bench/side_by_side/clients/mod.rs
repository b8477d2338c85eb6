//! Unmodified clients, each over urxe and over its own transports.

mod fio;
mod mooncake;
mod openmpi;
mod redis;
mod ucx;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::carrier::Carrier::{self, OwnMemory, SharedMemory, Sockets, Tcp};
use crate::job::Metrics;
use crate::plan::MESSAGE;
use crate::table::{Key, bytes};
use crate::tools::is_installed;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Client {
    /// fio's rdma engine with a verb, or its net engine.
    Fio(&'static str),
    UcxPut,
    UcxPing,
    Redis,
    MpiStream,
    MpiPing,
    /// `write` or `read` of Mooncake's transfer engine.
    Mooncake(&'static str),
}

/// A client with the size of its messages and what carries them, in the order of measurement.
pub type Comparison = (Client, usize, &'static [Carrier]);

const URXE_AND_TCP: &[Carrier] = &[Sockets, SharedMemory, Tcp];
const ALL: &[Carrier] = &[Sockets, SharedMemory, Tcp, OwnMemory];

pub const CLIENTS: [Comparison; 11] = [
    (Client::Fio("write"), 256 << 10, URXE_AND_TCP),
    (Client::Fio("read"), 256 << 10, URXE_AND_TCP),
    (Client::Fio("send"), 256 << 10, URXE_AND_TCP),
    (Client::UcxPut, MESSAGE, URXE_AND_TCP),
    (Client::UcxPut, 1 << 20, URXE_AND_TCP),
    (Client::UcxPing, 8, URXE_AND_TCP),
    (Client::Redis, 64, URXE_AND_TCP),
    (Client::MpiStream, MESSAGE, ALL),
    (Client::MpiPing, 8, ALL),
    (Client::Mooncake("write"), 64 << 20, URXE_AND_TCP),
    (Client::Mooncake("read"), 64 << 20, URXE_AND_TCP),
];

impl Client {
    /// Returns the names of the program and of what it does.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Client::Fio(verb) => ("fio", verb),
            Client::UcxPut => ("ucx_perftest", "put"),
            Client::UcxPing => ("ucx_perftest", "tag_lat"),
            Client::Redis => ("redis-benchmark", "SET"),
            Client::MpiStream => ("Open MPI", "stream"),
            Client::MpiPing => ("Open MPI", "ping"),
            Client::Mooncake(op) => ("Mooncake", op),
        }
    }

    pub fn key(self, carrier: Carrier, size: usize) -> Key {
        let (program, what) = self.names();
        Key::new(format!("{program} over {}, {what}", carrier.name()), size)
    }

    /// Returns the name of the ratio of a client over `carrier` to the same over its own transport.
    pub fn comparison(self, carrier: Carrier, own: Carrier, size: usize, metric: &str) -> String {
        let ((program, what), size) = (self.names(), bytes(size));
        let first = if metric == "Gb/s, first" { "first " } else { "" };
        format!("{program} {first}{what} {size} over {} ÷ {}", carrier.name(), own.name())
    }

    /// Returns the metrics that targets refer to.
    pub const fn metrics(self) -> &'static [&'static str] {
        match self {
            Client::Fio(_) | Client::UcxPut | Client::MpiStream => &["Gb/s"],
            Client::UcxPing | Client::MpiPing => &["p50"],
            Client::Redis => &["requests/s"],
            Client::Mooncake(_) => &["Gb/s", "Gb/s, first"],
        }
    }
}

/// Programs that are compiled for a run of the benchmark, and what was found out about those that are
/// installed.
pub struct Clients {
    directory: tempfile::TempDir,
    has_mooncake: OnceCell<bool>,
}

impl Clients {
    pub fn new() -> Result<Clients> {
        Ok(Clients { directory: tempfile::tempdir()?, has_mooncake: OnceCell::new() })
    }

    /// Returns the reason why a client cannot be measured on this machine; `None` if it can.
    pub fn skip_reason(&self, client: Client) -> Option<String> {
        let programs: &[(&str, &str)] = match client {
            Client::Fio(_) => &[("fio", "fio")],
            Client::UcxPut | Client::UcxPing => &[("ucx_perftest", "ucx-utils")],
            Client::Redis => {
                &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), ("cc", "gcc")]
            }
            Client::MpiStream | Client::MpiPing => &[("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")],
            Client::Mooncake(_) => &[("python3", "python3")],
        };
        if let Some((program, package)) = programs.iter().find(|(program, _)| !is_installed(program)) {
            return Some(format!("{program} is not installed (Debian: {package})"));
        }
        if client == Client::Redis && !Path::new(redis::RSOCKETS).exists() {
            return Some(format!("there is no {} (Debian: librdmacm1)", redis::RSOCKETS));
        }
        let is_mooncake = matches!(client, Client::Mooncake(_));
        if is_mooncake && !self.has_mooncake.get_or_init(mooncake::is_installed) {
            return Some("python3 has no module mooncake (PyPI: mooncake-transfer-engine-non-cuda)".into());
        }
        None
    }

    /// Measures `client` with messages of `size` bytes for about `seconds`.
    pub fn measure(&self, client: Client, carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
        match client {
            Client::Fio(verb) => fio::transfer(verb, carrier, size, seconds),
            Client::UcxPut => ucx::put(carrier, size, seconds),
            Client::UcxPing => ucx::ping(carrier, size, seconds),
            Client::Redis => redis::set(&self.compiled("cc", "epoll_by_poll.c")?, carrier, size, seconds),
            Client::MpiStream => openmpi::run(&self.pingpong()?, carrier, "stream", size, seconds),
            Client::MpiPing => openmpi::run(&self.pingpong()?, carrier, "ping", size, seconds),
            Client::Mooncake(op) => mooncake::transfer(op, carrier, size),
        }
    }

    fn pingpong(&self) -> Result<PathBuf> {
        self.compiled("mpicc", "pingpong.c")
    }

    /// Compiles a program or library of this directory, once, and returns its path.
    fn compiled(&self, compiler: &str, source: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(source).with_extension("");
        if path.exists() {
            return Ok(path);
        }
        let mut command = Command::new(compiler);
        command.args(["-O2", "-o"]).arg(&path).arg(directory().join(source));
        if source == "epoll_by_poll.c" {
            command.args(["-shared", "-fPIC"]);
        }
        match command.output()? {
            out if out.status.success() => Ok(path),
            out => Err(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr)).into()),
        }
    }
}

/// Returns the directory of this file.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("side_by_side/clients")
}

/// Reads the metrics that a program has printed, as a name and a value on a line each.
fn metrics(out: &str) -> Option<Metrics> {
    let metric = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        // Programs print other lines too.
        let is_metric = ["Gb/s", "Gb/s, first", "p50", "p99"].contains(&name);
        Some((name.to_owned(), value.parse().ok().filter(|_| is_metric)?))
    };
    let metrics: Metrics = out.lines().filter_map(metric).collect();
    (!metrics.is_empty()).then_some(metrics)
}

//! Settings from the environment variables that `urxe run` sets.

use std::env::{self, VarError};
use std::ffi::{CStr, OsStr, c_void};
use std::fmt::Display;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use urxe::broker::{SharedMemory, Sharing};
use urxe::link::LinkSpec;
use urxe::middleware::capture::Rotation;
use urxe::middleware::faults::Rules;
use urxe::nic::ShardId;
use urxe::verbs::faults::Fault;
use urxe::verbs::{Congestion, DeviceNames, Personality};

use crate::trusted_file::is_trusted;

/// Configuration of the devices.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `URXE_NAME`: name of the first device, `urxe0` if unset. The names of further devices count up from
    /// it.
    pub names: DeviceNames,
    /// `URXE_LINK`: link of the only device. If unset or `udp`, there is a device over UDP for each
    /// interface.
    pub link: Option<LinkSpec>,
    /// `URXE_SHARDS`: number of shards per NIC; 1 if unset.
    pub shards: usize,
    /// `URXE_PERSONALITY`; `default` if unset.
    pub personality: Personality,
    /// `URXE_CONGESTION`: congestion control, in the text form of [`Congestion`]; loss-driven if unset.
    pub congestion: Congestion,
    /// `URXE_SEED`: seed of the random number generator.
    pub seed: Option<u64>,
    /// `URXE_CAPTURE`: name of the capture file, in which `%p` is replaced by the PID. If that file is not
    /// empty, the process writes to a new file with its PID in the name.
    pub capture: Option<String>,
    /// `URXE_CAPTURE_ROTATE`: limits of a capture file.
    pub capture_rotation: Option<Rotation>,
    /// `URXE_QLOG`: name of the event log, of which the same is true.
    pub qlog: Option<String>,
    /// `URXE_FAULTS`: faults, or `@FILE` for those in a file, separated by semicolons.
    pub faults: Vec<Fault>,
    /// `URXE_OFFLOAD`: whether segmentation offload is used, which exchanges batches of packets with the
    /// kernel.
    pub offload: bool,
    /// `URXE_ALWAYS_ICRC`, negated: whether packets in shared memory may lack ICRCs.
    pub elide_icrcs: bool,
    /// `URXE_MIN_ACK_TIMEOUT`: lower bound of the local ACK timeout, given in seconds.
    pub min_ack_timeout: Option<Duration>,
    /// `URXE_WARNINGS`: whether configurations that will cause trouble are warned of on standard error.
    pub warnings: bool,
    /// `URXE_DMA_BUF`: whether DMA-bufs can be registered.
    pub dma_buf: bool,
    /// `URXE_LID_ROUTING`: whether the port has a LID, by which programs for InfiniBand address neighbours.
    pub lid_routing: bool,
    /// `URXE_LIVE`: whether `urxe ps` and `urxe top` show the devices; true if unset.
    pub live: bool,
    /// `URXE_EXPLAIN`: whether failed work requests are explained on standard error.
    pub explain: bool,
    /// Sharing of addresses with other processes, of any user if `URXE_ANY_USER` is 1, through the `urxe`
    /// program that `URXE_PROGRAM` names or that is found next to the library. `None` if there is no such
    /// program; addresses are then not shared.
    pub sharing: Option<Sharing>,
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// A line that names the invalid variable and its allowed values.
    pub(crate) fn read() -> Result<Settings, String> {
        let first_name = variable("URXE_NAME")?
            .map(|name| name.parse().map_err(|e| format!("URXE_NAME is '{name}': {e}")));
        Ok(Settings {
            names: first_name.transpose()?.unwrap_or_default(),
            link: parse_variable("URXE_LINK")?,
            shards: parse_with("URXE_SHARDS", "1, 2, 4, 8, 16, 32 or 64", |text| {
                text.parse().ok().filter(|count| ShardId::new(0, *count).is_some())
            })?
            .unwrap_or(1),
            personality: parse_with(
                "URXE_PERSONALITY",
                &Personality::ALL.map(|p| p.name).join(", "),
                Personality::named,
            )?
            .unwrap_or(Personality::DEFAULT),
            congestion: parse_variable("URXE_CONGESTION")?.unwrap_or_default(),
            seed: seed()?,
            capture: variable("URXE_CAPTURE")?,
            capture_rotation: parse_variable("URXE_CAPTURE_ROTATE")?,
            qlog: variable("URXE_QLOG")?,
            faults: faults()?,
            offload: flag("URXE_OFFLOAD")?.unwrap_or(true),
            min_ack_timeout: parse_with("URXE_MIN_ACK_TIMEOUT", "a number of seconds above 0", |text| {
                let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
                Duration::try_from_secs_f64(seconds).ok()
            })?,
            elide_icrcs: !flag("URXE_ALWAYS_ICRC")?.unwrap_or(false),
            warnings: flag("URXE_WARNINGS")?.unwrap_or(false),
            dma_buf: flag("URXE_DMA_BUF")?.unwrap_or(false),
            lid_routing: flag("URXE_LID_ROUTING")?.unwrap_or(false),
            live: flag("URXE_LIVE")?.unwrap_or(true),
            explain: explain()?,
            sharing: sharing()?,
        })
    }
}

/// Returns the faults of `URXE_FAULTS`.
pub(crate) fn faults() -> Result<Vec<Fault>, String> {
    let faults = variable("URXE_FAULTS")?.unwrap_or_default();
    let texts = faults.split(';').filter(|text| !text.is_empty());
    let parse = |text: &str| text.parse().map_err(|e| format!("URXE_FAULTS: {e}"));
    let rules = texts.map(parse).collect::<Result<Vec<Rules<Fault>>, _>>()?;
    Ok(rules.into_iter().flat_map(|Rules(faults)| faults).collect())
}

/// Returns whether `URXE_EXPLAIN` is 1.
pub(crate) fn explain() -> Result<bool, String> {
    Ok(flag("URXE_EXPLAIN")?.unwrap_or(false))
}

/// Returns the seed of `URXE_SEED`.
pub(crate) fn seed() -> Result<Option<u64>, String> {
    parse_with("URXE_SEED", "a number", |text| text.parse().ok())
}

/// Returns how addresses are shared, as specified by `URXE_PROGRAM`, `URXE_ANY_USER` and
/// `URXE_SHARED_MEMORY`.
pub(crate) fn sharing() -> Result<Option<Sharing>, String> {
    // Made absolute, as the broker (`urxe broker`) is started in another directory.
    let named = variable("URXE_PROGRAM")?.map(|name| std::path::absolute(&name).unwrap_or(name.into()));
    let any_user = flag("URXE_ANY_USER")?.unwrap_or(false);
    let names = SharedMemory::ALL.map(SharedMemory::name).join(", ");
    let shared_memory = parse_with("URXE_SHARED_MEMORY", &names, SharedMemory::named)?.unwrap_or_default();
    match named.or_else(adjacent_program) {
        Some(program) => Ok(Some(Sharing { program, any_user, shared_memory })),
        None if shared_memory == SharedMemory::Require => {
            Err("URXE_SHARED_MEMORY is 'require', but addresses are not shared, as there is no urxe program next to \
                 the library: set URXE_PROGRAM to its path"
                .into())
        }
        None => Ok(None),
    }
}

/// Parses a variable that is `0` or `1`.
fn flag(name: &str) -> Result<Option<bool>, String> {
    parse_with(name, "0 or 1", |text| match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    })
}

/// Finds the `urxe` program that was built or installed with this library, unless another user may have put
/// it there.
fn adjacent_program() -> Option<PathBuf> {
    // SAFETY: `Dl_info` consists of raw pointers, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let anchor: *const c_void = (&raw const ANCHOR).cast();
    // SAFETY: `info` is a writable local. If the call succeeds, `dli_fname` is a zero-terminated string that
    // stays valid while the library is loaded, which is as long as the process lives (`-z nodelete`).
    let name = unsafe {
        match libc::dladdr(anchor, &mut info) {
            0 => return None,
            _ => CStr::from_ptr(info.dli_fname),
        }
    };
    let library = fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()?;
    let directory = library.parent()?;
    let above = directory.parent()?;
    let candidates = [directory.join("urxe"), above.join("urxe"), above.parent()?.join("bin/urxe")];
    candidates.into_iter().find(|program| is_trusted(program))
}

/// Static whose address lets `dladdr` find this library's file.
static ANCHOR: u8 = 0;

/// Returns the value of an environment variable, or `None` if it is unset or empty. All variables are ignored
/// in a program that runs with more privileges than its caller, such as a setuid program.
pub(crate) fn variable(name: &str) -> Result<Option<String>, String> {
    // SAFETY: `getauxval` takes an integer and has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Ok(None);
    }
    match env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(text)) => Err(format!("{name} is not valid UTF-8: {}", text.display())),
    }
}

/// Parses a variable.
fn parse_variable<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    variable(name)?.map(|text| text.parse().map_err(|error| format!("{name}: {error}"))).transpose()
}

/// Parses a variable with `parser`. The error is a line that states the allowed values.
pub(crate) fn parse_with<T>(
    name: &str,
    allowed: &str,
    parser: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(text) = variable(name)? else { return Ok(None) };
    parser(&text).map(Some).ok_or_else(|| format!("{name} is '{text}': it must be {allowed}"))
}

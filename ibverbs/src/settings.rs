//! What the program's surroundings ask for, by environment variables; `urxe run` sets them.

use std::env::{self, VarError};
use std::ffi::{CStr, OsStr, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use urxe::link::LinkSpec;
use urxe::link::faults::Rule;
use urxe::link::udp::Sharing;
use urxe::nic::ShardId;
use urxe::verbs::Personality;

/// What devices there are and what they are like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `URXE_LINK`. Without it, or if it is `udp`: a device for each interface, over UDP.
    pub link: Option<LinkSpec>,
    /// `URXE_SHARDS`.
    pub shards: usize,
    /// `URXE_PERSONALITY`; `default` without it.
    pub personality: Personality,
    /// `URXE_SEED`.
    pub seed: Option<u64>,
    /// `URXE_CAPTURE`: a file's name, in which `%p` stands for the PID; if it is not empty, the process makes another.
    pub capture: Option<String>,
    /// `URXE_FAULTS`: rules with semicolons between them.
    pub faults: Vec<Rule>,
    /// `URXE_OFFLOAD`: whether the kernel is given, and gives, runs of packets.
    pub offload: bool,
    /// `URXE_MIN_ACK_TIMEOUT` in seconds.
    pub min_ack_timeout: Option<Duration>,
    /// How addresses are shared with other programs: by the `urxe` program that `URXE_PROGRAM` names or that is beside the
    /// library, and if `URXE_ANY_USER` is 1, with those of any user. `None` where there is no such program: then they are
    /// not.
    pub sharing: Option<Sharing>,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// A line that says which is wrong, and what it may be.
    pub fn read() -> Result<Settings, String> {
        let faults = variable("URXE_FAULTS")?.unwrap_or_default();
        let rules = faults.split(';').filter(|rule| !rule.is_empty());
        let rule = |text: &str| text.parse().map_err(|e| format!("URXE_FAULTS: {e}"));
        Ok(Settings {
            link: parsed("URXE_LINK")?,
            shards: with("URXE_SHARDS", "1, 2, 4, 8, 16, 32 or 64", |text| {
                text.parse().ok().filter(|count| ShardId::new(0, *count).is_some())
            })?
            .unwrap_or(1),
            personality: with(
                "URXE_PERSONALITY",
                &Personality::ALL.map(|p| p.name).join(", "),
                Personality::named,
            )?
            .unwrap_or(Personality::DEFAULT),
            seed: with("URXE_SEED", "a number", |text| text.parse().ok())?,
            capture: variable("URXE_CAPTURE")?,
            faults: rules.map(rule).collect::<Result<_, _>>()?,
            offload: with("URXE_OFFLOAD", "0 or 1", boolean)?.unwrap_or(true),
            min_ack_timeout: with("URXE_MIN_ACK_TIMEOUT", "a number of seconds above 0", |text| {
                let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
                Duration::try_from_secs_f64(seconds).ok()
            })?,
            sharing: sharing()?,
        })
    }
}

fn sharing() -> Result<Option<Sharing>, String> {
    // The steward is started in another directory.
    let named = variable("URXE_PROGRAM")?.map(|name| std::path::absolute(&name).unwrap_or(name.into()));
    let any_user = with("URXE_ANY_USER", "0 or 1", boolean)?;
    let any_user = any_user.unwrap_or(false);
    Ok(named.or_else(program_beside).map(|program| Sharing { program, any_user }))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The program that was built or installed with this library.
fn program_beside() -> Option<PathBuf> {
    // SAFETY: all of it may be zeros.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let place: *const c_void = (&raw const HERE).cast();
    // SAFETY: the call fills it in, with a name that stays as long as the library.
    let name = unsafe {
        match libc::dladdr(place, &mut info) {
            0 => return None,
            _ => CStr::from_ptr(info.dli_fname),
        }
    };
    let library = fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()?;
    let directory = library.parent()?;
    let places = ["urxe", "../urxe", "../../bin/urxe"];
    places.iter().map(|place| directory.join(place)).find(|program| program.is_file())
}

/// Something of this library's, by whose address its file is found.
static HERE: u8 = 0;

/// A variable that is set to something. Programs with more rights than who starts them (setuid) heed none.
pub fn variable(name: &str) -> Result<Option<String>, String> {
    // SAFETY: the call has no requirement.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Ok(None);
    }
    match env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(text)) => Err(format!("{name} is not text: {}", text.display())),
    }
}

fn parsed<T: FromStr<Err = String>>(name: &str) -> Result<Option<T>, String> {
    variable(name)?.map(|text| text.parse().map_err(|why| format!("{name}: {why}"))).transpose()
}

/// A variable as `parse` understands it, or a line that says what it may be.
fn with<T>(name: &str, choices: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, String> {
    let Some(text) = variable(name)? else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| format!("{name} is '{text}': it may be {choices}"))
}

//! `urxe run` and `urxe env`: run programs that are linked against libibverbs on urxe.
#![forbid(unsafe_code)]

mod sysfs;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, elf};

use self::sysfs::Tree;
use super::CliError;
use super::link::STANDARD_OUTPUT;
use super::oob::parse_seconds;
use crate::link::LinkSpec;
use crate::link::capture::CaptureFile;
use crate::link::faults::Rule;
use crate::verbs::Adapter;

/// Run a program that uses libibverbs on urxe, with no RDMA hardware, no kernel module and no root
#[derive(Args)]
#[command(after_help = "\
Examples:
  urxe run -- ibv_devinfo -v
  urxe run --ip 10.0.0.1 -- ib_write_bw
  urxe run --link packet:eth1 --capture out.pcapng -- ibv_rc_pingpong -g 0 10.0.0.2
  urxe run --fault drop=p:0.01 -- ib_send_lat 10.0.0.2

The library is looked for beside urxe, and in ../lib/urxe; URXE_LIBRARY may name another. So is what shows programs the \
devices in /sys/class/infiniband and /dev/infiniband, which URXE_PRELOAD may name.")]
pub struct Run {
    #[command(flatten)]
    surroundings: Surroundings,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Print the variables that `urxe run` sets, for a shell to evaluate
#[derive(Args)]
#[command(after_help = "Example:\n  eval \"$(urxe env --ip 10.0.0.1)\"; ib_write_bw")]
pub struct Env {
    #[command(flatten)]
    surroundings: Surroundings,
}

/// Description of the device of a program.
#[derive(Args)]
struct Surroundings {
    /// Where packets go: `udp[:ADDR]`, `udp:IF`, `packet:IF[,ip=A/LEN,mac=M]` or `frames:…`, as `urxe perf --help` explains them;
    /// unless given, a device for each interface, over UDP
    #[arg(long, value_name = "LINK", value_parser = parse_link)]
    link: Option<Chosen>,
    /// Short for --link udp:ADDR
    #[arg(long, value_name = "ADDR", conflicts_with = "link")]
    ip: Option<IpAddr>,
    /// Write every packet of both directions to this pcapng file. The first process that opens a device writes to FILE, each
    /// later one to a file of its own with its PID in the name (out-PID.pcapng), which mergecap can join; `%p` in FILE becomes
    /// the PID. `-` is standard output, for one process; what the program prints then goes to standard error
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Disturb packets, as `urxe perf --help` explains; can be given several times. When a process exits, it prints on
    /// standard error how many packets each rule matched and how many were retransmitted
    #[arg(long = "fault", value_name = "RULE", value_parser = parse_rule)]
    faults: Vec<String>,
    /// Draw queue pair numbers, PSNs and accidents from this seed, to have them again
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Behave as this class of device: `default`, `strict`, `mlx5`, `rxe`
    #[arg(long, value_name = "CLASS", value_parser = parse_personality)]
    personality: Option<String>,
    /// Share the addresses with programs of any user, not only one's own; whoever is first decides
    #[arg(long)]
    any_user: bool,
    /// Give and take each packet by itself instead of in runs that the kernel cuts (segmentation offload): tcpdump and Wireshark
    /// on the interface then show packets as they are on the wire, not up to 64 KiB at once. Slower; --capture needs it not
    #[arg(long)]
    no_offload: bool,
    /// Least local ACK timeout in seconds, whatever a queue pair asks for. By default a peer that does not answer is given up
    /// after its timeout and retries, often in less than a second, and so is a process that is stopped (SIGSTOP, a
    /// breakpoint), which hardware would answer for. With 60, say, at both ends it may be stopped for a minute
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    min_ack_timeout: Option<Duration>,
    /// Wait for 10 minutes at least for a peer that does not answer, so that connections survive a process that a debugger or
    /// SIGSTOP stops meanwhile; to be given at both ends. Short for --min-ack-timeout 600
    #[arg(long, conflicts_with = "min_ack_timeout")]
    patient: bool,
    /// Shards of the NIC, a power of two, for programs that use several processors
    #[arg(long, value_name = "N", value_parser = super::link::parse_shards)]
    shards: Option<usize>,
}

/// Least local ACK timeout of `--patient`: a process may be stopped this long even if a queue pair has no
/// retries.
const PATIENT_ACK_TIMEOUT: Duration = Duration::from_secs(600);

/// A link specification with its original text.
#[derive(Clone)]
struct Chosen {
    link: LinkSpec,
    text: String,
}

fn parse_link(text: &str) -> Result<Chosen, String> {
    match text.parse()? {
        LinkSpec::Fabric => {
            Err("a fabric is within one process: there are udp[:ADDR], udp:IF, packet:IF and frames:…".into())
        }
        link => Ok(Chosen { link, text: text.into() }),
    }
}

fn parse_rule(text: &str) -> Result<String, String> {
    text.parse::<Rule>().map(|_| text.into()).map_err(|e| e.to_string())
}

fn parse_personality(text: &str) -> Result<String, String> {
    super::link::parse_personality(text).map(|_| text.into())
}

impl Run {
    /// Replaces this process by the program. Returns only if that is not possible.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn run(&self) -> Result<(), CliError> {
        let (program, arguments) = self.program.split_first().expect("the command line has one");
        let none = |_| CliError::NoProgram(program.display().to_string());
        let path = which::which(program).map_err(none)?;
        check_loads_libraries(&path)?;
        let mut command = Command::new(&path);
        command.arg0(program).args(arguments);
        // The program inherits this descriptor, which has to stay open until exec.
        let mut capture_to = None;
        if self.surroundings.captures_to_standard_output() {
            let io = |source| CliError::Io { what: "--capture -".into(), source };
            capture_to = Some(rustix::io::dup(io::stdout()).map_err(|e| io(e.into()))?);
            command.stdout(io::stderr().as_fd().try_clone_to_owned().map_err(io)?);
        }
        for (name, value) in self.surroundings.variables()? {
            match (&capture_to, value) {
                (Some(fd), Some(_)) if name == CAPTURE => {
                    command.env(name, format!("/dev/fd/{}", fd.as_raw_fd()))
                }
                (_, Some(value)) => command.env(name, value),
                (_, None) => command.env_remove(name),
            };
        }
        let source = command.exec();
        Err(CliError::Io { what: format!("cannot run {}", path.display()), source })
    }
}

impl Env {
    /// Prints one line of shell code for each variable.
    ///
    /// # Errors
    /// [`CliError`].
    pub fn run(&self) -> Result<(), CliError> {
        if self.surroundings.captures_to_standard_output() {
            let text = "`--capture -` is for urxe run: name a file, or /dev/stderr";
            return Err(CliError::Usage(text.into()));
        }
        let mut out = io::stdout().lock();
        for (name, value) in self.surroundings.variables()? {
            let line = match value {
                Some(value) => [b"export ", name.as_bytes(), b"=", &quoted(&value), b"\n"].concat(),
                None => [b"unset ", name.as_bytes(), b"\n"].concat(),
            };
            io::Write::write_all(&mut out, &line)?;
        }
        Ok(())
    }
}

/// Quotes a value for a shell.
fn quoted(value: &OsStr) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in value.as_bytes() {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            _ => out.push(*byte),
        }
    }
    out.push(b'\'');
    out
}

/// Environment variable that names the capture file.
const CAPTURE: &str = "URXE_CAPTURE";

impl Surroundings {
    fn captures_to_standard_output(&self) -> bool {
        self.capture.as_ref().is_some_and(|file| file.as_os_str() == STANDARD_OUTPUT)
    }

    /// Returns the environment variables that the library reads and those by which the program finds the
    /// library; `None` for a variable that is to be unset.
    fn variables(&self) -> Result<Vec<(&'static str, Option<OsString>)>, CliError> {
        let address = match &self.link {
            Some(Chosen { link: LinkSpec::Udp(ip), .. }) => *ip,
            _ => self.ip,
        };
        if let Some(ip) = address {
            // Any free port: whether 4791 is free is checked when the device is opened.
            let is_there = !ip.is_unspecified() && !ip.is_multicast() && UdpSocket::bind((ip, 0)).is_ok();
            if !is_there {
                let text =
                    format!("no interface has {ip}: `urxe devinfo` lists the addresses that there are");
                return Err(CliError::Usage(text));
            }
        }
        let link = match (&self.link, self.ip) {
            (Some(chosen), _) => Some(&chosen.link),
            (None, Some(ip)) => Some(&LinkSpec::Udp(Some(ip))),
            (None, None) => None,
        };
        let base = private_base()?;
        let sysfs = sysfs_directory(&base, link)?;
        let library = library_directory(&base)?;
        let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let others = env::split_paths(&before).filter(|dir| !dir.as_os_str().is_empty() && *dir != library);
        let path = env::join_paths(std::iter::once(library.clone()).chain(others));
        let path =
            path.map_err(|e| CliError::Usage(format!("{} cannot be searched: {e}", library.display())))?;
        let capture = self.capture.as_deref().map(std::path::absolute).transpose();
        let capture = capture.map_err(|source| CliError::Io { what: "--capture".into(), source })?;
        if let Some(file) = &capture
            && !self.captures_to_standard_output()
            && !file.as_os_str().as_bytes().windows(2).any(|two| two == b"%p")
        {
            CaptureFile::clear(file)?;
        }
        let link = self.link.as_ref().map(|chosen| chosen.text.clone());
        let least_timeout = self.min_ack_timeout.or(self.patient.then_some(PATIENT_ACK_TIMEOUT));
        Ok(vec![
            ("LD_PRELOAD", Some(preloaded(&library)?)),
            ("ASAN_OPTIONS", Some(tolerant_asan())),
            ("LD_LIBRARY_PATH", Some(path)),
            ("URXE_SYSFS", Some(sysfs.into())),
            ("URXE_LINK", link.or(self.ip.map(|ip| format!("udp:{ip}"))).map(Into::into)),
            (CAPTURE, capture.map(Into::into)),
            ("URXE_FAULTS", (!self.faults.is_empty()).then(|| self.faults.join(";").into())),
            ("URXE_SEED", self.seed.map(|seed| seed.to_string().into())),
            ("URXE_PERSONALITY", self.personality.clone().map(Into::into)),
            ("URXE_PROGRAM", env::current_exe().ok().map(Into::into)),
            ("URXE_ANY_USER", self.any_user.then(|| "1".into())),
            ("URXE_OFFLOAD", self.no_offload.then(|| "0".into())),
            ("URXE_MIN_ACK_TIMEOUT", least_timeout.map(|t| t.as_secs_f64().to_string().into())),
            ("URXE_SHARDS", self.shards.map(|shards| shards.to_string().into())),
        ])
    }
}

/// Creates and returns the user's private directory of urxe. Nothing removes it at the end, because the
/// program replaces this process.
fn private_base() -> Result<PathBuf, CliError> {
    let owner = nix::unistd::getuid().as_raw();
    let base = runtime_directory(owner).join(format!("urxe-{}", outside(owner)));
    make_private(&base).map_err(cannot_make(&base))?;
    // A directory that another user can write to may contain that user's libraries.
    if !is_private(&base, owner) {
        let text = format!(
            "{} is not a directory that only you may write to: set XDG_RUNTIME_DIR or TMPDIR to one that is",
            base.display()
        );
        return Err(CliError::Usage(text));
    }
    Ok(base)
}

/// Returns the ID of a user outside the user namespace, because the root users of all namespaces share
/// `/tmp`.
fn outside(user: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
    let find = |line: &str| {
        let mut words = line.split_whitespace();
        let (inside, outside, count) = (number(words.next())?, number(words.next())?, number(words.next())?);
        user.checked_sub(inside).filter(|nth| *nth < count).and_then(|nth| outside.checked_add(nth))
    };
    map.lines().find_map(find).unwrap_or(user)
}

fn cannot_make(what: &Path) -> impl FnOnce(io::Error) -> CliError {
    let what = format!("cannot make {}", what.display());
    move |source| CliError::Io { what, source }
}

/// Name of the preloaded library that shows programs the devices in `/sys` and `/dev`.
const PRELOAD: &str = "liburxe_preload.so";

/// Name under which the verbs library is preloaded. Its symbols then come before those of any other
/// libibverbs: of a copy under another name, as auditwheel puts it into Python wheels, or of one that a
/// DT_RPATH names.
const VERBS: &str = "liburxe_verbs.so";

/// Creates and returns a directory in which the loader finds the verbs library under the names that programs
/// are linked with, and the preloaded libraries.
fn library_directory(base: &Path) -> Result<PathBuf, CliError> {
    let library = find_library("URXE_LIBRARY", "libibverbs.so", "libibverbs.so.1")?;
    let preload = find_library("URXE_PRELOAD", PRELOAD, PRELOAD)?;
    // One directory per build of the libraries.
    let both = [library.as_os_str().as_bytes(), b"\0", preload.as_os_str().as_bytes()].concat();
    let directory = base.join(format!("{:08x}", crc32fast::hash(&both)));
    make_private(&directory).map_err(cannot_make(&directory))?;
    // Both libraries are links to one file: the loader notices that and loads it once, with one NIC.
    let names =
        ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"].map(|name| (name, &library));
    for (name, file) in names.into_iter().chain([(PRELOAD, &preload), (VERBS, &library)]) {
        let link = directory.join(name);
        if fs::read_link(&link).ok().as_ref() != Some(file) {
            // Replaced atomically, because a program that another `urxe run` has just started may be reading
            // the directory.
            let new = directory.join(format!("{name}.{}", std::process::id()));
            // Left over from a killed process with the same PID.
            let _ = fs::remove_file(&new);
            symlink(file, &new).and_then(|()| fs::rename(&new, &link)).map_err(cannot_make(&link))?;
        }
    }
    Ok(directory)
}

/// Returns the value of LD_PRELOAD. The libraries that it names already stay in front, because some have to
/// be the first.
fn preloaded(library: &Path) -> Result<OsString, CliError> {
    // Separators between names, which cannot be quoted.
    const SEPARATORS: [u8; 2] = [b' ', b':'];
    if library.as_os_str().as_bytes().iter().any(|byte| SEPARATORS.contains(byte)) {
        let text = format!(
            "no library in {} can be preloaded, as there is a space or a colon in its name: set XDG_RUNTIME_DIR or TMPDIR \
             to a directory without",
            library.display()
        );
        return Err(CliError::Usage(text));
    }
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = before.as_bytes().split(|byte| SEPARATORS.contains(byte));
    // Drops the libraries of an enclosing `urxe run`.
    let is_ours = |name: &[u8]| [PRELOAD, VERBS].iter().any(|own| name.ends_with(own.as_bytes()));
    let others = others.filter(|name| !name.is_empty() && !is_ours(name));
    let own = [PRELOAD, VERBS].map(|name| library.join(name));
    let all: Vec<&[u8]> = others.chain(own.iter().map(|file| file.as_os_str().as_bytes())).collect();
    Ok(OsString::from_vec(all.join(&b':')))
}

/// Returns the value of ASAN_OPTIONS. By default programs built with AddressSanitizer exit at once if
/// anything is preloaded. The preloaded libraries pass calls on to it, so the check is turned off.
fn tolerant_asan() -> OsString {
    const TOLERANT: &str = "verify_asan_link_order=0";
    let mut options = env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.as_bytes().ends_with(TOLERANT.as_bytes()) {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(TOLERANT);
    }
    options
}

/// Longest path of a tree: the bytes that libibverbs has for the path of a device's directory
/// (`IBV_SYSFS_PATH_MAX`) less those of the part below the tree.
const PATH_ROOM: usize = 256 - "/class/infiniband_verbs/uverbs9999\0".len();

/// Time since its last use after which a tree without a local address may be removed.
const OUTDATED: Duration = Duration::from_secs(24 * 3600);

/// Reports whether an interface has this address, or the machine accepts it as local (127.0.0.5).
fn is_of_this_host(ip: IpAddr) -> bool {
    let has = |interface: pnet_datalink::NetworkInterface| interface.ips.iter().any(|own| own.ip() == ip);
    UdpSocket::bind((ip, 0)).is_ok() || pnet_datalink::interfaces().into_iter().any(has)
}

/// Creates and returns a directory with what `/sys` and `/dev` would contain if the kernel had the devices;
/// there is one for each distinct set of devices.
fn sysfs_directory(base: &Path, link: Option<&LinkSpec>) -> Result<PathBuf, CliError> {
    let adapters = Adapter::all(link).map_err(|e| CliError::Usage(format!("--link: {e}")))?;
    let tree = Tree::of(&adapters);
    let directory = base.join(tree.name());
    if directory.as_os_str().len() > PATH_ROOM {
        let text = format!(
            "{} is longer than the {PATH_ROOM} bytes that programs have room for: set XDG_RUNTIME_DIR or TMPDIR to a shorter one",
            directory.display()
        );
        return Err(CliError::Usage(text));
    }
    tree.write(&directory).map_err(|(path, source)| cannot_make(&path)(source))?;
    sysfs::sweep(base, OUTDATED, is_of_this_host);
    Ok(directory)
}

/// Returns the directory for runtime files of a user: `XDG_RUNTIME_DIR` if it is an absolute path to a
/// private directory of the user, otherwise the temporary directory.
fn runtime_directory(owner: u32) -> PathBuf {
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    given.filter(|dir| dir.is_absolute() && is_private(dir, owner)).unwrap_or_else(env::temp_dir)
}

/// Reports whether the path is a directory that belongs to `owner` and that no other user may write to.
fn is_private(directory: &Path, owner: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == owner && m.mode() & 0o022 == 0)
}

fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Finds a library of urxe: the file that the variable names, otherwise the one beside this program, where
/// cargo builds it, otherwise the installed one.
fn find_library(variable: &str, built: &str, installed: &str) -> Result<PathBuf, CliError> {
    if let Some(named) = env::var_os(variable) {
        let what = format!("{variable} is {}", named.display());
        return fs::canonicalize(named).map_err(|source| CliError::Io { what, source });
    }
    let program = env::current_exe().and_then(fs::canonicalize);
    let program =
        program.map_err(|source| CliError::Io { what: "cannot find urxe itself".into(), source })?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(built), beside.join("../lib/urxe").join(installed)];
    let found = places.iter().find_map(|place| fs::canonicalize(place).ok());
    found.ok_or_else(|| {
        let places = places.each_ref().map(|p| p.display().to_string()).join(" nor ");
        CliError::Usage(format!(
            "the library is neither {places}: build it (cargo build --release --workspace), or name it by \
             {variable}"
        ))
    })
}

/// Rejects programs into which the loader does not load the libraries; without this check they would look for
/// hardware.
fn check_loads_libraries(program: &Path) -> Result<(), CliError> {
    let name = program.display();
    let Ok(bytes) = fs::read(program) else {
        // The program may be executable but not readable: left to the loader.
        return Ok(());
    };
    let is_static = match FileKind::parse(&*bytes) {
        Ok(FileKind::Elf32) => has_no_loader::<elf::FileHeader32<Endianness>>(&bytes),
        Ok(FileKind::Elf64) => has_no_loader::<elf::FileHeader64<Endianness>>(&bytes),
        // A script, whose interpreter is not checked.
        _ => return Ok(()),
    };
    let why = if is_static {
        "is statically linked, so no library can be put under it: link it dynamically"
    } else if fs::metadata(program).is_ok_and(|m| m.mode() & 0o6000 != 0) {
        "is setuid or setgid, for which the loader ignores LD_LIBRARY_PATH: run a copy without that bit"
    } else if rustix::fs::getxattr(program, "security.capability", &mut [0; 64]).is_ok() {
        "has file capabilities, for which the loader ignores LD_LIBRARY_PATH: run a copy without them, and give the process \
         what it needs as ambient capabilities (capsh, setpriv)"
    } else {
        return Ok(());
    };
    Err(CliError::Usage(format!("{name} {why}")))
}

fn has_no_loader<Header: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> bool {
    let segments = || {
        let header = Header::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        Some((header.program_headers(endian, bytes).ok()?, endian))
    };
    segments().is_some_and(|(segments, endian)| segments.iter().all(|s| s.p_type(endian) != elf::PT_INTERP))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn quoted_values_survive_a_shell() {
        for text in ["", "plain", "two words", "it's", "$HOME `x` \\ \"", "a\nb"] {
            let mut script = b"printf %s ".to_vec();
            script.extend(quoted(OsStr::new(text)));
            let out = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
            assert_eq!(out.stdout, text.as_bytes());
        }
    }

    #[test]
    fn setuid_binaries_are_rejected_and_setuid_scripts_are_not() {
        assert!(check_loads_libraries(&env::current_exe().unwrap()).is_ok());
        let dir = tempfile::tempdir().unwrap();
        // The kernel ignores the setuid bit of scripts.
        let (script, copy) = (dir.path().join("script"), dir.path().join("copy"));
        fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
        fs::copy("/bin/true", &copy).unwrap();
        for file in [&script, &copy] {
            assert!(check_loads_libraries(file).is_ok());
            fs::set_permissions(file, fs::Permissions::from_mode(0o4755)).unwrap();
        }
        assert!(check_loads_libraries(&script).is_ok());
        assert!(check_loads_libraries(&copy).unwrap_err().to_string().contains("setuid"));
    }

    #[test]
    fn only_a_directory_that_others_cannot_write_to_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let owner = nix::unistd::getuid().as_raw();
        assert!(is_private(dir.path(), owner) && !is_private(dir.path(), owner + 1));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(!is_private(dir.path(), owner));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(!is_private(&link, owner) && !is_private(&dir.path().join("none"), owner));
    }
}

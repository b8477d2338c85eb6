//! `urxe run` and `urxe env`: run libibverbs programs on urxe.

mod congestion_files;
mod libraries;
mod pci;
mod sysfs;
mod wait_port;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueHint};
use nix::unistd::{AccessFlags, access};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, elf};

use self::libraries::find_library;
pub use self::libraries::{Libraries, Library};
use self::sysfs::{Tree, View};
use self::wait_port::wait_for_port;
use super::CliError;
use super::nic_args::{NicArgs, SHARED_MEMORY};
use urxe::link::LinkSpec;
use urxe::middleware::capture::CaptureFile;
use urxe::middleware::qlog::QlogFile;
use urxe::verbs::faults::Fault;
use urxe::verbs::{Adapter, DeviceNames, Personality};

/// Run a libibverbs program on urxe, without RDMA hardware, kernel module or root
#[derive(Args)]
#[command(after_help = "\
Examples:
  urxe run -- ibv_devinfo -v
  urxe run --ip 10.0.0.1 -- ib_write_bw
  urxe run --link packet:eth1 --capture out.pcapng -- ibv_rc_pingpong -g 0 10.0.0.2
  urxe run --fault drop=p:0.01 -- ib_send_lat 10.0.0.2
  urxe run --name mlx5_0 -- cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data

urxe contains the libraries; URXE_LIBRARY and URXE_PRELOAD name other files. `man urxe-run` lists all variables.")]
pub struct Run {
    /// Start the program when a server listens on this port
    ///
    /// Waits up to a minute until a server listens on this TCP port or port of the connection manager.
    #[arg(long, value_name = "PORT")]
    wait_port: Option<u16>,
    /// Program and its arguments; `--` before it is optional
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Print the environment variables that `urxe run` sets, as shell commands
#[derive(Args)]
#[command(after_help = "\
Examples:
  eval \"$(urxe env --ip 10.0.0.1)\"; ib_write_bw
  urxe env --personality mlx5 >urxe.sh       for other shells: . ./urxe.sh")]
pub struct Env {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Options for the devices that a program sees.
#[derive(Args, Default)]
pub struct DeviceArgs {
    /// Name of the first device [default: urxe0]
    ///
    /// The name ends in the number of the device. The names of further devices count up from it. Names that
    /// begin with `mlx5_`, and `--personality mlx5`, also give the devices the vendor, part and board IDs of
    /// a ConnectX-5. By default they have no IDs of a vendor.
    #[arg(long, value_name = "NAME")]
    name: Option<DeviceNames>,
    /// Do not warn of configurations that will cause trouble
    ///
    /// Such as an infinite timeout; a warning of each kind is printed to standard error once.
    #[arg(long)]
    no_warnings: bool,
    /// Do not show the program in `urxe ps` and `urxe top`
    ///
    /// The library then starts no thread that serves the state of the devices.
    #[arg(long)]
    no_live: bool,
    /// Give ports a LID, for programs for InfiniBand
    ///
    /// The LID is the last 16 bits of the address, and addresses devices whose addresses differ in these
    /// bits alone. Ports of RoCE have LID 0, and such programs fail on them.
    #[arg(long)]
    lid_routing: bool,
    /// Support registration of DMA-bufs (`ibv_reg_dmabuf_mr`)
    ///
    /// As with `--personality mlx5`. Programs then assume GPUDirect, although the memory of a GPU cannot be
    /// registered.
    #[arg(long)]
    dma_buf: bool,
    #[command(flatten)]
    nic: NicArgs,
}

impl Run {
    /// Replaces this process with the program, and returns only if that fails.
    pub fn run(&self, libraries: Libraries) -> Result<(), CliError> {
        let (program, arguments) = self.program.split_first().expect("clap requires PROGRAM");
        let path = find_program(program)?;
        let details = format!("(`urxe doctor -- {}` shows what it would load)", program.display());
        check_loads_libraries(&path).map_err(|e| CliError::Usage(format!("{e} {details}")))?;
        self.wait_port.map_or(Ok(()), wait_for_port)?;
        let mut command = Command::new(&path);
        command.arg0(program).args(arguments);
        // The program inherits this descriptor, which has to stay open until exec.
        let mut capture_to = None;
        if self.device.nic.capture.is_to_standard_output() {
            let what = "--capture -";
            capture_to = Some(nix::unistd::dup(io::stdout()).map_err(CliError::io(what))?);
            command.stdout(io::stderr().as_fd().try_clone_to_owned().map_err(CliError::io(what))?);
        }
        for (name, value) in self.device.variables(libraries)? {
            match (&capture_to, value) {
                (Some(fd), Some(_)) if name == CAPTURE => {
                    command.env(name, format!("/dev/fd/{}", fd.as_raw_fd()))
                }
                (_, Some(value)) => command.env(name, value),
                (_, None) => command.env_remove(name),
            };
        }
        Err(CliError::io(format!("cannot run {} {details}", path.display()))(command.exec()))
    }
}

/// Searches PATH for a program, as a shell does.
///
/// # Errors
/// [`CliError::NoProgram`] if there is no such executable file.
pub fn find_program(name: &OsStr) -> Result<PathBuf, CliError> {
    which::which(name).map_err(|_| CliError::NoProgram(name.display().to_string()))
}

impl Env {
    /// Prints one line of shell code for each variable.
    pub fn run(&self, libraries: Libraries) -> Result<(), CliError> {
        if self.device.nic.capture.is_to_standard_output() {
            let text = "`--capture -` is supported by urxe run only: specify a file, or /dev/stderr";
            return Err(CliError::Usage(text.into()));
        }
        let mut out = io::stdout().lock();
        for (name, value) in self.device.variables(libraries)? {
            let line = match value {
                Some(value) => [b"export ", name.as_bytes(), b"=", &shell_quote(&value), b"\n"].concat(),
                None => [b"unset ", name.as_bytes(), b"\n"].concat(),
            };
            io::Write::write_all(&mut out, &line)?;
        }
        Ok(())
    }
}

/// Quotes a value for a shell.
fn shell_quote(value: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = value.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'", &*parts.join(&b"'\\''"[..]), b"'"].concat()
}

/// Name of the environment variable for the capture file.
const CAPTURE: &str = "URXE_CAPTURE";

/// A variable that the library in a program reads.
pub struct Variable {
    pub name: &'static str,
    /// Form of the value.
    pub value: &'static str,
    /// Identifier of the option that sets the variable, or a description.
    pub source: &'static str,
    get: fn(&DeviceArgs, &Files) -> Option<OsString>,
}

/// Files that a program needs.
struct Files {
    capture: Option<PathBuf>,
    qlog: Option<PathBuf>,
    sysfs: PathBuf,
}

/// Defines [`VARIABLES`], from rows of the form `name=value, source: value from the options`.
macro_rules! variables {
    ($($name:literal = $value:literal, $source:literal: $get:expr;)*) => {
        /// The variables that the library in a program reads. That of `--shared-memory` is not among them, because commands read
        /// it too.
        pub const VARIABLES: &[Variable] =
            &[$(Variable { name: $name, value: $value, source: $source, get: $get }),*];
    };
}

variables! {
    "URXE_LINK" = "LINK", "link": |args, _| args.nic.address.text().map(Into::into);
    "URXE_SHARDS" = "N", "shards": |args, _| args.nic.shards.map(|shards| shards.to_string().into());
    "URXE_OFFLOAD" = "0", "no_offload": |args, _| args.nic.no_offload.then(|| "0".into());
    "URXE_ANY_USER" = "1", "any_user": |args, _| args.nic.any_user.then(|| "1".into());
    "URXE_ALWAYS_ICRC" = "1", "always_icrc": |args, _| args.nic.always_icrc.then(|| "1".into());
    "URXE_FAULTS" = "RULE;RULE...", "faults": |args, _| {
        let faults = args.nic.faults().map(Fault::to_string).collect::<Vec<_>>().join(";");
        (!faults.is_empty()).then(|| faults.into())
    };
    "URXE_SEED" = "N", "seed": |args, _| args.nic.seed.map(|seed| seed.to_string().into());
    "URXE_CAPTURE" = "FILE", "capture": |_, files| files.capture.clone().map(Into::into);
    "URXE_CAPTURE_ROTATE" = "LIMITS", "capture_rotate":
        |args, _| args.nic.capture.capture_rotate.map(|rotation| rotation.to_string().into());
    "URXE_QLOG" = "FILE", "qlog": |_, files| files.qlog.clone().map(Into::into);
    "URXE_EXPLAIN" = "1", "explain": |args, _| args.nic.explain.then(|| "1".into());
    "URXE_MIN_ACK_TIMEOUT" = "SECONDS", "min_ack_timeout":
        |args, _| args.nic.min_ack_timeout().map(|time| time.as_secs_f64().to_string().into());
    "URXE_CONGESTION" = "CONTROL", "congestion":
        |args, _| args.nic.congestion.map(|control| control.to_string().into());
    "URXE_PERSONALITY" = "CLASS", "personality": |args, _| args.nic.personality.map(|class| class.name.into());
    "URXE_NAME" = "NAME", "name": |args, _| args.name.as_ref().map(|names| names.name(0).into());
    "URXE_WARNINGS" = "1", "no_warnings": |args, _| (!args.no_warnings).then(|| "1".into());
    "URXE_LIVE" = "0", "no_live": |args, _| args.no_live.then(|| "0".into());
    "URXE_LID_ROUTING" = "1", "lid_routing": |args, _| args.lid_routing.then(|| "1".into());
    "URXE_DMA_BUF" = "1", "dma_buf": |args, _| args.dma_buf.then(|| "1".into());
    "URXE_PROGRAM" = "FILE", "The urxe executable, which shares addresses among programs.":
        |_, _| env::current_exe().ok().map(Into::into);
    "URXE_SYSFS" = "DIR", "Files that the program sees in /sys and /dev.": |_, files| Some(files.sysfs.clone().into());
}

impl DeviceArgs {
    /// Returns the environment variables that the library reads, and those that make the loader find it. A
    /// variable with the value `None` must be unset.
    pub fn variables(&self, libraries: Libraries) -> Result<Vec<(&'static str, Option<OsString>)>, CliError> {
        self.nic.address.check_network()?;
        let link = self.nic.address.link();
        if let Some(LinkSpec::Udp(Some(ip))) = link {
            // Any free port: whether 4791 is free is checked when the device is opened.
            let is_local = !ip.is_unspecified() && !ip.is_multicast() && UdpSocket::bind((ip, 0)).is_ok();
            if !is_local {
                let text =
                    format!("no interface has address {ip}: `urxe devinfo` lists the available addresses");
                return Err(CliError::Usage(text));
            }
        }
        let base = private_base()?;
        let view = View {
            names: self.name.clone().unwrap_or_default(),
            personality: self.nic.personality.unwrap_or(Personality::DEFAULT),
            congestion: self.nic.congestion.unwrap_or_default(),
            has_lid: self.lid_routing,
        };
        let sysfs = sysfs_directory(&base, link.as_ref(), &view)?;
        let library = library_directory(&base, libraries)?;
        let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let others =
            env::split_paths(&inherited).filter(|dir| !dir.as_os_str().is_empty() && *dir != library);
        let path = env::join_paths(std::iter::once(library.clone()).chain(others));
        let path = path.map_err(|e| {
            CliError::Usage(format!("cannot add {} to LD_LIBRARY_PATH: {e}", library.display()))
        })?;
        let capture = self.nic.capture.capture.as_deref().map(std::path::absolute).transpose();
        let capture = capture.map_err(CliError::io("--capture"))?;
        if let Some(file) = &capture
            && !self.nic.capture.is_to_standard_output()
            && !has_pid(file)
        {
            CaptureFile::clear(file)?;
        }
        let shared_memory = self.nic.shared_memory.map(|when| when.name().into());
        let qlog = self.nic.capture.qlog.as_deref().map(std::path::absolute).transpose();
        let qlog = qlog.map_err(CliError::io("--qlog"))?;
        if let Some(file) = qlog.as_ref().filter(|file| !has_pid(file)) {
            QlogFile::clear(file).map_err(|e| CliError::Failed(e.to_string()))?;
        }
        let files = Files { capture, qlog, sysfs };
        let mut variables = vec![
            ("LD_PRELOAD", Some(ld_preload(&library)?)),
            ("ASAN_OPTIONS", Some(asan_options())),
            ("LD_LIBRARY_PATH", Some(path)),
            (SHARED_MEMORY, shared_memory.or_else(|| env::var_os(SHARED_MEMORY))),
        ];
        variables.extend(VARIABLES.iter().map(|variable| (variable.name, (variable.get)(self, &files))));
        warn_of_ignored(&variables);
        Ok(variables)
    }
}

/// Reports whether each process puts its PID into a file name.
fn has_pid(file: &Path) -> bool {
    file.as_os_str().as_bytes().windows(2).any(|two| two == b"%p")
}

/// Warns of variables in the environment that are ignored, because only options set them. Those of an
/// enclosing `urxe run` are meant for its program alone.
fn warn_of_ignored(variables: &[(&'static str, Option<OsString>)]) {
    if env::var_os("URXE_SYSFS").is_some() {
        return;
    }
    for (name, _) in variables.iter().filter(|(name, value)| value.is_none() && env::var_os(name).is_some()) {
        eprintln!("urxe: warning: the variable {name} is ignored: use the options of `urxe run` instead");
    }
}

/// Creates and returns urxe's private directory for the user. The directory outlives the command, because the
/// program replaces this process.
fn private_base() -> Result<PathBuf, CliError> {
    let owner = nix::unistd::getuid().as_raw();
    let base = runtime_directory(owner).join(format!("urxe-{}", host_uid(owner)));
    create_private_dir(&base).map_err(create_error(&base))?;
    // A directory that another user can write to may contain that user's libraries.
    if !is_private(&base, owner) {
        let text = format!(
            "{} is not a private directory of this user: set XDG_RUNTIME_DIR or TMPDIR to a private \
             directory",
            base.display()
        );
        return Err(CliError::Usage(text));
    }
    Ok(base)
}

/// Returns a user's ID on the host, given the ID in this user namespace. Directory names include it, because
/// processes in different user namespaces share `/tmp`, and in each namespace the user may be root.
fn host_uid(user: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
    let find = |line: &str| {
        let mut words = line.split_whitespace();
        let (inside, outside, count) = (number(words.next())?, number(words.next())?, number(words.next())?);
        user.checked_sub(inside).filter(|nth| *nth < count).and_then(|nth| outside.checked_add(nth))
    };
    map.lines().find_map(find).unwrap_or(user)
}

fn create_error(what: &Path) -> impl FnOnce(io::Error) -> CliError {
    CliError::io(format!("cannot create {}", what.display()))
}

/// Name of the preloaded library that makes the devices appear in `/sys` and `/dev`.
const PRELOAD_LIBRARY: &str = "liburxe_preload.so";

/// Name under which the verbs library is preloaded. Preloading makes its symbols take precedence over those
/// of any other libibverbs, such as a renamed copy that auditwheel bundled into a Python wheel, or a library
/// found through DT_RPATH.
pub const VERBS_LIBRARY: &str = "liburxe_verbs.so";

/// Creates and returns a directory for the loader, with the preloaded libraries, and with the verbs library
/// under the names that programs are linked against.
fn library_directory(base: &Path, libraries: Libraries) -> Result<PathBuf, CliError> {
    let library = find_library(base, "URXE_LIBRARY", "libibverbs.so", libraries)?;
    let preload = find_library(base, "URXE_PRELOAD", PRELOAD_LIBRARY, libraries)?;
    // One directory per build of the libraries.
    let both = [library.as_os_str().as_bytes(), b"\0", preload.as_os_str().as_bytes()].concat();
    let directory = base.join(format!("{:08x}", crc32fast::hash(&both)));
    create_private_dir(&directory).map_err(create_error(&directory))?;
    // Both libraries are links to one file: the loader notices that and loads it once, with one NIC.
    let names =
        ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"].map(|name| (name, &library));
    for (name, file) in names.into_iter().chain([(PRELOAD_LIBRARY, &preload), (VERBS_LIBRARY, &library)]) {
        let link = directory.join(name);
        if fs::read_link(&link).ok().as_ref() != Some(file) {
            // Replaced atomically, because a program that another `urxe run` has just started may be reading
            // the directory.
            let new = directory.join(format!("{name}.{}", unique_suffix()));
            symlink(file, &new).and_then(|()| fs::rename(&new, &link)).map_err(create_error(&link))?;
        }
    }
    Ok(directory)
}

/// Returns the value for LD_PRELOAD. Libraries already in the variable stay first, because some libraries
/// must be loaded first.
fn ld_preload(library: &Path) -> Result<OsString, CliError> {
    // Separators between names, which cannot be quoted.
    const SEPARATORS: [u8; 2] = [b' ', b':'];
    if library.as_os_str().as_bytes().iter().any(|byte| SEPARATORS.contains(byte)) {
        let text = format!(
            "cannot preload libraries from {}, as the path contains a space or a colon: set XDG_RUNTIME_DIR \
             or TMPDIR to a directory without these characters",
            library.display()
        );
        return Err(CliError::Usage(text));
    }
    let inherited = env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = inherited.as_bytes().split(|byte| SEPARATORS.contains(byte));
    // Drops the libraries of an enclosing `urxe run`.
    let is_ours =
        |name: &[u8]| [PRELOAD_LIBRARY, VERBS_LIBRARY].iter().any(|own| name.ends_with(own.as_bytes()));
    let others = others.filter(|name| !name.is_empty() && !is_ours(name));
    let own = [PRELOAD_LIBRARY, VERBS_LIBRARY].map(|name| library.join(name));
    let all: Vec<&[u8]> = others.chain(own.iter().map(|file| file.as_os_str().as_bytes())).collect();
    Ok(OsString::from_vec(all.join(&b':')))
}

/// Returns the value for ASAN_OPTIONS, which turns off the link order check. That check makes programs built
/// with AddressSanitizer exit at once if any library is preloaded before the runtime. It is not needed,
/// because urxe's libraries pass intercepted calls on to the runtime.
fn asan_options() -> OsString {
    const NO_ORDER_CHECK: &str = "verify_asan_link_order=0";
    let mut options = env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.as_bytes().ends_with(NO_ORDER_CHECK.as_bytes()) {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(NO_ORDER_CHECK);
    }
    options
}

/// Size of libibverbs' buffer for the path to a device directory (`IBV_SYSFS_PATH_MAX`).
const MAX_DEVICE_PATH: usize = 256;

/// Age from which an unused tree without a local address may be removed.
const TREE_MAX_AGE: Duration = Duration::from_secs(3600);

/// Reports whether the address is local: assigned to an interface, or accepted by the machine anyway, as are
/// all addresses in 127.0.0.0/8.
fn is_local_address(ip: IpAddr) -> bool {
    let has = |interface: pnet_datalink::NetworkInterface| interface.ips.iter().any(|own| own.ip() == ip);
    UdpSocket::bind((ip, 0)).is_ok() || pnet_datalink::interfaces().into_iter().any(has)
}

/// Creates and returns a directory with the files that `/sys` and `/dev` would contain if the kernel had the
/// devices. Identical sets of devices share a directory.
fn sysfs_directory(base: &Path, link: Option<&LinkSpec>, view: &View) -> Result<PathBuf, CliError> {
    let adapters = Adapter::all(link).map_err(|e| CliError::Usage(format!("--link: {e}")))?;
    let tree = Tree::of(&adapters, view);
    let directory = base.join(tree.name());
    let below = "/class/infiniband_verbs/uverbs9999\0"
        .len()
        .max(format!("/class/infiniband/{}\0", view.names.name(9999)).len());
    let max = MAX_DEVICE_PATH - below;
    if directory.as_os_str().len() > max {
        let text = format!(
            "the path {} exceeds the limit of libibverbs, {max} bytes: set XDG_RUNTIME_DIR or \
             TMPDIR to a shorter path",
            directory.display()
        );
        return Err(CliError::Usage(text));
    }
    tree.write(&directory).map_err(|(path, source)| create_error(&path)(source))?;
    sysfs::remove_unused(base, TREE_MAX_AGE, is_local_address);
    Ok(directory)
}

/// Returns the directory for a user's runtime files: `XDG_RUNTIME_DIR` if that is an absolute path to a
/// private directory of the user on a file system that is not read-only, otherwise the temporary directory.
fn runtime_directory(owner: u32) -> PathBuf {
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let is_usable =
        |dir: &PathBuf| dir.is_absolute() && is_private(dir, owner) && access(dir, AccessFlags::W_OK).is_ok();
    given.filter(is_usable).unwrap_or_else(env::temp_dir)
}

/// Reports whether the path is a directory that `owner` owns and only `owner` may write to.
fn is_private(directory: &Path, owner: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == owner && m.mode() & 0o022 == 0)
}

/// Returns a random suffix for the name of a temporary file. A process ID would not be unique, because
/// processes in several PID namespaces share the directory, such as the containers of a pod.
fn unique_suffix() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

fn create_private_dir(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Setuid programs that start others, and remove LD_PRELOAD.
const STARTERS: [&str; 4] = ["sudo", "doas", "pkexec", "su"];

/// Rejects programs that would run without urxe's libraries and look for RDMA hardware: those linked
/// statically, for another architecture or C library, and those with setuid, setgid or file capabilities, for
/// which the loader ignores LD_PRELOAD and LD_LIBRARY_PATH.
pub fn check_loads_libraries(program: &Path) -> Result<(), CliError> {
    let Ok(bytes) = fs::read(program) else {
        // The program may be executable but not readable: the loader decides.
        return Ok(());
    };
    let kind = FileKind::parse(&*bytes);
    let elf = match kind {
        Ok(FileKind::Elf32) => elf_loader::<elf::FileHeader32<Endianness>>(&bytes),
        Ok(FileKind::Elf64) => elf_loader::<elf::FileHeader64<Endianness>>(&bytes),
        // A script, whose interpreter is not checked.
        _ => return Ok(()),
    };
    // The loader reports damaged headers.
    let Ok((machine, loader)) = elf else { return Ok(()) };
    let is_32_bit = kind == Ok(FileKind::Elf32);
    let is_musl =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"));
    let reason = if is_32_bit != cfg!(target_pointer_width = "32")
        || OWN_MACHINE.is_some_and(|own| own != machine)
    {
        let class = if is_32_bit { "32-bit" } else { "64-bit" };
        let own = env::consts::ARCH;
        format!(
            "is a {class} program for another architecture, so it cannot load the library: build it for {own}"
        )
    } else if loader.is_none() {
        "is statically linked, so it cannot load the library: link it dynamically".into()
    } else if let Some(loader) = loader.filter(is_musl) {
        let loader = loader.display();
        format!("uses musl ({loader}), so it cannot load the library, which needs glibc: build it with glibc")
    } else if fs::metadata(program).is_ok_and(|m| m.mode() & 0o6000 != 0) {
        match STARTERS.iter().any(|name| program.ends_with(name)) {
            true => {
                "removes LD_PRELOAD from the environment: let it start urxe (sudo urxe run -- PROGRAM)".into()
            }
            false => {
                "is setuid or setgid, for which the loader ignores LD_PRELOAD: run a copy without that bit"
                    .into()
            }
        }
    } else if rustix::fs::getxattr(program, "security.capability", &mut [0; 64]).is_ok() {
        "has file capabilities, for which the loader ignores LD_PRELOAD: run a copy without them, and set ambient \
         capabilities instead (capsh, setpriv)"
            .into()
    } else {
        return Ok(());
    };
    Err(CliError::Usage(format!("{} {reason}", program.display())))
}

/// ELF machine of this executable, if it is one of those that urxe is tested on.
const OWN_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(elf::EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(elf::EM_AARCH64)
} else {
    None
};

/// Returns the machine of an ELF program, and the path of its dynamic loader, if it has one.
pub fn elf_loader<Header: FileHeader<Endian = Endianness>>(
    bytes: &[u8],
) -> object::read::Result<(u16, Option<PathBuf>)> {
    let header = Header::parse(bytes)?;
    let endian = header.endian()?;
    let mut loader = None;
    for segment in header.program_headers(endian, bytes)? {
        if let Some(path) = segment.interpreter(endian, bytes)? {
            loader = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    Ok((header.e_machine(endian), loader))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn shell_evaluates_quoted_values_to_the_originals() {
        for text in ["", "plain", "two words", "it's", "$HOME `x` \\ \"", "a\nb"] {
            let mut script = b"printf %s ".to_vec();
            script.extend(shell_quote(OsStr::new(text)));
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

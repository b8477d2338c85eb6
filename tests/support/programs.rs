//! Support for tests that run programs: the library in the form that programs find it, unused addresses and
//! ports, and processes that are killed when the test ends.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use crate::artifacts::built;
use crate::artifacts::{directory, source, urxe_program};
use crate::{netns, tcp_port};

/// The lower bound of the ACK timeout, in seconds. [`Library::program`] and [`in_namespace`] set it to 20,
/// because the programs' own timeout, often 67 ms with seven retries, is too short for a peer that a busy
/// machine does not schedule.
pub const MIN_ACK_TIMEOUT: &str = "URXE_MIN_ACK_TIMEOUT";

/// Returns the command that runs `urxe` with the given arguments and the libraries built for the tests.
pub fn urxe(args: &[&str]) -> Command {
    let mut command = Command::new(urxe_program());
    command.args(args);
    for (name, _) in std::env::vars_os() {
        // With URXE_SHARED_MEMORY=off, the tests run over sockets.
        if name.to_string_lossy().starts_with("URXE_") && name != "URXE_SHARED_MEMORY" {
            command.env_remove(name);
        }
    }
    command.env("URXE_LIBRARY", library()).env("URXE_PRELOAD", preload());
    // The files that urxe keeps for each address are removed with the target directory.
    command.env("XDG_RUNTIME_DIR", directory());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the path of the library built for the tests. The one that `cargo build` placed next to urxe may be
/// older.
pub fn library() -> PathBuf {
    built("libibverbs.so").expect("cargo builds the library before its tests")
}

/// Returns the path of the preload library, which makes the devices visible in `/sys` and `/dev`: that in
/// `URXE_PRELOAD`, or that which Cargo built.
pub fn preload() -> PathBuf {
    let built =
        || built("liburxe_preload.so").expect("urxe-preload is not built: run cargo build --workspace");
    std::env::var_os("URXE_PRELOAD").map_or_else(built, PathBuf::from)
}

/// Copies a build product to a path with `cp`. If this process wrote the copy itself, a child forked by
/// another thread could inherit the open descriptor, and the copy could not be executed (ETXTBSY).
pub fn copy_built(name: &str, to: &Path) {
    let file = built(name).unwrap_or_else(|| panic!("{name} is not built: run cargo build --workspace"));
    let status = Command::new("cp").arg(file).arg(to).status().unwrap();
    assert!(status.success(), "cp {name}: {status}");
}

/// A directory that contains the library under the names that programs load.
pub struct Library(tempfile::TempDir);

impl Library {
    pub fn new() -> Library {
        let dir = tempfile::tempdir().unwrap();
        let built = built("libibverbs.so").expect("cargo builds the library before its tests");
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            std::os::unix::fs::symlink(&built, dir.path().join(name)).unwrap();
        }
        Library(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the command that runs a program with a device on the given address.
    pub fn program(&self, name: &str, address: &str) -> Command {
        let mut command = Command::new(name);
        command
            .env("LD_LIBRARY_PATH", self.path())
            .env("URXE_LINK", format!("udp:{address}"))
            .env(MIN_ACK_TIMEOUT, "20");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Returns two loopback addresses that no other test uses.
pub fn addresses() -> [String; 2] {
    [(); 2].map(|()| crate::addresses::address().to_string())
}

/// Returns a TCP port that no socket uses.
pub fn port() -> u16 {
    tcp_port::unused()
}

/// Returns standard output followed by standard error.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Runs a shell script in a new network namespace and returns its output. The script must succeed within five
/// minutes. Its user is root inside the namespace and unprivileged outside, which requires that user
/// namespaces are allowed. The script has the given variables and an empty directory, `$DIR`. `run ADDRESS
/// PROGRAM ARGUMENT...` runs a program on a device with that address, and `two_ipv6_addresses` creates
/// fd77::1 and fd77::2.
pub fn in_namespace(script: &str, variables: &[(&str, &str)]) -> String {
    const COMMANDS: &str = r#"
        run() { address=$1; shift; "$URXE" run --ip "$address" --min-ack-timeout 20 -- "$@"; }
        two_ipv6_addresses() {
            ip link set lo up && ip addr add fd77::1/128 dev lo nodad && ip addr add fd77::2/128 dev lo nodad || exit 3
        }
    "#;
    let dir = tempfile::tempdir().unwrap();
    let mut command = netns::unprivileged(&[COMMANDS, script].concat());
    command.envs(variables.iter().copied()).env("DIR", dir.path());
    command.env("URXE", urxe_program()).env("URXE_LIBRARY", library()).env("URXE_PRELOAD", preload());
    let out = command.output().expect("unshare (apt-get install util-linux)");
    let (printed, status) = (text(&out), out.status);
    assert!(status.success(), "{status} (are user namespaces allowed, and iproute2 installed?)\n{printed}");
    printed
}

/// A running program, killed on drop.
pub struct Running(Option<Child>);

impl Running {
    pub fn new(mut command: Command) -> Running {
        let program = command.get_program().to_owned();
        Running(Some(
            command.spawn().unwrap_or_else(|e| panic!("{program:?}: {e} (apt-get install ibverbs-utils)")),
        ))
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.0.as_ref().expect("`finish` consumes the process").id()
    }

    /// Waits for the program to exit, and returns its output. Kills it at the time limit.
    pub fn finish(mut self, limit: Duration) -> Output {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + limit;
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a server and, once it is `ready`, its client, each for at most `limit`. Both must succeed. Returns
/// the outputs of the client and the server.
pub fn both_ends(server: Command, ready: impl FnOnce(), client: Command, limit: Duration) -> [String; 2] {
    let commands = format!("{client:?}\n{server:?}");
    let serving = Running::new(server);
    ready();
    let ends = [Running::new(client).finish(limit), serving.finish(limit)];
    let printed = ends.each_ref().map(text);
    let all_succeeded = ends.iter().all(|end| end.status.success());
    assert!(
        all_succeeded,
        "{commands}\n{:?}\nclient:\n{}\nserver:\n{}",
        ends.map(|end| end.status),
        printed[0],
        printed[1]
    );
    printed
}

/// Waits for a TCP listener on a port, because the clients of ping-pong programs do not retry.
pub fn wait_for_listener(port: &str) {
    tcp_port::wait_for_listener(port.parse().unwrap());
}

/// RDMA CM port space of RC connections (`RDMA_PS_TCP`).
pub const TCP_PORTS: u16 = 0x0106;
/// RDMA CM port space of datagrams (`RDMA_PS_UDP`).
pub const UDP_PORTS: u16 = 0x0111;
/// RDMA CM port space of other queue pairs, such as XRC (`RDMA_PS_IB`).
pub const IB_PORTS: u16 = 0x013F;

/// Waits for a connection manager listener on a port in one of the given port spaces.
///
/// # Panics
/// If there is none within a minute.
pub fn wait_for_service(spaces: &[u16], port: u16) {
    let name = |space: &u16| format!("{:016x}", u64::from(*space) << 16 | u64::from(port));
    let services: Vec<String> = spaces.iter().map(name).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_bound = || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let mut claims = sockets.lines().filter(|line| line.contains("urxe-service"));
        claims.any(|line| services.iter().any(|service| line.ends_with(service)))
    };
    while !is_bound() {
        assert!(Instant::now() < deadline, "no listener on port {port} in the port spaces {spaces:#x?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a hash of what a program from `c/` is built from: its options, the files of that directory, and
/// the versions of the installed headers.
fn inputs(name: &str, libraries: &[&str], flags: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, libraries, flags).hash(&mut hasher);
    for file in [format!("{name}.c"), "common.h".to_owned()] {
        std::fs::read(source("tests/c").join(file)).unwrap().hash(&mut hasher);
    }
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h", "rdma/rsocket.h", "ucp/api/ucp.h"] {
        let metadata = std::fs::metadata(Path::new("/usr/include").join(header));
        metadata.and_then(|metadata| metadata.modified()).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// A program from `c/`, built against the installed headers, libibverbs and librdmacm.
pub struct CProgram {
    program: String,
}

impl CProgram {
    pub fn build(name: &str) -> CProgram {
        CProgram::build_with(name, &["-lrdmacm", "-libverbs"])
    }

    /// Builds a program, linked against the given libraries, unless another test has built it from the same
    /// files. The variable `CFLAGS` adds options, such as those of a sanitizer.
    pub fn build_with(name: &str, libraries: &[&str]) -> CProgram {
        let flags = std::env::var("CFLAGS").unwrap_or_default();
        let programs = directory().join("c");
        let kept = programs.join(format!("{:016x}", inputs(name, libraries, &flags)));
        if !kept.exists() {
            std::fs::create_dir_all(&programs).unwrap();
            let new = tempfile::tempdir_in(&programs).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-Wall", "-Werror", "-O1", "-g", "-pthread", "-o"]).arg(new.path().join(name));
            cc.arg(source(&format!("tests/c/{name}.c"))).args(libraries).args(flags.split_whitespace());
            let built = cc.output().expect("a C compiler (apt-get install gcc)");
            assert!(built.status.success(), "{} (apt-get install librdmacm-dev libucx-dev)", text(&built));
            // Fails if another test was faster.
            if std::fs::rename(new.path(), &kept).is_ok() {
                let _ = new.keep();
            }
        }
        CProgram { program: kept.join(name).to_str().unwrap().to_owned() }
    }

    pub fn program(&self) -> &str {
        &self.program
    }

    /// Runs the program on a device with the given address, and returns its output. The program must succeed.
    pub fn run(&self, address: &str, args: &[&str]) -> String {
        self.run_with(address, args, |_| {})
    }

    /// Runs the program like [`run`](Self::run), with a changed environment.
    pub fn run_with(&self, address: &str, args: &[&str], change: impl FnOnce(&mut Command)) -> String {
        let library = Library::new();
        let mut command = library.program(self.program(), address);
        // Freed memory is overwritten, so that a use after free is likely to be noticed.
        command.args(args).env("MALLOC_PERTURB_", "85");
        change(&mut command);
        let out = Running::new(command).finish(Duration::from_secs(60));
        assert!(out.status.success(), "{} {args:?}: {:?}\n{}", self.program(), out.status, text(&out));
        text(&out)
    }
}

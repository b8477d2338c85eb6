//! Processes that run `c/transfer.c`: numbered messages in both directions, whose contents each side
//! verifies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::programs::{CProgram, Library, Running, port};

/// Waits for a condition.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not reached within 60 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of rings that a process has mapped: each has two mappings of its data.
pub fn rings(process: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.contains("/memfd:urxe ring")).count() / 2
}

/// Waits until both processes have exchanged more messages than when they had printed these numbers of lines:
/// 48 of 64 KiB, more than a ring holds.
pub fn wait_for_messages(ends: [&End; 2], since: [usize; 2]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while (0..2).any(|n| ends[n].says("exchanged") < since[n] + 3) {
        assert!(Instant::now() < deadline, "no messages within 60 s:\n{:?}", ends.map(End::printed));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program, and the directory for the output of its processes.
pub struct Transfer {
    pub library: Library,
    _built: CProgram,
    program: String,
    output: tempfile::TempDir,
    port: String,
}

/// A process.
pub struct End {
    pub running: Running,
    output: PathBuf,
}

impl Transfer {
    pub fn new() -> Transfer {
        let (library, built) = (Library::new(), CProgram::build("transfer"));
        let (program, output) = (built.program().to_owned(), tempfile::tempdir().unwrap());
        Transfer { library, _built: built, program, output, port: port().to_string() }
    }

    /// Lets processes of other users run the program, from a copy in a directory that they can read.
    pub fn copy_program(&mut self, directory: &Path) {
        let copy = directory.join("transfer").to_str().unwrap().to_owned();
        std::fs::copy(&self.program, &copy).unwrap();
        self.program = copy;
    }

    /// Starts a process that serves connections at an address, started by the command line `before`, such as
    /// `unshare`.
    pub fn serve(&self, address: &str, before: &[&str], change: impl FnOnce(&mut Command)) -> End {
        let end = self.start("server", address, before, &[], change);
        eventually("the server listens", || {
            let ended = end.says("urxe:") > 0;
            assert!(!ended, "{}", end.printed());
            end.says("listens") == 1
        });
        end
    }

    /// Starts a process that exchanges `count` messages with a peer, endlessly if that is 0.
    pub fn connect(
        &self,
        [address, peer]: [&str; 2],
        count: usize,
        before: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> End {
        self.start("client", address, before, &["to", peer, &count.to_string()], change)
    }

    fn start(
        &self,
        name: &str,
        address: &str,
        before: &[&str],
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> End {
        let line = [before, &[&self.program]].concat();
        let mut command = self.library.program(line[0], address);
        command.args(&line[1..]).args([address, &self.port]).args(args);
        let output = self.output.path().join(name);
        let file = std::fs::File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        change(&mut command);
        End { running: Running::new(command), output }
    }
}

impl End {
    /// Returns what the process has printed.
    pub fn printed(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// Returns how often the process has printed a line that begins with `text`.
    pub fn says(&self, text: &str) -> usize {
        self.printed().lines().filter(|line| line.starts_with(text)).count()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.running.id() as i32), signal).unwrap();
    }

    /// Waits until the process has ended with success.
    pub fn check_succeeds(self) {
        let Self { running, output } = self;
        let status = running.finish(Duration::from_secs(60)).status;
        assert!(status.success(), "{status}\n{}", std::fs::read_to_string(output).unwrap());
    }

    /// Returns the number of rings of the process, or of its only child if it is the parent of the program.
    pub fn rings(&self) -> usize {
        let id = self.running.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        rings(children.trim().parse().unwrap_or(id))
    }

    /// Returns the number of open descriptors of the process, and its resident memory in KiB.
    pub fn descriptors_and_memory(&self) -> (usize, usize) {
        let directory = format!("/proc/{}", self.running.id());
        let status = std::fs::read_to_string(format!("{directory}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let descriptors = std::fs::read_dir(format!("{directory}/fd")).unwrap().count();
        (descriptors, resident.trim_end_matches("kB").trim().parse().unwrap())
    }
}

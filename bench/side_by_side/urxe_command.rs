//! The `urxe` command, as which the benchmark starts itself: Cargo builds no program of another package for a
//! benchmark.

use std::path::PathBuf;
use std::process::ExitCode;

use urxe_cli::Library;
use urxe_test_support::artifacts::built;

/// Returns the program that is the command.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("/proc is mounted")
}

/// Runs this process as the command if its arguments are those of `urxe run` or `urxe broker`, and returns
/// the exit status.
pub fn run() -> Option<ExitCode> {
    let is_command = std::env::args().nth(1).is_some_and(|arg| matches!(&*arg, "run" | "broker"));
    is_command.then(|| urxe_cli::main(|name| built(&format!("{name}.so")).map(Library::File)))
}

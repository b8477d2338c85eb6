//! Files that Cargo builds for the tests, and the directory for those that tests leave behind.

use std::path::{Path, PathBuf};

/// Returns the path of a build product in the directory of this executable or in a parent of it.
pub fn built(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    test.ancestors().map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Returns the path of the `urxe` command.
pub fn urxe_program() -> PathBuf {
    built("urxe").expect("urxe is not built: run cargo build, or cargo test --workspace")
}

/// Returns the directory `tmp` of Cargo's target directory, which Cargo names `CARGO_TARGET_TMPDIR` to test programs only.
pub fn directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // TARGET/PROFILE/deps/PROGRAM
    let target = test.ancestors().nth(3).expect("a program in a target directory");
    let directory = target.join("tmp");
    std::fs::create_dir_all(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    directory
}

/// Returns the path of a file of the repository.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("URXE_REPOSITORY")).join(path)
}

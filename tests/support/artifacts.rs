//! Files that Cargo builds for the tests, and the directory for those that tests leave behind.

use std::path::{Path, PathBuf};

/// Returns the newest of the files `name` that Cargo has compiled with this executable's profile.
pub fn built(name: &str) -> Option<PathBuf> {
    newest(output_directories().into_iter().chain([profile()]).map(|dir| dir.join(name)))
}

/// Returns the newest Rust library of a crate, and the directories with the libraries that it depends on.
pub fn rust_library(name: &str) -> (PathBuf, Vec<PathBuf>) {
    let (prefix, directories) = (format!("lib{name}-"), output_directories());
    let is_library = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "rlib")
            && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    };
    let library = newest(directories.iter().flat_map(|dir| entries(dir)).filter(is_library));
    (library.unwrap_or_else(|| panic!("{name} is not built")), directories)
}

/// Returns the directories to which Cargo writes libraries and programs: PROFILE/deps, or from 1.101 on
/// PROFILE/build/PACKAGE/HASH/out. It links those that it was asked for to PROFILE.
fn output_directories() -> Vec<PathBuf> {
    let profile = profile();
    let packages = entries(&profile.join("build")).flat_map(|package| entries(&package));
    packages.map(|hash| hash.join("out")).chain([profile.join("deps")]).collect()
}

fn newest(paths: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let files = paths.filter(|path| path.is_file());
    files.max_by_key(|path| path.metadata().unwrap().modified().unwrap())
}

/// Returns the directory of the profile, TARGET/PROFILE.
fn profile() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let outputs = test.ancestors().find(|dir| dir.ends_with("deps") || dir.ends_with("build"));
    outputs.and_then(Path::parent).expect("a program in a target directory").to_owned()
}

/// Returns the paths in a directory; none if it is not one.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path())
}

/// Returns the path of the `urxe` command.
pub fn urxe_program() -> PathBuf {
    built("urxe").expect("urxe is not built: run cargo build, or cargo test --workspace")
}

/// Returns the directory `tmp` of Cargo's target directory, which Cargo names `CARGO_TARGET_TMPDIR` to test
/// programs only.
pub fn directory() -> PathBuf {
    let directory = profile().with_file_name("tmp");
    std::fs::create_dir_all(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    directory
}

/// Returns the path of a file of the repository.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("URXE_REPOSITORY")).join(path)
}

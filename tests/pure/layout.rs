//! Tests that Cargo compiles every file of a group of tests, and that the runner runs every test.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories of the groups' files. `support` and `rxe-guest` have none.
const GROUPS: [&str; 5] = ["pure", "command", "netns", "programs", "guest"];

/// Returns the paths of a directory's entries.
fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Appends the Rust files of a directory that are neither the root of a test target nor a module of `parent`,
/// whose directory of modules it is.
fn find_orphans(directory: &Path, parent: &Path, manifests: &str, orphans: &mut Vec<PathBuf>) {
    let parent = fs::read_to_string(parent).unwrap_or_default();
    for path in entries(directory) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            let (root, module) = (path.join("main.rs"), path.with_extension("rs"));
            find_orphans(&path, if root.exists() { &root } else { &module }, manifests, orphans);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_module = parent.lines().any(|line| line.ends_with(&format!("mod {name};")));
            let file = path.strip_prefix(env!("URXE_REPOSITORY")).unwrap().display();
            let is_root =
                manifests.contains(&format!("/{file}\"")) || manifests.contains(&format!("\"{file}\""));
            if !is_module && !is_root {
                orphans.push(path);
            }
        }
    }
}

#[test]
fn every_file_is_a_module_or_a_target() {
    let root = Path::new(env!("URXE_REPOSITORY"));
    let manifests = ["Cargo.toml", "cli/Cargo.toml"].map(|file| fs::read_to_string(root.join(file)).unwrap());
    let mut orphans = Vec::new();
    for group in GROUPS {
        let directory = root.join("tests").join(group);
        find_orphans(&directory, &directory.join("main.rs"), &manifests.concat(), &mut orphans);
    }
    // A file of a package that a test generates.
    orphans.retain(|path| !path.ends_with("programs/cargo_runner/lib.rs"));
    assert!(orphans.is_empty(), "no `mod` includes these, and no Cargo.toml: {orphans:#?}");
}

#[test]
fn no_test_is_ignored() {
    let root = Path::new(env!("URXE_REPOSITORY"));
    let mut directories: Vec<_> = [
        "src", "tests", "cli", "decode", "ibverbs", "netsim", "nvme", "preload", "python", "rsockets",
        "soak", "tokio",
    ]
    .iter()
    .map(|name| root.join(name))
    .collect();
    while let Some(directory) = directories.pop() {
        for path in entries(&directory) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let is_ignored = |line: &str| line.trim_start().starts_with("#[ignore");
                assert!(!text.lines().any(is_ignored), "{} has a test that is ignored", path.display());
            }
        }
    }
}

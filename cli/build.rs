//! Determines the commit from which the command is built, and its features, for `urxe --version`; and the
//! directory of the libraries that the command contains.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=URXE_COMMIT");
    let directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let commit = env::var("URXE_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = commit.or_else(|| published_commit(&directory)).or_else(|| checked_out_commit(&directory));
    println!("cargo::rustc-env=URXE_BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let features = env::vars().filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(feature_name));
    let mut features: Vec<String> = features.collect();
    features.sort();
    let features = if features.is_empty() { "none".into() } else { features.join(" ") };
    println!("cargo::rustc-env=URXE_BUILD_FEATURES={features}");
    println!("cargo::rustc-env=URXE_BUILD_TARGET={}", env::var("TARGET").expect("cargo sets it"));
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out, or from Cargo 1.101 on PROFILE/build/PACKAGE/HASH/out.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let build =
        out.ancestors().find(|dir| dir.ends_with("build")).expect("OUT_DIR is below a directory 'build'");
    println!("cargo::rustc-env=URXE_BUILD_DIRECTORY={}", build.display());
}

/// Converts the name of a feature's environment variable, without `CARGO_FEATURE_`, to the feature's name.
fn feature_name(variable: &str) -> String {
    variable.to_lowercase().replace('_', "-")
}

/// Reports whether the text is a commit hash.
fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the commit that cargo has recorded in a published package.
fn published_commit(directory: &Path) -> Option<String> {
    let file = directory.join(".cargo_vcs_info.json");
    let text = fs::read_to_string(&file).ok()?;
    println!("cargo::rerun-if-changed={}", file.display());
    let mut words = text.split('"').skip_while(|word| *word != "sha1");
    words.nth(2).filter(|commit| is_commit(commit)).map(str::to_owned)
}

/// Returns the checked-out commit if git tracks this package, and not only a directory that contains it.
fn checked_out_commit(directory: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").arg("-C").arg(directory).args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    // The reflog changes with each commit and checkout; without it, HEAD and the branch do. A path that does
    // not exist would make cargo run this script each time.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| directory.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

//! Finds the shared libraries that the `urxe` command contains, in Cargo's build directory.
//!
//! A macro, because only the compilation of the command comes after that of the libraries; its build script
//! may run before.

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs};

/// Expands to the path of a shared library as a string literal, given its name without suffix as a string
/// literal. Takes the newest file `NAME.so` or `NAME-HASH.so` of those that Cargo has compiled: it adds a
/// hash to the names of libraries that come from a registry. Without such a file, which `cargo check` does
/// not build, the path is that of `NAME.so`.
#[proc_macro]
pub fn library(input: TokenStream) -> TokenStream {
    let name = input.to_string();
    let name = name.trim_matches('"');
    let build = env::var("URXE_BUILD_DIRECTORY").expect("the build script sets URXE_BUILD_DIRECTORY");
    let build = Path::new(&build);
    // Cargo writes libraries to PROFILE/deps, and from 1.101 on to PROFILE/build/PACKAGE/HASH/out.
    let deps = build.with_file_name("deps");
    let outputs = entries(build).flat_map(|package| entries(&package)).map(|hash| hash.join("out"));
    let directories = outputs.chain([deps.clone()]);
    let modified =
        |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let libraries = directories.flat_map(|dir| entries(&dir)).filter(|file| is_library(file, name));
    let path = libraries.max_by_key(modified).unwrap_or_else(|| deps.join(format!("{name}.so")));
    let path = path.to_str().expect("Cargo requires that its build directory is valid UTF-8");
    TokenTree::from(Literal::string(path)).into()
}

/// Returns the paths in a directory; none if it is not one.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path())
}

/// Reports whether a file is the library `name`, with a hash or without.
fn is_library(file: &Path, name: &str) -> bool {
    let file = file.file_name().and_then(|file| file.to_str());
    let rest = file.and_then(|file| file.strip_prefix(name)?.strip_suffix(".so"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

//! Finds the shared libraries that the `urxe` command contains, in Cargo's build directory.
//!
//! A macro, because only the compilation of the command comes after that of the libraries; its build script may run before.

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs};

/// Expands to the path of a shared library as a string literal, given its name without suffix as a string literal. Takes the
/// newest file `NAME.so` or `NAME-HASH.so` in the directory `$URXE_LIBRARIES`, which the build script of the command sets:
/// Cargo adds a hash to the names of libraries that come from a registry. Without such a file, which `cargo check` does not
/// build, the path is that of `NAME.so`.
#[proc_macro]
pub fn library(input: TokenStream) -> TokenStream {
    let name = input.to_string();
    let name = name.trim_matches('"');
    let directory = env::var("URXE_LIBRARIES").expect("the build script sets URXE_LIBRARIES");
    let directory = Path::new(&directory);
    let path = newest(directory, name).unwrap_or_else(|| directory.join(format!("{name}.so")));
    let path = path.to_str().expect("Cargo requires that its build directory is valid UTF-8");
    TokenTree::from(Literal::string(path)).into()
}

/// Returns the newest file of the library `name` in a directory.
fn newest(directory: &Path, name: &str) -> Option<PathBuf> {
    let files = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let libraries = files.filter(|file| {
        let file = file.file_name();
        let rest = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_suffix(".so"));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
    let modified =
        |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    libraries.map(|file| file.path()).max_by_key(modified)
}

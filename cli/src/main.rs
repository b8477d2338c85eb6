//! The `urxe` command.

use std::borrow::Cow;

/// Returns the contents of a library for `urxe run`, so that an installed command needs no other file.
#[cfg(not(debug_assertions))]
macro_rules! embedded {
    ($name:literal) => {
        Some(Cow::Borrowed(include_bytes!(urxe_embed::library!($name)).as_slice()))
    };
}

/// Returns the contents of a library for `urxe run`. A debug build contains no copy, but reads the file in the build directory.
#[cfg(debug_assertions)]
macro_rules! embedded {
    ($name:literal) => {
        std::fs::read(urxe_embed::library!($name)).ok().map(Cow::Owned)
    };
}

fn main() -> std::process::ExitCode {
    urxe_cli::main(|name| match name {
        "libibverbs" => embedded!("libibverbs"),
        "liburxe_preload" => embedded!("liburxe_preload"),
        _ => None,
    })
}

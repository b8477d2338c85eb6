//! The `urxe` command.

use urxe_cli::Library;

/// Returns a library for `urxe run`: its contents, so that an installed command needs no other file.
#[cfg(not(debug_assertions))]
macro_rules! library {
    ($name:literal) => {
        Some(Library::Contents(include_bytes!(urxe_embed::library!($name))))
    };
}

/// Returns a library for `urxe run`: in a debug build, the file in the build directory.
#[cfg(debug_assertions)]
macro_rules! library {
    ($name:literal) => {
        Some(Library::File(urxe_embed::library!($name).into()))
    };
}

fn main() -> std::process::ExitCode {
    urxe_cli::main(|name| match name {
        "libibverbs" => library!("libibverbs"),
        "liburxe_preload" => library!("liburxe_preload"),
        _ => None,
    })
}

//! The `urxe` command.

use rust_embed::Embed;

/// The libraries for `urxe run`, so that an installed command needs no other file. A debug build contains no copy,
/// but reads the files in the build directory.
#[derive(Embed)]
#[folder = "$URXE_LIBRARIES"]
#[include = "libibverbs*.so"]
#[include = "liburxe_preload*.so"]
struct Libraries;

fn main() -> std::process::ExitCode {
    urxe_cli::main(|name| {
        let file = Libraries::iter().find(|file| file.starts_with(name) && file.ends_with(".so"))?;
        Some(Libraries::get(&file)?.data)
    })
}

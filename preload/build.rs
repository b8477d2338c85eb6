//! Passes to the linker, and to `src/unmapping.rs`, the version node of the C library's functions that this
//! file defines.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let (node, jump) = match target.as_str() {
        "x86_64" => ("GLIBC_2.2.5", "jmp"),
        "aarch64" => ("GLIBC_2.17", "b"),
        _ => return,
    };
    println!("cargo:rustc-env=URXE_GLIBC_NODE={node}");
    println!("cargo:rustc-env=URXE_JUMP={jump}");
    let script = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("versions");
    fs::write(&script, format!("{node} {{ }};\n")).expect("cannot write to OUT_DIR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    // GNU ld accepts no named versions besides rustc's own version script.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
}

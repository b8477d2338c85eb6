//! Passes to the linker the symbol version nodes that programs require; `export!` assigns functions to the
//! public nodes. Generates the symbols of the private nodes from the tables in `build/private.rs`.

#[path = "build/private.rs"]
mod private;

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Minor version of the newest public symbol version node of libibverbs (`IBVERBS_1.n`).
const NEWEST: u32 = 18;
/// Minor version of the newest public symbol version node of librdmacm (`RDMACM_1.n`).
const NEWEST_CM: u32 = 5;

fn main() {
    let mut script = String::new();
    for (node, newest) in [("IBVERBS", NEWEST), ("RDMACM", NEWEST_CM)] {
        writeln!(script, "{node}_1.0 {{ }};").expect("writing to a String never fails");
        for minor in 1..=newest {
            writeln!(script, "{node}_1.{minor} {{ }} {node}_1.{};", minor - 1)
                .expect("writing to a String never fails");
        }
    }
    for number in private::NODES {
        writeln!(script, "IBVERBS_PRIVATE_{number} {{ }};").expect("writing to a String never fails");
    }
    let dir = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let write = |name: &str, text: &str| {
        let path = Path::new(&dir).join(name);
        fs::write(&path, text).expect("cannot write to OUT_DIR");
        path
    };
    let path = write("versions", &script);
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let jump = if target == "aarch64" { "b" } else { "jmp" };
    write("private.s", &private::assembly(jump));
    println!("cargo:rustc-env=URXE_JUMP={jump}");
    for arg in [
        &format!("--version-script={}", path.display()),
        "-soname,libibverbs.so.1",
        "-z,nodelete",
        "-z,start-stop-visibility=hidden",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{arg}");
    }
    // GNU ld accepts no named versions besides rustc's own version script. From 1.90 on, rustup's rustc for
    // x86-64 contains lld and uses it; elsewhere lld must be installed.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
}

//! Passes to the linker the symbol version nodes that programs require; `export!` assigns functions to the
//! nodes.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Minor version of the newest public symbol version node of libibverbs (`IBVERBS_1.n`).
const NEWEST: u32 = 18;
/// Minor version of the newest public symbol version node of librdmacm (`RDMACM_1.n`).
const NEWEST_CM: u32 = 5;
/// Symbol version nodes of the private interface between libibverbs and its drivers (`IBVERBS_PRIVATE_n`),
/// one per incompatible change: releases 34 to 56 use node 34. A vendor library (libmlx5, libefa) does not
/// load unless the node that it was linked against exists.
const PRIVATE: [u32; 5] = [34, 57, 59, 64, 65];

fn main() {
    let mut script = String::new();
    for (node, newest) in [("IBVERBS", NEWEST), ("RDMACM", NEWEST_CM)] {
        writeln!(script, "{node}_1.0 {{ }};").expect("writing to a String never fails");
        for minor in 1..=newest {
            writeln!(script, "{node}_1.{minor} {{ }} {node}_1.{};", minor - 1)
                .expect("writing to a String never fails");
        }
    }
    for number in PRIVATE {
        writeln!(script, "IBVERBS_PRIVATE_{number} {{ }};").expect("writing to a String never fails");
    }
    let dir = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let path = Path::new(&dir).join("versions");
    fs::write(&path, script).expect("cannot write to OUT_DIR");
    for arg in [
        &format!("--version-script={}", path.display()),
        "-soname,libibverbs.so.1",
        "-z,nodelete",
        "-z,start-stop-visibility=hidden",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

//! Tells the linker of the version nodes that programs ask for; which function is in which, `export!` says.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// libibverbs' public nodes.
const NEWEST: u32 = 18;
/// librdmacm's.
const NEWEST_CM: u32 = 5;
/// Those of its private interface to drivers, one for each change of it: 34 is of releases 34 to 56.
/// Libraries of vendors (libmlx5, libefa) do not load without theirs.
const PRIVATE: [u32; 5] = [34, 57, 59, 64, 65];

fn main() {
    let mut script = String::new();
    for (node, newest) in [("IBVERBS", NEWEST), ("RDMACM", NEWEST_CM)] {
        writeln!(script, "{node}_1.0 {{ }};").expect("a string takes all");
        for minor in 1..=newest {
            writeln!(script, "{node}_1.{minor} {{ }} {node}_1.{};", minor - 1).expect("a string takes all");
        }
    }
    for number in PRIVATE {
        writeln!(script, "IBVERBS_PRIVATE_{number} {{ }};").expect("a string takes all");
    }
    let dir = env::var("OUT_DIR").expect("cargo sets it");
    let path = Path::new(&dir).join("versions");
    fs::write(&path, script).expect("cargo's own directory can be written to");
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

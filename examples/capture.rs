//! Capture: all of a NIC's packets in a pcapng file for Wireshark and tshark.
//!
//! Shows `CaptureFile` on the first NIC of a pair, with virtual timestamps. Run it with `cargo run --example
//! capture [FILE]`; without FILE, it writes a temporary file and removes it.

use std::path::PathBuf;
use std::time::Duration;

use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::*;

fn main() -> Result<(), urxe::Error> {
    let kept = std::env::args_os().nth(1).map(PathBuf::from);
    let temporary = std::env::temp_dir().join(format!("urxe-example-{}.pcapng", std::process::id()));
    let path = kept.as_ref().unwrap_or(&temporary);

    let fabric = Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(10)))?;
    let file = CaptureFile::create(path, Timestamps::Virtual)?;
    let (a, b) = fabric.pair_builder().capture(&file).build()?;

    let target = b.pd.reg_mr(64, Access::ALL)?;
    a.qp.post_send(&SendWr::write(1, &[], target.remote(0)).inline(b"captured"))?;
    a.cq.wait(Duration::from_secs(1))?;
    file.flush()?;

    let bytes = std::fs::read(path)?;
    println!("{}: {} bytes of pcapng, with a WRITE and its acknowledgement", path.display(), bytes.len());
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng file begins with a section header");
    assert!(bytes.windows(8).any(|part| part == b"captured"), "the payload is in the file");
    match kept {
        Some(path) => println!("open it with: wireshark {}", path.display()),
        None => std::fs::remove_file(path)?,
    }
    Ok(())
}

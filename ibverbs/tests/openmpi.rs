//! Open MPI over UCX over the library: ranks on addresses of their own.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Running, addresses, built, library, preload, text};

/// Runs `c/ranks.c` in so many ranks over these transports of UCX; the bytes that they have captured.
fn ranks(count: usize, transports: &str) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/ranks.c");
    let program = dir.path().join("ranks");
    let cc =
        Command::new("mpicc").args(["-Wall", "-Werror", "-O1", "-o"]).arg(&program).arg(&source).output();
    let cc = cc.expect("mpicc (apt-get install libopenmpi-dev)");
    assert!(cc.status.success(), "{}", text(&cc));
    // Each rank's own address.
    let own: Vec<String> = std::iter::repeat_with(addresses).flatten().take(count).collect();
    let start = dir.path().join("start");
    let script = format!(
        "#!/bin/bash\naddresses=({})\n\
         exec '{}' run --ip ${{addresses[$OMPI_COMM_WORLD_RANK]}} --capture '{}/%p.pcapng' -- '{}'\n",
        own.join(" "),
        built("urxe").expect("urxe itself: cargo build, or cargo test --workspace").display(),
        dir.path().display(),
        program.display()
    );
    fs::write(&start, script).unwrap();
    fs::set_permissions(&start, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-np", &count.to_string()]);
    // UCX or nothing: neither shared memory nor TCP.
    command.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx"]).arg(&start);
    command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "urxe0:1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("URXE_LIBRARY", library()).env("URXE_PRELOAD", preload());
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let out = Running::new(command).finish(Duration::from_secs(120));
    let told = text(&out);
    assert!(out.status.success(), "{transports}: {told}");
    assert_eq!(told.matches("is done").count(), count, "{transports}: {told}");
    let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap());
    let captures = files.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pcapng"));
    captures.map(|entry| entry.metadata().unwrap().len()).sum()
}

/// What the ring alone sends: three rounds of 4^0 to 4^9 bytes from each of them.
const SENT: u64 = 3 * ((1 << 20) - 1) / 3;

#[test]
fn two_ranks_over_reliable_connections() {
    let captured = ranks(2, "rc,self");
    assert!(captured > 2 * 2 * SENT, "{captured} bytes, at the sender and at the receiver");
}

#[test]
fn three_ranks_over_datagrams() {
    let captured = ranks(3, "ud_verbs,self");
    assert!(captured > 3 * 2 * SENT, "{captured} bytes, at the sender and at the receiver");
}

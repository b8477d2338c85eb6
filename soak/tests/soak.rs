//! Tests of the soak test: a short run passes, and planted errors are found.

use std::process::{Command, Output};

fn soak(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_urxe-soak")).args(args).output().unwrap()
}

/// Runs a soak that must fail, and returns the error message.
fn failure(plant: &str) -> String {
    let output = soak(&["--seconds", "60", "--seed", "3", "--plant", plant]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("soak of 4 processes for ") && stdout.contains(" verified\n"), "{stdout}");
    assert!(stderr.ends_with("to repeat it: urxe-soak --seconds 60 --seed 3 --processes 4\n"), "{stderr}");
    stderr
}

#[test]
fn soak_of_three_seconds_over_sockets_passes_and_leaves_no_process() {
    check_soak_passes("4");
}

#[test]
fn soak_of_three_seconds_over_rings_in_shared_memory_passes_and_leaves_no_process() {
    check_soak_passes("1");
}

fn check_soak_passes(seed: &str) {
    let output = soak(&["--seconds", "3", "--seed", seed, "--processes", "4", "--json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let positive = |name: &str| summary[name].as_u64() > Some(0);
    for name in ["messages", "bytes", "connections_by_cm", "connections_by_exchange", "kills"] {
        assert!(positive(name), "{name} in {summary}");
    }
    assert!(summary["peak"]["threads"].as_u64() > Some(0), "{summary}");
    let workers = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("\0soak-worker\0") && line.contains(&format!("\"seed\":{seed},"))
    });
    assert_eq!(workers.count(), 0);
}

#[test]
fn changed_byte_is_found() {
    let message = failure("corrupt");
    assert!(message.contains(" is 0x") && message.contains(", expected 0x"), "{message}");
}

#[test]
fn message_that_succeeded_without_delivery_is_found() {
    let message = failure("lose");
    assert!(message.contains("completed successfully, but"), "{message}");
}

#[test]
fn leak_of_descriptors_is_found() {
    let message = failure("leak");
    assert!(message.contains(" descriptors are in use, more than 400"), "{message}");
}

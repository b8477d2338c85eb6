//! `urxe run` as Cargo's runner for another project's test binaries, whose tests run in parallel threads and
//! in two runs of `cargo test` at once.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use urxe_test_support::programs::{Running, addresses, built, library, preload, text};

/// Limit for compiling and testing the project, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Manifest of the project, which is in no workspace.
const MANIFEST: &str = "[package]\nname = \"foreign\"\nedition = \"2024\"\n[workspace]\n";

/// Creates a project with two test binaries of four tests each.
fn create_project(dir: &Path) {
    fs::write(dir.join("Cargo.toml"), MANIFEST).unwrap();
    for name in ["src", "tests"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    fs::write(dir.join("src/lib.rs"), include_str!("cargo_runner/lib.rs")).unwrap();
    for binary in ["first", "second"] {
        let test =
            |i| format!("#[test]\nfn test_{i}() {{\n    (0..10).for_each(|_| foreign::use_device());\n}}\n");
        fs::write(dir.join(format!("tests/{binary}.rs")), (0..4).map(test).collect::<String>()).unwrap();
    }
}

/// Returns the command that runs the project's tests with `urxe run` as the runner.
fn cargo_test(dir: &Path, urxe: &Path, address: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["test", "--offline", "--tests"]).args(args).current_dir(dir);
    let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", env::consts::ARCH.to_uppercase());
    command
        .env(runner, format!("{} run --ip {address} --", urxe.display()))
        .env("CARGO_TARGET_DIR", dir.join("target"));
    command.env("URXE_LIBRARY", library()).env("URXE_PRELOAD", preload());
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR")).env_remove("LD_LIBRARY_PATH");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn tests_of_another_project_run_in_parallel() {
    let dir = tempfile::tempdir().unwrap();
    let urxe: PathBuf = built("urxe").expect("the command is built (cargo build --workspace)");
    // Shared by both runs, and by no other user of the machine.
    let [address, _] = addresses();
    create_project(dir.path());
    let compiled = cargo_test(dir.path(), &urxe, &address, &["--no-run"]).output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled));
    let args = ["--", "--nocapture", "--test-threads=4"];
    let runs = [(); 2].map(|()| Running::new(cargo_test(dir.path(), &urxe, &address, &args)));
    let runs = runs.map(|run| thread::spawn(|| run.finish(LIMIT)));
    for run in runs {
        let out = run.join().unwrap();
        let printed = text(&out);
        assert!(out.status.success(), "{printed}");
        assert_eq!(printed.matches("test result: ok. 4 passed").count(), 2, "{printed}");
        assert_eq!(printed.matches("device urxe0").count(), 80, "{printed}");
    }
}

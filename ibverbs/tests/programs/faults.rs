//! A program (`c/faults.c`) that unmaps, protects and truncates memory that it has registered.

#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use support::{CProgram, Library, Running, addresses, preload, text};

fn run(name: &str) {
    let [address, _] = addresses();
    CProgram::build("faults").run(&address, &[name]);
}

#[test]
fn lost_memory_fails_the_work_request_and_a_fault_reaches_the_handler_installed_before() {
    run("before");
}

/// Runs a case with the library that `urxe run` preloads.
fn run_preloaded(name: &str) {
    let (library, [address, _]) = (Library::new(), addresses());
    let faults = CProgram::build("faults");
    let mut command = library.program(faults.program(), &address);
    command.arg(name).env("LD_PRELOAD", preload());
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
}

#[test]
fn lost_memory_fails_the_work_request_though_the_preloaded_program_installs_its_handler_later() {
    run_preloaded("after");
}

#[test]
fn handler_of_the_program_runs_on_the_alternate_stack_only_if_installed_with_sa_onstack() {
    run_preloaded("stacks");
}

#[test]
fn child_of_vfork_that_resets_a_signal_changes_no_action_of_its_parent() {
    run_preloaded("vforks");
}

#[test]
fn fault_of_the_program_without_a_handler_ends_it_with_the_signal() {
    run("unhandled");
}

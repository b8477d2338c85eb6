//! Tests of access to registered memory that the program (`c/faults.c`) has unmapped, replaced, protected or
//! truncated.

use std::time::Duration;

use urxe_test_support::programs::{CProgram, Library, Running, addresses, preload, text};

fn run(name: &str) {
    let [address, _] = addresses();
    CProgram::build("faults").run(&address, &[name]);
}

#[test]
fn work_request_on_unmapped_memory_fails_and_other_faults_reach_earlier_handler() {
    run("before");
}

/// Runs one case with the library that `urxe run` preloads.
fn run_preloaded(name: &str) {
    let (library, [address, _]) = (Library::new(), addresses());
    let faults = CProgram::build("faults");
    let mut command = library.program(faults.program(), &address);
    command.arg(name).env("LD_PRELOAD", preload());
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
}

#[test]
fn work_request_on_unmapped_memory_fails_even_if_a_handler_is_installed_later() {
    run_preloaded("after");
}

#[test]
fn work_request_on_unmapped_memory_fails_in_a_thread_that_blocks_all_signals() {
    run("blocked in thread");
    run_preloaded("blocked in thread");
}

#[test]
fn work_request_on_unmapped_memory_fails_in_a_thread_that_blocks_all_signals_later() {
    run_preloaded("blocked later");
}

#[test]
fn key_of_unmapped_memory_gives_no_access_to_queues_of_the_library() {
    run("own memory");
    run_preloaded("own memory");
}

#[test]
fn program_handler_runs_on_the_alternate_stack_only_if_set_with_sa_onstack() {
    run_preloaded("stacks");
}

#[test]
fn vfork_child_that_resets_a_signal_does_not_change_the_action_of_its_parent() {
    run_preloaded("vforks");
}

#[test]
fn fault_without_a_handler_terminates_the_program_with_the_signal() {
    run("unhandled");
}

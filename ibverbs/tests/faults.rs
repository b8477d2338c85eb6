//! A program (`c/faults.c`) that unmaps, protects and truncates what it has registered.

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

#[test]
fn lost_memory_fails_the_work_request_though_the_preloaded_program_installs_its_handler_later() {
    let (library, [address, _]) = (Library::new(), addresses());
    let faults = CProgram::build("faults");
    let mut command = library.program(faults.program(), &address);
    command.arg("after").env("LD_PRELOAD", preload());
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
}

#[test]
fn a_fault_of_the_program_without_a_handler_ends_it_with_the_signal() {
    run("unhandled");
}

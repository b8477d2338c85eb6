//! Tests of faults on calls of the C library and on objects (`c/call_faults.c`, and a ping-pong under `urxe
//! run`).

use std::time::Duration;

use urxe_test_support::programs::{CProgram, Library, Running, addresses, text, urxe};

/// Runs one case with the given faults, and returns what the process printed.
fn case(name: &str, faults: &[&str]) -> String {
    let (library, program, [address, _]) = (Library::new(), CProgram::build("call_faults"), addresses());
    let mut command = library.program(program.program(), &address);
    command.arg(name).env("URXE_FAULTS", faults.join(";"));
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
    text(&out)
}

#[test]
fn first_creation_of_a_cq_fails_with_the_injected_errno_and_the_second_succeeds() {
    let printed = case("creation", &["call:ibv_create_cq=ENOMEM@1"]);
    assert!(
        printed.contains("fault call:ibv_create_cq=ENOMEM@1: matched 2 calls, affected 1\n"),
        "{printed}"
    );
    assert!(!printed.contains("retransmitted"), "{printed}");
}

#[test]
fn injected_error_names_rule_and_call_with_explain() {
    let (library, program, [address, _]) = (Library::new(), CProgram::build("call_faults"), addresses());
    let mut command = library.program(program.program(), &address);
    let rule = "call:ibv_create_cq=ENOMEM@1";
    command.arg("creation").env("URXE_FAULTS", rule).env("URXE_EXPLAIN", "1");
    let printed = text(&Running::new(command).finish(Duration::from_secs(60)));
    let line = format!("urxe: ibv_create_cq failed by '{rule}', first call\n");
    assert_eq!(printed.matches(&line).count(), 1, "{printed}");
}

#[test]
fn program_whose_standard_error_cannot_be_written_ends_as_usual() {
    let (library, program, [address, _]) = (Library::new(), CProgram::build("call_faults"), addresses());
    let mut command = library.program(program.program(), &address);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.arg("creation").env("URXE_FAULTS", "call:ibv_create_cq=ENOMEM@1").stderr(full);
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
}

#[test]
fn faults_are_read_from_a_file_that_the_environment_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("faults.txt");
    std::fs::write(&file, "# two faults\ncall:ibv_create_cq=ENOMEM@1\nmr:*=revoke@3600s\n").unwrap();
    let printed = case("creation", &[&format!("@{}", file.display()), "rx:dup=1000"]);
    for fault in
        ["call:ibv_create_cq=ENOMEM@1: matched 2 calls, affected 1", "rx:dup=1000", "mr:*=revoke@3600s"]
    {
        assert!(printed.contains(fault), "{fault} in\n{printed}");
    }
}

#[test]
fn invalid_line_of_a_fault_file_is_named_and_no_device_is_listed() {
    let (library, program) = (Library::new(), CProgram::build("call_faults"));
    let [address, _] = addresses();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("faults.txt");
    std::fs::write(&file, "drop=3\nlose=1\n").unwrap();
    let mut command = library.program(program.program(), &address);
    command.arg("closed").env("URXE_FAULTS", format!("@{}", file.display()));
    let out = Running::new(command).finish(Duration::from_secs(60));
    let printed = text(&out);
    assert!(!out.status.success(), "{printed}");
    let expected = format!("URXE_FAULTS: {}:2: fault rule 'lose=1': unknown action", file.display());
    assert!(printed.contains(&expected), "{printed}");
}

#[test]
fn failed_post_points_bad_wr_at_the_first_request_and_posts_nothing() {
    case(
        "posts",
        &["call:ibv_post_send=ENOSPC@1", "call:ibv_post_recv=ENOSPC@1", "call:ibv_post_srq_recv=ENOSPC@1"],
    );
}

#[test]
fn failed_calls_return_errors_by_the_convention_of_each_function() {
    let names = [
        "ibv_reg_mr",
        "ibv_rereg_mr",
        "ibv_query_gid",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "ibv_modify_qp",
        "rdma_create_event_channel",
        "rdma_create_id",
    ];
    let faults = names.map(|name| format!("call:{name}=EIO@1"));
    let printed = case("conventions", &faults.each_ref().map(|text| text.as_str()));
    for fault in &faults {
        assert!(printed.contains(&format!("fault {fault}: matched ")), "{fault} in\n{printed}");
    }
    assert!(!printed.contains("had no effect"), "{printed}");
}

#[test]
fn failed_calls_on_rsockets_return_errors_by_the_convention_of_each_function() {
    let faults = [
        "call:rsocket=ENFILE@1",
        "call:rconnect=ECONNREFUSED@1",
        "call:rgetpeername=EIO@1",
        "call:rsend=ECONNRESET@1",
        "call:rrecv=ECONNABORTED@1",
        "call:riomap=ENOMEM@1",
        "call:riowrite=EIO@1",
        "call:repoll_create=EMFILE@1",
        "call:repoll_ctl=ENOSPC@1",
        "call:rclose=EINTR@1",
    ];
    let printed = case("rsockets", &faults);
    for fault in faults {
        assert!(printed.contains(&format!("fault {fault}: matched ")), "{fault} in\n{printed}");
    }
    assert!(!printed.contains("had no effect"), "{printed}");
}

#[test]
fn slow_call_takes_the_given_time() {
    case("slow", &["call:ibv_alloc_pd=slow@2,by=200ms"]);
}

#[test]
fn faults_are_reported_even_if_no_device_could_be_opened() {
    let printed = case("closed", &["call:ibv_open_device=ENODEV", "call:ibv_reg_mr=EIO"]);
    assert!(
        printed.contains("fault call:ibv_open_device=ENODEV: matched 1 calls, affected 1\n"),
        "{printed}"
    );
    let warning = "warning: fault rule 'call:ibv_reg_mr=EIO' matched no call and had no effect\n";
    assert!(printed.contains(warning), "{printed}");
}

#[test]
fn program_under_urxe_run_ends_with_the_injected_error() {
    let [address, _] = addresses();
    let fault = "call:ibv_create_cq=ENOMEM@1";
    let arguments = ["run", "--ip", &address, "--fault", fault, "--", "ibv_rc_pingpong", "-g", "0"];
    let out = Running::new(urxe(&arguments)).finish(Duration::from_secs(60));
    let printed = text(&out);
    assert!(!out.status.success() && printed.contains("Couldn't create CQ"), "{printed}");
    assert!(printed.contains(&format!("urxe: fault {fault}: matched 1 calls, affected 1\n")), "{printed}");
}

#[test]
fn urxe_run_refuses_an_unknown_call_and_names_similar_ones() {
    let out = urxe(&["run", "--fault", "call:ibv_post_sent=EIO", "--", "true"]).output().unwrap();
    let printed = text(&out);
    assert!(!out.status.success() && printed.contains("similar: ibv_post_send"), "{printed}");
}

#[test]
fn port_that_a_fault_takes_down_raises_an_event_and_is_reported() {
    let printed = case("port", &["port=down@50ms", "mr:0x1234=revoke@1ms"]);
    assert!(printed.contains("fault port=down@50ms: matched 1 objects, affected 1\n"), "{printed}");
    let warning = "warning: fault rule 'mr:0x1234=revoke@1ms' matched no object and had no effect\n";
    assert!(printed.contains(warning), "{printed}");
}

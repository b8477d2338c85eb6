//! Tests with valgrind's memcheck that programs find no invalid accesses and no use of uninitialised memory
//! in the library.

use std::time::Duration;

use urxe_test_support::programs::{
    CProgram, Library, Running, addresses, both_ends, port, text, wait_for_listener,
};

/// Returns the memcheck findings that involve the library. Each finding ends with a line that contains only
/// the process ID. Other findings are defects in perftest, which sends uninitialised parts of its stack.
fn findings_in_library(printed: &str) -> Vec<&str> {
    let findings = printed.split("== \n");
    let is_ours =
        |text: &&str| ["libibverbs.so", "urxe::", "ibverbs::"].iter().any(|name| text.contains(name));
    findings.filter(is_ours).collect()
}

fn check_no_findings(program: &str, args: &[&str]) {
    let (library, [server, client], port) = (Library::new(), addresses(), port().to_string());
    let checked = |address: &str, host: &[&str]| {
        let mut command = library.program("valgrind", address);
        command.args(["-q", program]).args(args).args(["-p", &port]).args(host);
        command
    };
    let (server_command, client_command) = (checked(&server, &[]), checked(&client, &["127.0.0.1"]));
    let printed =
        both_ends(server_command, || wait_for_listener(&port), client_command, Duration::from_secs(120));
    assert!(
        printed.iter().all(|printed| findings_in_library(printed).is_empty()),
        "{program} {args:?}\n{printed:#?}"
    );
}

#[test]
fn memcheck_finding_that_involves_the_library_is_recognised() {
    let printed = "==7== Invalid read of size 8\n==7==    at 0x1: ??? (in /usr/bin/ib_write_bw)\n==7== \n\
                ==7== Invalid read of size 4\n==7==    at 0x2: urxe::verbs::cq::Cq::poll (cq.rs:130)\n==7== \n";
    let found = findings_in_library(printed);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("size 4"), "{found:?}");
}

#[test]
fn memcheck_of_pingpong_reports_no_errors() {
    check_no_findings("ibv_rc_pingpong", &["-g", "0", "-n", "50", "-c"]);
    check_no_findings("ibv_ud_pingpong", &["-g", "0", "-n", "50", "-e"]);
}

#[test]
fn memcheck_of_perftest_reports_no_errors() {
    // Valgrind runs one thread at a time, so acknowledgements may be late; the ACK timeout is four seconds.
    check_no_findings("ib_write_bw", &["-F", "-n", "20", "-s", "4096", "-u", "20"]);
    check_no_findings("ib_write_lat", &["-F", "-n", "20", "-u", "20"]);
}

#[test]
fn memcheck_of_connections_reports_no_errors() {
    let (library, connections) = (Library::new(), CProgram::build("connections"));
    for run_case in ["private data", "rejected", "unacknowledged", "endpoints", "migrated", "refused"] {
        let [address, _] = addresses();
        let mut command = library.program("valgrind", &address);
        command.args([
            "-q",
            "--leak-check=full",
            "--show-leak-kinds=definite",
            connections.program(),
            run_case,
            &address,
        ]);
        let out = Running::new(command).finish(Duration::from_secs(120));
        let printed = text(&out);
        assert!(out.status.success() && findings_in_library(&printed).is_empty(), "{run_case}: {printed}");
    }
}

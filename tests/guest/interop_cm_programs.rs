//! Interoperability of unmodified programs that connect by address and port: on the host with the drop-in
//! librdmacm through `urxe run`, in the guest with the kernel's connection manager and rxe. Either side is
//! the server, over IPv4 and IPv6.
//!
//! The link is a tap, which carries TCP too, because qperf uses one address for both. Excluded: XRC, which
//! rxe 6.1 does not support (`rdma_xserver` with RC is included); and over IPv6 the cases of [`for_ipv4`].

mod ends;

use std::path::Path;
use std::process::Command;

use ends::{Ends, LIMIT, Program, Ready, SHORT_LIMIT};
use urxe_test_support::programs;
use urxe_test_support::stock::{Table, Urxe};
use urxe_test_support::testbed::{LinkKind, Testbed};

/// Port of `udaddy`, which has no option to change it.
const UDADDY: u16 = 7174;
const GROUP: &str = "239.7.7.7";

fn all(version: usize) -> Vec<(&'static str, Program)> {
    let rping = |words: &str| {
        let each = format!("rping -a {{server}} -p {{port}} {words}");
        ("rping", Program::new(&format!("{each} -s"), &format!("{each} -c")))
    };
    let (ucmatose, udaddy, cmtime) = ("ucmatose -p {port}", "udaddy", "cmtime -p {port} -c 50");
    let family = ["-f ip -c 20 -C 10 -S 1000", "-f ip6 -c 20 -C 10 -S 1000"][version];
    let bound = |program: &'static str, words| {
        let name = program.split(' ').next().unwrap_or(program);
        (name, Program::bound(program, words).with_output("return status 0"))
    };
    let datagrams = |words| (udaddy, Program { port: Some(UDADDY), ..bound(udaddy, words).1 });
    // The server listens on the wildcard address, which is IPv6's on systems that prefer it.
    let xserver = Program::new("rdma_xserver -p {port}", "rdma_xclient -s {server} -p {port}");
    let rdma_server = Program::new("rdma_server -s {server} -p {port}", "rdma_client -s {server} -p {port}");
    let mut all = vec![
        rping("-C 100 -v -V"),
        rping("-C 20 -V -S 65535"),
        rping("-C 5 -V -q"),
        bound(ucmatose, ""),
        bound(ucmatose, family),
        bound(ucmatose, "-c 3 -m -t 8 -S 60000"),
        datagrams(""),
        datagrams("-c 4 -C 5 -S 1000 -t 8"),
        ("rdma_xserver", xserver.with_output("rdma_xclient: end 0")),
        ("rdma_server", rdma_server.with_output("rdma_client: end 0")),
        ("cmtime", Program { runs_forever: true, ..bound(cmtime, "").1 }.with_output("destroy      :")),
    ];
    if version == 0 {
        all.extend(for_ipv4());
    }
    all
}

/// Returns the programs that run over IPv4 only, because they do not work over IPv6 even between two
/// processes in the guest on Debian 12:
///
/// | program | with an IPv6 address | because |
/// |---|---|---|
/// | `mckey -m ff0e::1 -b fd77::1` | `failure joining: Unknown error 524` | the kernel's `rdma_cm` joins no IPv6 groups on RoCE v2 (ENOTSUPP) |
/// | `ib_write_bw -R fd77::1`, with or without `--ipv6` | `Address family for hostname not supported` | perftest 4.5 resolves IPv4 addresses only; `--ipv6` selects the GID |
/// | `qperf fd77::1 -cm 1`, or a name of it | `getaddrinfo failed: Address family …`, `Name or service not known` | qperf 0.4.11 resolves IPv4 addresses only |
fn for_ipv4() -> Vec<(&'static str, Program)> {
    let mut all = Vec::new();
    for (words, client) in [("-C 10 -S 1000", ""), ("-c 2", " -o")] {
        let receiver = format!("mckey -m {GROUP} {words} -b");
        let mckey =
            Program::new(&format!("{receiver} {{server}}"), &format!("{receiver} {{client}} -s{client}"));
        all.push(("mckey", Program { ready: Ready::Group(GROUP), ..mckey.with_output("return status 0") }));
    }
    // A server of one connection at a time listens again for the next one after a delay, which is long in the
    // guest.
    let perftest = [
        "ib_write_bw -n 100 -q 2",
        "ib_read_lat -n 20",
        "ib_send_bw -n 50",
        "ib_send_bw -n 50 -c UD -s 1024",
    ];
    for program in perftest {
        let words = format!("{program} -R -F -p {{port}}");
        let perftest = Program::new(&words, &format!("{words} {{server}}")).with_output("#bytes");
        all.push(("perftest", Program { connects_early: true, ..perftest }));
    }
    for test in ["rc_lat", "rc_bw", "rc_rdma_write_bw", "rc_rdma_read_bw"] {
        let client = format!("qperf -lp {{port}} {{server}} -cm 1 -t 1 {test}");
        let qperf = Program::new("qperf -lp {port}", &client).with_output(" = ");
        all.push(("qperf", Program { runs_forever: true, connects_early: true, ready: Ready::Tcp, ..qperf }));
    }
    all
}

/// Checks that both sides report a rejection when the host exists but has no listener.
fn check_rejected(ends: &Ends<'_>) -> Result<String, String> {
    const EXPECTED: &str = "RDMA_CM_EVENT_REJECTED, error 8";
    let client = |to: &str| format!("rping -c -a {to} -p 9 -C 1");
    let expect_rejected = |result: Result<String, String>| match result {
        Err(output) if output.contains(EXPECTED) => Ok(()),
        other => Err(format!("the client was not rejected: {other:?}")),
    };
    expect_rejected(ends.spawn_on_host(&client(ends.guest()), &[]).finish(LIMIT))?;
    let other = ends.free_port();
    let _other_server = ends.spawn_on_host(&format!("rping -s -a {} -p {other}", ends.host()), &[]);
    ends.wait_for_service(other)?;
    expect_rejected(
        ends.spawn_in_guest(&client(ends.host())).and_then(|client| Ends::wait_success(client, LIMIT)),
    )?;
    Ok(EXPECTED.into())
}

/// Kills the client of an idle connection in the guest, and checks that the local program receives a
/// disconnect event from the guest's kernel. The connection is idle because the kernel may deregister the
/// memory of a killed process before it disconnects, and a READ in between fails.
fn check_killed_client(ends: &Ends<'_>, program: &str) -> Result<String, String> {
    const EXPECTED: &str = "RDMA_CM_EVENT_DISCONNECTED 0";
    let port = ends.free_port();
    let server = ends.spawn_on_host(&format!("{program} server {} {port}", ends.host()), &[]);
    ends.wait_for_service(port)?;
    let mut client = ends.spawn_in_guest(&format!("{program} idle-client {} {port}", ends.host()))?;
    client.wait_for("RDMA_CM_EVENT_ESTABLISHED", LIMIT).map_err(|e| e.to_string())?;
    client.kill().map_err(|e| e.to_string())?;
    let output = server.finish(SHORT_LIMIT)?;
    if output.contains(EXPECTED) { Ok(EXPECTED.into()) } else { Err(output) }
}

/// Checks that a program receives the same private data, limits and rejection on urxe as on rxe.
fn private_data(ends: &Ends<'_>, program: &str) -> Result<String, String> {
    let run = |role: &str, at: &str, port| format!("{program} {role} {at} {port}");
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let (guest_port, host_port) = (ends.free_port(), ends.free_port());
    let server = ends.spawn_in_guest(&run("server", ends.guest(), guest_port))?;
    ends.testbed.guest.wait_listening(guest_port, SHORT_LIMIT).map_err(|e| text(&e))?;
    let host_client = ends.spawn_on_host(&run("client", ends.guest(), guest_port), &[]).finish(LIMIT)?;
    let guest_server = Ends::wait_success(server, SHORT_LIMIT)?;
    let server: Urxe = ends.spawn_on_host(&run("server", ends.host(), host_port), &[]);
    ends.wait_for_service(host_port)?;
    let guest_client =
        Ends::wait_success(ends.spawn_in_guest(&run("client", ends.host(), host_port))?, LIMIT)?;
    let host_server = server.finish(SHORT_LIMIT)?;
    for (host, guest) in [(&host_client, &guest_client), (&host_server, &guest_server)] {
        if host != guest || host.is_empty() {
            return Err(format!("host:\n{host}guest:\n{guest}"));
        }
    }
    Ok(format!("{} and {} events are the same", host_client.lines().count(), host_server.lines().count()))
}

/// Builds the private data program on the host, and copies it to the same path in the guest, which has the
/// same libraries.
fn build_private_data(testbed: &Testbed) -> String {
    let source = concat!(env!("URXE_REPOSITORY"), "/tests/guest/interop_cm_programs/private_data.c");
    let program = format!("/tmp/urxe-private-data-{}", std::process::id());
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-s", "-Wall", "-Werror", "-o", &program, source, "-lrdmacm", "-libverbs"]);
    let out = cc.output().expect("this test needs a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install librdmacm-dev)", programs::text(&out));
    testbed.guest.install(Path::new(&program), &program).unwrap();
    program
}

#[test]
fn unmodified_cm_programs_interoperate_over_a_tap() {
    let testbed = Testbed::start(LinkKind::Udp);
    testbed.prefer_ipv6();
    let program = build_private_data(&testbed);
    let mut table = Table::default();
    for version in 0..2 {
        let ends = Ends { testbed: &testbed, version };
        let ip = ["IPv4", "IPv6"][version];
        for (name, program) in all(version) {
            let arguments = program.client.clone();
            table.case([name, "server", "udp", ip], arguments.clone(), || ends.guest_serves(&program));
            table.case([name, "client", "udp", ip], arguments, || ends.guest_connects(&program));
        }
        table.case(["rping", "both", "udp", ip], "no listener".into(), || check_rejected(&ends));
        let killed = || check_killed_client(&ends, &program);
        table.case(["C program", "client", "udp", ip], "client killed".into(), killed);
        table.case(["C program", "both", "udp", ip], "private data".into(), || private_data(&ends, &program));
    }
    let _ = std::fs::remove_file(program);
    table.finish();
}

//! Tests of unmodified UCX on the library. UCX looks for devices in `/sys` and `/dev`, performs its wireup
//! over UD, and then writes, reads and sends over RC.
//!
//! Repeated over sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use urxe_test_support::huge_pages;
use urxe_test_support::programs::{
    CProgram, Running, TCP_PORTS, addresses, copy_built, port, text, urxe, wait_for_listener,
    wait_for_service,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the command that runs `ucx_perftest` under `urxe run`: the server if `server` is `None`, otherwise
/// a client.
fn perftest(address: &str, port: &str, transports: &str, args: &[&str], server: Option<&str>) -> Command {
    let mut command = urxe(&["run", "--ip", address, "--", "ucx_perftest", "-f", "-p", port]);
    command.args(args).args(server);
    command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "urxe0:1");
    command
}

/// Runs both ends of a test on two addresses. Both must succeed, and the output must show the requested
/// number of iterations.
fn run(transports: &str, args: &[&str]) {
    let _huge_pages = huge_pages::leave();
    let [server, client] = addresses();
    let port = port().to_string();
    let args = [args, &["-n", "200", "-w", "10"]].concat();
    let serving = Running::new(perftest(&server, &port, transports, &args, None));
    wait_for_listener(&port);
    let out = Running::new(perftest(&client, &port, transports, &args, Some("127.0.0.1"))).finish(LIMIT);
    let server = serving.finish(Duration::from_secs(10));
    let printed = format!("client:\n{}server:\n{}", text(&out), text(&server));
    assert!(out.status.success() && server.status.success(), "{transports} {args:?}: {printed}");
    let last = text(&out).lines().last().unwrap_or_default().to_owned();
    assert!(last.split_whitespace().any(|word| word == "200"), "{transports} {args:?}: {printed}");
}

/// Runs a test over both transports. `rc` stands for `rc_verbs`, with `ud_verbs` for the wireup only.
fn run_over_both(test: &str, size: &str) {
    for transports in ["rc", "ud_verbs"] {
        run(transports, &["-t", test, "-s", size]);
    }
}

fn lists_both_transports(printed: &str) {
    for line in ["Memory domain: urxe0", "Transport: rc_verbs", "Transport: ud_verbs", "Device: urxe0:1"] {
        assert!(printed.contains(line), "{line:?} is not in:\n{printed}");
    }
}

#[test]
fn ucx_info_lists_the_device() {
    let _huge_pages = huge_pages::leave();
    let [address, _] = addresses();
    let out = Running::new(urxe(&["run", "--ip", &address, "--", "ucx_info", "-d"])).finish(LIMIT);
    let printed = text(&out);
    assert!(out.status.success(), "{printed}");
    lists_both_transports(&printed);
    assert!(printed.contains("atomic_fadd: 64 bit") && printed.contains("domain: device"), "{printed}");
}

/// Runs without capabilities and without `XDG_RUNTIME_DIR`.
#[test]
fn ucx_runs_without_privilege() {
    let _huge_pages = huge_pages::leave();
    // Build products may be readable for their owner only, so they are copied to a directory that everyone
    // can read.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["urxe", "libibverbs.so", "liburxe_preload.so"] {
        copy_built(name, &dir.path().join(name));
    }
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777)).unwrap();
    let urxe = dir.path().join("urxe").display().to_string();
    let is_root = is_root();
    let start = |address: &str, args: &[&str]| {
        let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
        let line: Vec<&str> = if is_root { nobody.to_vec() } else { vec!["env"] };
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).args([&urxe, "run", "--ip", address, "--"]).args(args);
        command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", &temporary).current_dir("/");
        command.env("UCX_TLS", "rc").env("UCX_NET_DEVICES", "urxe0:1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command)
    };
    let [server, client] = addresses();
    lists_both_transports(&text(&start(&server, &["ucx_info", "-d"]).finish(LIMIT)));
    let port = port().to_string();
    let test = ["ucx_perftest", "-f", "-p", &port, "-t", "tag_lat", "-n", "200", "-w", "10"];
    let serving = start(&server, &test);
    wait_for_listener(&port);
    let out = start(&client, &[&test[..], &["127.0.0.1"]].concat()).finish(LIMIT);
    assert!(out.status.success(), "{}", text(&out));
    assert!(serving.finish(LIMIT).status.success());
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

#[test]
fn ucx_tagged_messages_arrive() {
    run_over_both("tag_lat", "64");
    run_over_both("tag_bw", "4096");
    run_over_both("tag_sync_lat", "4096");
}

/// Sends messages above the eager threshold, for which UCX uses the rendezvous protocol.
#[test]
fn ucx_long_messages_arrive() {
    for transports in ["rc", "ud_verbs"] {
        run(transports, &["-t", "tag_bw", "-s", "100000"]);
    }
    run("rc", &["-t", "stream_bw", "-s", "100000"]);
}

#[test]
fn ucx_streams_and_active_messages_arrive() {
    run_over_both("stream_bw", "4096");
    run_over_both("stream_lat", "64");
    run_over_both("ucp_am_bw", "4096");
    run_over_both("ucp_am_lat", "64");
}

#[test]
fn ucx_puts_and_gets_succeed() {
    run_over_both("ucp_put_bw", "4096");
    run_over_both("ucp_put_lat", "64");
    run_over_both("ucp_get", "4096");
}

#[test]
fn ucx_atomics_succeed() {
    for test in ["ucp_add", "ucp_fadd", "ucp_cswap"] {
        run_over_both(test, "8");
    }
    // No verb swaps unconditionally, so UCX emulates it by messages.
    run_over_both("ucp_swap", "8");
}

/// Tests wakeup by completion events. UCX does not poll again after it has requested an event, so completions
/// already in the queue must also raise it.
#[test]
fn sleeping_ucx_is_woken_by_completion_events() {
    for transports in ["rc", "ud_verbs"] {
        for test in ["tag_lat", "ucp_am_bw"] {
            run(transports, &["-t", test, "-s", "64", "-E", "sleep"]);
        }
    }
}

/// Runs each transport alone (UCT), without the protocols of UCP.
#[test]
fn each_ucx_transport_alone_transfers_messages() {
    let uct = |transport: &str, test: &str, layout: &str, size: &str| {
        run(transport, &["-d", "urxe0:1", "-x", transport, "-t", test, "-D", layout, "-s", size]);
    };
    for (layout, size) in [("short", "32"), ("bcopy", "4096"), ("zcopy", "4096")] {
        for test in ["am_bw", "put_bw", "put_lat"] {
            uct("rc_verbs", test, layout, size);
        }
    }
    for layout in ["bcopy", "zcopy"] {
        uct("rc_verbs", "get", layout, "4096");
    }
    for test in ["fadd", "cswap"] {
        uct("rc_verbs", test, "bcopy", "8");
    }
    for (layout, size) in [("short", "32"), ("bcopy", "2048"), ("zcopy", "2048")] {
        uct("ud_verbs", "am_lat", layout, size);
    }
}

/// Connects to a server by IP address and port: UCX connects through the connection manager, and modifies its
/// queue pairs itself.
#[test]
fn ucx_connects_by_ip_address() {
    let _huge_pages = huge_pages::leave();
    let program = CProgram::build_with("sockaddr", &["-lucp", "-lucs"]);
    let [server, client] = addresses();
    let port = port();
    let number = port.to_string();
    let start = |address: &str, role: &[&str]| {
        let mut command = urxe(&["run", "--ip", address, "--", program.program(), &server, &number]);
        command.args(role).env("UCX_TLS", "rc").env("UCX_NET_DEVICES", "urxe0:1");
        command.env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm");
        Running::new(command)
    };
    let serving = start(&server, &[]);
    wait_for_service(&[TCP_PORTS], port);
    let out = start(&client, &["client"]).finish(LIMIT);
    let server = serving.finish(Duration::from_secs(10));
    let printed = format!("client:\n{}server:\n{}", text(&out), text(&server));
    assert!(out.status.success() && server.status.success(), "{printed}");
    assert_eq!(printed.matches("done").count(), 2, "{printed}");
}

//! Tests of Debian's qperf on the library: one server, and a client for each qperf test. qperf does not
//! support GIDs, so it addresses its peer by LID (`--lid-routing`) or connects through the connection
//! manager. Debian's build does not include the XRC tests.

use std::time::Duration;

use urxe_test_support::programs::{Library, Running, addresses, port, text, wait_for_listener};

/// Runs the named qperf tests against one server. Each must report a figure of the given kind.
fn tests(kind: &str, names: &[&str]) {
    with_options(&[], kind, names);
}

fn with_options(options: &[&str], kind: &str, names: &[&str]) {
    let library = Library::new();
    let [server, client] = addresses();
    let port = port().to_string();
    let mut command = library.program("qperf", &server);
    command.args(["-lp", &port]).env("URXE_LID_ROUTING", "1");
    // The server never ends by itself, and is killed when this is dropped.
    let _serving = Running::new(command);
    wait_for_listener(&port);
    for name in names {
        let mut command = library.program("qperf", &client);
        // The connection manager can connect to the device's address only.
        let host = if options.is_empty() { "127.0.0.1" } else { &server };
        command.env("URXE_LID_ROUTING", "1");
        command.args(["-lp", &port, host]).args(options).args(["-t", "1", name]);
        let out = Running::new(command).finish(Duration::from_secs(30));
        let printed = text(&out);
        let figure = |line: &&str| line.trim_start().starts_with(kind) && line.contains('=');
        let figures: Vec<f64> = printed
            .lines()
            .filter(figure)
            .filter_map(|line| line.split('=').nth(1)?.split_whitespace().next()?.parse().ok())
            .collect();
        assert!(
            out.status.success() && figures.iter().any(|n| *n > 0.0),
            "{name}: {:?}\n{printed}",
            out.status
        );
    }
}

#[test]
fn qperf_bandwidth_tests_report_bandwidths() {
    tests("bw", &["rc_bi_bw", "rc_bw", "rc_rdma_read_bw", "rc_rdma_write_bw"]);
    tests("recv_bw", &["uc_bi_bw", "uc_bw", "uc_rdma_write_bw", "ud_bi_bw", "ud_bw"]);
}

#[test]
fn qperf_latency_tests_report_latencies() {
    tests("latency", &["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_lat", "rc_rdma_write_poll_lat"]);
    tests("latency", &["uc_lat", "uc_rdma_write_lat", "uc_rdma_write_poll_lat", "ud_lat"]);
}

#[test]
fn qperf_atomic_tests_report_rates() {
    tests("msg_rate", &["rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"]);
}

#[test]
fn qperf_connects_through_the_connection_manager() {
    let options = ["-cm", "1"];
    with_options(&options, "bw", &["rc_bi_bw", "rc_bw", "rc_rdma_read_bw", "rc_rdma_write_bw"]);
    with_options(&options, "latency", &["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_lat"]);
    with_options(&options, "msg_rate", &["rc_compare_swap_mr", "rc_fetch_add_mr"]);
}

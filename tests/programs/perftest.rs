//! Tests of Debian's perftest on the library: a server and a client in separate processes, over the loopback
//! interface.
//!
//! Repeated over sockets.

use std::process::Command;
use std::time::Duration;

use urxe_test_support::programs::{
    Library, TCP_PORTS, UDP_PORTS, addresses, both_ends, in_namespace, port, wait_for_listener,
    wait_for_service,
};

/// Time limit for each end. After each of the 23 sizes of `-a` the latency programs measure the frequency of
/// the clock, which takes some tenths of a second of processor time. Beside ten runnable threads per
/// processor, a program thus takes more than a minute.
const LIMIT: Duration = Duration::from_secs(300);

/// A line of results that perftest prints below the heading `#bytes`.
#[derive(Debug)]
struct Row(Vec<f64>);

impl Row {
    /// Reports whether the figures printed by `program` are plausible.
    fn is_plausible(&self, program: &str) -> bool {
        let [size, iterations, figures @ ..] = &self.0[..] else { return false };
        let positive = figures.iter().copied().fold(0.0, f64::max) > 0.0;
        // MiB/s and millions of messages per second must agree. Small values are rounded to zero.
        let agrees = match figures {
            [_peak, average, rate] if program.ends_with("_bw") && *average > 1.0 => {
                (rate * 1e6 * size / f64::from(1 << 20) / average - 1.0).abs() < 0.05
            }
            _ => true,
        };
        // Latencies: minimum, maximum, typical, and more.
        let ordered = program.ends_with("_bw")
            || figures.len() < 3
            || (figures[0] <= figures[2] && figures[2] <= figures[1]);
        *size >= 2.0 && *iterations >= 1.0 && positive && agrees && ordered
    }
}

/// Parses the lines of results in the output.
fn rows(printed: &str) -> Vec<Row> {
    let lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    lines.map_while(|line| numbers(line).filter(|row| row.len() > 2).map(Row)).collect()
}

/// Commands that run a program as server and as client.
struct Endpoints {
    server: Command,
    client: Command,
    /// Address of the server's device.
    address: String,
}

impl Endpoints {
    fn on(library: &Library, program: &str) -> Endpoints {
        let [address, other] = addresses();
        let [server, client] = [&address, &other].map(|address| library.program(program, address));
        Endpoints { server, client, address }
    }

    /// Runs both ends and checks that the client's results are plausible. With `-R`, the server listens,
    /// stops, and listens again on the same port; a client that connects in between must not be refused.
    fn run(self, program: &str, args: &str) {
        let args: Vec<&str> = args.split_whitespace().collect();
        let after = |flag: &str| {
            args.iter().position(|arg| *arg == flag).map(|at| args[at + 1].parse::<f64>().expect("a number"))
        };
        let port = port().to_string();
        let with_args = |mut command: Command, host: &[&str]| {
            command.args(&args).args(["-F", "-p", &port]).args(host);
            command
        };
        // The connection manager can connect to the device's address only.
        let uses_rdma_cm = args.contains(&"-R");
        let host = if uses_rdma_cm { &self.address } else { "127.0.0.1" };
        let (server, client) = (with_args(self.server, &[]), with_args(self.client, &[host]));
        let ready = || match uses_rdma_cm {
            true => wait_for_service(&[TCP_PORTS, UDP_PORTS], port.parse().unwrap()),
            false => wait_for_listener(&port),
        };
        let [of_client, of_server] = both_ends(server, ready, client, LIMIT);
        let printed = format!("{program} {args:?}\nclient:\n{of_client}\nserver:\n{of_server}");

        let rows = rows(&of_client);
        assert!(!rows.is_empty() && rows.iter().all(|row| row.is_plausible(program)), "{rows:?}\n{printed}");
        let sizes: Vec<f64> = rows.iter().map(|row| row.0[0]).collect();
        if args.contains(&"-a") {
            // The largest datagram is one packet.
            let max = if args.contains(&"UD") { 12 } else { 23 };
            assert_eq!(sizes, (1..=max).map(|power| f64::from(1 << power)).collect::<Vec<_>>(), "{printed}");
        } else {
            let default_size = match () {
                () if program.starts_with("ib_atomic") => 8.0,
                () if program.ends_with("_lat") => 2.0,
                () => 65536.0,
            };
            assert_eq!(sizes, [after("-s").unwrap_or(default_size)], "{printed}");
        }
        if let Some(each) = after("-n") {
            let total = each * after("-q").unwrap_or(1.0);
            assert!(rows.iter().all(|row| row.0[1] == total), "{rows:?}\n{printed}");
        }
    }
}

fn run_all(programs: &[&str], cases: &[&str]) {
    let library = Library::new();
    for program in programs {
        for args in cases {
            let begin = std::time::Instant::now();
            Endpoints::on(&library, program).run(program, args);
            println!("{program} {args}: {:.1} s", begin.elapsed().as_secs_f64());
        }
    }
}

#[test]
fn send_bw_reports_a_bandwidth() {
    // UD and UC have no flow control, so these cases send no more messages than fit into a socket buffer.
    run_all(
        &["ib_send_bw"],
        &[
            "-n 200",
            "-n 100 -c UC -s 2048",
            "-n 100 -c UD -s 1024",
            "-n 200 -c XRC",
            "-n 200 -b",
            "-n 100 -b -c UD -s 1024",
            "-n 100 -b -c XRC",
            "-n 50 -q 16",
            "-n 10 -q 16 -c UC -s 2048",
            "-n 10 -q 16 -c UD -s 1024",
            "-n 50 -q 16 -c XRC",
            "-n 200 -e",
            "-n 200 -e -b",
            "-n 160 -l 16",
            "-n 160 --recv_post_list=16",
            "-n 80 -l 8 -b -q 4",
            "-n 200 -s 64 --inline_size 64",
            "-n 200 --use-srq",
            "-n 50 --use-srq -q 4 -b",
            "-n 100 --use-srq -c UD -s 1024",
            "-n 200 --use-srq -c XRC",
            "-n 5 -s 8388608",
            "-n 100 --use_old_post_send",
            "-n 100 -c UD -s 1024 --use_old_post_send",
            "-n 100 --odp",
            "-n 100 -c UD -s 1024 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3",
        ],
    );
}

#[test]
fn write_bw_reports_a_bandwidth() {
    run_all(
        &["ib_write_bw"],
        &[
            "-n 200",
            "-n 200 -c UC",
            "-n 200 -c XRC",
            "-n 200 -b",
            "-n 50 -b -q 4 -c UC",
            "-n 50 -b -q 4 -c XRC",
            "-n 50 -q 16",
            "-n 160 -l 16",
            "-n 200 -s 64 --inline_size 64",
            "-n 5 -s 8388608",
            "-n 50 --mr_per_qp -q 4",
            "-n 100 --odp",
            "-n 100 --use_old_post_send",
        ],
    );
}

#[test]
fn read_and_atomic_bw_report_bandwidths() {
    run_all(
        &["ib_read_bw", "ib_atomic_bw"],
        &[
            "-n 200",
            "-n 200 -c XRC",
            "-n 200 -b",
            "-n 50 -b -q 4 -c XRC",
            "-n 50 -q 16",
            "-n 200 -e",
            "-n 160 -l 16",
            "-n 100 -o 1",
        ],
    );
    run_all(&["ib_read_bw"], &["-n 5 -s 8388608", "-n 100 --odp"]);
    run_all(&["ib_atomic_bw"], &["-n 200 -A CMP_AND_SWAP"]);
}

#[test]
fn latency_programs_report_latencies() {
    run_all(
        &["ib_send_lat"],
        &["-n 200 -c UC", "-n 200 -c UD -s 1024", "-n 200 -s 64 --inline_size 64", "-n 200 --use-srq"],
    );
    run_all(&["ib_write_lat"], &["-n 100", "-n 100 -c UC", "-n 100 -c XRC", "-n 100 -s 64 --inline_size 64"]);
    run_all(&["ib_send_lat", "ib_read_lat", "ib_atomic_lat"], &["-n 200", "-n 200 -c XRC", "-n 200 -e"]);
    run_all(&["ib_atomic_lat"], &["-n 200 -A CMP_AND_SWAP"]);
}

#[test]
fn bandwidth_programs_report_all_sizes() {
    run_all(&["ib_write_bw", "ib_read_bw", "ib_send_bw"], &["-a -n 5"]);
    run_all(&["ib_send_bw"], &["-a -n 20 -c UD"]);
}

#[test]
fn latency_programs_report_all_sizes() {
    run_all(&["ib_write_lat", "ib_read_lat", "ib_send_lat"], &["-a -n 5"]);
}

#[test]
fn duration_option_ends_the_test_after_three_seconds() {
    run_all(&["ib_write_bw", "ib_send_bw", "ib_read_lat"], &["-D 3"]);
}

#[test]
fn perftest_connects_through_the_connection_manager() {
    run_all(&["ib_write_bw"], &["-R -n 200", "-R -n 50 -q 4", "-R -n 200 -b", "-R -T 32 -n 50"]);
    run_all(&["ib_send_bw", "ib_read_bw", "ib_write_lat", "ib_atomic_bw"], &["-R -n 100"]);
    run_all(&["ib_send_bw"], &["-R -n 100 -c UD -s 1024"]);
}

/// Runs in its own network namespace, with two IPv6 addresses.
#[test]
fn perftest_over_ipv6_succeeds() {
    let script = r#"
        two_ipv6_addresses
        for case in "ib_write_bw --ipv6 -n 50" "ib_send_bw --ipv6 -n 50 -c UC" "ib_send_lat -x 0 -n 50 -c UD -s 1024" \
                    "ib_read_bw --ipv6 -n 50" "ib_atomic_lat --ipv6 -n 50"; do
            run fd77::1 $case -F >"$DIR/server" 2>&1 &
            until grep -q ":4853 .* 0A " /proc/net/tcp; do sleep 0.02; done
            run fd77::2 $case -F 127.0.0.1 || exit 1
            wait $! || { cat "$DIR/server"; exit 1; }
        done
    "#;
    let printed = in_namespace(script, &[]);
    assert_eq!(printed.matches("#bytes").count(), 5, "{printed}");
    assert_eq!(
        printed.matches("GID: 253:119:00:00:00:00:00:00:00:00:00:00:00:00:00:01").count(),
        5,
        "{printed}"
    );
}

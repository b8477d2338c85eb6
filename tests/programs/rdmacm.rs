//! Tests of Debian's unmodified rdmacm-utils on the library, between two processes that connect by address
//! and port, on two loopback addresses and on a shared one, and of cases that rdmacm-utils do not cover
//! (`c/connections.c`).

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use urxe_test_support::programs::{
    CProgram, IB_PORTS, Library, Running, TCP_PORTS, UDP_PORTS, addresses, both_ends, in_namespace, port,
    text, wait_for_service,
};

/// Time limit for each program.
const LIMIT: Duration = Duration::from_secs(60);

/// The server and the client of a test, each with its arguments.
struct Endpoints<'a> {
    port_space: u16,
    server: (&'a str, Vec<&'a str>),
    client: (&'a str, Vec<&'a str>),
}

impl Endpoints<'_> {
    /// Runs the server and the client on devices with the given addresses. Replaces `{server}`, `{client}`
    /// and `{port}` in the arguments. Returns the client's output.
    fn run_on(&self, server: &str, client: &str) -> String {
        let (library, port) = (Library::new(), port());
        let substitute = |text: &str| {
            let number = port.to_string();
            text.replace("{server}", server).replace("{client}", client).replace("{port}", &number)
        };
        let command = |(program, args): &(&str, Vec<&str>), address: &str| {
            let mut command = library.program(program, address);
            command.args(args.iter().map(|arg| substitute(arg)));
            command
        };
        let (server_command, client_command) = (command(&self.server, server), command(&self.client, client));
        let [printed, _] =
            both_ends(server_command, || wait_for_service(&[self.port_space], port), client_command, LIMIT);
        printed
    }

    /// Runs the server and the client first on two addresses and then on one. Both must succeed, and the
    /// client's output must contain `expected` ("" for a client that prints nothing).
    fn succeed(&self, expected: &str) {
        let [a, b] = addresses();
        for (server, client) in [(&a, &b), (&a, &a)] {
            let output = self.run_on(server, client);
            assert!(output.contains(expected), "{:?} on {server} and {client}: {output}", self.client);
        }
    }
}

/// Returns an rping server and client with the given arguments.
fn rping<'a>(args: &[&'a str]) -> Endpoints<'a> {
    let server = [&["-s", "-a", "{server}", "-p", "{port}"], args].concat();
    let client = [&["-c", "-a", "{server}", "-p", "{port}"], args].concat();
    Endpoints { port_space: TCP_PORTS, server: ("rping", server), client: ("rping", client) }
}

#[test]
fn rping_verifies_its_data() {
    rping(&["-C", "100", "-v", "-V"]).succeed("ping data: rdma-ping-99");
}

#[test]
fn rping_pings_with_large_messages() {
    rping(&["-C", "20", "-V", "-S", "65000"]).succeed("");
}

#[test]
fn rping_pings_with_queue_pairs_it_modifies_itself() {
    rping(&["-C", "20", "-V", "-v", "-q"]).succeed("ping data: rdma-ping-19");
}

#[test]
fn rping_without_a_listener_is_rejected() {
    let library = Library::new();
    let [a, b] = addresses();
    // There is a device at the address, but no listener on the port.
    let other = port().to_string();
    let mut command = library.program("rping", &a);
    command.args(["-s", "-a", &a, "-p", &other]);
    let _serving = Running::new(command);
    wait_for_service(&[TCP_PORTS], other.parse().unwrap());
    let mut command = library.program("rping", &b);
    command.args(["-c", "-a", &a, "-p", &port().to_string(), "-C", "1"]);
    let out = Running::new(command).finish(LIMIT);
    let printed = text(&out);
    assert!(
        !out.status.success() && printed.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{}\n{printed}",
        out.status
    );
}

/// Returns a server and a client for ucmatose or udaddy.
fn endpoints<'a>(program: &'a str, port_space: u16, args: &[&'a str]) -> Endpoints<'a> {
    let server = [&["-b", "{server}", "-p", "{port}"], args].concat();
    let client = [&["-s", "{server}", "-b", "{client}", "-p", "{port}"], args].concat();
    Endpoints { port_space, server: (program, server), client: (program, client) }
}

#[test]
fn ucmatose_transfers_its_messages() {
    endpoints("ucmatose", TCP_PORTS, &[]).succeed("return status 0");
    endpoints("ucmatose", TCP_PORTS, &["-c", "20", "-C", "10", "-S", "1000"]).succeed("return status 0");
    endpoints("ucmatose", TCP_PORTS, &["-c", "3", "-m", "-t", "8"]).succeed("return status 0");
}

#[test]
fn udaddy_transfers_its_datagrams() {
    // udaddy interprets -p as the number of its port space, and has a fixed port.
    for args in [&[][..], &["-c", "8", "-C", "5"]] {
        let [a, b] = addresses();
        for (server, client) in [(&a, &b), (&a, &a)] {
            let library = Library::new();
            let mut server_command = library.program("udaddy", server);
            server_command.args(["-b", server]).args(args);
            let mut client_command = library.program("udaddy", client);
            client_command.args(["-s", server, "-b", client]).args(args);
            let printed =
                both_ends(server_command, || wait_for_service(&[UDP_PORTS], 7174), client_command, LIMIT);
            assert!(
                printed.iter().all(|printed| printed.contains("return status 0")),
                "{args:?}: {printed:#?}"
            );
        }
    }
}

#[test]
fn rdma_server_and_rdma_client_exchange_messages() {
    let server = ("rdma_server", vec!["-s", "{server}", "-p", "{port}"]);
    let client = ("rdma_client", vec!["-s", "{server}", "-p", "{port}"]);
    Endpoints { port_space: TCP_PORTS, server, client }.succeed("rdma_client: end 0");
}

#[test]
fn rdma_xclient_connects_to_rdma_xserver() {
    for (service, port_space) in [("r", TCP_PORTS), ("x", IB_PORTS)] {
        let server = ("rdma_xserver", vec!["-c", service, "-p", "{port}"]);
        let client = ("rdma_xclient", vec!["-c", service, "-s", "{server}", "-p", "{port}"]);
        Endpoints { port_space, server, client }.succeed("rdma_xclient: end 0");
    }
}

/// Opens a thousand connections at once. The server never exits on its own.
#[test]
fn cmtime_reports_the_time_of_each_step() {
    let [a, b] = addresses();
    for (server, client) in [(&a, &b), (&a, &a)] {
        let (library, port) = (Library::new(), port());
        let number = port.to_string();
        let start = |address: &str, args: &[&str]| {
            let mut command = library.program("cmtime", address);
            command.args(["-p", &number, "-c", "1000", "-b", address]).args(args);
            Running::new(command)
        };
        let _serving = start(server, &[]);
        wait_for_service(&[TCP_PORTS], port);
        let out = start(client, &["-s", server]).finish(LIMIT);
        let printed = text(&out);
        assert!(out.status.success() && printed.contains("destroy      :"), "{:?}\n{printed}", out.status);
        assert!(!printed.contains("RDMA_CM_EVENT"), "{printed}");
    }
}

/// Waits until a process has joined the multicast group.
fn wait_for_group(group: Ipv4Addr) {
    let listed = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_joined = || std::fs::read_to_string("/proc/net/igmp").unwrap_or_default().contains(&listed);
    while !is_joined() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mckey_receives_its_multicast_messages() {
    for (n, args) in
        [&["-C", "10", "-S", "1000"][..], &["-C", "5", "-c", "4"], &["-C", "5", "-l"]].into_iter().enumerate()
    {
        let [a, b] = addresses();
        for (m, (receiver, sender)) in [(&a, &b), (&a, &a)].into_iter().enumerate() {
            // Each run has a group of its own, because receivers get the datagrams sent to any group that
            // they share.
            let process = std::process::id();
            let group = Ipv4Addr::new(239, (process >> 8) as u8, process as u8, (n * 2 + m) as u8);
            let (library, number) = (Library::new(), group.to_string());
            let command = |address: &str, role: &[&str]| {
                let mut command = library.program("mckey", address);
                command.args(["-m", &number, "-b", address]).args(args).args(role);
                command
            };
            let (receives, sends) = (command(receiver, &[]), command(sender, &["-s"]));
            let printed = both_ends(receives, || wait_for_group(group), sends, LIMIT);
            assert!(
                printed.iter().all(|printed| printed.contains("return status 0")),
                "{args:?}: {printed:#?}"
            );
        }
    }
}

/// Runs in its own network namespace, with two IPv6 addresses.
#[test]
fn rdmacm_programs_succeed_over_ipv6() {
    let script = r#"
        two_ipv6_addresses
        both() {
            run fd77::1 $1 >"$DIR/server" 2>&1 &
            until grep -q "urxe-service" /proc/net/unix; do sleep 0.02; done
            run fd77::2 $2 || exit 1
            wait $! || { cat "$DIR/server"; exit 1; }
            until ! grep -q "urxe-service" /proc/net/unix; do sleep 0.02; done
        }
        both "rping -s -a fd77::1 -C 20 -V" "rping -c -a fd77::1 -C 20 -V -v"
        both "rping -s -a ::0 -C 20 -V" "rping -c -a fd77::1 -I fd77::2 -C 20 -V -v"
        both "ucmatose -f ip6 -b fd77::1 -c 4" "ucmatose -f ip6 -b fd77::2 -s fd77::1 -c 4"
        both "udaddy -f ip6 -b fd77::1 -c 4" "udaddy -f ip6 -b fd77::2 -s fd77::1 -c 4"
    "#;
    let printed = in_namespace(script, &[]);
    assert_eq!(printed.matches("ping data: rdma-ping-19").count(), 2, "{printed}");
    assert_eq!(printed.matches("return status 0").count(), 2, "{printed}");
}

#[test]
fn address_without_a_route_or_a_neighbour_is_not_resolved() {
    let program = CProgram::build("unreachable");
    // The other end of the pair has no address, so it does not answer for 10.77.0.99; 10.77.0.2 is a
    // neighbour by hand.
    let script = r#"
        ip link set lo up
        ip link add e0 type veth peer name e1
        ip addr add 10.77.0.1/24 dev e0
        ip link set e0 up && ip link set e1 up
        ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev e0
        run 10.77.0.1 "$PROGRAM" 203.0.113.9 10.77.0.99 10.77.0.2 10.77.0.1
        run 127.0.0.1 "$PROGRAM" 10.77.0.2
    "#;
    let printed = in_namespace(script, &[("PROGRAM", program.program())]);
    for line in [
        "203.0.113.9: Network is unreachable",
        "10.77.0.99: RDMA_CM_EVENT_ADDR_ERROR, status -110",
        "10.77.0.2: RDMA_CM_EVENT_ADDR_RESOLVED, status 0",
        "10.77.0.1: RDMA_CM_EVENT_ADDR_RESOLVED, status 0",
        "10.77.0.2: RDMA_CM_EVENT_ADDR_ERROR, status -19",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
}

/// Runs one case of `c/connections.c`.
fn run_case(name: &str) {
    let [address, _] = addresses();
    CProgram::build("connections").run(&address, &[name, &address]);
}

#[test]
fn private_data_reaches_both_sides() {
    run_case("private data");
}

#[test]
fn connection_manager_call_that_succeeds_leaves_errno_unchanged() {
    run_case("errno");
}

#[test]
fn rejected_peer_receives_the_reason() {
    run_case("rejected");
}

#[test]
fn get_cm_event_on_an_empty_nonblocking_channel_returns_at_once() {
    run_case("nonblocking");
}

#[test]
fn destroy_id_waits_until_its_events_are_acknowledged() {
    run_case("unacknowledged");
}

#[test]
fn channel_may_be_destroyed_while_a_thread_waits_for_events() {
    run_case("abandoned");
}

#[test]
fn calls_on_an_id_without_a_channel_block_until_done() {
    run_case("endpoints");
}

#[test]
fn pending_events_move_with_a_migrated_id() {
    run_case("migrated");
}

#[test]
fn invalid_calls_fail_with_the_expected_errno() {
    run_case("refused");
}

#[test]
fn gid_is_accepted_in_place_of_an_ip_address() {
    run_case("gids");
}

#[test]
fn forked_child_has_none_of_its_parents_connections() {
    run_case("forked");
}

#[test]
fn forked_child_that_outlives_its_parent_does_not_keep_its_port() {
    run_case("lingering");
}

#[test]
fn peer_is_disconnected_when_a_process_exits() {
    run_case("exiting");
}

#[test]
fn exit_in_a_signal_handler_does_not_deadlock() {
    run_case("interrupted");
}

#[test]
fn queue_pair_may_be_destroyed_before_its_established_event_is_read() {
    run_case("gone");
}

#[test]
fn connection_is_accepted_with_the_queue_pair_of_another_id() {
    run_case("moved");
}

#[test]
fn multicast_join_event_returns_the_context_of_its_join() {
    run_case("groups");
}

/// Sets a path to a different address than the resolved one.
#[test]
fn connection_uses_the_path_set_by_the_program() {
    let (library, program, port) = (Library::new(), CProgram::build("connections"), port());
    let ([a, b], number) = (addresses(), port.to_string());
    let start = |address: &str, name: &str| {
        let mut command = library.program(program.program(), address);
        command.args([name, &a, &number]);
        Running::new(command)
    };
    let serving = start(&a, "path taken");
    wait_for_service(&[TCP_PORTS], port);
    let client = start(&b, "path given").finish(LIMIT);
    let server = serving.finish(Duration::from_secs(10));
    let printed = format!("client:\n{}\nserver:\n{}", text(&client), text(&server));
    assert!(client.status.success() && server.status.success(), "{printed}");
}

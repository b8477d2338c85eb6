//! Debian's rdmacm-utils, unmodified, on the library: two processes that connect by address and port, on two loopback
//! addresses and on one that they share.

mod support;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use support::{
    CProgram, Library, Running, TCP_PORTS, UDP_PORTS, addresses, both_ends, in_namespace, port, text,
    wait_for_service,
};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The two ends of a test: who serves and who asks, each with its arguments.
struct Ends<'a> {
    space: u16,
    server: (&'a str, Vec<&'a str>),
    client: (&'a str, Vec<&'a str>),
}

impl Ends<'_> {
    /// Runs both on devices of these addresses; `{server}`, `{client}` and `{port}` in arguments stand for theirs. What the
    /// client has said.
    fn run_on(&self, server: &str, client: &str) -> String {
        let (library, port) = (Library::new(), port());
        let filled = |text: &str| {
            let number = port.to_string();
            text.replace("{server}", server).replace("{client}", client).replace("{port}", &number)
        };
        let command = |(program, args): &(&str, Vec<&str>), address: &str| {
            let mut command = library.program(program, address);
            command.args(args.iter().map(|arg| filled(arg)));
            command
        };
        let (serves, asks) = (command(&self.server, server), command(&self.client, client));
        let [told, _] = both_ends(serves, || wait_for_service(&[self.space], port), asks, LIMIT);
        told
    }

    /// Runs them on two addresses and on one; both must end well, and the client say `told` (a client that says nothing, "").
    fn succeed(&self, told: &str) {
        let [a, b] = addresses();
        for (server, client) in [(&a, &b), (&a, &a)] {
            let said = self.run_on(server, client);
            assert!(said.contains(told), "{:?} on {server} and {client}: {said}", self.client);
        }
    }
}

/// Both ends of rping.
fn rping<'a>(args: &[&'a str]) -> Ends<'a> {
    let server = [&["-s", "-a", "{server}", "-p", "{port}"], args].concat();
    let client = [&["-c", "-a", "{server}", "-p", "{port}"], args].concat();
    Ends { space: TCP_PORTS, server: ("rping", server), client: ("rping", client) }
}

#[test]
fn rping_pings() {
    rping(&["-C", "100", "-v", "-V"]).succeed("ping data: rdma-ping-99");
}

#[test]
fn rping_pings_with_large_messages() {
    rping(&["-C", "20", "-V", "-S", "65000"]).succeed("");
}

#[test]
fn rping_drives_its_queue_pairs_itself() {
    rping(&["-C", "20", "-V", "-v", "-q"]).succeed("ping data: rdma-ping-19");
}

#[test]
fn rping_is_told_that_nobody_listens() {
    let library = Library::new();
    let [a, b] = addresses();
    // Somebody has the address.
    let other = port().to_string();
    let mut command = library.program("rping", &a);
    command.args(["-s", "-a", &a, "-p", &other]);
    let _serving = Running::new(command);
    wait_for_service(&[TCP_PORTS], other.parse().unwrap());
    let mut command = library.program("rping", &b);
    command.args(["-c", "-a", &a, "-p", &port().to_string(), "-C", "1"]);
    let out = Running::new(command).finish(LIMIT);
    let told = text(&out);
    assert!(
        !out.status.success() && told.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{}\n{told}",
        out.status
    );
}

/// Both ends of ucmatose or udaddy.
fn both<'a>(program: &'a str, space: u16, args: &[&'a str]) -> Ends<'a> {
    let server = [&["-b", "{server}", "-p", "{port}"], args].concat();
    let client = [&["-s", "{server}", "-b", "{client}", "-p", "{port}"], args].concat();
    Ends { space, server: (program, server), client: (program, client) }
}

#[test]
fn ucmatose() {
    both("ucmatose", TCP_PORTS, &[]).succeed("return status 0");
    both("ucmatose", TCP_PORTS, &["-c", "20", "-C", "10", "-S", "1000"]).succeed("return status 0");
    both("ucmatose", TCP_PORTS, &["-c", "3", "-m", "-t", "8"]).succeed("return status 0");
}

#[test]
fn udaddy() {
    // It takes the number of its port space for -p, and has a port of its own.
    for args in [&[][..], &["-c", "8", "-C", "5"]] {
        let [a, b] = addresses();
        for (server, client) in [(&a, &b), (&a, &a)] {
            let library = Library::new();
            let mut serves = library.program("udaddy", server);
            serves.args(["-b", server]).args(args);
            let mut asks = library.program("udaddy", client);
            asks.args(["-s", server, "-b", client]).args(args);
            let told = both_ends(serves, || wait_for_service(&[UDP_PORTS], 7174), asks, LIMIT);
            assert!(told.iter().all(|told| told.contains("return status 0")), "{args:?}: {told:#?}");
        }
    }
}

#[test]
fn rdma_server_and_rdma_client() {
    let server = ("rdma_server", vec!["-s", "{server}", "-p", "{port}"]);
    let client = ("rdma_client", vec!["-s", "{server}", "-p", "{port}"]);
    Ends { space: TCP_PORTS, server, client }.succeed("rdma_client: end 0");
}

#[test]
fn rdma_xserver_and_rdma_xclient() {
    for service in ["r", "x"] {
        let server = ("rdma_xserver", vec!["-c", service, "-p", "{port}"]);
        let client = ("rdma_xclient", vec!["-c", service, "-s", "{server}", "-p", "{port}"]);
        Ends { space: TCP_PORTS, server, client }.succeed("rdma_xclient: end 0");
    }
}

/// A thousand connections at once. The server serves for ever.
#[test]
fn cmtime() {
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
        let told = text(&out);
        assert!(out.status.success() && told.contains("destroy      :"), "{:?}\n{told}", out.status);
        assert!(!told.contains("RDMA_CM_EVENT"), "{told}");
    }
}

/// Waits until the kernel has a group for somebody.
fn wait_for_group(group: Ipv4Addr) {
    let listed = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_joined = || std::fs::read_to_string("/proc/net/igmp").unwrap_or_default().contains(&listed);
    while !is_joined() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mckey() {
    for (n, args) in
        [&["-C", "10", "-S", "1000"][..], &["-C", "5", "-c", "4"], &["-C", "5", "-l"]].into_iter().enumerate()
    {
        let [a, b] = addresses();
        for (m, (receiver, sender)) in [(&a, &b), (&a, &a)].into_iter().enumerate() {
            // One of a different group for each: others hear what is sent to any of theirs.
            let process = std::process::id();
            let group = Ipv4Addr::new(239, (process >> 8) as u8, process as u8, (n * 2 + m) as u8);
            let (library, number) = (Library::new(), group.to_string());
            let command = |address: &str, role: &[&str]| {
                let mut command = library.program("mckey", address);
                command.args(["-m", &number, "-b", address]).args(args).args(role);
                command
            };
            let (receives, sends) = (command(receiver, &[]), command(sender, &["-s"]));
            let told = both_ends(receives, || wait_for_group(group), sends, LIMIT);
            assert!(told.iter().all(|told| told.contains("return status 0")), "{args:?}: {told:#?}");
        }
    }
}

/// In a network namespace of its own, with two IPv6 addresses.
#[test]
fn over_ipv6() {
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
    let told = in_namespace(script, &[]);
    assert_eq!(told.matches("ping data: rdma-ping-19").count(), 2, "{told}");
    assert_eq!(told.matches("return status 0").count(), 2, "{told}");
}

/// One of the corners of `c/connections.c`.
fn corner(name: &str) {
    let [address, _] = addresses();
    CProgram::build("connections").run(&address, &[name, &address]);
}

#[test]
fn both_sides_hear_private_data() {
    corner("private data");
}

#[test]
fn who_is_refused_hears_why() {
    corner("rejected");
}

#[test]
fn a_channel_need_not_wait() {
    corner("nonblocking");
}

#[test]
fn an_id_waits_for_its_events() {
    corner("unacknowledged");
}

#[test]
fn a_channel_may_be_destroyed_while_a_thread_waits_at_it() {
    corner("abandoned");
}

#[test]
fn calls_may_wait_for_what_they_ask() {
    corner("endpoints");
}

#[test]
fn ids_change_their_channel() {
    corner("migrated");
}

#[test]
fn what_is_wrong_is_refused() {
    corner("refused");
}

#[test]
fn an_address_may_be_written_as_a_gid() {
    corner("gids");
}

#[test]
fn a_child_has_none_of_its_parents_connections() {
    corner("forked");
}

#[test]
fn a_child_that_goes_on_keeps_no_port() {
    corner("lingering");
}

#[test]
fn a_program_that_exits_disconnects() {
    corner("exiting");
}

#[test]
fn a_signal_handler_may_exit() {
    corner("interrupted");
}

#[test]
fn a_queue_pair_may_go_before_its_connection_is_heard_of() {
    corner("gone");
}

#[test]
fn groups_bring_what_they_were_joined_with() {
    corner("groups");
}

/// A path as its program gives it, which leads elsewhere than to the address that was resolved.
#[test]
fn the_path_is_the_programs_where_it_gives_one() {
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
    let told = format!("client:\n{}\nserver:\n{}", text(&client), text(&server));
    assert!(client.status.success() && server.status.success(), "{told}");
}

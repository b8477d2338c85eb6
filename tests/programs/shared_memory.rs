//! Tests of programs that exchange packets through rings in shared memory.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use urxe_test_support::programs::{
    Library, MIN_ACK_TIMEOUT, Running, addresses, port, text, urxe, wait_for_listener,
};
use urxe_test_support::transfer::{self, Transfer, eventually, wait_for_messages};

/// Number of iterations that no test waits for.
const ENDLESS: [&str; 2] = ["-n", "100000000"];

/// Returns the command of one end of a ping-pong with this value of `URXE_SHARED_MEMORY`.
fn pingpong(library: &Library, address: &str, when: &str, port: &str, args: &[&str]) -> Command {
    let mut command = library.program("ibv_rc_pingpong", address);
    command.args(["-g", "0", "-p", port]).args(args).env("URXE_SHARED_MEMORY", when);
    command
}

/// Starts both ends, each with its address and its value of `URXE_SHARED_MEMORY`. `change` is applied to both
/// commands.
fn start(
    library: &Library,
    ends: [(&str, &str); 2],
    args: &[&str],
    change: impl Fn(&mut Command),
) -> [Running; 2] {
    let port = port().to_string();
    let mut commands = ends.map(|(address, when)| pingpong(library, address, when, &port, args));
    commands[1].arg("127.0.0.1");
    commands.iter_mut().for_each(&change);
    let [server, client] = commands;
    let server = Running::new(server);
    wait_for_listener(&port);
    [server, Running::new(client)]
}

/// Lets a connection outlive a peer that does not respond, or has ended.
fn with_long_timeout(command: &mut Command) {
    command.env(MIN_ACK_TIMEOUT, "60");
}

fn check_succeeds(running: Running) {
    let out = running.finish(Duration::from_secs(60));
    assert!(out.status.success() && text(&out).contains("iters in"), "{:?} {}", out.status, text(&out));
}

/// Returns the mappings of a process, one in each line; nothing if it has ended.
fn maps(running: &Running) -> String {
    std::fs::read_to_string(format!("/proc/{}/maps", running.id())).unwrap_or_default()
}

fn rings(running: &Running) -> usize {
    transfer::rings(running.id())
}

fn signal(running: &Running, signal: Signal) {
    kill(Pid::from_raw(running.id() as i32), signal).unwrap();
}

#[test]
fn packets_take_a_ring_in_each_direction_on_one_address_and_between_two() {
    let (library, [one, other]) = (Library::new(), addresses());
    for (a, b) in [(&one, &one), (&one, &other)] {
        let ends = [(a.as_str(), "require"), (b.as_str(), "require")];
        let running = start(&library, ends, &ENDLESS, |_| {});
        eventually("both ends have two rings", || running.iter().all(|end| rings(end) == 2));
        running.iter().for_each(|end| signal(end, Signal::SIGKILL));
        drop(running);
        for args in
            [&["-n", "200"][..], &["-n", "200", "-e"], &["-n", "50", "-s", "1000000", "-m", "4096", "-c"]]
        {
            start(&library, ends, args, |_| {}).into_iter().for_each(check_succeeds);
        }
    }
}

#[test]
fn programs_with_several_shards_have_rings() {
    let (library, [one, other]) = (Library::new(), addresses());
    let ends = [(one.as_str(), "require"), (other.as_str(), "require")];
    let shards = |command: &mut Command| {
        command.env("URXE_SHARDS", "4");
    };
    let running = start(&library, ends, &ENDLESS, shards);
    eventually("both ends have two rings", || running.iter().all(|end| rings(end) == 2));
    drop(running);
    start(&library, ends, &["-r", "20", "-n", "200"], shards).into_iter().for_each(check_succeeds);
}

#[test]
fn program_without_rings_exchanges_packets_by_the_socket() {
    let (library, [one, other]) = (Library::new(), addresses());
    for [first, second] in [["auto", "off"], ["off", "auto"]] {
        let ends = [(one.as_str(), first), (other.as_str(), second)];
        let running = start(&library, ends, &["-n", "200"], |_| {});
        running.into_iter().for_each(check_succeeds);
    }
}

#[test]
fn rings_of_a_killed_program_are_closed_and_others_on_its_partition_get_new_ones() {
    let (library, [one, other]) = (Library::new(), addresses());
    let ends = [(one.as_str(), "require"), (other.as_str(), "require")];
    // Keeps the brokers, so that partitions are used again.
    let stays = start(&library, ends, &ENDLESS, with_long_timeout);
    for killed in [0, 1, 0] {
        let running = start(&library, ends, &ENDLESS, with_long_timeout);
        eventually("both ends have two rings", || running.iter().all(|end| rings(end) == 2));
        signal(&running[killed], Signal::SIGKILL);
        let survivor = &running[1 - killed];
        eventually("the rings are closed", || rings(survivor) == 0);
        assert!(!maps(survivor).is_empty(), "the survivor has ended");
        drop(running);
        start(&library, ends, &["-n", "200"], |_| {}).into_iter().for_each(check_succeeds);
    }
    assert!(stays.iter().all(|end| rings(end) == 2), "other connections are not affected");
}

/// Requires rings.
fn require(command: &mut Command) {
    command.env("URXE_SHARED_MEMORY", "require");
}

#[test]
fn descriptors_and_memory_of_a_program_stay_bounded_when_a_hundred_peers_are_killed() {
    let (transfer, [one, other]) = (Transfer::new(), addresses());
    let server = transfer.serve(&one, &[], require);
    let mut first = None;
    for n in 0..100 {
        let (exchanged, done) = (server.says("exchanged"), server.says("done"));
        let client = transfer.connect([&other, &one], 0, &[], require);
        wait_for_messages([&server, &client], [exchanged, 0]);
        client.signal(Signal::SIGKILL);
        drop(client);
        eventually("the rings are closed", || server.rings() == 0);
        server.signal(Signal::SIGUSR1);
        eventually("the server ends the connection", || server.says("done") > done);
        let now = server.descriptors_and_memory();
        // Some memory is kept once it was needed.
        if n == 10 {
            first = Some(now);
        }
        let (descriptors, memory) = first.unwrap_or(now);
        // Ninety rings leaked would be 180 descriptors or 90 MiB.
        assert!(now.0 <= descriptors + 4 && now.1 <= memory + 8 * 1024, "{now:?} after {first:?}");
    }
}

#[test]
fn stopped_program_loses_nothing_and_continues() {
    let (transfer, [one, other]) = (Transfer::new(), addresses());
    let change = |command: &mut Command| {
        require(command);
        with_long_timeout(command);
    };
    let server = transfer.serve(&one, &[], change);
    let client = transfer.connect([&other, &one], 0, &[], change);
    for stopped in [&server, &client] {
        wait_for_messages([&server, &client], [&server, &client].map(|end| end.says("exchanged")));
        stopped.signal(Signal::SIGSTOP);
        // The variable is for a longer stop by hand.
        let seconds = std::env::var("STOPPED_SECONDS").map(|text| text.parse().unwrap());
        std::thread::sleep(Duration::from_secs(seconds.unwrap_or(2)));
        stopped.signal(Signal::SIGCONT);
    }
    wait_for_messages([&server, &client], [&server, &client].map(|end| end.says("exchanged")));
    assert_eq!([server.says("status"), client.says("status")], [0; 2]);
    assert_eq!([server.rings(), client.rings()], [2; 2]);
}

#[test]
fn stop_beyond_the_retries_fails_the_connection_at_both_ends_and_the_next_one_works() {
    let (transfer, [one, other]) = (Transfer::new(), addresses());
    let change = |command: &mut Command| {
        require(command);
        command.env(MIN_ACK_TIMEOUT, "0.1");
    };
    let server = transfer.serve(&one, &[], change);
    let client = transfer.connect([&other, &one], 0, &[], change);
    wait_for_messages([&server, &client], [0; 2]);
    client.signal(Signal::SIGSTOP);
    eventually("the server's connection fails", || server.says("status 12") == 1);
    eventually("the server ends it", || server.says("done") == 1);
    client.signal(Signal::SIGCONT);
    eventually("the client's connection fails", || client.says("status") == 1);
    drop(client);
    transfer.connect([&other, &one], 64, &[], require).check_succeeds();
}

#[test]
fn program_that_requires_rings_fails_with_a_warning_if_its_peer_has_none() {
    let (library, [one, other]) = (Library::new(), addresses());
    let port = port().to_string();
    let server = Running::new(pingpong(&library, &one, "off", &port, &ENDLESS));
    wait_for_listener(&port);
    let args =
        ["run", "--ip", &other, "--shared-memory", "require", "--", "ibv_rc_pingpong", "-g", "0", "-p"];
    let mut command = urxe(&args);
    command.args([&port, "127.0.0.1"]);
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(!out.status.success(), "{}", text(&out));
    for part in
        ["transport retry counter exceeded", "urxe: warning: ring-missing: ", "as there is no ring to it; "]
    {
        assert!(text(&out).contains(part), "{part}: {}", text(&out));
    }
    drop(server);
}

#[test]
fn device_that_cannot_have_the_required_rings_does_not_open() {
    let library = Library::new();
    let open = |link: &str, when: &str| {
        let mut command = library.program("ibv_devinfo", "127.0.0.1");
        command.env("URXE_LINK", link).env("URXE_SHARED_MEMORY", when);
        Running::new(command).finish(Duration::from_secs(60))
    };
    let out = open("frames:connect:/nonexistent,ip=10.77.0.1/24", "require");
    assert!(!out.status.success() && text(&out).contains("cannot have the required rings"), "{}", text(&out));
    let out = open("udp:127.0.0.1", "maybe");
    assert!(
        text(&out).contains("URXE_SHARED_MEMORY is 'maybe': it must be off, auto, require"),
        "{}",
        text(&out)
    );
}

//! Tests of programs that exchange packets through rings in shared memory.

#[path = "../support/mod.rs"]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::{Library, Running, addresses, port, text, wait_for_listener};

/// Number of iterations that no test waits for.
const ENDLESS: [&str; 2] = ["-n", "100000000"];

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not reached within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the command of one end of a ping-pong, with rings if `rings` is set.
fn pingpong(library: &Library, address: &str, rings: bool, port: &str, args: &[&str]) -> Command {
    let mut command = library.program("ibv_rc_pingpong", address);
    command.args(["-g", "0", "-p", port]).args(args);
    command.env("URXE_SHARED_MEMORY", if rings { "1" } else { "0" });
    command
}

/// Starts both ends, each with its address and whether it has rings. `change` is applied to both commands.
fn start(
    library: &Library,
    ends: [(&str, bool); 2],
    args: &[&str],
    change: impl Fn(&mut Command),
) -> [Running; 2] {
    let port = port().to_string();
    let mut commands = ends.map(|(address, rings)| pingpong(library, address, rings, &port, args));
    commands[1].arg("127.0.0.1");
    commands.iter_mut().for_each(&change);
    let [server, client] = commands;
    let server = Running::new(server);
    wait_for_listener(&port);
    [server, Running::new(client)]
}

/// Lets a connection outlive a peer that does not respond, or has ended.
fn with_long_timeout(command: &mut Command) {
    command.env("URXE_MIN_ACK_TIMEOUT", "60");
}

fn check_succeeds(running: Running) {
    let out = running.finish(Duration::from_secs(60));
    assert!(out.status.success() && text(&out).contains("iters in"), "{:?} {}", out.status, text(&out));
}

/// Returns the mappings of a process, one in each line; nothing if it has ended.
fn maps(running: &Running) -> String {
    std::fs::read_to_string(format!("/proc/{}/maps", running.id())).unwrap_or_default()
}

/// Returns the number of rings that a process has mapped: each has two mappings of its data.
fn rings(running: &Running) -> usize {
    maps(running).lines().filter(|line| line.contains("/memfd:urxe ring")).count() / 2
}

fn signal(running: &Running, signal: Signal) {
    kill(Pid::from_raw(running.id() as i32), signal).unwrap();
}

#[test]
fn packets_take_a_ring_in_each_direction_on_one_address_and_between_two() {
    let (library, [one, other]) = (Library::new(), addresses());
    for (a, b) in [(&one, &one), (&one, &other)] {
        let ends = [(a.as_str(), true), (b.as_str(), true)];
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
    let ends = [(one.as_str(), true), (other.as_str(), true)];
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
    for rings_of in [[true, false], [false, true]] {
        let ends = [(one.as_str(), rings_of[0]), (other.as_str(), rings_of[1])];
        let running = start(&library, ends, &["-n", "200"], |_| {});
        running.into_iter().for_each(check_succeeds);
    }
}

#[test]
fn rings_of_a_killed_program_are_closed_and_others_on_its_partition_get_new_ones() {
    let (library, [one, other]) = (Library::new(), addresses());
    let ends = [(one.as_str(), true), (other.as_str(), true)];
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

#[test]
fn stopped_program_continues_where_it_was() {
    let (library, [one, other]) = (Library::new(), addresses());
    let ends = [(one.as_str(), true), (other.as_str(), true)];
    let running = start(&library, ends, &ENDLESS, with_long_timeout);
    eventually("both ends have two rings", || running.iter().all(|end| rings(end) == 2));
    for end in &running {
        signal(end, Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(500));
        signal(end, Signal::SIGCONT);
    }
    // A failed work request would end the program.
    std::thread::sleep(Duration::from_millis(500));
    assert!(running.iter().all(|end| rings(end) == 2));
}

//! Tests of several programs on one address: a broker grants each a QPN partition, and the exit of one
//! program does not affect the others.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::{AddressVector, Context, ContextOptions, Gid};
use urxe::wire::mad::{CommId, Dreq, Mad, Message};

use urxe_test_support::programs::{
    self, CProgram, Library, Running, addresses, copy_built, port, text, wait_for_listener,
};
use urxe_test_support::requirement::is_met;

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not reached within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the process IDs of the brokers for an address.
fn brokers(address: &str) -> Vec<Pid> {
    let line = format!("urxe\0broker\0{address}\0");
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|own| own.starts_with(line.as_bytes()))
    };
    numbers.filter(is_one).map(Pid::from_raw).collect()
}

/// Returns the command that runs one end of a ping-pong; both ends use the same address.
fn pingpong(library: &Library, address: &str, port: &str, args: &[&str]) -> Command {
    let mut command = library.program("ibv_rc_pingpong", address);
    command.args(["-g", "0", "-p", port]).args(args);
    command
}

/// Starts a server that waits for its client.
fn server(library: &Library, address: &str, port: &str, args: &[&str]) -> Running {
    let running = Running::new(pingpong(library, address, port, args));
    wait_for_listener(port);
    running
}

fn client(library: &Library, address: &str, port: &str, args: &[&str]) -> Running {
    let mut command = pingpong(library, address, port, args);
    command.arg("127.0.0.1");
    Running::new(command)
}

fn check_succeeds(running: Running) {
    let out = running.finish(Duration::from_secs(60));
    assert!(out.status.success() && text(&out).contains("iters in"), "{:?} {}", out.status, text(&out));
}

/// Runs both ends of a short ping-pong on one address.
fn run_pingpong(library: &Library, address: &str, args: &[&str]) {
    let port = port().to_string();
    let server = server(library, address, &port, args);
    check_succeeds(client(library, address, &port, args));
    check_succeeds(server);
}

#[test]
fn programs_on_one_address_communicate_and_the_broker_ends_with_the_last() {
    let (library, [address, _]) = (Library::new(), addresses());
    let (one, other) = (port().to_string(), port().to_string());
    let servers = [server(&library, &address, &one, &[]), server(&library, &address, &other, &["-e"])];
    assert_eq!(brokers(&address).len(), 1);
    let clients = [client(&library, &address, &one, &[]), client(&library, &address, &other, &["-e"])];
    clients.into_iter().chain(servers).for_each(check_succeeds);
    eventually("the broker ends", || brokers(&address).is_empty());
    eventually("the port is free", || std::net::UdpSocket::bind((address.as_str(), 4791)).is_ok());
}

#[test]
fn programs_with_several_shards_share_an_address() {
    let (library, [address, _]) = (Library::new(), addresses());
    let port = port().to_string();
    let with_shards = |mut command: Command| {
        command.env("URXE_SHARDS", "4");
        Running::new(command)
    };
    let args = ["-r", "20", "-n", "500"];
    let server = with_shards(pingpong(&library, &address, &port, &args));
    wait_for_listener(&port);
    let mut command = pingpong(&library, &address, &port, &args);
    command.arg("127.0.0.1");
    check_succeeds(with_shards(command));
    check_succeeds(server);
}

#[test]
fn qpn_partition_of_a_killed_program_is_reused() {
    let (library, [address, _]) = (Library::new(), addresses());
    let running = server(&library, &address, &port().to_string(), &[]);
    let broker = brokers(&address);
    for _ in 0..3 {
        let (port, endless) = (port().to_string(), ["-n", "100000000"]);
        let ends = [server(&library, &address, &port, &endless), client(&library, &address, &port, &endless)];
        std::thread::sleep(Duration::from_millis(100));
        for end in ends {
            kill(Pid::from_raw(end.id() as i32), Signal::SIGKILL).unwrap();
            assert_eq!(end.finish(Duration::from_secs(10)).status.signal(), Some(libc::SIGKILL));
        }
        run_pingpong(&library, &address, &["-n", "200"]);
    }
    assert_eq!(brokers(&address), broker, "the broker was replaced");
    drop(running);
    eventually("the broker ends", || brokers(&address).is_empty());
}

#[test]
fn dreq_to_a_killed_program_is_answered_with_a_drep() {
    let (library, [address, other_address]) = (Library::new(), addresses());
    let _stays = server(&library, &address, &port().to_string(), &[]);
    let killed = server(&library, &address, &port().to_string(), &[]);
    let link = UdpLink::bind(other_address.parse().unwrap(), &UdpOptions::default()).unwrap();
    let peer = Context::open(Box::new(link), &ContextOptions::default()).unwrap().management_port().unwrap();
    let to = AddressVector::to(Gid::from(address.parse::<std::net::IpAddr>().unwrap()));
    // The communication IDs of a process begin with its QPN partition.
    let send_dreqs = || {
        for partition in 1..64 {
            let (local, remote) = (CommId(partition), CommId(partition << 26 | 0x77));
            let message = Message::Dreq(Dreq { local, remote, ..Dreq::default() });
            peer.send(&to, &Mad { transaction: 1, modifier: 0, message }.bytes()).unwrap();
        }
        peer.recv(Duration::from_millis(300)).map(|mad| Mad::parse(&mad.bytes).unwrap().message)
    };
    assert!(send_dreqs().is_err(), "a live process does not send a DREP through the broker");
    kill(Pid::from_raw(killed.id() as i32), Signal::SIGKILL).unwrap();
    killed.finish(Duration::from_secs(10));
    let mut response = send_dreqs();
    eventually("a DREP", || {
        response = send_dreqs();
        response.is_ok()
    });
    let Ok(Message::Drep(drep)) = response else { panic!("{response:?}") };
    assert_eq!(drep.local.0, drep.remote.0 << 26 | 0x77);
}

#[test]
fn programs_survive_the_death_of_the_broker_and_another_broker_takes_over() {
    let (library, [address, _]) = (Library::new(), addresses());
    let port = port().to_string();
    let long = ["-n", "100000000"];
    let ends = [server(&library, &address, &port, &long), client(&library, &address, &port, &long)];
    for _ in 0..3 {
        let mut before = Vec::new();
        // Both programs start a broker after a kill; one of the two ends again.
        eventually("one broker", || {
            before = brokers(&address);
            before.len() == 1
        });
        kill(before[0], Signal::SIGKILL).unwrap();
        eventually("another broker", || brokers(&address).iter().any(|new| *new != before[0]));
        run_pingpong(&library, &address, &["-n", "200"]);
    }
    for end in ends {
        let pid = Pid::from_raw(end.id() as i32);
        assert_eq!(kill(pid, None), Ok(()), "the program must still be running");
        kill(pid, Signal::SIGTERM).unwrap();
        let out = end.finish(Duration::from_secs(10));
        assert_eq!(out.status.signal(), Some(libc::SIGTERM), "{}", text(&out));
    }
    eventually("the broker ends", || brokers(&address).is_empty());
}

#[test]
fn stopped_program_keeps_its_qpn_partition_under_a_new_broker() {
    let (library, [address, _]) = (Library::new(), addresses());
    let port = port().to_string();
    let stopped = server(&library, &address, &port, &["-n", "200"]);
    let idle = server(&library, &address, &programs::port().to_string(), &[]);
    let pid = Pid::from_raw(stopped.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    let before = brokers(&address);
    kill(before[0], Signal::SIGKILL).unwrap();
    // A new broker starts with the first QPN partition, which the stopped process holds.
    for _ in 0..4 {
        run_pingpong(&library, &address, &["-n", "10"]);
    }
    let mut devinfo = library.program("ibv_devinfo", &address);
    assert!(devinfo.output().unwrap().status.success());
    kill(pid, Signal::SIGCONT).unwrap();
    check_succeeds(client(&library, &address, &port, &["-n", "200"]));
    check_succeeds(stopped);
    drop(idle);
}

#[test]
fn programs_of_other_users_cannot_share_an_address_by_default() {
    if !is_met(nix::unistd::geteuid().is_root(), "two users require root") {
        return;
    }
    let [own_address, shared_address] = addresses();
    let library = Library::new();
    let nobody = |address: &str, any_user_var: &str| {
        // The build products may be in a directory that other users cannot read.
        let dir = tempfile::tempdir().unwrap();
        for (name, copy) in [("libibverbs.so", "libibverbs.so.1"), ("urxe", "urxe")] {
            copy_built(name, &dir.path().join(copy));
        }
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "ibv_devinfo"]);
        command.env("LD_LIBRARY_PATH", dir.path()).env("URXE_LINK", format!("udp:{address}"));
        command.env("URXE_ANY_USER", any_user_var).stdin(Stdio::null());
        let out = command.output().unwrap();
        (out.status.success(), text(&out))
    };
    let running = server(&library, &own_address, &port().to_string(), &[]);
    for any_user_var in ["0", "1", "0", "0", "0", "1", "0"] {
        let (succeeded, printed) = nobody(&own_address, any_user_var);
        assert!(!succeeded && printed.contains("shared only by processes of user 0"), "{printed}");
    }
    drop(running);
    let port_text = port().to_string();
    let mut command = pingpong(&library, &shared_address, &port_text, &[]);
    command.env("URXE_ANY_USER", "1");
    let running = Running::new(command);
    wait_for_listener(&port_text);
    let (succeeded, printed) = nobody(&shared_address, "1");
    assert!(succeeded && printed.contains("urxe0"), "{printed}");
    drop(running);
}

/// Listens after the process has changed its user ID: the sockets of listeners are in a directory that only
/// the user who opened the device can enter.
#[test]
fn listen_after_a_change_of_user_fails_with_the_reason_unless_any_user_is_set() {
    if !is_met(nix::unistd::geteuid().is_root(), "a change of the user requires root") {
        return;
    }
    let (library, dropped) = (Library::new(), CProgram::build("dropped"));
    let [own, any] = addresses();
    let run = |address: &str, any_user: &str| {
        let mut command = library.program(dropped.program(), address);
        command.arg(address).env("URXE_ANY_USER", any_user);
        Running::new(command).finish(Duration::from_secs(30))
    };
    let out = run(&own, "0");
    assert_eq!(out.status.code(), Some(libc::EACCES), "{}", text(&out));
    let reason = ["urxe: ", "cannot be entered by user 65534", "--any-user"];
    assert!(reason.iter().all(|part| text(&out).contains(part)), "{}", text(&out));
    let out = run(&any, "1");
    assert!(out.status.success() && text(&out).is_empty(), "{:?} {}", out.status, text(&out));
}

#[test]
fn broker_is_not_a_child_of_the_program() {
    let (library, [address, _]) = (Library::new(), addresses());
    let corners = programs::CProgram::build("corners");
    let mut command = library.program(corners.program(), &address);
    command.arg("children");
    let out = Running::new(command).finish(Duration::from_secs(30));
    assert!(out.status.success(), "{:?} {}", out.status, text(&out));
}

#[test]
fn broker_starts_in_a_program_that_interposes_clone() {
    let (library, [address, _]) = (Library::new(), addresses());
    let interposed = CProgram::build_with("interposed_clone", &["-shared", "-fPIC"]);
    let mut command = library.program("ibv_devinfo", &address);
    command.env("LD_PRELOAD", interposed.program());
    let out = Running::new(command).finish(Duration::from_secs(30));
    assert!(out.status.success(), "{:?} {}", out.status, text(&out));
}

/// Reports whether a program is installed. In CI, a missing program is an error.
fn is_installed(program: &str) -> bool {
    let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    is_met(status.is_ok(), &format!("{program} is missing: tests/install installs it"))
}

#[test]
fn breakpoint_after_start_of_broker_is_reached_under_gdb() {
    if !is_installed("gdb") {
        return;
    }
    let (library, [address, _]) = (Library::new(), addresses());
    let mut command = library.program("gdb", &address);
    command.args(["-nx", "-batch", "-ex", "set breakpoint pending on", "-ex", "break ibv_close_device"]);
    command.args(["-ex", "run", "-ex", "continue", "--args", "ibv_devinfo"]);
    let printed = text(&Running::new(command).finish(Duration::from_secs(120)));
    assert!(printed.contains("\nBreakpoint 1, ") || printed.contains("hit Breakpoint 1, "), "{printed}");
    assert!(printed.contains("exited normally") && !printed.contains("Couldn't get"), "{printed}");
    eventually("the broker ends", || brokers(&address).is_empty());
}

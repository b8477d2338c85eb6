//! Tests of a broker with a low limit on open file descriptors, and of one in another PID namespace.

use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use urxe_test_support::programs::{
    Library, Running, addresses, built, in_namespace, port, text, wait_for_listener,
};

/// Descriptor limit sufficient for one address, which requires 64 sockets, and for a few processes.
const FD_LIMIT_FOR_FEW: u32 = 84;
/// Descriptor limit sufficient for one address and some processes, but not for all connections in the test.
const FD_LIMIT_FOR_SOME: u32 = 128;

/// Returns the path of the socket on which the broker for an address listens, or `None` if there is no
/// broker.
fn broker_socket(address: &str) -> Option<String> {
    let name = format!("/urxe-broker-{address}");
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    // The flag means that the socket listens; the name is set before that.
    let listening = sockets.lines().filter(|line| line.contains(" 00010000 "));
    let mut paths = listening.filter_map(|line| line.split_whitespace().last());
    paths.find(|path| path.ends_with(&name)).map(str::to_owned)
}

/// Starts a broker with the given descriptor limit, and waits until it listens.
fn broker(address: &str, descriptors: u32) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" broker {address}")]);
    command.arg(built("urxe").unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::new(command);
    let deadline = Instant::now() + Duration::from_secs(20);
    while broker_socket(address).is_none() {
        assert!(Instant::now() < deadline, "the broker does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

fn server(library: &Library, address: &str, port: &str) -> Running {
    let mut command = library.program("ibv_rc_pingpong", address);
    command.args(["-g", "0", "-p", port]);
    Running::new(command)
}

#[test]
fn broker_without_free_descriptors_rejects_a_new_process_and_serves_the_others() {
    let (library, [address, _]) = (Library::new(), addresses());
    let _broker = broker(&address, FD_LIMIT_FOR_FEW);
    // The broker runs as long as one of the servers runs.
    let first = port().to_string();
    let mut servers = vec![(first.clone(), server(&library, &address, &first))];
    wait_for_listener(&first);
    let refused = loop {
        assert!(servers.len() < 63, "no process was refused although the descriptors do not suffice");
        let out = Running::new(library.program("ibv_devinfo", &address)).finish(Duration::from_secs(60));
        if !out.status.success() {
            break text(&out);
        }
        let port = port().to_string();
        let running = server(&library, &address, &port);
        wait_for_listener(&port);
        servers.push((port, running));
    };
    let broker = format!("the broker of {address} cannot");
    assert!(refused.contains(&broker) && refused.contains("Too many open files"), "{refused}");
    assert!(servers.len() > 1, "refused after {} processes: {refused}", servers.len());
    // The end of one process makes room for a client of another.
    drop(servers.pop());
    let (port, waiting) = servers.pop().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let printed = loop {
        let mut client = library.program("ibv_rc_pingpong", &address);
        client.args(["-g", "0", "-p", &port, "127.0.0.1"]);
        let out = Running::new(client).finish(Duration::from_secs(30));
        if out.status.success() || Instant::now() > deadline {
            break text(&out);
        }
    };
    assert!(printed.contains("iters in"), "{printed}");
    let out = waiting.finish(Duration::from_secs(30));
    assert!(out.status.success(), "{}", text(&out));
}

#[test]
fn idle_connections_that_use_all_descriptors_do_not_lock_out_a_process() {
    let (library, [address, _]) = (Library::new(), addresses());
    let _broker = broker(&address, FD_LIMIT_FOR_SOME);
    let path = UnixAddr::new(broker_socket(&address).unwrap().as_str()).unwrap();
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let connection =
                socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
            connect(connection.as_raw_fd(), &path).unwrap();
            connection
        })
        .collect();
    let out = Running::new(library.program("ibv_devinfo", &address)).finish(Duration::from_secs(60));
    assert!(out.status.success() && text(&out).contains("urxe0"), "{}", text(&out));
    drop(silent);
}

#[test]
fn process_in_a_pid_namespace_serves_connections_with_the_broker_of_another_one() {
    // Two containers of a pod. The process ID of a broker outside the server's PID namespace is 0 there.
    let printed = in_namespace(
        r#"
        ip link set lo up && export XDG_RUNTIME_DIR=$DIR
        wait_for() { for i in $(seq 600); do grep -q "$1" /proc/net/unix && return; sleep 0.1; done; exit 4; }
        "$URXE" run --ip 127.0.0.1 -- ibv_rc_pingpong -g 0 & first=$!
        wait_for urxe-broker
        unshare -pf "$URXE" run --ip 127.0.0.1 -- rping -s -a 127.0.0.1 -p 7000 -C 10 & server=$!
        wait_for urxe-service
        run 127.0.0.1 rping -c -a 127.0.0.1 -p 7000 -C 10 -v || { kill $first $server; exit 5; }
        wait $server; status=$?
        kill $first
        exit $status
        "#,
        &[],
    );
    assert!(printed.contains("ping data: rdma-ping-9"), "{printed}");
}

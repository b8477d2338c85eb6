//! Port counters in sysfs, as monitoring programs read them under `urxe run` while programs run on the device
//! and after these have ended.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::{Duration, Instant};

use urxe_test_support::programs::{
    CProgram, Running, addresses, in_namespace, port, text, urxe, wait_for_listener,
};

/// Path MTU of the loopback interface, in bytes.
const MTU: u64 = 4096;
/// Length of a RETH, which the first packet of a WRITE has.
const RETH_LEN: u64 = 16;
/// Length of a BTH and an ICRC, which every packet has.
const BTH_AND_ICRC_LEN: u64 = 16;
const MESSAGE_LEN: u64 = 65536;

/// A device, whose counters may include those of earlier test runs.
struct Device {
    name: &'static str,
    address: String,
    before: HashMap<String, u64>,
}

impl Device {
    fn new(name: &'static str, address: &str) -> Device {
        let mut device = Device { name, address: address.into(), before: HashMap::new() };
        device.before = device.counters();
        device
    }

    /// Returns the command that runs a program on the device.
    fn run(&self, program: &[&str]) -> Command {
        urxe(&[&["run", "--name", self.name, "--ip", &self.address, "--"], program].concat())
    }

    /// Reads what all files of the port have counted since the device was created, in a shell.
    fn counters(&self) -> HashMap<String, u64> {
        let show =
            format!("cd /sys/class/infiniband/{}/ports/1 && grep . counters/* hw_counters/*", self.name);
        let out = self.run(&["sh", "-c", &show]).output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        let lines = text(&out);
        let parse = |line: &str| {
            let (file, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
            let value: u64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            (file.to_owned(), value - self.before.get(file).unwrap_or(&0))
        };
        lines.lines().map(parse).collect()
    }

    /// Returns one of the `hw_counters`.
    fn hw(&self, name: &str) -> u64 {
        self.counters()[&format!("hw_counters/{name}")]
    }

    /// Reads a counter until its value is in the range.
    fn wait_for(&self, counter: &str, range: RangeInclusive<u64>) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let now = self.counters()[counter];
            if range.contains(&now) {
                return;
            }
            assert!(Instant::now() < deadline, "{counter} is {now}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn counters_move_while_ib_write_bw_runs_and_are_exact_at_its_end() {
    let [server, client] = addresses();
    let [receiver, sender] = [Device::new("mlx5_0", &server), Device::new("mlx5_1", &client)];
    let (port, count) = (port().to_string(), 50_000);
    let (iterations, size) = (count.to_string(), MESSAGE_LEN.to_string());
    let program = |name| ["ib_write_bw", "-d", name, "-x", "0", "-s", &size, "-n", &iterations, "-p", &port];
    let serving = Running::new(receiver.run(&program("mlx5_0")));
    wait_for_listener(&port);
    let sending = Running::new(sender.run(&[&program("mlx5_1")[..], &["127.0.0.1"]].concat()));
    let bytes = count * MESSAGE_LEN;
    sender.wait_for("counters/port_xmit_data", 1..=bytes / 4 - 1);
    receiver.wait_for("hw_counters/rx_write_requests", 1..=count - 1);
    for (running, end) in [(sending, "client"), (serving, "server")] {
        let out = running.finish(Duration::from_secs(120));
        assert!(out.status.success(), "{end}: {}", text(&out));
    }

    let (sender, receiver) = (sender.counters(), receiver.counters());
    assert_eq!(receiver["hw_counters/rx_write_requests"], count);
    let packets = count * MESSAGE_LEN.div_ceil(MTU);
    let repeated = sender["hw_counters/retransmitted_pkts"] + sender["hw_counters/ack_probe"];
    assert_eq!(sender["counters/port_xmit_packets"], packets + repeated, "{sender:?}");
    let words = (bytes + count * RETH_LEN + packets * BTH_AND_ICRC_LEN) / 4;
    let most = words + repeated * (MTU + RETH_LEN + BTH_AND_ICRC_LEN) / 4;
    assert!((words..=most).contains(&sender["counters/port_xmit_data"]), "{words}: {sender:?}");
    // The sender has sent every word that the receiver counts.
    assert!(
        receiver["counters/port_rcv_data"] <= sender["counters/port_xmit_data"],
        "{receiver:?} {sender:?}"
    );
    assert!(receiver["counters/port_rcv_packets"] >= packets, "{receiver:?}");
    // Only acknowledgements; the answer to the last probe may arrive after the sender has closed its device.
    let acknowledged = sender["counters/port_rcv_packets"];
    let sent = receiver["counters/port_xmit_packets"];
    assert!((sent.saturating_sub(repeated)..=sent).contains(&acknowledged), "{receiver:?} {sender:?}");
    assert_eq!(receiver["hw_counters/rx_read_requests"] + receiver["hw_counters/rx_atomic_requests"], 0);
}

#[test]
fn counters_of_two_devices_with_one_prefix_are_separate() {
    const SCRIPT: &str = r#"
        ip link set lo up || exit 3
        # Link-local addresses would be the first GIDs.
        echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 || exit 3
        for n in 0 1; do
            ip link add v$n type veth peer name w$n && ip addr add 10.77.$n.1/24 dev v$n || exit 3
            ip link set w$n up && ip link set v$n up || exit 3
        done
        cat >"$DIR/script" <<'END'
        ls /sys/class/infiniband /sys/class/infiniband/mlx5_8/device/net
        ib_write_bw -d mlx5_7 -x 0 -s 4096 -n 1000 -p 20000 >"$DIR/server" & server=$!
        until grep -q ":4E20 .* 0A " /proc/net/tcp; do kill -0 $server || exit 4; done
        ib_write_bw -d mlx5_8 -x 0 -s 4096 -n 1000 -p 20000 127.0.0.1 >"$DIR/client" || exit 5
        wait $server || exit 6
        for name in mlx5_7 mlx5_8; do cat /sys/class/infiniband/$name/ports/1/hw_counters/rx_write_requests; done
END
        # A tree without the counters of an earlier namespace with the same number.
        export XDG_RUNTIME_DIR="$DIR"
        "$URXE" run --name mlx5_7 -- sh "$DIR/script"
    "#;
    let printed = in_namespace(SCRIPT, &[]);
    let lines: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[..2], ["/sys/class/infiniband:", "mlx5_7"], "{printed}");
    assert!(printed.contains("\nv1\n"), "{printed}");
    assert!(printed.ends_with("1000\n0\n"), "{printed}");
}

#[test]
fn counters_include_processes_that_were_killed_or_ended_without_closing_the_device() {
    let device = Device::new("mlx5_0", &addresses()[0]);
    let corners = CProgram::build("corners");
    let run = |what| device.run(&[corners.program(), what]);
    let out = run("leave").output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let each = device.hw("rdma_recvs");
    assert!(each > 0);
    let mut running = run("linger").spawn().unwrap();
    device.wait_for("hw_counters/rdma_recvs", 2 * each..=2 * each);
    running.kill().unwrap();
    running.wait().unwrap();
    let out = run("leave").output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(device.hw("rdma_recvs"), 3 * each);
}

#[test]
fn counters_include_a_process_that_ends_by_underscore_exit_after_its_last_queue_pair() {
    let device = Device::new("urxe0", &addresses()[0]);
    let calls = CProgram::build("calls");
    let out = device.run(&[calls.program(), "_exit"]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(device.hw("rdma_sends"), 1);
}

/// A thread that ended later would crash while Open MPI or UCX patches the code of `madvise`.
#[test]
fn device_has_no_threads_once_it_is_closed() {
    let device = Device::new("urxe0", &addresses()[0]);
    let calls = CProgram::build("calls");
    for _ in 0..10 {
        let out = device.run(&[calls.program(), "threads"]).output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
    }
}

#[test]
fn counters_include_forked_processes_and_count_those_of_their_parent_once() {
    let device = Device::new("urxe0", &addresses()[0]);
    let forks = CProgram::build("forks");
    let out = Running::new(device.run(&[forks.program()])).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?} {}", out.status, text(&out));
    let all = device.counters();
    // 20 children send 100 messages each, and the parent at least one; each process sends to itself.
    assert!(all["hw_counters/rdma_sends"] > 2000, "{all:?}");
    assert_eq!(all["hw_counters/rdma_sends"], all["hw_counters/rdma_recvs"], "{all:?}");
}

//! Tests of the kernel's NVMe initiator in a guest with rxe, against the target on the host.

use std::fmt::Write as _;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use urxe::link::LinkSpec;
use urxe::verbs::cm::{ConnectionManager, Listener};
use urxe::verbs::{Context, ContextOptions};
use urxe_nvme::namespace::Namespace;
use urxe_nvme::server;
use urxe_nvme::subsystem::Subsystem;
use urxe_test_support::rng::Rng;
use urxe_test_support::testbed::{HOST, LinkKind, Testbed};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 4420;
const NQN: &str = "nqn.2014-08.org.urxe:disk";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
const BLOCK: usize = 512;
/// Size of the disk in bytes.
const DISK: usize = 8 << 20;

/// Expected contents of the disk, and the file that the target serves.
struct Disk {
    model: Vec<u8>,
    path: PathBuf,
}

impl Disk {
    fn check(&self) {
        let file = std::fs::read(&self.path).unwrap();
        let first_difference = self.model.iter().zip(&file).position(|(a, b)| a != b);
        assert_eq!(
            (file.len(), first_difference),
            (self.model.len(), None),
            "length, and position of the first difference"
        );
    }

    fn hash(&self) -> String {
        let out = Command::new("sha256sum").arg(&self.path).output().unwrap();
        String::from_utf8(out.stdout).unwrap()[..64].into()
    }
}

/// Connects as `nvme connect` does. Returns the controller's name, or the kernel's error.
fn connect(testbed: &Testbed, version: usize, nqn: &str) -> Result<String, String> {
    let at = HOST[version];
    let options = format!(
        "transport=rdma,traddr={at},trsvcid={PORT},nqn={nqn},hostnqn={HOST_NQN},reconnect_delay=1,ctrl_loss_tmo=60"
    );
    // The kernel may miss an immediate ARP reply, and then takes 3 s to connect: the ping resolves the
    // address first.
    let command = format!(
        "ping -c 1 {at} >/tmp/ping || exit 1
         exec 3<>/dev/nvme-fabrics
         if echo -n '{options}' >&3; then cat <&3; else dmesg | tail -n 3; fi"
    );
    // instance=0,cntlid=1
    let output = testbed.guest.check(&command, LIMIT).unwrap().stdout;
    let instance = output.strip_prefix("instance=").and_then(|rest| rest.split(',').next());
    instance.map(|n| format!("nvme{n}")).ok_or(output)
}

/// Connects to the subsystem and waits for its disk, which the kernel adds after the connect returns. Returns
/// the controller's name and the disk's path.
fn connect_disk(testbed: &Testbed, version: usize) -> (String, String) {
    let controller = connect(testbed, version, NQN).unwrap();
    let device = format!("/dev/{controller}n1");
    testbed.guest.check(&format!("until [ -b {device} ]; do usleep 20000; done"), LIMIT).unwrap();
    (controller, device)
}

/// Copies runs of blocks within the disk, with direct I/O. Each read or write is one NVMe command; its data
/// is in the capsule or transferred by RDMA.
fn copy_runs(testbed: &Testbed, device: &str, disk: &mut Disk, rng: &mut Rng) {
    let sizes = [1, 2, 3, 7, 8, 9, 16, 31, 64, 100, 255, 256, 257, 1000, 2048];
    let runs: Vec<[usize; 3]> = (0..2 * sizes.len())
        .map(|i| {
            let blocks = sizes[i % sizes.len()];
            let offset = |n: &mut Rng| n.below((DISK / BLOCK - blocks + 1) as u64) as usize;
            [blocks, offset(rng), offset(rng)]
        })
        .collect();
    let mut script = format!(
        "copy() {{
             dd if={device} of=/tmp/run bs=$1 count=1 skip=$2 iflag=direct,skip_bytes 2>/tmp/dd &&
             dd if=/tmp/run of={device} bs=$1 count=1 seek=$3 oflag=direct,seek_bytes conv=notrunc 2>/tmp/dd ||
             {{ cat /tmp/dd; exit 1; }}
         }}\n"
    );
    for [blocks, from, to] in runs {
        let (len, from, to) = (blocks * BLOCK, from * BLOCK, to * BLOCK);
        disk.model.copy_within(from..from + len, to);
        let _ = writeln!(script, "copy {len} {from} {to}");
    }
    testbed.guest.check(&script, LIMIT).unwrap();
}

/// Connects to the disk; reads, copies, flushes and discards blocks, and compares the disk with the model.
fn check_disk(testbed: &Testbed, version: usize, disk: &mut Disk, rng: &mut Rng) {
    let start = Instant::now();
    let step = |what: &str| eprintln!("{:6.2} s  {what}", start.elapsed().as_secs_f64());
    let run = |command: &str| testbed.guest.check(command, LIMIT).unwrap().stdout;
    let (controller, device) = connect_disk(testbed, version);
    step("connected");

    let output = run(&format!(
        "cd /sys/class/nvme/{controller} && cat subsysnqn cntrltype model &&
         cd /sys/block/{controller}n1 && cat size queue/logical_block_size queue/write_cache queue/max_hw_sectors_kb"
    ));
    let output: Vec<&str> = output.lines().map(str::trim).collect();
    let blocks = (DISK / BLOCK).to_string();
    assert_eq!(output, [NQN, "io", "urxe NVMe over Fabrics target", &blocks, "512", "write back", "1024"]);

    // Through the guest's cache, which reads ahead: large commands, and several at a time.
    assert_eq!(run(&format!("sha256sum {device}"))[..64], disk.hash());
    step("read");
    copy_runs(testbed, &device, disk, rng);
    step("copied");
    disk.check();
    let (from, to, len) = (DISK / 2, DISK / 4, DISK / 4);
    disk.model.copy_within(from..from + len, to);
    let [skip, seek, count] = [from, to, len].map(|bytes| bytes >> 16);
    run(&format!(
        "dd if={device} of={device} bs=64k skip={skip} seek={seek} count={count} conv=notrunc,fsync 2>&1"
    ));
    disk.check();
    step("flushed");
    run(&format!("blkdiscard -o 65536 -l 131072 {device}"));
    disk.model[65536..][..131_072].fill(0);
    disk.check();
    run("echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(run(&format!("sha256sum {device}"))[..64], disk.hash());
    disconnect(testbed, &controller);
    assert_eq!(testbed.guest.exec(&format!("[ -e {device} ]"), LIMIT).unwrap().status, 1);
    step("disconnected");
}

fn disconnect(testbed: &Testbed, controller: &str) {
    testbed.guest.check(&format!("echo 1 >/sys/class/nvme/{controller}/delete_controller"), LIMIT).unwrap();
}

/// Checks that a discovery controller goes live, and that a connect to an unknown subsystem is refused.
fn check_discovery_and_unknown_nqn(testbed: &Testbed) {
    let controller = connect(testbed, 0, urxe_nvme::DISCOVERY_NQN).unwrap();
    let output = testbed
        .guest
        .check(&format!("cd /sys/class/nvme/{controller} && cat cntrltype state"), LIMIT)
        .unwrap();
    assert_eq!(output.stdout, "discovery\nlive\n");
    disconnect(testbed, &controller);
    let error = connect(testbed, 0, "nqn.2014-08.org.urxe:another").unwrap_err();
    assert!(error.contains("Connect Invalid Data Parameter, subsysnqn"), "{error}");
}

/// A target on the host; its listener stays open while the target is stopped.
struct Target {
    listener: Listener,
    subsystem: Arc<Subsystem>,
}

impl Target {
    /// Serves hosts until `test` returns.
    fn serving<R>(&self, test: impl FnOnce() -> R) -> R {
        // Stops the target also when the test fails.
        struct StopGuard<'a>(&'a AtomicBool);
        impl Drop for StopGuard<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stop, log) = (|| is_stopped.load(Ordering::Relaxed), |line: &str| eprintln!("{line}"));
            scope.spawn(move || server::serve(&self.listener, &self.subsystem, &stop, &log).unwrap());
            let _guard = StopGuard(&is_stopped);
            test()
        })
    }
}

#[test]
fn kernel_nvme_initiator_reads_and_writes_file_backed_target() {
    let testbed = Testbed::start(LinkKind::Dgram);
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let mut disk = Disk { model: rng.bytes(DISK), path: dir.path().join("disk") };
    std::fs::write(&disk.path, &disk.model).unwrap();

    let link: LinkSpec = testbed.link_arg(LinkKind::Dgram, 0).parse().unwrap();
    let context = Context::open_shards(link.bind(1).unwrap(), &ContextOptions::default()).unwrap();
    let manager = ConnectionManager::new(vec![context]).unwrap();
    let at = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT);
    let namespace = Namespace::open(&disk.path, BLOCK, false).unwrap();
    let target = Target {
        listener: Listener::bind(&manager, at).unwrap(),
        subsystem: Arc::new(Subsystem::new(NQN.into(), namespace, Vec::new())),
    };
    testbed.guest.check("modprobe nvme_rdma", LIMIT).unwrap();
    let (controller, device) = target.serving(|| {
        for version in 0..2 {
            check_disk(&testbed, version, &mut disk, &mut rng);
        }
        check_discovery_and_unknown_nqn(&testbed);
        connect_disk(&testbed, 0)
    });
    // The target is restarted: the kernel reconnects.
    target.serving(|| {
        let read = format!("dd if={device} bs=1M iflag=direct 2>/dev/null | sha256sum");
        assert_eq!(testbed.guest.check(&read, LIMIT).unwrap().stdout[..64], disk.hash());
        disconnect(&testbed, &controller);
    });
    assert_eq!(manager.connections(), 0);
}

//! Tests of regions from which other processes copy payloads themselves. Two contexts with different
//! addresses use rings in shared memory as two processes would.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use urxe::broker::{SharedMemory, Sharing};
use urxe::link::LinkSpec;
use urxe::verbs::*;

const LEN: usize = 2 << 20;
/// Offset of the buffer of receives in the target.
const RECEIVED: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

fn endpoint(ip: &str) -> TestEndpoint {
    let ip: IpAddr = ip.parse().unwrap();
    let program = env!("CARGO_BIN_EXE_urxe").into();
    let sharing = Sharing { program, any_user: false, shared_memory: SharedMemory::Require };
    let links = sharing.bind(&LinkSpec::Udp(Some(ip)), 1, true).unwrap();
    TestEndpoint::new(Context::open_shards(links, &ContextOptions::default()).unwrap()).unwrap()
}

/// Returns connected endpoints.
fn pair(ips: [&str; 2]) -> [TestEndpoint; 2] {
    let ends = ips.map(endpoint);
    ends[0].connect(&ends[1], &ConnectOptions::default()).unwrap();
    ends
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251 + seed * 17) as u8).collect()
}

/// Returns the inode of the file that contains a region.
fn inode(mr: &Mr) -> String {
    let address = mr.buffer().addr();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let contains = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        (start..end).contains(&address)
    };
    maps.lines().find(contains).unwrap().split_whitespace().nth(4).unwrap().into()
}

/// Returns the number of mappings of a file.
fn mappings(inode: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(inode)).count()
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TIMEOUT, "not reached within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

fn wait(end: &TestEndpoint) -> Completion {
    let completion = end.cq.wait(TIMEOUT).unwrap();
    assert_eq!(completion.status, WcStatus::Success);
    completion
}

#[test]
fn payloads_arrive_alike_from_ordinary_and_shareable_regions() {
    let [a, b] = pair(["127.20.230.1", "127.20.230.2"]);
    let target = b.pd.reg_mr(LEN, Access::ALL).unwrap();
    let mut results = Vec::new();
    for shareable in [false, true] {
        let source = a.pd.reg_mr(LEN, MrOptions::new(Access::ALL).shareable(shareable)).unwrap();
        target.write(0, &vec![0; LEN]).unwrap();
        let mut memory = Vec::new();
        // Several times, because the first payloads are copied: the reader has not yet mapped the region.
        for round in 0..20 {
            for (n, len) in [1, 511, 513, 4095, 4096, 4097, 65_535, 200_001].into_iter().enumerate() {
                let at = (round * 997 + n * 64) % 4096;
                source.write(at, &pattern(round + n, len)).unwrap();
                let sge = [source.sge(at..at + len)];
                a.qp.post_send(&SendWr::write(1, &sge, target.remote(n * 100_000))).unwrap();
                assert_eq!(wait(&a).opcode, WcOpcode::RdmaWrite);
                b.qp.post_recv(&RecvWr::new(2, &[target.sge(RECEIVED..LEN)])).unwrap();
                a.qp.post_send(&SendWr::send(3, &sge)).unwrap();
                wait(&a);
                let received = wait(&b);
                assert_eq!((received.opcode, received.byte_len as usize), (WcOpcode::Recv, len));
                for start in [n * 100_000, RECEIVED] {
                    assert!(target.read_vec(start..start + len).unwrap() == pattern(round + n, len), "{len}");
                }
                // READs of the same memory.
                a.qp.post_send(&SendWr::read(4, &sge, target.remote(n * 100_000))).unwrap();
                wait(&a);
                // The program may reuse the memory after the completion.
                source.write(at, &vec![0xee; len]).unwrap();
            }
            memory = target.to_vec();
        }
        let is_mapped = mappings(&inode(&source)) == 2;
        assert_eq!(is_mapped, shareable);
        results.push(memory);
    }
    assert!(results[0] == results[1]);
}

#[test]
fn region_is_mapped_by_the_receiver_until_it_is_dropped() {
    let [a, b] = pair(["127.20.231.1", "127.20.231.2"]);
    let target = b.pd.reg_mr(LEN, Access::ALL).unwrap();
    let source = a.pd.reg_mr(LEN, MrOptions::new(Access::ALL).shareable(true)).unwrap();
    let file = inode(&source);
    assert_eq!(mappings(&file), 1);
    eventually(|| {
        a.qp.post_send(&SendWr::write(1, &[source.sge(0..LEN)], target.remote(0))).unwrap();
        wait(&a);
        mappings(&file) == 2
    });
    drop(source);
    eventually(|| mappings(&file) == 0);
}

/// Checks that a peer cannot use a payload after the request has ended, although it never was acknowledged.
#[test]
fn message_of_a_queue_pair_that_is_destroyed_arrives_unchanged_or_not_at_all() {
    const MESSAGE: usize = 60_000;
    let [a, b] = ["127.20.232.1", "127.20.232.2"].map(endpoint);
    let source = a.pd.reg_mr(MESSAGE, MrOptions::new(Access::ALL).shareable(true)).unwrap();
    let target = b.pd.reg_mr(MESSAGE, Access::ALL).unwrap();
    let options = QpOptions::default();
    let mut arrived = 0;
    for round in 0..300 {
        let sender = a.pd.create_qp(&a.cq, &a.cq, &options).unwrap();
        let receiver = b.pd.create_qp(&b.cq, &b.cq, &options).unwrap();
        sender.connect(&receiver.endpoint(), &ConnectOptions::default()).unwrap();
        receiver.connect(&sender.endpoint(), &ConnectOptions::default()).unwrap();
        receiver.post_recv(&RecvWr::new(1, &[target.sge(0..MESSAGE)])).unwrap();
        source.write(0, &pattern(round, MESSAGE)).unwrap();
        sender.post_send(&SendWr::send(2, &[source.sge(0..MESSAGE)])).unwrap();
        drop(sender);
        source.write(0, &vec![0xee; MESSAGE]).unwrap();
        let mut completions = Vec::new();
        for _ in 0..100 {
            b.cq.poll(1, &mut completions).unwrap();
        }
        if completions.iter().any(|c| c.status == WcStatus::Success) {
            assert!(target.to_vec() == pattern(round, MESSAGE), "round {round}");
            arrived += 1;
        }
        drop(receiver);
        while a.cq.poll(16, &mut Vec::new()).unwrap() + b.cq.poll(16, &mut Vec::new()).unwrap() > 0 {}
    }
    println!("{arrived} of 300 messages arrived");
}

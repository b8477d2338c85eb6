//! Items to measure, in the order of measurement, with items that are compared with each other adjacent.

use std::net::IpAddr;

use crate::args::Args;
use crate::carrier::Carrier;
use crate::clients::{CLIENTS, Client};
use crate::job::{LinkAddrs, Op, Stream, Task, Train};
use crate::namespace::Net;
use crate::perftest::Perftest;
use crate::table::Key;

pub const RAW_UDP: &str = "raw UDP, UDP_SEGMENT/UDP_GRO";
pub const RAW_UDP_LONG: &str = "raw UDP, 128 datagrams a call";
pub const RAW_UDP_PING: &str = "raw UDP, busy-polled";
pub const RAW_PACKET: &str = "raw packet sockets over veth, USO";
pub const IPERF3: &str = "TCP by iperf3, one stream";
pub const RAW_MEMORY_PING: &str = "bare shared memory, busy-polled";
pub const MEMCPY: &str = "memcpy";
pub const CONNECTIONS: &str = "10,000 connected RC QPs over udp";
pub const IDLE: &str = "1,000 idle connected RC QPs over udp";
pub const ICRC: &str = "ICRC";

/// Size in bytes of the messages that most targets refer to.
pub const MESSAGE: usize = 64 << 10;
/// Size in bytes of the raw datagrams, which are as long as urxe's packets at path MTU 4096.
pub const DATAGRAM: usize = 4172;
/// Number of queue pairs in the measurements with many queue pairs.
pub const MANY: usize = 1000;
/// Loss probabilities that targets refer to; those in `MORE_LOSSES` are only plotted.
pub const LOSSES: [f64; 3] = [0.0, 0.001, 0.01];
pub const MORE_LOSSES: [f64; 3] = [0.0001, 0.003, 0.03];

/// Numbers of pairs of processes at the same time that a target compares, and the links between them.
pub const BUSY_PAIRS: [usize; 2] = [1, 4];
pub const BUSY_LINKS: [LinkKind; 2] = [LinkKind::Udp4, LinkKind::SharedMemory];

/// Number of threads that only spin beside programs that poll memory, and number of round trips of these
/// programs. Each round trip may take two time slices of the scheduler.
pub const BUSY_THREADS: usize = 2;
const ROUND_TRIPS_BESIDE_LOAD: usize = 1000;

const LOOPBACK: [&str; 2] = ["127.66.0.1", "127.66.0.2"];

/// Link that carries urxe's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    Udp4,
    Udp6,
    SharedMemory,
    Veth,
    Fabric,
}

impl LinkKind {
    pub const fn name(self) -> &'static str {
        match self {
            LinkKind::Udp4 => "udp/IPv4",
            LinkKind::Udp6 => "udp/IPv6",
            LinkKind::SharedMemory => "shared memory",
            LinkKind::Veth => "packet over veth",
            LinkKind::Fabric => "fabric, one thread",
        }
    }
}

/// Namespaces that the processes run in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    Current,
    /// Both processes in the first namespace.
    FirstNamespace,
    /// One process in each namespace.
    BothNamespaces,
}

pub enum Measurement {
    Urxe(Task, Placement),
    Iperf3 {
        len: Option<usize>,
    },
    Perftest(Perftest),
    /// An unmodified client, with messages of the size of the item's key.
    Client(Client, Carrier),
    /// Tasks of two processes each, at the same time.
    Together(Vec<Task>),
    /// A measurement beside [`BUSY_THREADS`].
    BesideLoad(Box<Measurement>),
}

/// An item to measure.
pub struct Item {
    pub key: Key,
    pub measurement: Measurement,
    /// Number of rounds that measure the item.
    pub rounds: usize,
    pub seconds: f64,
}

/// Returns the series name for urxe streams.
pub fn stream_series(kind: LinkKind, op: Op, mtu: usize) -> String {
    match op {
        Op::Datagram => format!("urxe {}, {}", kind.name(), op.name()),
        _ => format!("urxe {}, {}, MTU {mtu}", kind.name(), op.name()),
    }
}

/// Returns the row key for a urxe stream over udp with many queue pairs.
pub fn many_qps(in_flight: usize) -> Key {
    Key::new(format!("urxe udp/IPv4, RC WRITE, {MANY} QPs, {in_flight} in flight"), MESSAGE)
}

/// Returns the row key for two threads that write over udp, each on its own queue pair.
pub fn threads(shards: usize) -> Key {
    let number = if shards == 1 { "1 shard".into() } else { format!("{shards} shards") };
    Key::new(format!("urxe udp/IPv4, RC WRITE, 2 threads, {number}"), MESSAGE)
}

/// Returns the row key for a urxe stream over a udp link that loses packets.
pub fn lossy(op: Op, loss: f64) -> Key {
    Key::new(format!("urxe udp/IPv4, {}, {} % loss", op.name(), loss * 100.0), MESSAGE)
}

/// Returns the row key for a stream between NICs with the personality `throughput`.
pub fn equal_packets(op: Op, size: usize) -> Key {
    Key::new(format!("urxe udp/IPv4, {}, personality throughput", op.name()), size)
}

/// Returns the row key for a stream through memory whose packets all have ICRCs.
pub fn always_icrc(kind: LinkKind, size: usize) -> Key {
    Key::new(format!("urxe {}, RC WRITE, always ICRCs", kind.name()), size)
}

/// Returns the row key for a stream through shared memory from memory that the receiver may map.
pub fn shareable(op: Op, size: usize) -> Key {
    Key::new(format!("urxe {}, {}, shareable regions", LinkKind::SharedMemory.name(), op.name()), size)
}

/// Returns the row key for urxe's half round trips.
pub fn ping(kind: LinkKind, op: Op) -> Key {
    Key::new(format!("urxe {}, {}, half round trip", kind.name(), op.name()), 8)
}

/// Returns the row key for round trips of raw datagrams with the lengths, socket options and calls of
/// eight-byte messages.
pub fn raw_udp_ping_like(op: Op) -> Key {
    Key::new(format!("raw UDP, unconnected, as urxe's {}", op.name()), 8)
}

/// Returns the row key for pairs of processes that write at the same time, all of them polling.
pub fn busy_pairs(kind: LinkKind, pairs: usize) -> Key {
    let number = if pairs == 1 { "1 busy pair".into() } else { format!("{pairs} busy pairs") };
    Key::new(format!("urxe {}, RC WRITE, {number}", kind.name()), MESSAGE)
}

/// Programs of perftest with their options.
pub const PERFTEST: [Perftest; 7] = {
    let write = Perftest {
        program: "ib_write_bw",
        size: MESSAGE,
        messages: 20_000,
        events: false,
        shared_memory: false,
    };
    let send = Perftest { program: "ib_send_bw", ..write };
    [
        write,
        Perftest { shared_memory: true, ..write },
        send,
        Perftest { events: true, ..send },
        Perftest { shared_memory: true, ..send },
        Perftest { shared_memory: true, events: true, ..send },
        Perftest { program: "ib_write_lat", size: 2, shared_memory: true, ..write },
    ]
};

/// Returns the row key for a program of perftest.
pub fn perftest(program: Perftest) -> Key {
    Key::new(program.series(), program.size)
}

fn ips(pair: [&str; 2]) -> [IpAddr; 2] {
    pair.map(|ip| ip.parse().expect("a valid address"))
}

fn link_addrs(kind: LinkKind) -> Option<(LinkAddrs, Placement)> {
    match kind {
        LinkKind::Udp4 => Some((LinkAddrs::Udp(ips(LOOPBACK)), Placement::Current)),
        LinkKind::Udp6 => Some((LinkAddrs::Udp(ips(Net::LOOPBACK_V6)), Placement::FirstNamespace)),
        LinkKind::SharedMemory => Some((LinkAddrs::SharedMemory(ips(LOOPBACK)), Placement::Current)),
        LinkKind::Veth => {
            Some((LinkAddrs::Packet(Net::INTERFACES.map(String::from)), Placement::BothNamespaces))
        }
        LinkKind::Fabric => None,
    }
}

/// Builder for the list of items.
struct Plan {
    items: Vec<Item>,
    rounds: usize,
    seconds: f64,
}

impl Plan {
    /// Adds an item unless its key is already in the list.
    fn add(&mut self, key: Key, measurement: Measurement) {
        if self.items.iter().all(|item| item.key != key) {
            self.items.push(Item { key, measurement, rounds: self.rounds, seconds: self.seconds });
        }
    }

    fn task(&mut self, series: &str, size: usize, task: Task) {
        self.add(Key::new(series, size), Measurement::Urxe(task, Placement::Current));
    }

    fn raw_udp(&mut self, series: &str, train: Train) {
        self.task(series, train.datagram, Task::RawUdpStream { ips: ips(LOOPBACK), train });
    }

    fn raw_packet(&mut self, datagram: usize) {
        let interfaces = Net::INTERFACES.map(String::from);
        let task = Task::RawPacketStream { interfaces, train: Train::usual(datagram) };
        self.add(Key::new(RAW_PACKET, datagram), Measurement::Urxe(task, Placement::BothNamespaces));
    }

    fn stream_as(&mut self, key: Key, kind: LinkKind, stream: Stream) {
        let (task, placement) = match link_addrs(kind) {
            Some((link, placement)) => (Task::Stream { link, stream }, placement),
            None => (Task::FabricStream { stream }, Placement::Current),
        };
        self.add(key, Measurement::Urxe(task, placement));
    }

    fn stream(&mut self, kind: LinkKind, op: Op, size: usize, mtu: usize) {
        let key = Key::new(stream_series(kind, op, mtu), size);
        self.stream_as(key, kind, Stream::new(op, size, mtu));
    }

    fn always_icrc(&mut self, kind: LinkKind, size: usize) {
        let stream = Stream { always_icrc: true, ..Stream::new(Op::Write, size, 4096) };
        self.stream_as(always_icrc(kind, size), kind, stream);
    }

    fn shareable(&mut self, op: Op, size: usize) {
        let stream = Stream { shareable: true, ..Stream::new(op, size, 4096) };
        self.stream_as(shareable(op, size), LinkKind::SharedMemory, stream);
    }

    fn equal_packets(&mut self, op: Op, size: usize) {
        let stream = Stream { equal_packets: true, ..Stream::new(op, size, 4096) };
        self.stream_as(equal_packets(op, size), LinkKind::Udp4, stream);
    }

    fn lossy(&mut self, op: Op, loss: f64) {
        let stream = Stream { loss: Some(loss), ..Stream::new(op, MESSAGE, 4096) };
        self.stream_as(lossy(op, loss), LinkKind::Udp4, stream);
    }

    fn ping(&mut self, kind: LinkKind, op: Op, rounds: usize) {
        let (task, placement) = match link_addrs(kind) {
            Some((link, placement)) => (Task::Ping { link, op, rounds }, placement),
            None => (Task::FabricPing { op, rounds }, Placement::Current),
        };
        self.add(ping(kind, op), Measurement::Urxe(task, placement));
    }

    /// Adds the items of processes that exchange packets through shared memory, next to what they are
    /// compared with.
    fn shared_memory(&mut self, round_trips: usize) {
        self.raw_udp(RAW_UDP, Train::usual(DATAGRAM));
        for size in [MESSAGE, 1 << 20] {
            self.stream(LinkKind::SharedMemory, Op::Write, size, 4096);
            self.always_icrc(LinkKind::SharedMemory, size);
            self.shareable(Op::Write, size);
            self.client(Client::UcxPut, Carrier::OwnMemory, size);
        }
        for op in [Op::Read, Op::Send] {
            self.stream(LinkKind::SharedMemory, op, MESSAGE, 4096);
        }
        self.shareable(Op::Send, MESSAGE);
        self.stream(LinkKind::SharedMemory, Op::Write, 8, 4096);
        self.task(RAW_MEMORY_PING, 8, Task::RawMemoryPing { rounds: round_trips });
        for op in [Op::Write, Op::Send] {
            self.ping(LinkKind::SharedMemory, op, round_trips);
        }
        for program in PERFTEST {
            self.add(perftest(program), Measurement::Perftest(program));
        }
    }

    fn client(&mut self, client: Client, carrier: Carrier, size: usize) {
        self.add(client.key(carrier, size), Measurement::Client(client, carrier));
    }

    /// Adds unmodified clients, each over urxe next to its own transports.
    fn clients(&mut self) {
        for (client, size, carriers) in CLIENTS {
            carriers.iter().for_each(|carrier| self.client(client, *carrier, size));
        }
    }

    /// Adds one pair of processes that both poll, next to several at the same time.
    fn busy_pairs(&mut self) {
        let stream = Stream { polled: true, ..Stream::new(Op::Write, MESSAGE, 4096) };
        for kind in BUSY_LINKS {
            for pairs in BUSY_PAIRS {
                let address = |n: usize| IpAddr::from([127, 66, 1, n as u8]);
                let addresses = (0..pairs).map(|n| [address(2 * n + 1), address(2 * n + 2)]);
                let link = |ips| match kind {
                    LinkKind::SharedMemory => LinkAddrs::SharedMemory(ips),
                    _ => LinkAddrs::Udp(ips),
                };
                let tasks = addresses.map(|ips| Task::Stream { link: link(ips), stream }).collect();
                self.add(busy_pairs(kind, pairs), Measurement::Together(tasks));
            }
        }
    }

    /// Adds programs that wait for data by polling memory, so that the library's background thread has to
    /// receive it, and the same in memory without urxe: each alone and beside other load.
    fn memory_pollers(&mut self, round_trips: usize) {
        type Measure = fn(usize) -> (Key, Measurement);
        const fn latency(shared_memory: bool, messages: usize) -> Perftest {
            Perftest { program: "ib_write_lat", size: 8, messages, events: false, shared_memory }
        }
        let pollers: [Measure; 3] = [
            |rounds| {
                let task = Task::RawMemoryPing { rounds };
                (Key::new(RAW_MEMORY_PING, 8), Measurement::Urxe(task, Placement::Current))
            },
            |n| (perftest(latency(true, n)), Measurement::Perftest(latency(true, n))),
            |n| (perftest(latency(false, n)), Measurement::Perftest(latency(false, n))),
        ];
        for measure in pollers {
            let (key, measurement) = measure(round_trips);
            self.add(key, measurement);
            let (key, measurement) = measure(ROUND_TRIPS_BESIDE_LOAD);
            let series = format!("{}, beside load", key.series);
            self.add(Key::new(series, key.size), Measurement::BesideLoad(Box::new(measurement)));
        }
    }

    /// Adds the items that targets refer to.
    fn targets(&mut self, round_trips: usize) {
        let write = Stream::new(Op::Write, MESSAGE, 4096);
        self.raw_udp(RAW_UDP, Train::usual(DATAGRAM));
        self.stream(LinkKind::Udp4, Op::Write, MESSAGE, 4096);
        self.add(Key::new(IPERF3, 0), Measurement::Iperf3 { len: None });
        self.stream(LinkKind::Udp4, Op::Read, MESSAGE, 4096);
        self.stream(LinkKind::Udp4, Op::Send, MESSAGE, 4096);
        let polled = Key::new("urxe udp/IPv4, RC WRITE, passive end polls", MESSAGE);
        self.stream_as(polled, LinkKind::Udp4, Stream { polled: true, ..write });
        self.stream_as(many_qps(MANY), LinkKind::Udp4, write.spread_over(MANY));
        let in_turn = Stream { in_flight: 64, ..write.spread_over(MANY) };
        self.stream_as(many_qps(64), LinkKind::Udp4, in_turn);
        for shards in [1, 2] {
            let task = Task::Threads { ips: ips(LOOPBACK), shards, size: MESSAGE };
            self.add(threads(shards), Measurement::Urxe(task, Placement::Current));
        }
        for loss in LOSSES {
            self.lossy(Op::Write, loss);
        }
        self.raw_packet(DATAGRAM);
        self.stream(LinkKind::Veth, Op::Write, MESSAGE, 4096);
        self.raw_udp(RAW_UDP, Train::usual(64));
        self.raw_udp(RAW_UDP_LONG, Train::longest(64));
        self.stream(LinkKind::Udp4, Op::Write, 8, 4096);
        self.task(RAW_UDP_PING, 8, Task::RawUdpPing { ips: ips(LOOPBACK), rounds: round_trips });
        for op in [Op::Write, Op::Send] {
            let rounds = round_trips;
            let task = Task::RawUdpPingLikeLink { ips: ips(LOOPBACK), datagram: op.packet_len(8), rounds };
            self.add(raw_udp_ping_like(op), Measurement::Urxe(task, Placement::Current));
            self.ping(LinkKind::Udp4, op, round_trips);
        }
        self.task(MEMCPY, 1 << 20, Task::Memcpy { size: 1 << 20 });
        self.stream(LinkKind::Fabric, Op::Write, 1 << 20, 4096);
        self.always_icrc(LinkKind::Fabric, 1 << 20);
        self.stream(LinkKind::Fabric, Op::Write, 8, 4096);
        for payload in [4096, 64] {
            self.task(ICRC, payload, Task::Icrc { payload });
        }
    }

    /// Adds the measurements of queue pair costs, which take long and vary little.
    fn many_qps(&mut self) {
        self.task(CONNECTIONS, 0, Task::Connections { ips: ips(LOOPBACK), count: 10 * MANY });
        self.task(IDLE, 0, Task::Idle { ips: ips(LOOPBACK), count: MANY });
    }

    /// Adds the other items that the plots show.
    fn sweep(&mut self, sizes: &[usize], round_trips: usize) {
        for datagram in [512, 1100] {
            self.raw_udp(RAW_UDP, Train::usual(datagram));
            self.raw_packet(datagram);
        }
        self.raw_packet(64);
        for &size in sizes {
            for (kind, mtu) in [
                (LinkKind::Udp4, 4096),
                (LinkKind::Udp4, 1024),
                (LinkKind::Udp6, 4096),
                (LinkKind::Veth, 4096),
                (LinkKind::Fabric, 4096),
            ] {
                for op in [Op::Write, Op::Read, Op::Send] {
                    self.stream(kind, op, size, mtu);
                }
                if size <= mtu && mtu == 4096 {
                    self.stream(kind, Op::Datagram, size, mtu);
                }
                if size > mtu && (kind, mtu) == (LinkKind::Udp4, 4096) {
                    [Op::Write, Op::Read].into_iter().for_each(|op| self.equal_packets(op, size));
                }
            }
            self.task(MEMCPY, size, Task::Memcpy { size });
            if size <= 1 << 20 {
                self.add(Key::new(IPERF3, size), Measurement::Iperf3 { len: Some(size) });
            }
            self.client(Client::UcxPut, Carrier::Tcp, size);
        }
        for kind in [LinkKind::Udp6, LinkKind::Veth, LinkKind::Fabric] {
            for op in [Op::Write, Op::Send] {
                self.ping(kind, op, round_trips);
            }
        }
    }

    fn sweep_losses(&mut self) {
        for loss in MORE_LOSSES {
            self.lossy(Op::Write, loss);
        }
        for op in [Op::Read, Op::Send] {
            LOSSES.into_iter().chain(MORE_LOSSES).for_each(|loss| self.lossy(op, loss));
        }
    }
}

/// Returns all items that match `--only`.
pub fn plan(args: &Args) -> Vec<Item> {
    let mut plan = Plan { items: Vec::new(), rounds: 7, seconds: 0.6 };
    if args.quick {
        (plan.rounds, plan.seconds) = (3, 0.2);
        plan.targets(10_000);
        plan.shared_memory(10_000);
        (plan.rounds, plan.seconds) = (1, 2.0);
        plan.many_qps();
        plan.seconds = 0.1;
        plan.sweep(&[8, MESSAGE], 3000);
    } else {
        plan.targets(50_000);
        plan.shared_memory(50_000);
        plan.rounds = 5;
        plan.busy_pairs();
        plan.memory_pollers(20_000);
        plan.clients();
        (plan.rounds, plan.seconds) = (3, 5.0);
        plan.many_qps();
        plan.seconds = 0.3;
        let sizes = [8, 64, 512, 4 << 10, 16 << 10, MESSAGE, 256 << 10, 1 << 20, 8 << 20];
        plan.sweep(&sizes, 30_000);
        plan.sweep_losses();
    }
    let is_selected = |key: &Key| {
        let pattern = args.only.as_deref().unwrap_or_default().to_lowercase();
        key.name().to_lowercase().contains(&pattern)
    };
    plan.items.retain(|item| is_selected(&item.key));
    plan.items
}

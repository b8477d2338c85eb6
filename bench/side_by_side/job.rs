//! Task descriptions sent to the processes of a measurement.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Results of a measurement, keyed by metric name.
pub type Metrics = BTreeMap<String, f64>;

/// One end's part of a measurement.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub task: Task,
    pub role: Role,
    /// Duration of the measurement in seconds, without the warm-up, which takes another fifth of that time.
    pub seconds: f64,
    /// File mapped by both ends, where the passive end counts the data received.
    pub progress: PathBuf,
}

/// Role of a process; a process without a counterpart is the active end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    Active,
    Passive,
}

/// Measurement to perform. Where a variant has two addresses or interfaces, the first is the active end's.
#[derive(Clone, Serialize, Deserialize)]
pub enum Task {
    RawUdpStream {
        ips: [IpAddr; 2],
        train: Train,
    },
    RawUdpPing {
        ips: [IpAddr; 2],
        rounds: usize,
    },
    /// Round trips of datagrams like those of urxe's link.
    RawUdpPingLikeLink {
        ips: [IpAddr; 2],
        datagram: usize,
        rounds: usize,
    },
    RawPacketStream {
        interfaces: [String; 2],
        train: Train,
    },
    /// Round trips through a word of shared memory in each direction.
    RawMemoryPing {
        rounds: usize,
    },
    Stream {
        link: LinkAddrs,
        stream: Stream,
    },
    Ping {
        link: LinkAddrs,
        op: Op,
        rounds: usize,
    },
    // Tasks of a single process from here on.
    Memcpy {
        size: usize,
    },
    FabricStream {
        stream: Stream,
    },
    FabricPing {
        op: Op,
        rounds: usize,
    },
    Icrc {
        payload: usize,
    },
    Connections {
        ips: [IpAddr; 2],
        count: usize,
    },
    Idle {
        ips: [IpAddr; 2],
        count: usize,
    },
    /// Two threads with a queue pair each.
    Threads {
        ips: [IpAddr; 2],
        shards: usize,
        size: usize,
    },
}

impl Task {
    /// Reports whether the task requires two processes.
    pub fn uses_two_processes(&self) -> bool {
        matches!(
            self,
            Task::RawUdpStream { .. }
                | Task::RawUdpPing { .. }
                | Task::RawUdpPingLikeLink { .. }
                | Task::RawPacketStream { .. }
                | Task::RawMemoryPing { .. }
                | Task::Stream { .. }
                | Task::Ping { .. }
        )
    }
}

/// Datagrams sent in one call, contiguous in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Train {
    /// UDP payload per datagram, in bytes.
    pub datagram: usize,
    /// Number of datagrams.
    pub count: usize,
}

impl Train {
    /// Returns the longest train that every kernel accepts: 64 datagrams or about 64 KiB including headers,
    /// whichever is less, like urxe's bursts.
    pub fn usual(datagram: usize) -> Train {
        Train { datagram, count: (65_000 / datagram).min(64) }
    }

    /// Returns the longest train that Linux 6.9 and later accept: 128 datagrams or about 64 KiB including
    /// headers, whichever is less.
    pub fn longest(datagram: usize) -> Train {
        Train { datagram, count: (65_000 / datagram).min(128) }
    }
}

/// Link between the NICs of two processes.
#[derive(Clone, Serialize, Deserialize)]
pub enum LinkAddrs {
    Udp([IpAddr; 2]),
    /// UDP on shared addresses, with rings in shared memory.
    SharedMemory([IpAddr; 2]),
    Packet([String; 2]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    Write,
    Read,
    Send,
    /// A SEND on a UD queue pair.
    Datagram,
}

impl Op {
    pub const fn name(self) -> &'static str {
        match self {
            Op::Write => "RC WRITE",
            Op::Read => "RC READ",
            Op::Send => "RC SEND",
            Op::Datagram => "UD SEND",
        }
    }

    /// Returns the length of the request packet for a message of `payload` bytes that fits into one: BTH,
    /// RETH or DETH, payload and ICRC.
    pub const fn packet_len(self, payload: usize) -> usize {
        let extended = match self {
            Op::Write => 16,
            Op::Read => return 12 + 16 + 4,
            Op::Send => 0,
            Op::Datagram => 8,
        };
        12 + extended + payload.next_multiple_of(4) + 4
    }
}

/// A stream of messages of one type and size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stream {
    pub op: Op,
    /// Bytes per message.
    pub size: usize,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// Number of queue pairs, used in turn.
    pub qps: usize,
    /// Number of messages posted in one list; only the last is signaled.
    pub list: usize,
    /// Number of messages posted but not yet completed, over all queue pairs.
    pub in_flight: usize,
    /// Whether the passive end of WRITEs and READs polls too, instead of leaving the work to the NIC's
    /// background thread.
    pub polled: bool,
    /// Probability that either end drops a received packet; `None` for a link without fault injection.
    pub loss: Option<f64>,
    /// Whether packets in memory have ICRCs too.
    pub always_icrc: bool,
    /// Whether other processes may map the memory of the messages.
    pub shareable: bool,
    /// Whether both ends have the personality `throughput`.
    pub equal_packets: bool,
}

impl Stream {
    /// Returns a stream set up for throughput: 8 MiB in flight, but at least 2 and at most 512 messages,
    /// posted in lists of an eighth of that number with one completion per list.
    pub fn new(op: Op, size: usize, mtu: usize) -> Stream {
        let in_flight = ((8 << 20) / size).clamp(2, 512);
        let (qps, list) = (1, (in_flight / 8).max(1));
        Stream {
            op,
            size,
            mtu,
            qps,
            list,
            in_flight,
            polled: false,
            loss: None,
            always_icrc: false,
            shareable: false,
            equal_packets: false,
        }
    }

    /// Spreads the stream over `qps` queue pairs, each with one message in flight.
    pub fn spread_over(self, qps: usize) -> Stream {
        Stream { qps, list: 1, in_flight: qps, ..self }
    }
}

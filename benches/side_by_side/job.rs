//! What the processes of a measurement are asked to do, as it travels to them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What came out, by name of the figure.
pub type Metrics = BTreeMap<String, f64>;

/// One end's part of a measurement.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub task: Task,
    pub end: End,
    /// How long to measure; a fifth of that goes before, to warm up.
    pub seconds: f64,
    /// The file by which the passive end tells the active one how much has arrived.
    pub progress: PathBuf,
}

/// Which of the two processes this one is; one that works alone is the active one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    Active,
    Passive,
}

/// What is measured. Of two addresses or interfaces the first is the active end's.
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
    RawPacketStream {
        interfaces: [String; 2],
        train: Train,
    },
    Stream {
        wire: Wire,
        stream: Stream,
    },
    Ping {
        wire: Wire,
        op: Op,
        rounds: usize,
    },
    // Alone, from here on.
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
    /// Whether it takes two processes.
    pub fn is_for_two(&self) -> bool {
        matches!(
            self,
            Task::RawUdpStream { .. }
                | Task::RawUdpPing { .. }
                | Task::RawPacketStream { .. }
                | Task::Stream { .. }
                | Task::Ping { .. }
        )
    }
}

/// Datagrams that leave in one call, contiguous in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Train {
    /// UDP payload bytes of each.
    pub datagram: usize,
    /// How many.
    pub count: usize,
}

impl Train {
    /// As long as every kernel takes it, and urxe's bursts are: 64 KiB with headers, 64 datagrams.
    pub fn usual(datagram: usize) -> Train {
        Train { datagram, count: (65_000 / datagram).min(64) }
    }

    /// As long as kernels from Linux 6.9 on take it: 128 datagrams.
    pub fn longest(datagram: usize) -> Train {
        Train { datagram, count: (65_000 / datagram).min(128) }
    }
}

/// What carries the packets between two NICs of two processes.
#[derive(Clone, Serialize, Deserialize)]
pub enum Wire {
    Udp([IpAddr; 2]),
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
}

/// A stream of equal messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stream {
    pub op: Op,
    /// Bytes of a message.
    pub size: usize,
    /// Path MTU, bytes.
    pub mtu: usize,
    /// Queue pairs that take turns.
    pub qps: usize,
    /// Messages posted at once, the last of them signaled.
    pub list: usize,
    /// Messages posted and not yet known to be complete, on all queue pairs together.
    pub in_flight: usize,
    /// Whether the passive end of WRITEs and READs polls too, and does not leave it to the NIC's own thread.
    pub polled: bool,
    /// The probability that a packet is lost as it arrives, at either end; `None` without the link that loses them.
    pub loss: Option<f64>,
}

impl Stream {
    /// What someone would do who wants throughput: 8 MiB or 512 messages in flight, at least two; posted in lists
    /// of an eighth of that, one completion each.
    pub fn new(op: Op, size: usize, mtu: usize) -> Stream {
        let in_flight = ((8 << 20) / size).clamp(2, 512);
        Stream { op, size, mtu, qps: 1, list: (in_flight / 8).max(1), in_flight, polled: false, loss: None }
    }

    /// Many queue pairs, each with one message in flight at all times.
    pub fn on_each_of(self, qps: usize) -> Stream {
        Stream { qps, list: 1, in_flight: qps, ..self }
    }
}

//! State of the NICs of this host's processes, for programs that look at them from outside (`urxe ps`, `urxe top`).
//!
//! A process serves the state of a NIC on a Unix socket ([`LiveServer`]), from a thread that only waits for connections: the
//! data path is not involved, and neither are the program's own threads, which may hang. [`find`] asks all processes that
//! this user may ask.

mod find;
mod server;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use find::{FoundNic, Silence, find};
pub use server::LiveServer;

use super::WeakContext;
use crate::link::LinkCounters;
use crate::middleware::faults::FaultCount;
use crate::transport::Counters;
pub use crate::transport::{PeerSnapshot, QpCounters, QpSnapshot};

/// Name of a NIC's socket, before the process ID and the number of the NIC within the process.
const NAME: &str = "urxe-nic";

/// State of a NIC of a process at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NicSnapshot {
    /// Process ID, in the PID namespace of the process.
    pub pid: u32,
    /// Command line of the process.
    pub command: String,
    /// Name of the device, such as `urxe0`.
    pub device: String,
    /// Link, such as `udp 10.0.0.1`.
    pub link: String,
    /// Addresses, which are the GIDs.
    pub addresses: Vec<IpAddr>,
    /// Whether the port is up.
    pub is_up: bool,
    /// Why the link is lost; `None` if it is not.
    pub lost_link: Option<String>,
    /// Speed that the port reports, in bits per second.
    pub speed: u64,
    /// Time of the snapshot on the NIC's clock, in nanoseconds, to compute rates from two snapshots.
    pub clock: u64,
    /// Whether the state is complete. It is not if a thread held the lock of a part of the NIC for longer than 100 ms.
    pub is_complete: bool,
    /// Counters of the NIC and, beginning with `link_`, of its link.
    pub counters: BTreeMap<String, u64>,
    /// Faults injected, with their counts.
    pub faults: Vec<FaultSnapshot>,
    /// Queue pairs.
    pub qps: Vec<QpSnapshot>,
}

/// Counts of a fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FaultSnapshot {
    /// The fault in textual form.
    pub rule: String,
    /// Number of packets, calls or objects that matched.
    pub matched: u64,
    /// Number of those to which the fault was applied.
    pub struck: u64,
}

impl From<FaultCount> for FaultSnapshot {
    fn from(count: FaultCount) -> FaultSnapshot {
        FaultSnapshot { rule: count.rule, matched: count.matched, struck: count.struck }
    }
}

impl NicSnapshot {
    /// Returns a counter of the NIC or its link; 0 if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl WeakContext {
    /// Returns the state of the device, which is called `name`, and of its queue pairs; `None` if it is closed. Waits for each lock for up to
    /// `limit`.
    pub fn snapshot(&self, name: &str, faults: Vec<FaultCount>, limit: Duration) -> Option<NicSnapshot> {
        let device = self.0.upgrade()?;
        let (mut nic_counters, mut link_counters) = (Counters::default(), LinkCounters::default());
        let mut snapshot = NicSnapshot {
            pid: std::process::id(),
            command: command_line(),
            device: name.to_owned(),
            link: device.info.name.clone(),
            addresses: Vec::new(),
            is_up: false,
            lost_link: None,
            speed: 0,
            clock: device.shards.clock().now().0,
            is_complete: true,
            counters: BTreeMap::new(),
            faults: faults.into_iter().map(FaultSnapshot::from).collect(),
            qps: Vec::new(),
        };
        snapshot.is_complete = device.shards.for_each_within(limit, |state, now| {
            let nic = &state.nic;
            nic_counters += *nic.counters();
            snapshot.is_up = nic.port_is_up();
            snapshot.speed = u64::from(nic.port_speed().gbps()) * 1_000_000_000;
            snapshot.addresses = nic.config().port.gids.iter().map(|gid| gid.ip()).collect();
            snapshot.qps.extend(nic.snapshots(now));
            let (counters, lost) = state.link_status();
            link_counters += counters;
            if let Some(lost) = lost {
                snapshot.lost_link = Some(lost.to_string());
            }
        });
        let counters = nic_counters.iter().chain(link_counters.iter());
        snapshot.counters = counters.map(|(name, value)| (name.to_owned(), value)).collect();
        Some(snapshot)
    }
}

/// Returns the command line of this process, with blanks between the arguments.
fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

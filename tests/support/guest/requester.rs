//! State of rxe's requesters, read from the guest's kernel: whether they wait, and for what.
//!
//! rxe (6.1 and 6.12) loses a wake-up. `rxe_requester` stops in the middle of a message while more than 64 of its packets are with
//! the NIC: it compares `skb_out`, and then sets `need_req_skb`. The destructor of a packet that has left (`rxe_skb_tx_dtor`)
//! schedules the requester if it finds `need_req_skb` set. If the last packets leave between the comparison and the
//! assignment, nobody schedules it; and once all that was sent is acknowledged, rxe's retransmission timer does not run
//! either (`rxe_completer`: only while `req.psn` is ahead of `comp.psn`). Both sides are silent then, for ever. `wait_psn`, for
//! the limit of 128 unacknowledged packets, has the same gap.

use super::{ErrorKind, Guest, Result, SHORT, error};
use std::time::Duration;

/// Where `struct rxe_qp` of a kernel has `req.psn`, `comp.psn`, `skb_out`, `need_req_skb` and `req.wait_psn`: disassembled.
const LAYOUTS: [(&str, [u32; 5]); 2] = [
    ("6.1.0-56-amd64", [0x3b8, 0x42c, 0x774, 0x778, 0x3cc]),
    ("6.12.117+deb13-amd64", [0x47c, 0x4a4, 0x75c, 0x760, 0x490]),
];

/// How long a guest may take whose host has many other things to do.
const SLOW: Duration = Duration::from_secs(60);

/// rxe lets its requester run again when fewer than this many packets are with the NIC (`RXE_INFLIGHT_SKBS_PER_QP_LOW`).
const LOW: u32 = 16;

/// The requester of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The PSN of the next packet.
    pub next_psn: u32,
    /// The first PSN that is not acknowledged.
    pub unacknowledged: u32,
    /// Packets that are with the NIC.
    pub with_nic: u32,
    /// It stopped until fewer are.
    pub waits_for_nic: bool,
    /// It stopped until more is acknowledged.
    pub waits_for_ack: bool,
}

impl Requester {
    /// Whether it waits for something that has happened already, so that nothing wakes it.
    pub fn has_lost_wakeup(&self) -> bool {
        self.next_psn == self.unacknowledged
            && (self.waits_for_nic && self.with_nic < LOW || self.waits_for_ack)
    }

    /// From a line of the kernel's trace.
    fn parse(line: &str) -> Option<Requester> {
        let number = |key: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u32>().ok())
        };
        Some(Requester {
            next_psn: number("next")?,
            unacknowledged: number("unacked")?,
            with_nic: number("nic")?,
            waits_for_nic: number("need_req_skb")? != 0,
            waits_for_ack: number("wait_psn")? != 0,
        })
    }
}

impl Guest {
    /// The requesters of all queue pairs of rxe0. A probe on `rxe_qp_to_attr` reads them while `rdma` asks for the
    /// attributes, so nothing is in the way of traffic before.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if the layout of this kernel's `struct rxe_qp` is not known.
    pub fn requesters(&self) -> Result<Vec<Requester>> {
        let release = self.check("uname -r", SHORT)?.stdout;
        let Some((_, at)) = LAYOUTS.iter().find(|(name, _)| *name == release.trim()) else {
            return error(
                ErrorKind::Missing,
                format!("the layout of rxe's queue pairs in Linux {}", release.trim()),
            );
        };
        let names = ["next", "unacked", "nic", "need_req_skb", "wait_psn"];
        let fields: String =
            names.iter().zip(at).map(|(name, at)| format!(" {name}=+{at:#x}(%di):u32")).collect();
        let out = self.check(
            &format!(
                "cd /sys/kernel/tracing; [ -e trace ] || mount -t tracefs tracefs .; cd /sys/kernel/tracing
                 [ -e events/kprobes/requester ] && echo 0 >events/kprobes/requester/enable && echo -:requester >>kprobe_events
                 echo 'p:requester rdma_rxe:rxe_qp_to_attr{fields}' >>kprobe_events && echo 1 >events/kprobes/requester/enable &&
                 rdma res show qp >/dev/null; echo 0 >events/kprobes/requester/enable
                 grep requester: trace; echo -:requester >>kprobe_events"
            ),
            SLOW,
        )?;
        let mut all: Vec<Requester> = out.stdout.lines().filter_map(Requester::parse).collect();
        all.dedup(); // rdma may ask twice
        Ok(all)
    }

    /// All requesters, and those of them that wait for ever: see [`Requester::has_lost_wakeup`]. Looks twice, a second apart.
    ///
    /// # Errors
    /// Those of [`requesters`](Self::requesters).
    pub fn lost_wakeups(&self) -> Result<(Vec<Requester>, Vec<Requester>)> {
        let before = self.requesters()?;
        std::thread::sleep(Duration::from_secs(1));
        let all = self.requesters()?;
        let lost = all.iter().copied().filter(|r| r.has_lost_wakeup() && before.contains(r)).collect();
        Ok((all, lost))
    }
}

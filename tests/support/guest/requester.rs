//! State of rxe's requesters in the guest's kernel: whether each one waits, and for which event.
//!
//! rxe (6.1 and 6.12) loses a wake-up. `rxe_requester` stops in the middle of a message while more than 64 of
//! its packets are queued in the NIC: it compares `skb_out`, and then sets `need_req_skb`. The destructor of
//! a sent packet (`rxe_skb_tx_dtor`) schedules the requester if it finds `need_req_skb` set. If the last
//! packets are freed between the comparison and the assignment, the requester is never scheduled; and once
//! all sent packets are acknowledged, rxe's retransmission timer has no effect either (`rxe_completer` arms
//! it and retries only while `req.psn` is ahead of `comp.psn`). Then neither side ever sends again.
//! `comp.psn` is ahead if rxe had gone back for a retransmission and the acknowledgements of the first
//! transmission arrived after that. `wait_psn`, for the limit of 128 unacknowledged packets, has the same
//! race.

use super::{Guest, Result, SHORT};
use std::time::Duration;

/// Time limit for a command in a guest whose host is heavily loaded.
const SLOW: Duration = Duration::from_secs(60);

/// Number of packets queued in the NIC below which rxe schedules its requester again
/// (`RXE_INFLIGHT_SKBS_PER_QP_LOW`).
const LOW: u32 = 16;

/// State of one queue pair's requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// PSN of the next packet.
    pub next_psn: u32,
    /// First unacknowledged PSN.
    pub unacknowledged: u32,
    /// Number of the queue pair's packets queued in the NIC.
    pub with_nic: u32,
    /// Whether the requester waits for the NIC to send queued packets.
    pub waits_for_nic: bool,
    /// Whether the requester waits for acknowledgements.
    pub waits_for_ack: bool,
}

impl Requester {
    /// Reports whether the requester waits for an event that has already happened, and so waits forever.
    pub fn has_lost_wakeup(&self) -> bool {
        // PSNs have 24 bits; the sign of their difference is bit 23.
        let ahead = self.next_psn.wrapping_sub(self.unacknowledged) & 0xff_ffff;
        let is_timer_off = ahead == 0 || ahead >> 23 == 1;
        is_timer_off && (self.waits_for_nic && self.with_nic < LOW || self.waits_for_ack)
    }

    /// Parses a line of the kernel's trace output.
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
    /// Returns the requester of each queue pair of rxe0. A kernel probe on `rxe_qp_to_attr` reads them while
    /// `rdma` queries the attributes, so earlier traffic is not affected.
    pub fn requesters(&self) -> Result<Vec<Requester>> {
        let offsets = self.check("cat /etc/rxe_qp", SHORT)?.stdout;
        // In the order of the file.
        let names = ["next", "unacked", "nic", "need_req_skb", "wait_psn"];
        let fields: String =
            names.iter().zip(offsets.lines()).map(|(name, at)| format!(" {name}=+{at}(%di):u32")).collect();
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
        all.dedup(); // rdma may query an attribute twice
        Ok(all)
    }

    /// Returns all requesters, and those that have lost a wake-up (see [`Requester::has_lost_wakeup`]) and
    /// have not changed for a second.
    pub fn lost_wakeups(&self) -> Result<(Vec<Requester>, Vec<Requester>)> {
        let before = self.requesters()?;
        std::thread::sleep(Duration::from_secs(1));
        let all = self.requesters()?;
        let lost = all.iter().copied().filter(|r| r.has_lost_wakeup() && before.contains(r)).collect();
        Ok((all, lost))
    }
}

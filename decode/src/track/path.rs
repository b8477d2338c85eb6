//! Evidence about the path besides RoCE packets: address resolution, ICMP errors, and pauses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use urxe::wire::Mac;
use urxe::wire::frame::{PRIORITIES, PauseFrame};

use super::facts::{At, Bounded};
use crate::layers::IcmpError;

/// An address, as it appears in the capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host {
    /// Last message of its connection manager.
    pub managed: Option<At>,
    /// Requests for its link-layer address since the last answer, and the first of them.
    pub unanswered: (u64, At),
    /// Sender of the last such request.
    pub asked_by: Option<IpAddr>,
    /// Whether it answered such a request.
    pub answered: bool,
}

/// Pauses of one priority by one address.
#[derive(Clone, Debug)]
pub struct Paused {
    /// Source of the pause frames.
    pub by: Mac,
    /// Priority; `None` for pauses of the whole link.
    pub priority: Option<u8>,
    /// First pause frame.
    pub first: At,
    /// Frames that pause.
    pub frames: Bounded<At>,
    /// Time of the pauses that were ended by a frame, or by the next, in nanoseconds.
    pub nanos: u64,
    /// Start of the current pause, and its quanta.
    since: Option<(u64, u16)>,
}

/// Speed of the link that a quantum is computed for, where nothing tells it: 100 Gb/s.
const LINK_SPEED: u64 = 100_000_000_000;

impl Paused {
    /// Ends the current pause at `time`, or when its quanta had elapsed.
    fn end(&mut self, time: u64) {
        self.nanos = self.total(time);
        self.since = None;
    }

    /// Returns the paused time in nanoseconds until `end`.
    pub fn total(&self, end: u64) -> u64 {
        let current = self.since.map_or(0, |(since, quanta)| {
            let most = PauseFrame::duration(quanta, LINK_SPEED).as_nanos() as u64;
            end.saturating_sub(since).min(most)
        });
        self.nanos + current
    }
}

/// Evidence about the path.
#[derive(Debug, Default)]
pub struct Path {
    /// Addresses.
    pub hosts: BTreeMap<IpAddr, Host>,
    /// ICMP errors about RoCE packets.
    pub icmp: Bounded<(At, IcmpError)>,
    /// Pauses.
    pub paused: Vec<Paused>,
}

impl Path {
    pub(super) fn managed(&mut self, ip: IpAddr, at: At) {
        self.hosts.entry(ip).or_default().managed = Some(at);
    }

    pub(super) fn solicit(&mut self, from: IpAddr, ip: IpAddr, at: At) {
        let host = self.hosts.entry(ip).or_default();
        host.asked_by = Some(from);
        if host.unanswered.0 == 0 {
            host.unanswered.1 = at;
        }
        host.unanswered.0 += 1;
    }

    pub(super) fn advert(&mut self, ip: IpAddr, _at: At) {
        let host = self.hosts.entry(ip).or_default();
        host.unanswered = (0, At::default());
        host.answered = true;
    }

    pub(super) fn icmp(&mut self, error: IcmpError, at: At) {
        self.icmp.push((at, error));
    }

    pub(super) fn pause(&mut self, by: Mac, pause: &PauseFrame, at: At) {
        // All alike: a frame of IEEE 802.3x, which pauses the link, or the same by priorities.
        let is_link = pause.times[0].is_some() && pause.times.iter().all(|time| *time == pause.times[0]);
        for priority in 0..if is_link { 1 } else { PRIORITIES as u8 } {
            let Some(quanta) = pause.times[usize::from(priority)] else { continue };
            let priority = (!is_link).then_some(priority);
            let is_same = |p: &&mut Paused| p.by == by && p.priority == priority;
            let known = self.paused.iter_mut().find(is_same);
            let paused = match known {
                Some(paused) => paused,
                None if quanta == 0 => continue,
                None => {
                    self.paused.push(Paused {
                        by,
                        priority,
                        first: at,
                        frames: Bounded::default(),
                        nanos: 0,
                        since: None,
                    });
                    match self.paused.last_mut() {
                        Some(paused) => paused,
                        None => continue,
                    }
                }
            };
            paused.end(at.time);
            if quanta > 0 {
                paused.frames.push(at);
                paused.since = Some((at.time, quanta));
            }
        }
    }
}

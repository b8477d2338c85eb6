//! Neighbour cache of a station: MACs, pending resolutions and retries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::transport::Instant;
use crate::wire::Mac;

/// Time for which a MAC is trusted without traffic from the neighbour.
pub const FRESH: Duration = Duration::from_secs(30);
/// Time to wait for a reply before a request is repeated.
pub const RETRY: Duration = Duration::from_millis(250);
/// Maximum number of requests: three seconds in all, as on Linux.
pub const TRIES: u8 = 12;
/// Maximum number of cached neighbours.
pub const MAX_NEIGHBOURS: usize = 4096;

/// Neighbour cache, including entries that are being resolved.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// Number of entries with a pending request.
    asking: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// Time of the last sign of the neighbour.
    heard: Instant,
    question: Option<Question>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    tries: u8,
    again: Instant,
}

/// A request to send: unicast to the known MAC, otherwise multicast or broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    pub ip: IpAddr,
    pub mac: Option<Mac>,
}

impl Neighbours {
    /// Returns the MAC of `ip`, and a request to send if the MAC is unknown or stale.
    pub fn lookup(&mut self, now: Instant, ip: IpAddr) -> (Option<Mac>, Option<Ask>) {
        if !self.entries.contains_key(&ip) {
            self.make_room();
        }
        let entry = self.entries.entry(ip).or_insert(Entry { mac: None, heard: now, question: None });
        let stale = entry.mac.is_none() || now.since(entry.heard) >= FRESH;
        if !stale || entry.question.is_some() {
            return (entry.mac, None);
        }
        entry.question = Some(Question { tries: 1, again: now + RETRY });
        self.asking += 1;
        (entry.mac, Some(Ask { ip, mac: entry.mac }))
    }

    /// Learns a MAC; with `only_known`, only for an address that has an entry. Returns whether it was stored.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mac: Mac, only_known: bool) -> bool {
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.asking -= usize::from(entry.question.is_some());
            *entry = Entry { mac: Some(mac), heard: now, question: None };
            return true;
        }
        if !only_known {
            self.make_room();
            self.entries.insert(ip, Entry { mac: Some(mac), heard: now, question: None });
        }
        !only_known
    }

    /// Returns the MAC of `ip` if it is known, even if it is stale.
    pub fn mac(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip).and_then(|e| e.mac)
    }

    /// Returns a request that is due for repetition, or the address of a neighbour whose resolution has
    /// failed.
    pub fn expire(&mut self, now: Instant) -> Option<Result<Ask, IpAddr>> {
        if self.asking == 0 {
            return None;
        }
        let (ip, entry) =
            self.entries.iter_mut().find(|(_, e)| e.question.is_some_and(|q| q.again <= now))?;
        let ip = *ip;
        let question = entry.question.as_mut()?;
        if question.tries < TRIES {
            question.tries += 1;
            question.again = now + RETRY;
            // The known MAC may be outdated: after the first quarter of the attempts, requests go to all
            // hosts.
            let mac = entry.mac.filter(|_| question.tries <= TRIES / 4);
            return Some(Ok(Ask { ip, mac }));
        }
        self.entries.remove(&ip);
        self.asking -= 1;
        Some(Err(ip))
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        if self.asking == 0 {
            return None;
        }
        self.entries.values().filter_map(|e| e.question.map(|q| q.again)).min()
    }

    /// If the cache is full, evicts the entry that was not refreshed for the longest time. Entries that are
    /// being resolved are evicted last.
    fn make_room(&mut self) {
        if self.entries.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest =
            self.entries.iter().min_by_key(|(_, e)| (e.question.is_some(), e.heard)).map(|(ip, _)| *ip);
        if let Some(gone) = oldest.and_then(|ip| self.entries.remove(&ip)) {
            self.asking -= usize::from(gone.question.is_some());
        }
    }
}

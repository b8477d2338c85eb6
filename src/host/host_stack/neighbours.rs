//! Neighbour cache of a host stack: MACs, pending resolutions and retries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::transport::Instant;
use crate::wire::Mac;

/// Time that a MAC remains trusted without traffic from the neighbour.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Time to wait for a reply before repeating a request.
pub const RETRANS_TIME: Duration = Duration::from_millis(250);
/// Maximum number of requests per resolution: resolution fails after three seconds, as on Linux.
pub const MAX_REQUESTS: u8 = 12;
/// Maximum number of cached neighbours.
pub const MAX_NEIGHBOURS: usize = 4096;

/// Neighbour cache, including entries that are being resolved.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// Number of entries with a pending request.
    resolving: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// Time at which the MAC was last confirmed or, while it is unknown, the entry was created.
    confirmed_at: Instant,
    resolution: Option<Resolution>,
}

#[derive(Clone, Copy, Debug)]
struct Resolution {
    requests: u8,
    retry_at: Instant,
}

/// A request to send: unicast to `mac` if there is one, otherwise multicast (NDP) or broadcast (ARP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NeighbourRequest {
    pub ip: IpAddr,
    pub mac: Option<Mac>,
}

impl Neighbours {
    /// Returns the MAC of `ip`, and a request to send if the MAC is unknown or stale and no request is
    /// pending.
    pub fn lookup(&mut self, now: Instant, ip: IpAddr) -> (Option<Mac>, Option<NeighbourRequest>) {
        if !self.entries.contains_key(&ip) {
            self.evict_if_full();
        }
        let entry =
            self.entries.entry(ip).or_insert(Entry { mac: None, confirmed_at: now, resolution: None });
        let stale = entry.mac.is_none() || now.since(entry.confirmed_at) >= REACHABLE_TIME;
        if !stale || entry.resolution.is_some() {
            return (entry.mac, None);
        }
        entry.resolution = Some(Resolution { requests: 1, retry_at: now + RETRANS_TIME });
        self.resolving += 1;
        (entry.mac, Some(NeighbourRequest { ip, mac: entry.mac }))
    }

    /// Stores the MAC of `ip`; with `only_known`, only if `ip` already has an entry. Returns whether it was
    /// stored.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mac: Mac, only_known: bool) -> bool {
        match self.entries.get(&ip) {
            Some(entry) => self.resolving -= usize::from(entry.resolution.is_some()),
            None if only_known => return false,
            None => self.evict_if_full(),
        }
        self.entries.insert(ip, Entry { mac: Some(mac), confirmed_at: now, resolution: None });
        true
    }

    /// Returns the MAC of `ip` if it is known, even if it is stale.
    pub fn mac(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip).and_then(|e| e.mac)
    }

    /// Returns a request that is due for repetition, or the address of a neighbour whose resolution has
    /// failed.
    pub fn expire(&mut self, now: Instant) -> Option<Result<NeighbourRequest, IpAddr>> {
        if self.resolving == 0 {
            return None;
        }
        let (ip, entry) =
            self.entries.iter_mut().find(|(_, e)| e.resolution.is_some_and(|q| q.retry_at <= now))?;
        let ip = *ip;
        let resolution = entry.resolution.as_mut()?;
        if resolution.requests < MAX_REQUESTS {
            resolution.requests += 1;
            resolution.retry_at = now + RETRANS_TIME;
            // The known MAC may be outdated: after the first quarter of the attempts, requests go to all
            // hosts.
            let mac = entry.mac.filter(|_| resolution.requests <= MAX_REQUESTS / 4);
            return Some(Ok(NeighbourRequest { ip, mac }));
        }
        self.entries.remove(&ip);
        self.resolving -= 1;
        Some(Err(ip))
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        if self.resolving == 0 {
            return None;
        }
        self.entries.values().filter_map(|e| e.resolution.map(|q| q.retry_at)).min()
    }

    /// If the cache is full, evicts the entry that was confirmed least recently. Entries that are being
    /// resolved are evicted last.
    fn evict_if_full(&mut self) {
        if self.entries.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, e)| (e.resolution.is_some(), e.confirmed_at))
            .map(|(ip, _)| *ip);
        if let Some(evicted) = oldest.and_then(|ip| self.entries.remove(&ip)) {
            self.resolving -= usize::from(evicted.resolution.is_some());
        }
    }
}

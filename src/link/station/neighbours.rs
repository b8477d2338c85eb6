use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::transport::Instant;
use crate::wire::Mac;

/// How long a neighbour's MAC is believed without hearing from it.
pub const FRESH: Duration = Duration::from_secs(30);
/// How long an answer may take before the question is put again.
pub const RETRY: Duration = Duration::from_millis(250);
/// How often it is put: for three seconds, as Linux does.
pub const TRIES: u8 = 12;
/// How many neighbours are remembered.
pub const MAX_NEIGHBOURS: usize = 4096;

/// The MAC of each neighbour, the neighbours that are being asked for, and those that did not answer.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// Entries with a question open.
    asking: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When it was last heard of.
    heard: Instant,
    question: Option<Question>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    tries: u8,
    again: Instant,
}

/// A question to put on the wire: to the MAC that was known, or to everybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    pub ip: IpAddr,
    pub mac: Option<Mac>,
}

impl Neighbours {
    /// The MAC of `ip`, and a question if it is unknown or not heard of for long.
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

    /// Takes note of a MAC. `only_known`: not of an address that nobody cared for so far. Whether it was noted.
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

    /// Whether `ip` is known and no question about it is open.
    pub fn mac(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip).and_then(|e| e.mac)
    }

    /// A question that is due again, or the address of a neighbour that is given up.
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
            // The old MAC may be gone: the last attempts ask everybody.
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

    /// Forgets whoever was heard of longest ago if there is no room for one more.
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

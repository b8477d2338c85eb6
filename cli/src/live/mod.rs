//! NICs of this host's processes, as `urxe ps` and `urxe top` show them: their state, rates, and what each queue pair
//! waits for.

pub mod metrics;
pub mod table;
mod why;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use urxe::verbs::live::{FoundNic, NicSnapshot, QpSnapshot, find};
pub use why::why;

/// Time within which all processes must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The NICs at one moment.
#[derive(Default)]
pub struct View {
    pub nics: Vec<Nic>,
}

/// A NIC, or a process that does not report its state.
pub struct Nic {
    pub found: FoundNic,
    /// One for each queue pair of the state.
    pub qps: Vec<QpView>,
}

/// Rates and an explanation, derived from a queue pair's state.
pub struct QpView {
    /// Packets and bytes per second; `None` without an earlier state.
    pub rates: Option<Rates>,
    /// Sentence that says what the queue pair waits for, or why it failed.
    pub why: String,
}

/// Rates since the state before.
#[derive(Clone, Copy)]
pub struct Rates {
    pub sent_bytes: f64,
    pub received_bytes: f64,
    pub sent_packets: f64,
    pub received_packets: f64,
}

impl View {
    /// Asks all processes, or the one with the given ID. Rates are those since `before`.
    pub fn take(pid: Option<u32>, before: &View) -> View {
        View::of(find(ANSWER_TIMEOUT), pid, before)
    }

    /// Derives the view from the NICs that were found.
    pub fn of(found: Vec<FoundNic>, pid: Option<u32>, before: &View) -> View {
        let states: Vec<&NicSnapshot> = found.iter().filter_map(|nic| nic.state.as_ref().ok()).collect();
        let peers = Peers::of(&states);
        let qps = |nic: &FoundNic| match &nic.state {
            Ok(state) => state
                .qps
                .iter()
                .map(|qp| QpView {
                    rates: before.rates(nic.pid, state, qp),
                    why: why(state, qp, peers.of_qp(state, qp)),
                })
                .collect(),
            Err(_) => Vec::new(),
        };
        let all: Vec<Vec<QpView>> = found.iter().map(qps).collect();
        let nics = found.into_iter().zip(all).map(|(found, qps)| Nic { found, qps });
        View { nics: nics.filter(|nic| pid.is_none_or(|pid| nic.found.pid == pid)).collect() }
    }

    /// Returns the rates of a queue pair between this state and a later one of it.
    fn rates(&self, pid: u32, now: &NicSnapshot, qp: &QpSnapshot) -> Option<Rates> {
        let states = self
            .nics
            .iter()
            .filter(|nic| nic.found.pid == pid)
            .filter_map(|nic| nic.found.state.as_ref().ok());
        let before = states.into_iter().find(|state| state.device == now.device && state.link == now.link)?;
        let old = before.qps.iter().find(|old| old.qpn == qp.qpn)?;
        let seconds = now.clock.checked_sub(before.clock).filter(|time| *time > 0)? as f64 * 1e-9;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Some(Rates {
            sent_bytes: rate(qp.counters.sent_bytes, old.counters.sent_bytes),
            received_bytes: rate(qp.counters.rcvd_bytes, old.counters.rcvd_bytes),
            sent_packets: rate(qp.counters.sent_pkts, old.counters.sent_pkts),
            received_packets: rate(qp.counters.rcvd_pkts, old.counters.rcvd_pkts),
        })
    }

    /// Returns the document of `--json`.
    pub fn to_json(&self) -> Value {
        json!({ "nics": self.nics.iter().map(Nic::to_json).collect::<Vec<_>>() })
    }
}

impl Nic {
    fn to_json(&self) -> Value {
        let FoundNic { pid, user, state, .. } = &self.found;
        let mut document = match state {
            Ok(state) => json!(state),
            Err(silence) => json!({ "error": silence.to_string() }),
        };
        document["pid"] = json!(pid);
        document["user"] = json!(user);
        let documents = document.get_mut("qps").and_then(Value::as_array_mut).into_iter().flatten();
        for (document, QpView { rates, why }) in documents.zip(&self.qps) {
            document["why"] = json!(why);
            document["rates"] = json!(rates.map(|rates| json!({
                "sent_bytes_per_second": rates.sent_bytes,
                "rcvd_bytes_per_second": rates.received_bytes,
                "sent_pkts_per_second": rates.sent_packets,
                "rcvd_pkts_per_second": rates.received_packets,
            })));
        }
        document
    }
}

/// Queue pairs of this host, among which the peers of others are.
struct Peers<'a>(HashMap<u32, Vec<(&'a NicSnapshot, &'a QpSnapshot)>>);

impl<'a> Peers<'a> {
    fn of(states: &[&'a NicSnapshot]) -> Peers<'a> {
        let mut by_qpn: HashMap<u32, Vec<_>> = HashMap::new();
        for state in states {
            state.qps.iter().for_each(|qp| by_qpn.entry(qp.qpn).or_default().push((*state, qp)));
        }
        Peers(by_qpn)
    }

    /// Returns the peer of a queue pair, if it is on this host: the two name each other.
    fn of_qp(&self, state: &NicSnapshot, qp: &QpSnapshot) -> Option<&'a QpSnapshot> {
        let peer = qp.peer.as_ref()?;
        let is_mutual = |(of, other): &&(&NicSnapshot, &QpSnapshot)| {
            of.addresses.contains(&peer.address)
                && other
                    .peer
                    .as_ref()
                    .is_some_and(|back| back.qpn == qp.qpn && state.addresses.contains(&back.address))
        };
        self.0.get(&peer.qpn)?.iter().find(is_mutual).map(|(_, other)| *other)
    }
}

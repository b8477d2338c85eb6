//! Measurement of the items of a plan, round by round.

use std::time::Instant;

use crate::Result;
use crate::job::Metrics;
use crate::pair;
use crate::place::{Net, Place};
use crate::plan::{Item, What, Where};
use crate::table::Table;
use crate::tools;

pub struct Lab {
    /// The namespaces, or the error that prevents them.
    net: Result<Net>,
    iperf3: bool,
    ucx: bool,
}

impl Lab {
    pub fn new() -> Lab {
        Lab {
            net: Net::new(),
            iperf3: tools::is_installed("iperf3"),
            ucx: tools::is_installed("ucx_perftest"),
        }
    }

    /// Returns the reason why an item cannot be measured on this machine; `None` if it can.
    pub fn lacks(&self, item: &Item) -> Option<String> {
        match (&item.what, &self.net) {
            (What::Ours(_, Where::Namespace | Where::Namespaces), Err(e)) => Some(e.to_string()),
            (What::Iperf3 { .. }, _) if !self.iperf3 => Some("iperf3 is not installed".into()),
            (What::UcxPut { .. } | What::UcxPing { .. }, _) if !self.ucx => {
                Some("ucx_perftest is not installed (Debian: ucx-utils)".into())
            }
            _ => None,
        }
    }

    fn measure(&self, item: &Item) -> Result<Metrics> {
        match &item.what {
            What::Ours(task, place) => {
                let here = [&Place::Here, &Place::Here];
                let places = match (place, &self.net) {
                    (Where::Namespace, Ok(net)) => [&net.places[0], &net.places[0]],
                    (Where::Namespaces, Ok(net)) => [&net.places[0], &net.places[1]],
                    _ => here,
                };
                pair::measure(task, item.seconds, places)
            }
            What::Iperf3 { len } => tools::iperf3(*len),
            What::UcxPut { size } => tools::ucx_put(*size, item.seconds),
            What::UcxPing { rounds } => tools::ucx_ping(*rounds),
        }
    }

    /// Measures all items that are possible, each in its number of rounds; the items of a round alternate.
    pub fn run(&self, items: &[Item]) -> Table {
        let mut table = Table::default();
        let (start, rounds) = (Instant::now(), items.iter().map(|item| item.rounds).max().unwrap_or(0));
        for item in items {
            table.row(&item.key).lack = self.lacks(item);
        }
        for round in 0..rounds {
            for item in items.iter().filter(|item| round < item.rounds && self.lacks(item).is_none()) {
                match self.measure(item) {
                    Ok(metrics) => {
                        table.row(&item.key).rounds.insert(round, metrics);
                    }
                    Err(e) => {
                        eprintln!("{}: {e}", item.key.name());
                        table.row(&item.key).failures.push(e.to_string());
                    }
                }
            }
            eprintln!("round {} of {rounds}: {:.0} s", round + 1, start.elapsed().as_secs_f64());
        }
        table
    }
}

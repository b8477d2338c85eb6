//! Measurement of a plan's items, round by round.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::Result;
use crate::clients::Clients;
use crate::job::Metrics;
use crate::namespace::{Namespace, Net};
use crate::plan::{BUSY_THREADS, Item, Measurement, Placement};
use crate::processes;
use crate::table::Table;
use crate::tools;

/// Calls `measure` while threads of this process keep cores busy.
fn beside_load<R>(measure: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..BUSY_THREADS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let result = measure();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

pub struct Runner {
    /// Network namespaces, or the error that prevented their creation.
    net: Result<Net>,
    iperf3: bool,
    perftest: bool,
    clients: Clients,
}

impl Runner {
    pub fn new() -> Result<Runner> {
        Ok(Runner {
            net: Net::new(),
            iperf3: tools::is_installed("iperf3"),
            perftest: tools::is_installed("ib_write_bw"),
            clients: Clients::new()?,
        })
    }

    /// Returns the reason why an item cannot be measured on this machine; `None` if it can.
    pub fn skip_reason(&self, measurement: &Measurement) -> Option<String> {
        match (measurement, &self.net) {
            (Measurement::Urxe(_, Placement::FirstNamespace | Placement::BothNamespaces), Err(e)) => {
                Some(e.to_string())
            }
            (Measurement::Iperf3 { .. }, _) if !self.iperf3 => Some("iperf3 is not installed".into()),
            (Measurement::Perftest(_), _) if !self.perftest => {
                Some("ib_write_bw is not installed (Debian: perftest)".into())
            }
            (Measurement::Client(client, _), _) => self.clients.skip_reason(*client),
            (Measurement::BesideLoad(measurement), _) => self.skip_reason(measurement),
            _ => None,
        }
    }

    fn measure(&self, measurement: &Measurement, item: &Item) -> Result<Metrics> {
        match measurement {
            Measurement::Urxe(task, placement) => {
                let current = [&Namespace::Current, &Namespace::Current];
                let namespaces = match (placement, &self.net) {
                    (Placement::FirstNamespace, Ok(net)) => [&net.namespaces[0], &net.namespaces[0]],
                    (Placement::BothNamespaces, Ok(net)) => [&net.namespaces[0], &net.namespaces[1]],
                    _ => current,
                };
                processes::measure(task, item.seconds, namespaces)
            }
            Measurement::Iperf3 { len } => tools::iperf3(*len),
            Measurement::Perftest(program) => program.measure(),
            Measurement::Client(client, carrier) => {
                self.clients.measure(*client, *carrier, item.key.size, item.seconds)
            }
            Measurement::Together(tasks) => processes::measure_together(tasks, item.seconds),
            Measurement::BesideLoad(measurement) => beside_load(|| self.measure(measurement, item)),
        }
    }

    /// Measures every item that can be measured on this machine, for its number of rounds. Each round
    /// measures all items that are still due, one after the other.
    pub fn run(&self, items: &[Item]) -> Table {
        let mut table = Table::default();
        let (start, rounds) = (Instant::now(), items.iter().map(|item| item.rounds).max().unwrap_or(0));
        for item in items {
            table.row(&item.key).skip_reason = self.skip_reason(&item.measurement);
        }
        for round in 0..rounds {
            let is_due = |item: &&Item| round < item.rounds && self.skip_reason(&item.measurement).is_none();
            for item in items.iter().filter(is_due) {
                match self.measure(&item.measurement, item) {
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

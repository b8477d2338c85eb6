//! Tests of flows on simulated networks, and of their reports.

use std::time::Duration;

use urxe::verbs::{Congestion, ContextOptions};
use urxe_netsim::{Node, Pfc, Red, Report, SwitchConfig, Topology, Traffic, TrafficError, Wire};

const GIGABIT: u64 = 1_000_000_000;
const LIMIT: Duration = Duration::from_millis(50);

fn switch() -> SwitchConfig {
    SwitchConfig::default().ecn(Red::new(40_000, 200_000, 0.3)).pfc(Pfc::default())
}

fn incast(senders: usize, bytes: u64) -> Report {
    let mut traffic = Traffic::new(&Topology::incast(senders).switches(switch()), 1).unwrap();
    for sender in 1..=senders {
        traffic.flow(sender, 0).bytes(bytes);
    }
    traffic.run(LIMIT).unwrap()
}

#[test]
fn flows_with_a_length_complete_and_share_the_wire_to_the_receiver() {
    let report = incast(4, 1_000_000);
    assert!(report.duration < LIMIT, "it ends when all are complete");
    for flow in &report.flows {
        assert_eq!((flow.to, flow.bytes), (0, 1_000_000));
        // The wire alone takes 320 µs for the four of them.
        let completed = flow.completed_at.unwrap();
        assert!(completed > Duration::from_micros(80) && completed <= report.duration, "{completed:?}");
    }
    let last = report.flows.iter().map(|flow| flow.completed_at.unwrap()).max().unwrap();
    assert!(last > Duration::from_micros(320), "{last:?}");
    let queue = &report.queues[0];
    assert_eq!((queue.from, queue.to, queue.priority), (Node::Switch(0), Node::Host(0), 3));
    assert!(queue.counters.max_queued > 40_000 && queue.percentile(99.0) > 0);
    assert_eq!(report.network.dropped, 0);
}

#[test]
fn rate_of_a_flow_is_limited_and_its_start_delayed() {
    let topology = Topology::star(2).wires(Wire::default().bandwidth(100 * GIGABIT));
    let mut traffic = Traffic::new(&topology, 1).unwrap();
    traffic.options(ContextOptions::default().congestion(Congestion::NONE));
    traffic.flow(0, 1).rate(10 * GIGABIT).start(Duration::from_millis(1));
    let report = traffic.run(Duration::from_millis(5)).unwrap();
    let flow = &report.flows[0];
    assert_eq!(flow.completed_at, None);
    assert!(flow.rates[..10].iter().all(|rate| *rate == 0.0), "{:?}", &flow.rates[..10]);
    let gigabits = flow.rate(report.duration) / 1e9;
    assert!((9.0..10.5).contains(&gigabits), "{gigabits} Gb/s");
}

#[test]
fn report_has_a_table_csv_with_a_line_for_each_interval_and_a_plot() {
    let report = incast(2, 500_000);
    let table = report.to_string();
    assert!(
        table.starts_with("| flow | start, µs |") && table.contains("| 1 to 0 | 0.0 | 500000 |"),
        "{table}"
    );
    assert!(
        table.contains("| switch 0 to host 0, priority 3 |") && table.contains("pause frames"),
        "{table}"
    );
    let mut csv = Vec::new();
    report.write_csv(&mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,flow 1 to 0,flow 2 to 0,queue switch 0 to host 0 priority 3"));
    assert_eq!(lines.clone().count(), report.flows[0].rates.len());
    let values: Vec<f64> = lines.next().unwrap().split(',').map(|value| value.parse().unwrap()).collect();
    assert!(values[0] == 0.0001 && values[1] > 0.0 && values.len() == 4, "{values:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("incast.svg");
    report.plot(&path).unwrap();
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    // Both panels with their legends.
    for text in ["2 to 0", "Gb/s", "Length of each queue", "switch 0 to host 0, priority 3"] {
        assert!(svg.contains(text), "{text}");
    }
    let error = report.plot(directory.path().join("missing/incast.svg")).unwrap_err();
    assert!(error.to_string().contains("missing/incast.svg"), "{error}");
}

#[test]
fn same_seed_gives_the_same_report() {
    assert_eq!(incast(3, 300_000).to_string(), incast(3, 300_000).to_string());
}

#[test]
fn flow_of_an_unknown_host_is_an_error() {
    let mut traffic = Traffic::new(&Topology::star(2), 1).unwrap();
    traffic.flow(0, 7);
    assert!(matches!(traffic.run(LIMIT), Err(TrafficError::Topology(_))));
}

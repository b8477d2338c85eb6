//! Compares urxe with the limits of the machine and with alternatives to RDMA in one run. The measurements
//! alternate, because the performance of a machine changes from one second to the next, so that only ratios
//! of adjacent measurements are meaningful.
//!
//! `cargo bench --bench side_by_side [-- --quick] [--only PATTERN] [--out DIR]`

mod alone;
mod args;
mod bars;
mod heap;
mod job;
mod lab;
mod machine;
mod many;
mod nic;
mod pair;
mod ping;
mod place;
mod plan;
mod plot;
mod print;
mod progress;
mod raw_packet;
mod raw_udp;
mod report;
mod stream;
mod table;
mod talk;
mod tools;

use std::process::ExitCode;

use clap::Parser;

use args::Args;
use job::{Job, Metrics, Task};
use lab::Lab;
use machine::Machine;
use table::Key;
use talk::{Talk, Word};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    if std::env::var_os(pair::END).is_some() {
        return be_an_end();
    }
    match compare(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("side_by_side: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this process as one end of a measurement.
fn be_an_end() -> ExitCode {
    let talk = Talk::begin();
    let outcome = talk.hear().and_then(|job: Job| run(&job, &talk));
    let word = outcome.map_or_else(|e| Word::Failed(e.to_string()), Word::Done);
    match talk.say(&word) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent process is gone.
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(job: &Job, talk: &Talk) -> Result<Metrics> {
    match &job.task {
        Task::RawUdpStream { ips, train } => raw_udp::stream(job, talk, *ips, *train),
        Task::RawUdpPing { ips, rounds } => raw_udp::ping(job, talk, *ips, *rounds),
        Task::RawPacketStream { interfaces, train } => raw_packet::stream(job, talk, interfaces, *train),
        Task::Stream { wire, stream } => stream::run(job, talk, wire, stream),
        Task::Ping { wire, op, rounds } => ping::run(job, talk, wire, *op, *rounds),
        Task::Memcpy { size } => alone::memcpy(*size, job.seconds),
        Task::FabricStream { stream } => alone::fabric_stream(stream, job.seconds),
        Task::FabricPing { op, rounds } => alone::fabric_ping(*op, *rounds),
        Task::Icrc { payload } => alone::icrc(*payload, job.seconds),
        Task::Connections { ips, count } => many::connections(*ips, *count),
        Task::Threads { ips, shards, size } => many::threads(*ips, *shards, *size, job.seconds),
        Task::Idle { ips, count } => many::idle(*ips, *count, job.seconds),
    }
}

/// Measures, prints the tables and writes the files. Returns false if a measurement failed that was possible
/// on this machine; a missed bar is no failure.
fn compare(args: &Args) -> Result<bool> {
    let (machine, lab, items, bars) = (Machine::look(), Lab::new(), plan::plan(args), bars::bars());
    if items.is_empty() {
        return Err(format!("nothing's name contains {:?}", args.only.as_deref().unwrap_or_default()).into());
    }
    let table = lab.run(&items);
    println!();
    machine.print();
    print::settings(&items);
    let is_raw = |key: &Key| key.series.starts_with("raw");
    let is_lossy = |key: &Key| key.series.contains("loss");
    print::matrix("datagrams, Gb/s", "Gb/s", &table, is_raw);
    print::matrix("messages, Gb/s", "Gb/s", &table, |key| !is_raw(key) && !is_lossy(key));
    print::matrix("messages and datagrams, millions a second", "M/s", &table, |key| key.size <= 512);
    print::matrix("with loss, Gb/s", "Gb/s", &table, is_lossy);
    print::half_round_trips(&table);
    print::icrc(&table);
    print::others(&table);
    print::missing(&table);
    print::rows_of(&bars, &table);
    print::verdicts(&bars, &table);
    std::fs::create_dir_all(&args.out)?;
    let [json, svg] = ["json", "svg"].map(|kind| args.out.join(format!("side_by_side.{kind}")));
    report::write(&json, &machine, &table, &bars)?;
    plot::write(&svg, &machine, &table)?;
    println!("\n{}\n{}", json.display(), svg.display());
    let failed: Vec<String> =
        table.rows().filter(|(_, row)| !row.failures.is_empty()).map(|(key, _)| key.name()).collect();
    if !failed.is_empty() {
        eprintln!("could not be measured in every round: {}", failed.join("; "));
    }
    Ok(failed.is_empty())
}

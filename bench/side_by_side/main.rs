//! Compares urxe with the machine's limits and with alternatives to RDMA in one run. The measurements
//! alternate, and only ratios of adjacent ones are meaningful, because a machine's performance changes from
//! one second to the next.
//!
//! `cargo bench --package urxe-bench --profile dist --bench side_by_side [-- --quick] [--only PATTERN] [--out
//! DIR]`

mod args;
mod carrier;
mod clients;
mod control;
mod heap;
mod job;
mod machine;
mod namespace;
mod nic;
mod perftest;
mod ping;
mod plan;
mod plot;
mod print;
mod processes;
mod progress;
mod raw_memory;
mod raw_packet;
mod raw_udp;
mod report;
mod runner;
mod scaling;
mod single_thread;
mod stream;
mod table;
mod targets;
mod tools;
mod urxe_command;

use std::process::ExitCode;

use clap::Parser;

use args::Args;
use control::{Control, Message};
use job::{Job, Metrics, Task};
use machine::Machine;
use runner::Runner;
use table::Key;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    // Before the variable, which a broker that an end starts inherits.
    if let Some(status) = urxe_command::run() {
        return status;
    }
    if std::env::var_os(processes::END).is_some() {
        return run_end();
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
fn run_end() -> ExitCode {
    let control = Control::start_reading();
    let outcome = control.recv().and_then(|job: Job| run(&job, &control));
    let message = outcome.map_or_else(|e| Message::Failed(e.to_string()), Message::Done);
    match control.send(&message) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent process has exited.
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(job: &Job, control: &Control) -> Result<Metrics> {
    match &job.task {
        Task::RawUdpStream { ips, train } => raw_udp::stream(job, control, *ips, *train),
        Task::RawUdpPing { ips, rounds } => raw_udp::ping(job, control, *ips, *rounds),
        Task::RawUdpPingLikeLink { ips, datagram, rounds } => {
            raw_udp::ping_like_link(job, control, *ips, *datagram, *rounds)
        }
        Task::RawPacketStream { interfaces, train } => raw_packet::stream(job, control, interfaces, *train),
        Task::RawMemoryPing { rounds } => raw_memory::ping(job, control, *rounds),
        Task::Stream { link, stream } => stream::run(job, control, link, stream),
        Task::Ping { link, op, rounds } => ping::run(job, control, link, *op, *rounds),
        Task::Memcpy { size } => single_thread::memcpy(*size, job.seconds),
        Task::FabricStream { stream } => single_thread::fabric_stream(stream, job.seconds),
        Task::FabricPing { op, rounds } => single_thread::fabric_ping(*op, *rounds),
        Task::Icrc { payload } => single_thread::icrc(*payload, job.seconds),
        Task::Connections { ips, count } => scaling::connections(*ips, *count),
        Task::Threads { ips, shards, size } => scaling::threads(*ips, *shards, *size, job.seconds),
        Task::Idle { ips, count } => scaling::idle(*ips, *count, job.seconds),
    }
}

/// Performs the measurements, prints the tables and writes the files. Returns false if a measurement that is
/// possible on this machine failed; a missed target does not count as a failure.
fn compare(args: &Args) -> Result<bool> {
    let (machine, runner, items, targets) =
        (Machine::detect(), Runner::new()?, plan::plan(args), targets::targets());
    if items.is_empty() {
        return Err(
            format!("no measurement's name contains {:?}", args.only.as_deref().unwrap_or_default()).into()
        );
    }
    let table = runner.run(&items);
    println!();
    machine.print();
    print::settings(&items);
    let is_raw = |key: &Key| key.series.starts_with("raw");
    let is_lossy = |key: &Key| key.series.contains("loss");
    print::matrix("datagrams, Gb/s", "Gb/s", &table, is_raw);
    print::matrix("messages, Gb/s", "Gb/s", &table, |key| !is_raw(key) && !is_lossy(key));
    print::matrix("messages and datagrams, millions per second", "M/s", &table, |key| key.size <= 512);
    print::matrix("with loss, Gb/s", "Gb/s", &table, is_lossy);
    print::half_round_trips(&table);
    print::icrc(&table);
    print::other_metrics(&table);
    print::unmeasured(&table);
    print::target_rows(&targets, &table);
    print::verdicts(&targets, &table);
    std::fs::create_dir_all(&args.out)?;
    let [json, svg] = ["json", "svg"].map(|kind| args.out.join(format!("side_by_side.{kind}")));
    report::write(&json, &machine, &table, &targets)?;
    plot::write(&svg, &machine, &table)?;
    println!("\n{}\n{}", json.display(), svg.display());
    let failed: Vec<String> =
        table.rows().filter(|(_, row)| !row.failures.is_empty()).map(|(key, _)| key.name()).collect();
    if !failed.is_empty() {
        eprintln!("failed in at least one round: {}", failed.join("; "));
    }
    Ok(failed.is_empty())
}

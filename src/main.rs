//! The `urxe` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use urxe::cli::interrupt::Interrupt;
use urxe::cli::{perf, pingpong};

#[derive(Parser)]
#[command(version, about = "A software RoCEv2 NIC in userspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(perf::PerfArgs),
    Pingpong(pingpong::PingpongArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = Interrupt::install().and_then(|interrupt| match &cli.command {
        Command::Perf(args) => perf::run(args, &interrupt),
        Command::Pingpong(args) => pingpong::run(args, &interrupt),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("urxe: {e}");
            ExitCode::FAILURE
        }
    }
}

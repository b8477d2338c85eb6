//! The `urxe` command: one file per subcommand, and the modules that they and other commands share.
#![forbid(unsafe_code)]

pub mod broker;
mod decode;
mod demo;
mod devinfo;
mod doctor;
mod environment;
mod error;
mod fault_counts;
pub mod interrupt;
pub mod json;
pub mod link;
mod live;
mod log;
mod nic_args;
mod oob;
pub mod oob_handshake;
mod packet_text;
mod perf;
mod pingpong;
mod ps;
mod run;
mod serve;
mod shell;
mod size;
mod spin;
mod top;

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use error::CliError;
use interrupt::Interrupt;
pub use run::{Libraries, Library};

/// Software RoCEv2 NIC in userspace, interoperable with hardware NICs and the kernel's rxe
#[derive(Parser)]
#[command(name = "urxe", version, long_version = LONG_VERSION, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Text of `urxe --version`; `urxe -V` prints the version alone.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("URXE_BUILD_COMMIT"),
    "\nfeatures: ",
    env!("URXE_BUILD_FEATURES"),
    "\ntarget: ",
    env!("URXE_BUILD_TARGET"),
);

const EXAMPLES: &str = "\
Examples:
  urxe demo                          run every operation once, print each packet, write a capture
  urxe decode client.pcapng          say what is wrong in a capture, and why
  urxe devinfo                       list the links available on this machine
  urxe doctor -- ib_write_bw         check this machine, and what a program would load
  urxe perf write --link fabric      measure the bandwidth of RDMA WRITE in memory
  urxe pingpong --link udp:10.0.0.1  run a server for ibv_rc_pingpong
  urxe serve --link udp:10.0.0.1     run an endpoint for READ, WRITE, SEND and atomics
  urxe run -- ib_write_bw            run a libibverbs program on urxe
  urxe top                           watch the NICs of this host: what they do, and what they wait for
  urxe help serve                    describe a command and its options
  urxe help links                    describe --link; `urxe help faults` describes --fault

URXE_LOG=debug prints state changes, NAKs, retransmissions and handshakes to standard error.";

const LINKS: &str = include_str!("help/links.txt");
const FAULTS: &str = include_str!("help/faults.txt");

#[derive(Subcommand)]
enum Command {
    Completions(shell::Completions),
    Decode(decode::Decode),
    Demo(demo::Demo),
    Devinfo(devinfo::Devinfo),
    Doctor(doctor::Doctor),
    Env(run::Env),
    Perf(perf::PerfArgs),
    Pingpong(pingpong::PingpongArgs),
    Ps(ps::Ps),
    Run(run::Run),
    Serve(serve::Serve),
    Top(top::Top),
    #[command(hide = true)]
    Broker(broker::Broker),
    #[command(hide = true)]
    FaultCounts(fault_counts::FaultCounts),
    #[command(hide = true)]
    PackageFiles(shell::PackageFiles),
    /// Links of NICs
    #[command(hide = true, disable_help_flag = true, help_template = "{about}", long_about = LINKS)]
    Links,
    /// Faults that a NIC injects
    #[command(hide = true, disable_help_flag = true, help_template = "{about}", long_about = FAULTS)]
    Faults,
}

/// Parses the command line, runs the command, and prints the error if it fails. `libraries` returns the files
/// inside the executable that `urxe run` needs. The exit status is 0 for success, 1 for a failure, 2 for a
/// bad command line and 130 for a measurement interrupted by Ctrl-C. For `urxe run` it is 126 if the program
/// could not be run and 127 if there is no such program, as with `env` and similar commands; any other status
/// is the program's own.
pub fn main(libraries: Libraries) -> ExitCode {
    let command = Cli::parse().command;
    let failure = if matches!(command, Command::Run(_)) { ExitCode::from(126) } else { ExitCode::FAILURE };
    execute(failure, |interrupt| match command {
        Command::Completions(completions) => completions.run(Cli::command()),
        Command::Decode(decode) => decode.run(),
        Command::Demo(demo) => demo.run(),
        Command::Devinfo(devinfo) => devinfo.run(),
        Command::Doctor(doctor) => doctor.run(libraries),
        Command::Env(env) => env.run(libraries),
        Command::Run(run) => run.run(libraries),
        Command::Perf(args) => {
            *interrupt = Interrupt::install()?;
            perf::run(&args, interrupt)
        }
        Command::Pingpong(args) => {
            *interrupt = Interrupt::install()?;
            pingpong::run(&args, interrupt)
        }
        Command::Ps(ps) => ps.run(),
        Command::Serve(serve) => serve.run(),
        Command::Top(top) => top.run(),
        Command::Broker(broker) => broker.run(),
        Command::FaultCounts(counts) => counts.run(),
        Command::PackageFiles(files) => files.run(Cli::command()),
        Command::Links => Ok(io::Write::write_all(&mut io::stdout(), LINKS.as_bytes())?),
        Command::Faults => Ok(io::Write::write_all(&mut io::stdout(), FAULTS.as_bytes())?),
    })
}

/// Runs a command with the events of `URXE_LOG`, and prints the error if it fails. Returns the exit status: 0
/// for success, 130 if the command has installed the [`Interrupt`] and it is set, 127 for
/// [`CliError::NoProgram`], and `failure` for other errors.
pub fn execute(failure: ExitCode, command: impl FnOnce(&mut Interrupt) -> Result<(), CliError>) -> ExitCode {
    let mut interrupt = Interrupt::default();
    let result = log::install().and_then(|()| command(&mut interrupt));
    nic_args::finish_reports();
    let status =
        |status| if interrupt.is_set() { ExitCode::from(interrupt::INTERRUPTED_STATUS) } else { status };
    match result {
        Ok(()) => status(ExitCode::SUCCESS),
        // The reader of the output has closed it, as `head` does: not an error.
        Err(CliError::Output(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            // The message may quote multi-line text of a peer or the command line, but is printed as one
            // line.
            let line = e.to_string().replace('\n', " ");
            let _ = io::Write::write_all(&mut io::stderr(), format!("urxe: {line}\n").as_bytes());
            if matches!(e, CliError::NoProgram(_)) { ExitCode::from(127) } else { status(failure) }
        }
    }
}

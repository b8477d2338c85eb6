//! Compares the performance of urxe and of the kernel's rxe: runs the same perftest binaries on each, with
//! both ends in one guest. On urxe they use the drop-in library. `tests/rxe-guest/compare` builds the
//! required files and runs this program.
//!
//! Runs on the two alternate, and only the ratios of consecutive runs are meaningful: the guest is emulated
//! (no KVM), so the absolute figures are tens of times lower than those of a real machine. Emulation slows
//! down code in user space and in the kernel alike; it does not show the real cost of system calls and of
//! parallel work on several processors.
//!
//! The conditions favour rxe: both ends are on one device, and its driver loops packets back without IP or
//! UDP. urxe's packets go through the kernel's UDP over `lo`, in a network namespace, because rxe
//! occupies port 4791 outside.
//!
//! A larger ratio is better for urxe where the unit is megabytes, and worse where it is microseconds.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use urxe_test_support::guest::{Guest, GuestConfig, Net};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
#[command(about = "Compare perftest on urxe with perftest on the kernel's rxe, in one guest")]
struct Args {
    /// Number of measurements of each NIC
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Number of processors of the guest
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    cpus: u8,
    /// Run only programs whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
}

/// A perftest program with its arguments, the column of its output that contains the result, and the unit.
struct Program {
    name: &'static str,
    args: &'static str,
    column: usize,
    unit: &'static str,
}

const PROGRAMS: [Program; 4] = [
    Program { name: "ib_write_bw", args: "-s 65536 -n 1000", column: 3, unit: "MiB/s" },
    Program { name: "ib_read_bw", args: "-s 65536 -n 1000", column: 3, unit: "MiB/s" },
    Program { name: "ib_send_bw", args: "-s 65536 -n 1000", column: 3, unit: "MiB/s" },
    Program { name: "ib_write_lat", args: "-s 2 -n 1000", column: 4, unit: "µs" },
];

/// Directory in which urxe's files are installed in the guest.
const INSTALL_DIR: &str = "/opt/urxe";
/// Files copied into the guest.
const FILES: [&str; 3] = ["urxe", "libibverbs.so", "liburxe_preload.so"];
const LIMIT: Duration = Duration::from_secs(120);
const ATTEMPTS: u32 = 10;

/// The NIC that a program uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nic {
    Rxe,
    Urxe,
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Nic::Rxe { "rxe" } else { "urxe" })
    }
}

fn main() -> ExitCode {
    match compare(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("compare: {e}");
            ExitCode::FAILURE
        }
    }
}

fn compare(args: &Args) -> Result<()> {
    let dir = tempfile::tempdir()?;
    // The other end of the wire is not connected.
    let net = Net::Dgram { local: dir.path().join("guest"), remote: dir.path().join("unconnected") };
    let guest = Guest::start(GuestConfig { mtu: 4500, cpus: args.cpus, ..GuestConfig::new(net, 1) })?;
    for name in FILES {
        guest.install(&built_file(name)?, &format!("{INSTALL_DIR}/{name}"))?;
    }
    println!("\nprocessors: {}, rounds: {}; medians\n", args.cpus, args.rounds);
    println!("| program | | rxe | urxe | urxe ÷ rxe | min … max |\n|---|---|---|---|---|---|");
    for program in PROGRAMS.iter().filter(|p| p.name.contains(&args.only)) {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..args.rounds {
            // The order alternates from round to round.
            let order = if round % 2 == 0 { [Nic::Rxe, Nic::Urxe] } else { [Nic::Urxe, Nic::Rxe] };
            for nic in order {
                let figure = measure(&guest, nic, program)?;
                eprintln!("{} round {}: {nic} {figure} {}", program.name, round + 1, program.unit);
                figures[nic as usize].push(figure);
            }
        }
        let [rxe, urxe] = figures;
        let ratios = sorted(urxe.iter().zip(&rxe).map(|(urxe, rxe)| urxe / rxe).collect());
        println!(
            "| `{}` | `{}` | {:.2} {unit} | {:.2} {unit} | {:.2} | {:.2} … {:.2} |",
            program.name,
            program.args,
            median(&sorted(rxe)),
            median(&sorted(urxe)),
            median(&ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            unit = program.unit,
        );
    }
    Ok(())
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the median of sorted values.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Runs a program until it prints a valid result, and returns the result. perftest calibrates its clock in
/// each run, and prints 0 or inf if that fails.
fn measure(guest: &Guest, nic: Nic, program: &Program) -> Result<f64> {
    for _ in 0..ATTEMPTS {
        let figure = run(guest, nic, program)?;
        if figure.is_finite() && figure > 0.0 {
            return Ok(figure);
        }
        eprintln!(
            "{} on {nic}: {figure}, as perftest could not calibrate the clock; repeating",
            program.name
        );
    }
    Err(format!("{} on {nic}: no clock calibration in {ATTEMPTS} runs: is the host too busy?", program.name)
        .into())
}

/// Runs both ends of a program in the guest, and returns the figure that the client prints.
fn run(guest: &Guest, nic: Nic, program: &Program) -> Result<f64> {
    let (unshare, prefix, device) = match nic {
        Nic::Rxe => ("", String::new(), format!("-d rxe0 -x {}", guest.gid_index("10.77.0.1")?)),
        Nic::Urxe => ("unshare -n ", format!("{INSTALL_DIR}/urxe run --ip 127.0.0.1 -- "), "-x 0".to_owned()),
    };
    let command = format!("{prefix}{} {device} -F {}", program.name, program.args);
    let script = format!(
        "/bin/ip link set lo up
         {command} >/tmp/server 2>&1 & server=$!
         until grep -qs :4853.*\" 0A \" /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server; do usleep 20000; done
         {command} 127.0.0.1 && wait $server || {{ cat /tmp/server; exit 1; }}"
    );
    let out = guest.check(&format!("exec {unshare}sh -c '{script}'"), LIMIT)?;
    let result = out.stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
    let figure = result.and_then(|line| line.split_whitespace().nth(program.column)?.parse().ok());
    figure.ok_or_else(|| {
        format!("{} on {nic} printed no result:\n{}{}", program.name, out.stdout, out.stderr).into()
    })
}

/// Returns the path of a file that cargo has built in the same target directory as this program.
fn built_file(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let found = exe.ancestors().skip(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| format!("{name} is missing: run cargo build --release --workspace").into())
}

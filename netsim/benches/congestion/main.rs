//! Congestion control in simulated networks: incasts, flow control without and with DCQCN, parameters that
//! oscillate, and flow completion times on a fat tree. Everything runs in virtual time, so the figures are
//! the same on every machine.
//!
//! `cargo bench --package urxe-netsim --profile release --bench congestion [-- CASE...] [--out DIR]`
//! prints tables and writes plots (SVG) to `DIR`, by default `target/congestion`. Cases: incast, fairness,
//! oscillation, fct; all by default.

mod completion_times;
mod fairness;
mod incast;
mod network;
mod oscillation;

use std::path::PathBuf;
use std::time::Instant;

use urxe_netsim::plot::Panel;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Directory of plots.
struct Plots {
    directory: PathBuf,
}

impl Plots {
    /// Writes a file with panels in the given number of columns.
    fn write(&self, file: &str, title: &str, columns: usize, panels: &[Panel]) -> Result<()> {
        let path = self.directory.join(file);
        urxe_netsim::plot::write(&path, title, columns, panels)?;
        println!("plot: {}", path.display());
        Ok(())
    }
}

/// Name and function of a case.
type Case = (&'static str, fn(&Plots) -> Result<()>);

const CASES: [Case; 4] = [
    ("incast", incast::run),
    ("fairness", fairness::run),
    ("oscillation", oscillation::run),
    ("fct", completion_times::run),
];

fn main() -> Result<()> {
    let mut out = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/congestion");
    let mut selected = Vec::new();
    // `cargo bench` adds --bench.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = args.next().ok_or("--out needs a directory")?.into(),
            name => match CASES.iter().find(|(case, _)| *case == name) {
                Some(case) => selected.push(case),
                None => {
                    return Err(
                        format!("no case '{name}': there are incast, fairness, oscillation, fct").into()
                    );
                }
            },
        }
    }
    std::fs::create_dir_all(&out)?;
    let plots = Plots { directory: out };
    let cases = if selected.is_empty() { CASES.iter().collect() } else { selected };
    for (name, case) in cases {
        let start = Instant::now();
        case(&plots)?;
        println!("\n{name}: {:.1} s\n", start.elapsed().as_secs_f64());
    }
    Ok(())
}

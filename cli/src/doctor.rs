//! `urxe doctor`: reports what this machine offers to urxe, and what a program would load under `urxe run`.

mod machine;
mod program;

use std::ffi::OsString;
use std::io::{Write, stdout};

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueHint};
use serde::Serialize;

use super::run::{DeviceArgs, Libraries};
use super::{CliError, json};
use program::ProgramReport;

const LONG_ABOUT: &str = "\
Without PROGRAM: checks devices, interfaces, links, UDP port 4791, brokers, buffers, limits and libraries. With PROGRAM: \
also what kind of program it is, which libibverbs and librdmacm it would load, and whether `urxe run` serves it. \
PROGRAM is not started; its dynamic loader is, to list the libraries.

Each line is ok, a warning (urxe works, with a limitation) or a problem, and says what to do. The exit status is 1 if there \
is a problem, otherwise 0.";

const EXAMPLES: &str = "\
Examples:
  urxe doctor
  urxe doctor -- ib_write_bw
  urxe doctor --json | jq -r '.machine[] | select(.status != \"ok\") | .message'";

/// Check what this machine offers, and what a program would load under `urxe run`
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub struct Doctor {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Program to check, and its arguments, which are ignored
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Severity of a check's result, in ascending order.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// urxe works, with a limitation.
    Warning,
    /// urxe, or the program under it, does not work.
    Problem,
}

impl Status {
    /// Returns the name and its style.
    fn shown(self) -> (&'static str, Style) {
        match self {
            Status::Ok => ("ok", AnsiColor::Green.on_default()),
            Status::Warning => ("warning", AnsiColor::Yellow.on_default()),
            Status::Problem => ("problem", AnsiColor::Red.on_default().bold()),
        }
    }
}

/// One line of the report.
#[derive(Serialize, Debug)]
struct Check {
    /// Name of the check. A check of several objects, such as addresses, has one result for each.
    name: &'static str,
    status: Status,
    message: String,
    /// Remedy, unless the status is ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, message: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, message: message.into(), advice: None }
    }

    fn warning(name: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, status: Status::Warning, message: message.into(), advice: Some(advice.into()) }
    }

    fn problem(name: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, status: Status::Problem, message: message.into(), advice: Some(advice.into()) }
    }

    /// Converts an error of `urxe run`, whose message includes the remedy, to a problem.
    fn failed(name: &'static str, error: &CliError) -> Check {
        Check { status: Status::Problem, ..Check::ok(name, error.to_string()) }
    }
}

/// JSON document of `urxe doctor --json`.
#[derive(Serialize)]
struct Document {
    /// Package version of the command.
    version: &'static str,
    /// Most severe status of all checks.
    status: Status,
    machine: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<ProgramReport>,
}

impl Document {
    fn checks(&self) -> impl Iterator<Item = &Check> {
        self.machine.iter().chain(self.program.iter().flat_map(|program| &program.checks))
    }
}

impl Doctor {
    /// Prints the results of all checks.
    ///
    /// # Errors
    /// [`CliError::Failed`] if there is a problem.
    pub fn run(&self, libraries: Libraries) -> Result<(), CliError> {
        // The environment that `urxe run` would set. Creating it finds the libraries and the private
        // directory.
        let environment = DeviceArgs::default().variables(libraries);
        let machine = machine::checks(environment.as_ref().map(|_| ()));
        let program = self.program.first().map(|name| program::inspect(name, environment.as_deref().ok()));
        let mut document =
            Document { version: env!("CARGO_PKG_VERSION"), status: Status::Ok, machine, program };
        document.status = document.checks().map(|check| check.status).max().unwrap_or(Status::Ok);
        match self.json {
            true => json::print(&document)?,
            false => print(&document)?,
        }
        match document.checks().filter(|check| check.status == Status::Problem).count() {
            0 => Ok(()),
            1 => Err(CliError::Failed("1 problem found".into())),
            n => Err(CliError::Failed(format!("{n} problems found"))),
        }
    }
}

fn print(document: &Document) -> Result<(), CliError> {
    let mut out = anstream::AutoStream::auto(stdout());
    let heading = |title: &str| format!("{0}{title}{0:#}", Style::new().bold());
    writeln!(out, "{}", heading("machine"))?;
    document.machine.iter().try_for_each(|check| print_check(&mut out, check))?;
    if let Some(program) = &document.program {
        let path = program.path.as_ref().map_or("not found".into(), |path| path.display().to_string());
        writeln!(out, "{}", heading(&format!("program {path}")))?;
        program.checks.iter().try_for_each(|check| print_check(&mut out, check))?;
    }
    Ok(())
}

fn print_check(out: &mut impl Write, check: &Check) -> Result<(), CliError> {
    let (status, style) = check.status.shown();
    writeln!(out, "  {style}{status:<8}{style:#} {:<11} {}", check.name, check.message)?;
    if let Some(advice) = &check.advice {
        writeln!(out, "  {:<8} {:<11} → {advice}", "", "")?;
    }
    Ok(())
}

//! `urxe fault-counts`: prints the fault counts of a program that ended without doing so, by a signal or `_exit`.

use std::io::{self, Write};
use std::os::fd::AsFd;

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::CliError;
use urxe::middleware::faults::FaultCount;

/// Print the fault counts of a program when it has ended; the library in the program starts this command
///
/// Standard input is the memory with the counts, standard output the process.
#[derive(Args)]
pub struct FaultCounts {
    /// Process ID of the program
    pid: u32,
}

impl FaultCounts {
    /// Waits for the end of the program.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn run(&self) -> Result<(), CliError> {
        let (counts, program) = (io::stdin(), io::stdout());
        let mut ended = [PollFd::new(program.as_fd(), PollFlags::POLLIN)];
        while let Err(error) = poll(&mut ended, PollTimeout::NONE) {
            if error != Errno::EINTR {
                return Err(CliError::io("fault-counts")(error));
            }
        }
        let counts = FaultCount::read_shared(counts.as_fd()).map_err(CliError::io("fault-counts"))?;
        if counts.is_empty() {
            return Ok(());
        }
        let lines = counts.iter().map(|count| format!("urxe: {count}\n"));
        let warnings =
            counts.iter().filter_map(FaultCount::warning).map(|warning| format!("urxe: {warning}\n"));
        let text: String = lines.chain(warnings).collect();
        let title = format!("urxe: process {} ended by a signal or _exit; its faults:\n", self.pid);
        // Nobody is left to report an error to.
        let _ = io::stderr().write_all((title + &text).as_bytes());
        Ok(())
    }
}

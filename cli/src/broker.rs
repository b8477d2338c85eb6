//! `urxe broker`: shares an address among several processes, the first of which starts this command.

use std::env;

use clap::Args;

use super::CliError;
use urxe::broker::{self, SharedMemory, Sharing};

/// Share an address among several programs; the first program starts this command, which exits with the last
#[derive(Args)]
#[command(after_help = "Example:\n  urxe broker 10.0.0.1")]
pub struct Broker {
    /// Address to share: 10.0.0.1, fd00::1, or fe80::1%eth0
    address: String,
    /// Allow programs of any user
    #[arg(long)]
    any_user: bool,
}

impl Broker {
    /// Runs the broker until no process uses the address any longer.
    ///
    /// # Errors
    /// [`CliError::Usage`].
    pub fn run(&self) -> Result<(), CliError> {
        broker::serve(&self.address, self.any_user).map_err(|e| CliError::Usage(e.to_string()))
    }
}

/// Returns how to share addresses with other programs, through a broker that this executable runs.
///
/// # Errors
/// [`CliError::Io`].
pub fn sharing(shared_memory: SharedMemory, any_user: bool) -> Result<Sharing, CliError> {
    let what = "cannot determine the path of the urxe executable";
    let program = env::current_exe().map_err(CliError::io(what))?;
    Ok(Sharing { program, any_user, shared_memory })
}

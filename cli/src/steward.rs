//! `urxe steward`: the broker that shares an address between several processes, which start it themselves.
#![forbid(unsafe_code)]

use clap::Args;

use super::CliError;
use urxe::link::udp::steward;

/// Share an address among several programs; the first program starts this command, which exits with the last
#[derive(Args)]
pub struct Steward {
    /// Address to share: 10.0.0.1, fd00::1, or fe80::1%eth0
    address: String,
    /// Allow programs of any user
    #[arg(long)]
    any_user: bool,
}

impl Steward {
    /// Serves until no process uses the address any more.
    pub fn run(&self) -> Result<(), CliError> {
        steward::serve(&self.address, self.any_user).map_err(|e| CliError::Usage(e.to_string()))
    }
}

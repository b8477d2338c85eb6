//! The `urxe` command: one file a subcommand, and the pieces behind them.

mod error;
pub mod exchange;
pub mod interrupt;
pub mod link;
pub mod oob;
pub mod perf;
pub mod pingpong;
mod spin;

pub use error::CliError;

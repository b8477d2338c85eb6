//! The `urxe` command: one file a subcommand, and the pieces behind them.

mod error;
pub mod exchange;
pub mod interrupt;
pub mod link;

pub use error::CliError;

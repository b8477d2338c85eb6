//! Output of the library's tracing events to standard error, up to the level that `URXE_LOG` specifies.

use std::env;
use std::io;

use tracing_subscriber::filter::LevelFilter;

use crate::CliError;

/// Starts printing events, if `URXE_LOG` is set.
pub fn install() -> Result<(), CliError> {
    let Some(text) = env::var_os("URXE_LOG").filter(|text| !text.is_empty()) else { return Ok(()) };
    let text = text.to_string_lossy();
    let level: LevelFilter = text.parse().map_err(|_| {
        CliError::Usage(format!("URXE_LOG is '{text}': it must be off, error, warn, info, debug or trace"))
    })?;
    tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).init();
    Ok(())
}

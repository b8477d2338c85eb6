//! Output of the library's tracing events to standard error, up to the level given by `URXE_LOG`.

use std::io;

use tracing_subscriber::filter::LevelFilter;

use crate::env::parse_with;

/// Installs the subscriber that prints events, if `URXE_LOG` is set.
///
/// # Errors
/// A line that names the allowed values.
pub(crate) fn install() -> Result<(), String> {
    let levels = "off, error, warn, info, debug or trace";
    let level: Option<LevelFilter> = parse_with("URXE_LOG", levels, |text| text.parse().ok())?;
    if let Some(level) = level {
        // A program in Rust with a subscriber of its own keeps it.
        let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).try_init();
    }
    Ok(())
}

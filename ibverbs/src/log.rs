//! Output to standard error: the library's messages, and its tracing events up to the level given by
//! `URXE_LOG`.

use std::io::{self, Write};

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

/// Writes a line to standard error, to explain what the C interface reports only as an error number. If the
/// line cannot be written, it is lost: `eprintln!` would panic, which ends the program.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "urxe: {text}");
}

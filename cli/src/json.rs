//! JSON documents on standard output, for `--json`.

use std::io::{self, Write};

use serde::Serialize;

use super::CliError;

/// Prints one JSON document.
///
/// # Errors
/// [`CliError::Output`].
pub fn print(document: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(document).map_err(io::Error::from)?;
    Ok(writeln!(io::stdout(), "{text}")?)
}

//! Ctrl-C as a flag, so that long-running commands end with their summary.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::CliError;

/// The exit status of a program that a signal ended, as shells have it: 128 and SIGINT.
pub(super) const KILLED: u8 = 130;

/// Set by the first Ctrl-C (or SIGTERM); the second ends the program at once. Clones are the same flag.
///
/// System calls go on across the signal: wait in slices of a tenth of a second or so and look in between.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches Ctrl-C from now on.
    ///
    /// # Errors
    /// [`CliError::Io`] if the system refuses.
    pub fn install() -> Result<Interrupt, CliError> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            flag::register_conditional_shutdown(signal, KILLED.into(), interrupt.0.clone())
                .and_then(|_| flag::register(signal, interrupt.0.clone()))
                .map_err(|source| CliError::Io { what: "cannot catch Ctrl-C".into(), source })?;
        }
        Ok(interrupt)
    }

    /// Whether it came.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

//! Ctrl-C as a flag, so that an interrupted command still prints its summary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::CliError;

/// Exit status of a program interrupted by SIGINT, following shell convention: 128 plus the signal number.
pub(super) const INTERRUPTED_STATUS: u8 = 130;

/// Flag set by the first SIGINT (Ctrl-C) or SIGTERM; the second signal ends the program at once. Clones share
/// the flag.
///
/// System calls are restarted after the signal, so wait in slices of about a tenth of a second and check the
/// flag in between.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers and returns the flag that they set.
    ///
    /// # Errors
    /// [`CliError::Io`] if the system refuses.
    pub fn install() -> Result<Interrupt, CliError> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds the flag clear and sets it, the second finds it set
            // and ends the program.
            flag::register_conditional_shutdown(signal, INTERRUPTED_STATUS.into(), interrupt.0.clone())
                .and_then(|_| flag::register(signal, interrupt.0.clone()))
                .map_err(CliError::io("cannot install the handler of SIGINT and SIGTERM"))?;
        }
        Ok(interrupt)
    }

    /// Reports whether a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

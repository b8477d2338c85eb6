//! Bare round trips through shared memory, which bound what any transport between two processes can reach.

use std::hint;

use crate::Result;
use crate::control::Control;
use crate::job::{Job, Metrics, Role};
use crate::ping;
use crate::progress::Progress;

/// Measures round trips of a number in one word of shared memory, which the active end makes odd and the
/// passive end even.
pub fn ping(job: &Job, control: &Control, rounds: usize) -> Result<Metrics> {
    let word = Progress::map(&job.progress)?;
    control.exchange(&())?;
    control.start()?;
    match job.role {
        Role::Active => ping::time_round_trips(rounds, |round| {
            word.add(1);
            for _ in 0..ping::MAX_POLLS {
                if word.get() == 2 * round {
                    return Ok(());
                }
                hint::spin_loop();
            }
            Err(format!("no response after {} polls", ping::MAX_POLLS).into())
        }),
        Role::Passive => {
            while !control.is_stopped() {
                if !word.get().is_multiple_of(2) {
                    word.add(1);
                }
                hint::spin_loop();
            }
            Ok(Metrics::new())
        }
    }
}

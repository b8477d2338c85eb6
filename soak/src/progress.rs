//! Progress of a run on standard error: a bar on a terminal, otherwise a line every minute.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
    time: Duration,
}

impl Progress {
    /// Begins a run of the given length.
    pub fn new(time: Duration) -> Progress {
        let style =
            ProgressStyle::with_template("{bar:30} {pos} of {len} s, {msg}").expect("the template is valid");
        let bar = io::stderr().is_terminal().then(|| ProgressBar::new(time.as_secs()).with_style(style));
        Progress { bar, time }
    }

    /// Returns the time between two calls of [`show`](Self::show).
    pub fn interval(&self) -> Duration {
        Duration::from_secs(if self.bar.is_some() { 1 } else { 60 })
    }

    /// Shows how far the run is.
    pub fn show(&self, since: Duration, messages: u64, kills: u64) {
        let text = format!("{messages} messages, {kills} kills");
        match &self.bar {
            Some(bar) => {
                bar.set_position(since.as_secs());
                bar.set_message(text);
            }
            None => eprintln!("{} of {} s, {text}", since.as_secs(), self.time.as_secs()),
        }
    }

    /// Ends the bar, which stays on the terminal.
    pub fn end(self) {
        self.bar.inspect(ProgressBar::abandon);
    }
}

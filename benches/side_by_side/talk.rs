//! Communication of an end: with the process that started it, by lines of JSON on standard input and output,
//! and through that process with the other end.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::job::Metrics;

/// Time limit of every wait for another process.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Message of an end to the process that started it.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// Connection parameters for the other end.
    Hello(Value),
    /// The end is ready for the measurement.
    Ready,
    /// The measurement has ended; a passive end sends this after it was asked to stop.
    Done(Metrics),
    /// The measurement failed.
    Failed(String),
}

pub struct Talk {
    lines: Receiver<String>,
    stopped: Arc<AtomicBool>,
}

impl Talk {
    /// Starts reading standard input; must be called once. The process exits 2 s after standard input has
    /// ended.
    pub fn begin() -> Talk {
        let (to, lines) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let at_end = stopped.clone();
        thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
            // Standard input also ends when the parent process is gone.
            at_end.store(true, Ordering::Release);
            drop(to);
            thread::sleep(Duration::from_secs(2));
            std::process::exit(1);
        });
        Talk { lines, stopped }
    }

    pub fn say(&self, word: &Word) -> Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, word)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    pub fn hear<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_str(&self.lines.recv_timeout(PATIENCE)?)?)
    }

    /// Sends a value to the other end and returns the value of the other end.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, ours: &T) -> Result<T> {
        self.say(&Word::Hello(serde_json::to_value(ours)?))?;
        self.hear()
    }

    /// Waits until both ends are ready.
    pub fn start(&self) -> Result<()> {
        self.say(&Word::Ready)?;
        self.hear()
    }

    /// Reports whether a passive end has been asked to stop.
    pub fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for the request to stop, for a passive end that has nothing to do.
    pub fn wait_until_over(&self) {
        // No further line arrives: the loop ends when the pipe is closed.
        while self.lines.recv().is_ok() {}
    }
}

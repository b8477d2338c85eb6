//! An end's side of the conversation: with the process that started it, by lines of JSON on standard input and
//! output, and through it with the other end.

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

/// How long anybody is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What an end says.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// What the other end must know.
    Hello(Value),
    /// The measurement may begin.
    Ready,
    /// It has ended; from a passive end, after it was told to stop.
    Done(Metrics),
    /// It could not be.
    Failed(String),
}

pub struct Talk {
    lines: Receiver<String>,
    stopped: Arc<AtomicBool>,
}

impl Talk {
    /// Must be called once. When standard input ends, so does the process, soon.
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
            // Also when whoever started us is gone.
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

    /// Tells the other end something and hears the same of it.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, ours: &T) -> Result<T> {
        self.say(&Word::Hello(serde_json::to_value(ours)?))?;
        self.hear()
    }

    /// Waits until both ends are ready.
    pub fn start(&self) -> Result<()> {
        self.say(&Word::Ready)?;
        self.hear()
    }

    /// Whether a passive end's work is over.
    pub fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Until then, for a passive end that has nothing to do.
    pub fn wait_until_over(&self) {
        // Nobody says anything any more: this ends with the pipe.
        while self.lines.recv().is_ok() {}
    }
}

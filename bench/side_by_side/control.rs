//! Communication between the ends of a measurement and the process that started them, as lines of JSON on
//! standard input and output. The ends exchange values only through that process.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::job::Metrics;

/// Time limit for every wait for another process.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Message from an end to the process that started it.
#[derive(Serialize, Deserialize)]
pub enum Message {
    /// Connection parameters for the other end.
    ConnInfo(Value),
    /// The end is ready for the measurement.
    Ready,
    /// The measurement has ended; a passive end sends this once it has been asked to stop.
    Done(Metrics),
    /// The measurement failed.
    Failed(String),
}

pub struct Control {
    lines: Receiver<String>,
    stopped: Arc<AtomicBool>,
}

impl Control {
    /// Starts a thread that reads standard input; must be called only once. The process exits 2 s after
    /// standard input is closed.
    pub fn start_reading() -> Control {
        let (to, lines) = unbounded();
        let stopped = Arc::new(AtomicBool::new(false));
        let stopped_flag = stopped.clone();
        thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
            // Standard input also ends when the parent process exits.
            stopped_flag.store(true, Ordering::Release);
            drop(to);
            thread::sleep(Duration::from_secs(2));
            std::process::exit(1);
        });
        Control { lines, stopped }
    }

    pub fn send(&self, message: &Message) -> Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, message)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    pub fn recv<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_str(&self.lines.recv_timeout(TIMEOUT)?)?)
    }

    /// Sends a value to the other end and returns the value that the other end sent.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T> {
        self.send(&Message::ConnInfo(serde_json::to_value(value)?))?;
        self.recv()
    }

    /// Waits until both ends are ready.
    pub fn start(&self) -> Result<()> {
        self.send(&Message::Ready)?;
        self.recv()
    }

    /// Reports whether a passive end has received the request to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for the request to stop, at a passive end that has nothing else to do.
    pub fn wait_until_stopped(&self) {
        // No further line arrives: the loop ends when the pipe is closed.
        while self.lines.recv().is_ok() {}
    }
}

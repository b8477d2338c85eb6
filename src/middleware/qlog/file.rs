//! The file of an event log: buffered records, and one report of a failed write.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::middleware::capture::Timestamps;
use crate::middleware::output::{self, Output};
use crate::qlog::{Event, EventData, Header, Reference, VantagePoint, append, millis};
use crate::sys::thread::spawn_background;
use crate::transport::Instant;

/// Number of buffered bytes above which records are written out.
const FLUSH_THRESHOLD: usize = 256 << 10;

/// Error when creating or writing an event log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QlogError {
    /// The file cannot be created.
    #[error("cannot write the event log {path}: {source}; use a path in a writable directory")]
    Create {
        /// The file.
        path: PathBuf,
        /// The underlying system error.
        source: io::Error,
    },
    /// Some events could not be written.
    #[error("{lost} events are missing from {name}: {source}; the others are intact")]
    Incomplete {
        /// Name of the log.
        name: String,
        /// Number of events missing so far.
        lost: u64,
        /// Error from the first failed write.
        source: io::Error,
    },
}

type Listener = Box<dyn FnOnce(&QlogError) + Send>;

/// A qlog file to which NICs write their events. Clones refer to the same file, which is flushed when the last
/// of its NICs and clones is dropped.
#[derive(Clone)]
pub struct QlogFile(Arc<Mutex<Inner>>);

struct Inner {
    name: String,
    output: Output,
    buffer: Vec<u8>,
    /// Number of buffered events.
    buffered: u64,
    lost: u64,
    timestamps: Timestamps,
    /// Whether the header has been written: it names the first NIC.
    has_header: bool,
    /// Second after 1970 that times count from.
    epoch: Duration,
    /// Time of the last event, in simulations.
    last: Instant,
    error: Option<io::Error>,
    listener: Option<Listener>,
}

impl fmt::Debug for QlogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QlogFile({})", self.0.lock().name)
    }
}

fn create_error(path: &Path) -> impl FnOnce(io::Error) -> QlogError {
    let path = path.to_owned();
    |source| QlogError::Create { path, source }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl QlogFile {
    /// Creates a file, or replaces an existing one.
    ///
    /// # Errors
    /// [`QlogError::Create`], also if another process writes to this file.
    pub fn create(path: impl AsRef<Path>, timestamps: Timestamps) -> Result<QlogFile, QlogError> {
        let path = path.as_ref();
        let created = output::replace(path).and_then(|file| QlogFile::on_file(file, path, timestamps));
        created.map_err(create_error(path))
    }

    /// Creates a file for this process alone, for use when several processes are given the same path: the file
    /// at `path` if it is empty and not in use, otherwise one with the PID in its name. Also returns the file's
    /// path.
    ///
    /// # Errors
    /// [`QlogError::Create`] if neither file can be created.
    pub fn create_own(path: impl AsRef<Path>) -> Result<(QlogFile, PathBuf), QlogError> {
        let path = path.as_ref();
        let created = output::claim(path, std::process::id())
            .and_then(|(file, own)| Ok((QlogFile::on_file(file, &own, Timestamps::Wall)?, own)));
        created.map_err(create_error(path))
    }

    /// Empties a file before several processes pass its path to [`create_own`](Self::create_own).
    ///
    /// # Errors
    /// [`QlogError::Create`] if the file cannot be created or emptied.
    pub fn clear(path: impl AsRef<Path>) -> Result<(), QlogError> {
        let path = path.as_ref();
        output::clear(path).map_err(create_error(path))
    }

    /// Creates a log that is written to `writer`, for example memory or standard output.
    pub fn to_writer(writer: impl Write + Send + 'static, timestamps: Timestamps) -> QlogFile {
        QlogFile::start(Output::Stream(Box::new(writer)), "the event log".into(), timestamps)
    }

    fn on_file(file: File, path: &Path, timestamps: Timestamps) -> io::Result<QlogFile> {
        Ok(QlogFile::start(Output::new(file)?, path.display().to_string(), timestamps))
    }

    fn start(output: Output, name: String, timestamps: Timestamps) -> QlogFile {
        let epoch = match timestamps {
            Timestamps::Wall => Duration::from_secs(since_1970().as_secs()),
            Timestamps::Virtual => Duration::ZERO,
        };
        QlogFile(Arc::new(Mutex::new(Inner {
            name,
            output,
            buffer: Vec::new(),
            buffered: 0,
            lost: 0,
            timestamps,
            has_header: false,
            epoch,
            last: Instant(0),
            error: None,
            listener: None,
        })))
    }

    /// Sets a function to call when a write first fails.
    pub fn on_failure(&self, listener: impl FnOnce(&QlogError) + Send + 'static) {
        self.0.lock().listener = Some(Box::new(listener));
    }

    /// Starts a thread that writes out buffered events periodically as long as the file exists, for programs
    /// that may exit without flushing.
    ///
    /// # Errors
    /// That of the system, if the thread cannot be created.
    pub fn flush_every(&self, period: Duration) -> io::Result<()> {
        let file = Arc::downgrade(&self.0);
        let run = move || {
            while let Some(file) = file.upgrade() {
                file.lock().write_out();
                drop(file);
                thread::sleep(period);
            }
        };
        spawn_background("urxe-qlog".into(), run).map(drop)
    }

    /// Writes out buffered events.
    ///
    /// # Errors
    /// [`QlogError::Incomplete`] if events were lost since the last call.
    pub fn flush(&self) -> Result<(), QlogError> {
        let mut inner = self.0.lock();
        inner.write_out();
        match inner.error.take() {
            None => Ok(()),
            Some(source) => Err(inner.incomplete(source)),
        }
    }

    /// Writes the header, which names the first NIC, unless that has been done.
    pub(super) fn begin(&self, name: &str) {
        self.0.lock().begin(name);
    }

    /// Sets the time of events without one, in simulations.
    pub(super) fn set_time(&self, at: Instant) {
        self.0.lock().last = at;
    }

    /// Writes an event; `at` is `None` if it happens now.
    pub(super) fn write(&self, at: Option<Instant>, group_id: Option<String>, data: EventData) {
        let mut inner = self.0.lock();
        let time = match inner.timestamps {
            Timestamps::Virtual => {
                inner.last = at.unwrap_or(inner.last);
                inner.last.0
            }
            Timestamps::Wall => since_1970().saturating_sub(inner.epoch).as_nanos() as u64,
        };
        append(&mut inner.buffer, &Event { time: millis(time), data, group_id });
        inner.buffered += 1;
        if inner.buffer.len() >= FLUSH_THRESHOLD {
            inner.write_out();
        }
    }
}

impl Inner {
    fn begin(&mut self, name: &str) {
        if !std::mem::replace(&mut self.has_header, true) {
            let reference = match self.timestamps {
                Timestamps::Wall => Reference::wall(self.epoch.as_secs()),
                Timestamps::Virtual => Reference::simulated(),
            };
            let vantage = VantagePoint { name: name.to_owned(), kind: "unknown", flow: None };
            append(&mut self.buffer, &Header::new("urxe", reference, vantage));
        }
    }

    fn write_out(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.buffered);
        if self.error.is_some() && !self.output.is_recoverable() {
            self.lost += events;
        } else if let Err(error) = self.output.append(&self.buffer) {
            self.lost += events;
            if let Some(listener) = self.listener.take() {
                let copy =
                    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
                listener(&self.incomplete(copy));
            }
            self.error.get_or_insert(error);
        }
        self.buffer.clear();
    }

    fn incomplete(&self, source: io::Error) -> QlogError {
        QlogError::Incomplete { name: self.name.clone(), lost: self.lost, source }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // `drop` cannot return an error; a caller that needs it has called `flush` before.
        self.write_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qlog::{Gap, GapOf};

    /// A disk that is full after the given number of bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(bytes.len()) {
                Some(left) => {
                    self.0 = left;
                    Ok(bytes.len())
                }
                None => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_disk_is_reported_once_and_the_events_are_counted() {
        let file = QlogFile::to_writer(Disk(2 * FLUSH_THRESHOLD), Timestamps::Wall);
        let reports = Arc::new(Mutex::new(Vec::new()));
        let list = reports.clone();
        file.on_failure(move |error| list.lock().push(error.to_string()));
        file.begin("nic");
        for psn in 0..50_000 {
            file.write(None, None, EventData::Gap(Gap { of: GapOf::Requests, psn, count: Some(1) }));
        }
        let error = file.flush().unwrap_err().to_string();
        assert_eq!(reports.lock().len(), 1, "{:?}", reports.lock());
        assert!(error.contains("events are missing from the event log"), "{error}");
        file.flush().unwrap();
    }
}

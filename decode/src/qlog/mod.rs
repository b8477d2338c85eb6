//! Event logs (qlog) from captures, and trace-event files from either.
//!
//! A capture is read twice: first for what later packets tell about earlier ones, that is, the sender of each
//! stream and the extent of each retransmission ([`losses`]), then for the events ([`events`]).

mod events;
mod faults;
mod losses;
mod messages;
mod perfetto;
mod read;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use urxe::qlog::{Event, Header, Reference, VantagePoint, append, millis};

use crate::capture::{Capture, CaptureError};
use events::{CaptureEvents, Timed};
pub use perfetto::TraceWriter;
use read::{QlogEvents, QlogReadError};

/// Reason why events cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// A capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// An event log cannot be read.
    #[error(transparent)]
    Qlog(#[from] QlogReadError),
    /// The output cannot be written.
    #[error("cannot write the events: {0}")]
    Write(#[from] io::Error),
}

/// One input: a capture, or an event log.
enum Source {
    Capture(Box<CaptureEvents>),
    Qlog(QlogEvents),
}

impl Source {
    fn open(path: &Path) -> Result<Source, EventsError> {
        if QlogEvents::is_qlog(path) {
            return Ok(Source::Qlog(QlogEvents::open(path)?));
        }
        let losses = losses::read(Capture::open(path)?)?;
        Ok(Source::Capture(Box::new(CaptureEvents::new(Capture::open(path)?, losses))))
    }

    fn next(&mut self) -> Result<Option<Timed>, EventsError> {
        match self {
            Source::Capture(events) => Ok(events.next()?),
            Source::Qlog(events) => Ok(events.next()?),
        }
    }
}

/// Events of captures and event logs, merged by their times.
pub struct Events {
    sources: Vec<(Source, Option<Timed>)>,
    vantage: VantagePoint,
}

impl Events {
    /// Opens captures and event logs. Captures are read twice, so none can be standard input.
    ///
    /// # Errors
    /// [`EventsError`] if a file cannot be read.
    pub fn open(paths: &[PathBuf]) -> Result<Events, EventsError> {
        let mut sources = Vec::new();
        let mut is_network = false;
        for path in paths {
            let mut source = Source::open(path)?;
            let first = source.next()?;
            is_network |= matches!(&source, Source::Capture(events) if !events.has_directions());
            sources.push((source, first));
        }
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let (kind, flow) = if is_network { ("network", Some("client")) } else { ("unknown", None) };
        Ok(Events { sources, vantage: VantagePoint { name: names.join(", "), kind, flow } })
    }

    /// Returns the time of the first event, in nanoseconds since 1970.
    fn first_time(&self) -> u64 {
        self.sources.iter().filter_map(|(_, next)| Some(next.as_ref()?.time)).min().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Option<Timed>, EventsError> {
        let pending = self.sources.iter_mut().filter(|(_, next)| next.is_some());
        let earliest = pending.min_by_key(|(_, next)| next.as_ref().map(|event| event.time));
        let Some((source, next)) = earliest else { return Ok(None) };
        let event = next.take();
        *next = source.next()?;
        Ok(event)
    }

    /// Writes the events as a qlog file.
    ///
    /// # Errors
    /// [`EventsError`]; the events before the error have been written.
    pub fn write_qlog(mut self, out: &mut impl Write) -> Result<(), EventsError> {
        let epoch = self.first_time() / 1_000_000_000;
        let header = Header::new("urxe decode", Reference::wall(epoch), self.vantage.clone());
        let mut record = Vec::new();
        append(&mut record, &header);
        out.write_all(&record)?;
        while let Some(Timed { time, group_id, data }) = self.next()? {
            record.clear();
            let time = millis(time.saturating_sub(epoch * 1_000_000_000));
            append(&mut record, &Event { time, data, group_id });
            out.write_all(&record)?;
        }
        Ok(out.flush()?)
    }

    /// Writes the events as a trace-event file, which Perfetto shows: a process for each address, a track for
    /// each queue pair.
    ///
    /// # Errors
    /// [`EventsError`]; the events before the error have been written.
    pub fn write_trace(mut self, out: &mut impl Write) -> Result<(), EventsError> {
        let epoch = self.first_time();
        let mut trace = TraceWriter::new(out)?;
        while let Some(event) = self.next()? {
            trace.event(event.time.saturating_sub(epoch), event.group_id.as_deref(), &event.data)?;
        }
        Ok(trace.finish()?)
    }
}

//! Reader of event logs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use urxe::qlog::{Event, RECORD_SEPARATOR, seconds_of};

use super::events::Timed;

/// Reason why an event log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QlogReadError {
    /// The file cannot be read.
    #[error("cannot read {name}: {source}")]
    Io {
        /// Name of the file.
        name: String,
        /// The underlying system error.
        source: io::Error,
    },
    /// A record is not one of this event schema.
    #[error("{name} is no event log of RDMA: record {record}: {source}")]
    Record {
        /// Name of the file.
        name: String,
        /// Number of the record, from 1.
        record: u64,
        /// Reason.
        source: serde_json::Error,
    },
}

/// Part of the header that the times depend on.
#[derive(Deserialize)]
struct Head {
    trace: Trace,
}

#[derive(Deserialize)]
struct Trace {
    common_fields: CommonFields,
}

#[derive(Deserialize)]
struct CommonFields {
    reference_time: Reference,
}

#[derive(Deserialize)]
struct Reference {
    epoch: String,
}

/// Events of an event log.
pub struct QlogEvents {
    name: String,
    reader: BufReader<File>,
    records: u64,
    /// Reference time in nanoseconds since 1970; 0 for simulations.
    epoch: u64,
}

impl QlogEvents {
    /// Reports whether a file begins like an event log.
    pub fn is_qlog(path: &Path) -> bool {
        let mut first = [0];
        File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
            && first[0] == RECORD_SEPARATOR
    }

    /// Opens a file.
    pub fn open(path: &Path) -> Result<QlogEvents, QlogReadError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| QlogReadError::Io { name: name.clone(), source })?;
        let mut events = QlogEvents { name, reader: BufReader::new(file), records: 0, epoch: 0 };
        if let Some(head) = events.record::<Head>()? {
            let epoch = seconds_of(&head.trace.common_fields.reference_time.epoch).unwrap_or(0);
            events.epoch = epoch * 1_000_000_000;
        }
        Ok(events)
    }

    /// Reads a record; `None` at the end, and for an incomplete last one.
    fn record<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, QlogReadError> {
        let mut line = Vec::new();
        let name = || self.name.clone();
        let read = self.reader.read_until(b'\n', &mut line);
        read.map_err(|source| QlogReadError::Io { name: name(), source })?;
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        self.records += 1;
        let json = line.strip_prefix(&[RECORD_SEPARATOR]).unwrap_or(&line);
        let record = self.records;
        serde_json::from_slice(json).map(Some).map_err(|source| QlogReadError::Record {
            name: name(),
            record,
            source,
        })
    }

    /// Returns the next event.
    pub fn next(&mut self) -> Result<Option<Timed>, QlogReadError> {
        let event: Option<Event> = self.record()?;
        Ok(event.map(|Event { time, data, group_id }| {
            let time = self.epoch + (time * 1e6).round() as u64;
            Timed { time, group_id, data }
        }))
    }
}

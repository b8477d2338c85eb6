//! Trace-event files (the JSON format of Chrome), which Perfetto shows: a process for each address, tracks for
//! each queue pair, work requests as slices, other events as instants, rates and windows as counters.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use urxe::qlog::{EventData, Side, WorkRequest};

/// Tracks of a queue pair: work requests that overlap are on different ones.
const MAX_LANES: usize = 32;

/// Tracks of a queue pair, with the work requests that have not completed.
struct Track {
    process: usize,
    first_thread: usize,
    name: String,
    /// Number of tracks with a name.
    named: usize,
    open: Vec<Open>,
}

/// A work request that has not completed, on a lane.
struct Open {
    time: u64,
    lane: usize,
    posted: WorkRequest,
}

/// Writer of a trace-event file.
pub struct TraceWriter<W> {
    out: W,
    is_first: bool,
    processes: HashMap<String, usize>,
    tracks: HashMap<String, Track>,
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

impl<W: Write> TraceWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// That of the writer.
    pub fn new(mut out: W) -> io::Result<TraceWriter<W>> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(TraceWriter { out, is_first: true, processes: HashMap::new(), tracks: HashMap::new() })
    }

    fn entry(&mut self, entry: &Value) -> io::Result<()> {
        self.out.write_all(if std::mem::replace(&mut self.is_first, false) { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, entry)?;
        Ok(())
    }

    /// Announces the tracks of a queue pair, by its first event.
    fn track(&mut self, group: &str) -> io::Result<()> {
        if self.tracks.contains_key(group) {
            return Ok(());
        }
        let (address, qpn) = group.split_once(' ').unwrap_or((group, ""));
        let next = self.processes.len() + 1;
        let process = *self.processes.entry(address.to_owned()).or_insert(next);
        if process == next {
            let name = json!({"name": address});
            self.entry(&json!({"ph": "M", "name": "process_name", "pid": process, "args": name}))?;
        }
        let name = if qpn.is_empty() { "no queue pair".to_owned() } else { format!("QP {qpn}") };
        let first_thread = self.tracks.len() * MAX_LANES + 1;
        let track = Track { process, first_thread, name, named: 0, open: Vec::new() };
        self.tracks.insert(group.to_owned(), track);
        self.name_lane(group, 0)
    }

    /// Announces a track of a queue pair.
    fn name_lane(&mut self, group: &str, lane: usize) -> io::Result<()> {
        let Some(track) = self.tracks.get_mut(group) else { return Ok(()) };
        if lane < track.named {
            return Ok(());
        }
        track.named = lane + 1;
        let name = match lane {
            0 => track.name.clone(),
            lane => format!("{} ({})", track.name, lane + 1),
        };
        let (pid, tid) = (track.process, track.first_thread + lane);
        self.entry(
            &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}),
        )?;
        self.entry(
            &json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}),
        )
    }

    /// Adds an event at `time` in nanoseconds; `group` is its queue pair.
    ///
    /// # Errors
    /// That of the writer.
    pub fn event(&mut self, time: u64, group: Option<&str>, data: &EventData) -> io::Result<()> {
        let group = group.unwrap_or("unknown");
        self.track(group)?;
        match data {
            EventData::WorkRequestPosted(posted) => self.posted(time, group, posted),
            EventData::WorkRequestCompleted(done) => self.completed(time, group, done),
            EventData::CongestionUpdated(congestion) => {
                let Some(track) = self.tracks.get(group) else { return Ok(()) };
                let (pid, name) = (track.process, track.name.clone());
                let counters = [
                    ("window (bytes)", Some(congestion.window as f64)),
                    ("rate (Gb/s)", congestion.rate.map(|rate| rate / 1e9)),
                    ("α", congestion.alpha),
                ];
                for (what, value) in counters.into_iter().filter_map(|(what, value)| Some((what, value?))) {
                    let (counter, ts) = (format!("{name} {what}"), micros(time));
                    let args = json!({"value": value});
                    self.entry(&json!({"ph": "C", "name": counter, "pid": pid, "ts": ts, "args": args}))?;
                }
                Ok(())
            }
            _ => self.instant(time, group, data),
        }
    }

    fn instant(&mut self, time: u64, group: &str, data: &EventData) -> io::Result<()> {
        let Some(track) = self.tracks.get(group) else { return Ok(()) };
        let name = match data {
            EventData::PacketSent(packet) => format!("▶ {} {}", packet.opcode, packet.psn),
            EventData::PacketReceived(packet) => format!("◀ {} {}", packet.opcode, packet.psn),
            data => data.name().trim_start_matches("rdma:").replace('_', " "),
        };
        let category = match data {
            EventData::PacketSent(_) | EventData::PacketReceived(_) => "packet",
            _ => "event",
        };
        let mut args = serde_json::to_value(data)?;
        let args = args.get_mut("data").map(Value::take);
        let (pid, tid, ts) = (track.process, track.first_thread, micros(time));
        self.entry(
            &json!({"ph": "i", "s": "t", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": ts, "args": args}),
        )
    }

    fn posted(&mut self, time: u64, group: &str, posted: &WorkRequest) -> io::Result<()> {
        // A receive waits for its message as long as it takes; its completion is an instant.
        if posted.queue == Side::Receive {
            return self.instant(time, group, &EventData::WorkRequestPosted(posted.clone()));
        }
        let Some(track) = self.tracks.get_mut(group) else { return Ok(()) };
        let open = &mut track.open;
        let is_free = |lane: &usize| open.iter().all(|other| other.lane != *lane);
        let lane = (0..MAX_LANES).find(is_free).unwrap_or(MAX_LANES - 1);
        open.push(Open { time, lane, posted: posted.clone() });
        self.name_lane(group, lane)
    }

    fn completed(&mut self, time: u64, group: &str, done: &WorkRequest) -> io::Result<()> {
        let as_instant = EventData::WorkRequestCompleted(done.clone());
        if done.queue == Side::Receive {
            return self.instant(time, group, &as_instant);
        }
        let Some(track) = self.tracks.get_mut(group) else { return Ok(()) };
        let open = &mut track.open;
        // Identifiers may repeat. A failed work request completes even if it is not signaled.
        let is_failed = done.status.as_deref() != Some("success");
        let is_same = |other: &Open| match done.psn {
            Some(psn) => other.posted.psn == Some(psn),
            None => is_failed || other.posted.signaled != Some(false),
        };
        let Some(at) = open.iter().position(is_same) else {
            return self.instant(time, group, &as_instant);
        };
        // Work requests complete in order: those before this one completed without a completion.
        let over: Vec<Open> = open.drain(..=at).collect();
        let (pid, first) = (track.process, track.first_thread);
        for (index, wr) in over.iter().enumerate() {
            let args = match index == at {
                true => json!(done),
                false => json!(wr.posted),
            };
            let (ts, dur) = (micros(wr.time), micros(time.saturating_sub(wr.time)));
            let (name, tid) = (&wr.posted.opcode, first + wr.lane);
            self.entry(
                &json!({"ph": "X", "name": name, "cat": "work request", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}),
            )?;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// That of the writer.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

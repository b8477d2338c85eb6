//! Compares event logs: one that two NICs on a fabric in virtual time write as they run, and one made from a capture
//! of the same run. Validates each event against docs/qlog/rdma.schema.json.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::Rule;
use urxe::middleware::qlog::QlogFile;
use urxe::qlog::{Event, EventData, RECORD_SEPARATOR, Side, Timer};
use urxe::verbs::*;
use urxe_decode::Events;

/// Reads a log: its header and its events, each validated.
fn read(path: &Path) -> (Value, Vec<Event>) {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/qlog/rdma.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let mut records = bytes.split(|byte| *byte == RECORD_SEPARATOR).skip(1).map(|record| {
        assert_eq!(record.last(), Some(&b'\n'));
        serde_json::from_slice::<Value>(record).unwrap()
    });
    let header = records.next().unwrap();
    let mut last = 0.0;
    let events = records.map(|record| {
        if let Err(error) = validator.validate(&record) {
            panic!("{record} does not conform to the schema: {error}");
        }
        let event: Event = serde_json::from_value(record).unwrap();
        assert!(event.time >= last, "{event:?} is before its predecessor");
        last = event.time;
        event
    });
    let events = events.collect();
    (header, events)
}

/// Returns what both kinds of logs tell of an event: its text, and whether its time is the same. `None` for an
/// event that only a NIC can tell.
fn common(event: &Event) -> Option<(String, bool)> {
    let mut data = event.data.clone();
    let has_time = match &mut data {
        EventData::QpStateUpdated(_) | EventData::CongestionUpdated(_) => return None,
        EventData::PacketDropped(dropped) if !["fault", "icrc"].contains(&&*dropped.trigger) => return None,
        EventData::WorkRequestPosted(posted) if posted.queue == Side::Receive => return None,
        // Posted before its first packet is sent; acknowledged after it was received.
        EventData::WorkRequestPosted(wr) => {
            (wr.wr_id, wr.psn, wr.length, wr.signaled) = (None, None, None, None);
            false
        }
        EventData::WorkRequestCompleted(wr) => {
            (wr.wr_id, wr.psn) = (None, None);
            wr.queue == Side::Send
        }
        EventData::CheckFailed(check) => {
            check.details = None;
            true
        }
        // If one packet was in flight, its retransmission does not tell which timer has expired.
        EventData::Timeout(timer) | EventData::Probe(timer) => {
            data = EventData::Probe(Timer { after: None, ..timer.clone() });
            true
        }
        // Decided before the wait that an RNR NAK asks for.
        EventData::Retransmission(resend) => {
            if resend.trigger == "timeout" {
                resend.trigger = "probe".into();
            }
            false
        }
        // A request behind a gap is executed once that is filled.
        EventData::MemoryAccess(_) => false,
        _ => true,
    };
    Some((serde_json::to_string(&data).unwrap(), has_time))
}

/// Returns the common events of each queue pair: those with times in order of time, and the others in their own
/// order, by name.
fn story(events: &[Event]) -> BTreeMap<String, Vec<String>> {
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in events {
        let Some((text, has_time)) = common(event) else { continue };
        let group = event.group_id.as_deref().unwrap_or("none");
        let (key, line) = match has_time {
            true => (group.to_owned(), format!("{:.6} {text}", event.time)),
            false => (format!("{group} {}", event.data.name()), text),
        };
        stories.entry(key).or_default().push(line);
    }
    for (key, story) in &mut stories {
        // Events of one instant have no order; requests behind a gap are executed later than they arrive.
        if !key.contains("rdma:") || key.ends_with("memory_access") {
            story.sort();
        }
    }
    stories
}

/// Fails with the first difference of two logs.
fn assert_same(live: &[Event], captured: &[Event]) {
    let (live, captured) = (story(live), story(captured));
    for (key, live) in &live {
        let captured = captured.get(key).map_or(&[][..], Vec::as_slice);
        let different = live.iter().zip(captured).position(|(a, b)| a != b);
        let at = different.unwrap_or_else(|| live.len().min(captured.len()));
        assert!(
            at == live.len() && at == captured.len(),
            "{key}, event {at} of {} and {}:\nlive     {:#?}\ncaptured {:#?}",
            live.len(),
            captured.len(),
            &live[at.saturating_sub(2)..live.len().min(at + 4)],
            &captured[at.saturating_sub(2).min(captured.len())..captured.len().min(at + 4)],
        );
    }
    assert_eq!(live.keys().collect::<Vec<_>>(), captured.keys().collect::<Vec<_>>());
}

/// Files of a run.
struct Run {
    dir: tempfile::TempDir,
}

impl Run {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `traffic` between two NICs, of which the first injects faults. Each has a log and a capture.
    fn new(
        options: ContextOptions,
        faults: &[&str],
        traffic: impl FnOnce(&TestEndpoint, &TestEndpoint),
    ) -> Run {
        Run::with_seed(1, options, faults, traffic)
    }

    fn with_seed(
        seed: u64,
        options: ContextOptions,
        faults: &[&str],
        traffic: impl FnOnce(&TestEndpoint, &TestEndpoint),
    ) -> Run {
        let run = Run { dir: tempfile::tempdir().unwrap() };
        let config = FabricConfig::default().latency(Duration::from_micros(5));
        let fabric = Fabric::virtual_time(config).unwrap();
        let mut files = Vec::new();
        let mut open = |name: &str, faults: &[&str], seed| {
            let capture =
                CaptureFile::create(run.path(&format!("{name}.pcapng")), Timestamps::Virtual).unwrap();
            let qlog = QlogFile::create(run.path(&format!("{name}.qlog")), Timestamps::Virtual).unwrap();
            let rules: Vec<Rule> = faults.iter().map(|rule| rule.parse().unwrap()).collect();
            let options =
                options.clone().seed(Some(seed)).capture(&capture, name).qlog(&qlog, name).faults(rules);
            files.push((capture, qlog));
            TestEndpoint::new(fabric.open(&options).unwrap()).unwrap()
        };
        let (a, b) = (open("a", faults, 2 * seed), open("b", &[], 2 * seed + 1));
        a.connect(&b, &ConnectOptions::default()).unwrap();
        traffic(&a, &b);
        drop((a, b));
        for (capture, qlog) in files {
            capture.flush().unwrap();
            qlog.flush().unwrap();
        }
        run
    }

    /// Compares the logs of both NICs with those of their captures. Returns the events of the first NIC.
    fn compare(&self) -> Vec<Event> {
        let mut of_first = Vec::new();
        for name in ["b", "a"] {
            let captured = self.path(&format!("{name}-captured.qlog"));
            let mut out = std::fs::File::create(&captured).unwrap();
            let capture = self.path(&format!("{name}.pcapng"));
            Events::open(&[capture]).unwrap().write_qlog(&mut out).unwrap();
            let (header, live) = read(&self.path(&format!("{name}.qlog")));
            assert_eq!(header["trace"]["vantage_point"]["name"], name);
            let (header, captured) = read(&captured);
            assert_eq!(header["file_schema"], "urn:ietf:params:qlog:file:sequential");
            assert_eq!(
                header["trace"]["common_fields"]["reference_time"]["epoch"],
                "1970-01-01T00:00:00.000Z"
            );
            assert_same(&live, &captured);
            of_first = live;
        }
        of_first
    }
}

fn names(events: &[Event]) -> BTreeSet<&'static str> {
    events.iter().map(|event| event.data.name()).collect()
}

/// Posts SENDs, WRITEs, READs and atomics of several packets, one after the other and then all at once.
fn all_operations(a: &TestEndpoint, b: &TestEndpoint) {
    let (src, dst) = (a.pd.reg_mr(65_536, Access::ALL).unwrap(), b.pd.reg_mr(65_536, Access::ALL).unwrap());
    let sges = [dst.sge(0..16_384)];
    for id in 0..20 {
        b.qp.post_recv(&RecvWr::new(id, &sges)).unwrap();
    }
    let source = [src.sge(0..10_000)];
    let word = [src.sge(0..8)];
    let post = |id: u64| {
        let wr = match id % 5 {
            0 => SendWr::send(id, &source),
            1 => SendWr::write(id, &source, dst.remote(4096)),
            2 => SendWr::read(id, &source, dst.remote(8192)),
            3 => SendWr::fetch_add(id, &word, dst.remote(16), 5),
            _ => SendWr::write_imm(id, &source, dst.remote(0), 7),
        };
        a.qp.post_send(&wr).unwrap();
    };
    for id in 0..10 {
        post(id);
        a.cq.wait(Duration::from_secs(5)).unwrap();
    }
    (10..30).for_each(post);
    for _ in 10..30 {
        a.cq.wait(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn run_without_losses_is_told_alike_by_the_nics_and_by_their_captures() {
    let events = Run::new(ContextOptions::default(), &[], all_operations).compare();
    let completed = |event: &&Event| matches!(event.data, EventData::WorkRequestCompleted(_));
    assert_eq!(events.iter().filter(completed).count(), 30);
}

#[test]
fn losses_and_their_repair_are_told_alike_by_the_nics_and_by_their_captures() {
    let run = Run::new(ContextOptions::default(), &["tx:drop=every:13", "rx:drop=every:17"], all_operations);
    let events = run.compare();
    let seen = names(&events);
    for name in ["rdma:packet_dropped", "rdma:nak_received", "rdma:retransmission", "rdma:gap"] {
        assert!(seen.contains(name), "{name} is not in {seen:?}");
    }
}

#[test]
fn waits_for_receives_and_probes_are_told_alike_by_the_nics_and_by_their_captures() {
    let traffic = |a: &TestEndpoint, b: &TestEndpoint| {
        let (src, dst) =
            (a.pd.reg_mr(16_384, Access::ALL).unwrap(), b.pd.reg_mr(16_384, Access::ALL).unwrap());
        let (source, target) = ([src.sge(0..5000)], [dst.sge(0..16_384)]);
        // The receive comes after two RNR NAKs.
        a.qp.post_send(&SendWr::send(1, &source)).unwrap();
        assert!(a.cq.wait(Duration::from_millis(3)).is_err());
        b.qp.post_recv(&RecvWr::new(1, &target)).unwrap();
        a.cq.wait(Duration::from_secs(5)).unwrap();
        // The last packets of the second WRITE are lost.
        for id in 2..4 {
            a.qp.post_send(&SendWr::write(id, &[src.sge(0..12_000)], dst.remote(0))).unwrap();
            a.cq.wait(Duration::from_secs(5)).unwrap();
        }
    };
    let rules = ["tx:drop=5..6,opcode=write"];
    let seen = names(&Run::new(ContextOptions::default(), &rules, traffic).compare());
    for name in ["rdma:rnr_nak_received", "rdma:probe", "rdma:retransmission"] {
        assert!(seen.contains(name), "{name} is not in {seen:?}");
    }
}

#[test]
fn timeouts_are_told_alike_by_the_nics_and_by_their_captures() {
    let traffic = |a: &TestEndpoint, b: &TestEndpoint| {
        let (src, dst) = (a.pd.reg_mr(8192, Access::ALL).unwrap(), b.pd.reg_mr(8192, Access::ALL).unwrap());
        for id in 0..3 {
            a.qp.post_send(&SendWr::write(id, &[src.sge(0..5000)], dst.remote(0))).unwrap();
            a.cq.wait(Duration::from_secs(5)).unwrap();
        }
    };
    let options = ContextOptions::default().personality(Personality::STRICT);
    let seen = names(&Run::new(options, &["tx:drop=3", "tx:drop=4"], traffic).compare());
    assert!(seen.contains("rdma:timeout"), "{seen:?}");
}

#[test]
fn refused_access_is_told_alike_by_the_nics_and_by_their_captures() {
    let traffic = |a: &TestEndpoint, b: &TestEndpoint| {
        let (src, dst) =
            (a.pd.reg_mr(8192, Access::ALL).unwrap(), b.pd.reg_mr(8192, Access::LOCAL_WRITE).unwrap());
        a.qp.post_send(&SendWr::write(1, &[src.sge(0..5000)], dst.remote(0))).unwrap();
        assert!(a.cq.wait(Duration::from_secs(5)).is_err());
    };
    let run = Run::new(ContextOptions::default(), &[], traffic);
    run.compare();
    let (_, responder) = read(&run.path("b.qlog"));
    let why = responder.iter().find_map(|event| match &event.data {
        EventData::CheckFailed(check) => check.details.clone(),
        _ => None,
    });
    assert!(why.is_some_and(|why| why.contains("REMOTE_WRITE")), "{responder:#?}");
}

#[test]
fn marks_and_their_notifications_are_told_alike_by_the_nics_and_by_their_captures() {
    let options = ContextOptions::default().congestion("dcqcn".parse().unwrap());
    let events = Run::new(options, &["tx:mark=every:3"], all_operations).compare();
    let seen = names(&events);
    assert!(seen.contains("rdma:cnp_received") && seen.contains("rdma:congestion_updated"), "{seen:?}");
    let cut = |event: &Event| match &event.data {
        EventData::CongestionUpdated(state) => state.rate.is_some() && state.alpha.is_some(),
        _ => false,
    };
    assert!(events.iter().any(cut));
}

#[test]
fn random_losses_are_told_alike_by_the_nics_and_by_their_captures() {
    for seed in 0..100 {
        let faults = ["tx:drop=p:0.03,time=20us..1s", "rx:drop=p:0.03,time=20us..1s"];
        Run::with_seed(seed, ContextOptions::default(), &faults, all_operations).compare();
    }
}

#[test]
fn trace_has_a_track_for_each_queue_pair_and_no_slices_that_overlap_on_one() {
    let run = Run::new(ContextOptions::default(), &["tx:drop=every:13"], all_operations);
    for inputs in [["a.qlog", "b.qlog"], ["a.pcapng", "b.pcapng"], ["a.qlog", "b.pcapng"]] {
        let mut trace = Vec::new();
        Events::open(&inputs.map(|name| run.path(name))).unwrap().write_trace(&mut trace).unwrap();
        let trace: Value = serde_json::from_slice(&trace).unwrap();
        let entries = trace["traceEvents"].as_array().unwrap();
        let of_kind = |kind: &'static str| entries.iter().filter(move |entry| entry["ph"] == kind);
        let names = |what: &'static str| {
            of_kind("M")
                .filter(move |e| e["name"] == what)
                .map(|e| e["args"]["name"].as_str().unwrap().to_owned())
        };
        let processes: Vec<String> = names("process_name").collect();
        assert_eq!(processes.len(), 2, "{inputs:?}: {processes:?}");
        assert_eq!(names("thread_name").filter(|name| !name.contains('(')).count(), 2);
        // All work requests of the first NIC; the second one posts only receives.
        assert_eq!(of_kind("X").count(), 30, "{inputs:?}");
        let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        let mut slices: Vec<&Value> = of_kind("X").collect();
        slices.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
        for slice in slices {
            let track = (slice["pid"].as_u64().unwrap(), slice["tid"].as_u64().unwrap());
            let (start, length) = (slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap());
            let end = ends.entry(track).or_default();
            assert!(start >= *end - 1e-6, "{slice} begins before {end}");
            *end = start + length;
        }
        assert!(of_kind("i").any(|entry| entry["name"] == "retransmission"));
        assert_eq!(of_kind("C").count() > 0, inputs[0].ends_with("qlog"));
    }
}

#[test]
fn log_of_another_protocol_is_rejected_with_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quic.qlog");
    let header = "\u{1e}{\"trace\":{\"common_fields\":{\"reference_time\":{\"epoch\":\"1970-01-01T00:00:00.000Z\"}}}}\n";
    std::fs::write(
        &path,
        format!("{header}\u{1e}{{\"time\":1,\"name\":\"quic:packet_sent\",\"data\":{{}}}}\n"),
    )
    .unwrap();
    let error = Events::open(&[path]).err().unwrap().to_string();
    assert!(error.contains("record 2") && error.contains("quic:packet_sent"), "{error}");
}

#[test]
fn nics_that_share_a_log_and_a_capture_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let [capture, qlog, captured] =
        ["both.pcapng", "both.qlog", "captured.qlog"].map(|name| dir.path().join(name));
    let fabric =
        Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(5)).seed(5)).unwrap();
    let capture_file = CaptureFile::create(&capture, Timestamps::Virtual).unwrap();
    let qlog_file = QlogFile::create(&qlog, Timestamps::Virtual).unwrap();
    let options = ContextOptions::default().capture(&capture_file, "both").qlog(&qlog_file, "both");
    let [a, b] = ["tx:drop=every:13", "tx:drop=every:17"].map(|rule| {
        let options = options.clone().faults([rule.parse::<Rule>().unwrap()]);
        TestEndpoint::new(fabric.open(&options).unwrap()).unwrap()
    });
    a.connect(&b, &ConnectOptions::default()).unwrap();
    all_operations(&a, &b);
    drop((a, b));
    capture_file.flush().unwrap();
    qlog_file.flush().unwrap();
    let mut out = std::fs::File::create(&captured).unwrap();
    Events::open(&[capture]).unwrap().write_qlog(&mut out).unwrap();
    let (live, captured) = (read(&qlog).1, read(&captured).1);
    assert_same(&live, &captured);
    assert!(names(&captured).contains("rdma:gap") && names(&captured).contains("rdma:memory_access"));
}

//! Analyses the captures of `pcaps/`, most of them of the kernel's rxe, and compares findings with what was
//! done to the packets (`pcaps/README.md`).

use std::path::{Path, PathBuf};

use urxe_decode::Diagnosis::*;
use urxe_decode::{Capture, Diagnosis, Report};

fn pcaps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps")
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut captures: Vec<_> = entries.filter(is_capture).collect();
    captures.sort();
    captures
}

fn report(path: &Path) -> Report {
    Report::read([Capture::open(path)])
}

/// Captures in which something is wrong: each finding with the number of the packet that shows it.
const FINDINGS: &[(&str, &[(Diagnosis, u64)])] = &[
    ("cm_reject.pcap", &[(ConnectionRefused, 2)]),
    ("dup_read.pcap", &[(Copies, 2)]),
    ("dup_send.pcap", &[(Copies, 3)]),
    ("loss_ack.pcap", &[(AckLost, 4)]),
    ("loss_atomic_ack.pcap", &[(AckLost, 2)]),
    ("loss_nak.pcap", &[(AckLost, 4)]),
    (
        "loss_random.pcap",
        &[
            (RequestLost, 9),
            (RequestLost, 31),
            (RequestLost, 46),
            // And two more.
            (RequestLost, 63),
            (ReadResponseLost, 148),
        ],
    ),
    ("loss_read_request.pcap", &[(ReadResponseLost, 2)]),
    ("loss_read_request_gap.pcap", &[(RequestLost, 3)]),
    ("loss_read_response.pcap", &[(ReadResponseLost, 4)]),
    ("loss_read_response_last.pcap", &[(ReadResponseLost, 4)]),
    ("loss_send_first.pcap", &[(RequestLost, 4)]),
    ("loss_send_last.pcap", &[(TailLost, 4)]),
    ("loss_send_middle.pcap", &[(RequestLost, 4)]),
    // The third packet, and later the fifth.
    ("loss_write_middle.pcap", &[(RequestLost, 7), (RequestLost, 12)]),
    ("nak_recv_too_small.pcap", &[(RemoteOperationalError, 4), (Flushed, 4)]),
    ("nak_remote_access_atomic.pcap", &[(RemoteAccessError, 2)]),
    ("nak_remote_access_read.pcap", &[(RemoteAccessError, 2)]),
    ("nak_remote_access_write.pcap", &[(RemoteAccessError, 2)]),
    // rxe's timer expired just as the ACK arrived.
    ("rc_2048_v4.pcap", &[(UnnecessaryRetransmission, 16)]),
    // An emulated machine takes milliseconds.
    ("perftest_write_lat.pcap", &[(SlowReceiver, 4)]),
    ("reorder_send.pcap", &[(Reordered, 1)]),
    ("retry_exceeded.pcap", &[(PeerSilent, 1)]),
    ("rnr_nak.pcap", &[(ReceiverNotReady, 4)]),
    ("rnr_nak_write_imm.pcap", &[(ReceiverNotReady, 2)]),
    ("rnr_retry_exceeded.pcap", &[(ReceiverNotReady, 2)]),
    // Its sixth datagram has a wrong Q_Key.
    ("ud_v4.pcap", &[(DatagramDropped, 6)]),
    ("ud_v6.pcap", &[(DatagramDropped, 6)]),
    // Windows are unbound, and used all the same.
    ("mixed/mw_at_rxe.pcapng", &[(RemoteAccessError, 48)]),
    ("mixed/mw_at_urxe.pcapng", &[(RemoteAccessError, 48)]),
    ("mixed/srq_at_rxe.pcapng", &[(ReceiverNotReady, 10)]),
    ("mixed/srq_at_urxe.pcapng", &[(ReceiverNotReady, 10)]),
    ("own/xrc_v4.pcapng", &[(RemoteAccessError, 62), (ReceiverNotReady, 58)]),
    ("own/xrc_v6.pcapng", &[(RemoteAccessError, 62), (ReceiverNotReady, 58)]),
];

#[test]
fn findings_are_the_faults_of_each_capture_and_no_others() {
    let mut differences = Vec::new();
    for folder in ["", "mixed/", "own/"] {
        for path in captures(&pcaps().join(folder)) {
            let name = format!("{folder}{}", path.file_name().unwrap().to_str().unwrap());
            let expected = FINDINGS.iter().find(|(file, _)| *file == name).map_or(&[][..], |(_, f)| f);
            let report = report(&path);
            let found: Vec<_> = report.findings.iter().map(|f| (f.diagnosis, f.packets[0].packet)).collect();
            if found != expected {
                differences.push(format!("{name}: {found:?} instead of {expected:?}\n{report}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn icrcs_of_all_captures_are_right_and_their_queue_pairs_are_paired() {
    for folder in ["", "mixed", "own"] {
        for path in captures(&pcaps().join(folder)) {
            let report = report(&path);
            let [capture] = &report.captures[..] else { panic!("{report}") };
            assert_eq!((capture.icrc_right, &capture.error), (capture.roce, &None), "{}", path.display());
            for qp in report.queue_pairs.iter().filter(|qp| matches!(qp.service, "RC" | "XRC")) {
                let is_silent = qp.packets[1] == 0;
                assert!(qp.requester.1.is_some() || is_silent, "{}: {qp:?}", path.display());
            }
        }
    }
}

#[test]
fn part_of_a_capture_is_reported_with_what_could_be_read() {
    let bytes = std::fs::read(pcaps().join("loss_send_middle.pcap")).unwrap();
    let cut = &bytes[..bytes.len() - 10];
    let report = Report::read([Capture::read(std::io::Cursor::new(cut.to_vec()), "cut.pcap")]);
    let error = report.captures[0].error.as_deref().unwrap_or_default();
    assert!(error.contains("cut.pcap ends within packet"), "{error}");
    assert_eq!(report.findings[0].diagnosis, RequestLost);
    let read = |bytes: &[u8]| {
        let report = Report::read([Capture::read(std::io::Cursor::new(bytes.to_vec()), "x")]);
        report.captures[0].error.clone().unwrap_or_default()
    };
    assert!(read(&[]).contains("is empty"));
    assert!(read(b"PK\x03\x04 and so on, a zip archive").contains("a zip archive: unpack it"));
    let mut infiniband = bytes.clone();
    infiniband[20..24].copy_from_slice(&247u32.to_le_bytes());
    assert!(read(&infiniband).contains("InfiniBand"), "{}", read(&infiniband));
    let mut damaged = bytes;
    damaged[24 + 8..24 + 12].fill(0xff);
    assert!(!read(&damaged).is_empty());
}

#[test]
fn compressed_captures_are_read_like_plain_ones() {
    use std::io::Write;
    let plain = std::fs::read(pcaps().join("loss_ack.pcap")).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    for compressed in [gzip.finish().unwrap(), zstd] {
        let report = Report::read([Capture::read(std::io::Cursor::new(compressed), "x")]);
        assert_eq!(report.findings.iter().map(|f| f.diagnosis).collect::<Vec<_>>(), [AckLost], "{report}");
    }
}

#[test]
fn capture_of_one_direction_is_not_taken_for_a_silent_peer() {
    use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter};
    let file = std::fs::File::open(pcaps().join("rc_long.pcap")).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let header = PcapHeader { ..reader.header() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    let mut time = std::time::Duration::ZERO;
    while let Some(packet) = reader.next_packet() {
        let mut packet = packet.unwrap();
        // The last byte of the IPv4 source address.
        if packet.data[29] == 1 {
            time += std::time::Duration::from_millis(500);
            packet.timestamp += time;
            writer.write_packet(&packet).unwrap();
        }
    }
    let report = Report::read([Capture::read(std::io::Cursor::new(writer.into_writer()), "x")]);
    assert_eq!(
        report.findings.iter().map(|f| f.diagnosis).collect::<Vec<_>>(),
        [CaptureIncomplete],
        "{report}"
    );
    assert!(report.is_clean());
}

//! Tests of regions from which another process copies payloads, with an end of the connection that is killed,
//! is stopped or lacks descriptors.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use urxe_test_support::ends::{DEPTH, End, LONG, SHORT, connect, run_end};

/// Runs one end of a connection if another test has started this program as a child process.
#[test]
fn one_end() {
    run_end();
}

/// Returns the number of rounds of a test; the variable is for more rounds by hand.
fn rounds(default: usize) -> usize {
    std::env::var("ROUNDS").map_or(default, |text| text.parse().unwrap())
}

/// Waits until the connections of an ended peer have left nothing behind: no more descriptors and mappings of
/// any kind than after the first peer.
fn check_resources(survivor: &End, level: &mut Option<BTreeMap<String, usize>>) {
    survivor.wait_until("the rings are closed", || survivor.mappings("urxe ring") == 0);
    let level = level.get_or_insert_with(|| survivor.resources());
    let is_within = |(kind, count): (String, usize)| level.get(&kind).is_some_and(|max| count <= *max);
    survivor.wait_until("no leak", || survivor.resources().into_iter().all(is_within));
}

#[test]
fn killed_reader_fails_the_sends_of_the_writer_and_leaves_nothing_behind() {
    let (mut writer, mut level) = (End::start(module_path!(), "127.20.234.1"), None);
    for round in 0..rounds(5) {
        let mut reader = End::start(module_path!(), "127.20.234.2");
        let region = if round == 0 { "shareable" } else { "same" };
        connect(&mut writer, &mut reader, SHORT, region);
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        reader.signal(Signal::SIGKILL);
        writer.wait_until("the sends fail", || writer.says("failed") > round);
        assert_eq!(writer.ask("end", "ended"), "RetryExcErr, flushed 3 sends and 8 receives");
        drop(reader);
        check_resources(&writer, &mut level);
    }
}

#[test]
fn killed_writer_leaves_nothing_behind_and_the_reader_with_what_has_arrived() {
    let (mut reader, mut level) = (End::start(module_path!(), "127.20.235.1"), None);
    for _ in 0..rounds(5) {
        let mut writer = End::start(module_path!(), "127.20.235.2");
        connect(&mut writer, &mut reader, SHORT, "shareable");
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        writer.signal(Signal::SIGKILL);
        drop(writer);
        reader.wait_until("the region is unmapped", || reader.mappings("urxe region") == 0);
        assert_eq!(reader.ask("end", "ended"), "Success, flushed 0 sends and 8 receives");
        check_resources(&reader, &mut level);
    }
}

#[test]
fn stopped_end_loses_nothing_and_continues() {
    let (mut writer, mut reader) =
        (End::start(module_path!(), "127.20.236.1"), End::start(module_path!(), "127.20.236.2"));
    connect(&mut writer, &mut reader, LONG, "shareable");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    for stopped in [&writer, &reader] {
        reader.wait_for_messages();
        stopped.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_secs(1));
        stopped.signal(Signal::SIGCONT);
    }
    reader.wait_for_messages();
    assert_eq!([writer.says("failed"), reader.says("failed")], [0; 2]);
    assert_eq!(reader.mappings("urxe region"), 1);
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

/// The writer changes the memory of each request that has ended, as a program may.
#[test]
fn reader_stopped_beyond_the_retries_receives_no_memory_that_has_changed_meanwhile() {
    let (mut writer, mut reader) =
        (End::start(module_path!(), "127.20.237.1"), End::start(module_path!(), "127.20.237.2"));
    for round in 0..rounds(5) {
        let region = if round == 0 { "shareable" } else { "same" };
        connect(&mut writer, &mut reader, SHORT, region);
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        reader.signal(Signal::SIGSTOP);
        writer.wait_until("the sends fail", || writer.says("failed") > round);
        let sent: u64 = writer.ask("count", "sent").parse().unwrap();
        assert_eq!(writer.ask("end", "ended"), "RetryExcErr, flushed 3 sends and 8 receives");
        reader.signal(Signal::SIGCONT);
        let ended = reader.ask("end", "ended");
        let got: u64 = reader.ask("count", "got").parse().unwrap();
        assert_eq!(ended, "Success, flushed 0 sends and 8 receives");
        assert!((sent..=sent + DEPTH).contains(&got), "{got} of {sent} messages");
    }
}

#[test]
fn writer_stopped_beyond_the_retries_continues_or_its_sends_fail() {
    let (mut writer, mut reader) =
        (End::start(module_path!(), "127.20.238.1"), End::start(module_path!(), "127.20.238.2"));
    connect(&mut writer, &mut reader, SHORT, "shareable");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    for _ in 0..rounds(3) {
        let (before, failed) = (reader.says("received"), writer.says("failed"));
        writer.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(1500));
        writer.signal(Signal::SIGCONT);
        reader.wait_until("progress or failure", || {
            reader.says("received") > before + 2 || writer.says("failed") > failed
        });
    }
    let sent: u64 = writer.ask("stop", "sent").parse().unwrap();
    let got: u64 = reader.ask("count", "got").parse().unwrap();
    assert!((sent..=sent + DEPTH).contains(&got), "{got} of {sent} messages");
}

#[test]
fn payloads_are_copied_while_the_reader_lacks_descriptors_and_those_of_later_regions_are_shared() {
    let (mut writer, mut reader) =
        (End::start(module_path!(), "127.20.239.1"), End::start(module_path!(), "127.20.239.2"));
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    assert_eq!(reader.mappings("urxe region"), 0);
    reader.ask("hoard", "hoarded");
    writer.ask("send shareable", "sends");
    for _ in 0..3 {
        reader.wait_for_messages();
    }
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 1));
    reader.ask("release", "released");
    writer.ask("send shareable", "sends");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    reader.wait_for_messages();
    assert_eq!(reader.mappings("urxe ring"), 2 * 2, "the same rings");
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

#[test]
fn region_is_ordinary_if_the_limit_on_files_forbids_another() {
    let (mut writer, mut reader) =
        (End::start(module_path!(), "127.20.233.1"), End::start(module_path!(), "127.20.233.2"));
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    writer.ask("limit", "limited");
    writer.ask("send shareable", "sends");
    reader.wait_for_messages();
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 0));
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

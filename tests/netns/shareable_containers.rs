//! Test of regions from which processes in other containers copy payloads.

use urxe_test_support::ends::{End, LONG, connect, run_end};
use urxe_test_support::requirement;

/// Runs one end of a connection if another test has started this program as a child process.
#[test]
fn one_end() {
    run_end();
}

#[test]
fn region_is_shared_between_containers_with_one_network_namespace_and_directory() {
    if !requirement::is_met(nix::unistd::geteuid().is_root(), "containers require root") {
        return;
    }
    let mut writer = End::start_in_container(module_path!(), "127.20.224.1");
    let mut reader = End::start_in_container(module_path!(), "127.20.224.2");
    connect(&mut writer, &mut reader, LONG, "shareable");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    reader.wait_for_messages();
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

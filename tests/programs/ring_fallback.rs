//! Tests of programs between which no ring is possible, so that the socket carries their packets: limits of
//! the process, other users, and namespaces.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use urxe_test_support::netns::{self, Veth};
use urxe_test_support::programs::{MIN_ACK_TIMEOUT, addresses, copy_built};
use urxe_test_support::requirement::is_met;
use urxe_test_support::transfer::{Transfer, wait_for_messages};

/// The default, whatever the tests run with.
fn auto(command: &mut Command) {
    command.env("URXE_SHARED_MEMORY", "auto");
}

/// Exchanges messages between a server and a client, each at its address and started by its command line, and
/// returns the number of rings that each has.
fn rings(
    transfer: &Transfer,
    addresses: [&str; 2],
    lines: [&[&str]; 2],
    change: impl Fn(&mut Command),
) -> [usize; 2] {
    let server = transfer.serve(addresses[0], lines[0], &change);
    let client = transfer.connect([addresses[1], addresses[0]], 0, lines[1], &change);
    wait_for_messages([&server, &client], [0; 2]);
    let rings = [server.rings(), client.rings()];
    for end in [server, client] {
        assert_eq!(end.says("status"), 0, "{}", end.printed());
    }
    rings
}

/// Calls [`rings`] with addresses that no other user's or container's broker still serves.
fn rings_on_new_addresses(
    transfer: &Transfer,
    lines: [&[&str]; 2],
    change: impl Fn(&mut Command),
) -> [usize; 2] {
    let [one, other] = addresses();
    rings(transfer, [&one, &other], lines, change)
}

#[test]
fn process_without_free_descriptors_uses_the_socket() {
    let (transfer, [one, other]) = (Transfer::new(), addresses());
    let addresses = [one.as_str(), other.as_str()];
    assert_eq!(rings(&transfer, addresses, [&[], &[]], auto), [2; 2]);
    let hoard = |command: &mut Command| {
        auto(command);
        // The packets in a ring that the other end refuses are lost.
        command.env("HOARD", "1").env(MIN_ACK_TIMEOUT, "0.1");
    };
    assert_eq!(rings(&transfer, addresses, [&[], &[]], hoard), [0; 2]);
}

#[test]
fn process_whose_files_may_not_have_the_length_of_a_ring_writes_to_the_socket() {
    let (transfer, [one, other]) = (Transfer::new(), addresses());
    let addresses = [one.as_str(), other.as_str()];
    let short = ["prlimit", "--fsize=65536"];
    // The other process creates the ring from which it reads.
    for (lines, count) in [([&short[..], &[]], 1), ([&[], &short[..]], 1), ([&short[..], &short[..]], 0)] {
        let change = |command: &mut Command| {
            auto(command);
            command.env(MIN_ACK_TIMEOUT, "0.1");
        };
        assert_eq!(rings(&transfer, addresses, lines, change), [count; 2], "{lines:?}");
    }
}

#[test]
fn processes_of_two_users_use_the_socket() {
    if !is_met(nix::unistd::geteuid().is_root(), "two users require root") {
        return;
    }
    let mut transfer = Transfer::new();
    // The build products may be in a directory that other users cannot read.
    let dir = tempfile::tempdir().unwrap();
    for (name, copy) in
        [("libibverbs.so", "libibverbs.so.1"), ("libibverbs.so", "librdmacm.so.1"), ("urxe", "urxe")]
    {
        copy_built(name, &dir.path().join(copy));
    }
    transfer.copy_program(dir.path());
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for any_user in ["0", "1"] {
        let change = |command: &mut Command| {
            auto(command);
            command.env("URXE_ANY_USER", any_user).env("LD_LIBRARY_PATH", dir.path());
        };
        for lines in [[&nobody[..], &[]], [&[], &nobody[..]]] {
            assert_eq!(
                rings_on_new_addresses(&transfer, lines, change),
                [0; 2],
                "{lines:?}, any_user {any_user}"
            );
        }
        assert_eq!(
            rings_on_new_addresses(&transfer, [&nobody, &nobody], change),
            [2; 2],
            "any_user {any_user}"
        );
    }
}

#[test]
fn containers_have_rings_only_if_they_share_network_namespace_and_directory() {
    if !netns::is_available() {
        return;
    }
    let transfer = Transfer::new();
    let container = ["unshare", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child"];
    assert_eq!(rings_on_new_addresses(&transfer, [&container, &container], auto), [2; 2]);
    // The directory of the broker's sockets is in /run.
    let script = "mount -t tmpfs -o mode=755 none /run && exec \"$@\"";
    let separate = ["unshare", "--mount", "sh", "-c", script, "sh"];
    assert_eq!(rings_on_new_addresses(&transfer, [&separate, &container], auto), [0; 2]);
    let net = Veth::new(1500);
    let [first, second] = net.sides.each_ref().map(|side| ["ip", "netns", "exec", side.name()]);
    assert_eq!(rings(&transfer, ["10.77.0.1", "10.77.0.2"], [&first, &second], auto), [0; 2]);
    assert_eq!(rings(&transfer, ["10.77.0.1", "10.77.0.1"], [&first, &first], auto), [2; 2]);
}

//! Tests that `urxe run` has a tree of device files for each network namespace.

use std::time::{Duration, Instant};

use urxe_test_support::netns::{self, Netns};

/// Returns the tree of `urxe run` in the namespace, and the inode number of the namespace.
fn tree_and_inode(netns: &Netns, runtime: &tempfile::TempDir) -> (String, String) {
    let mut command = netns.command(env!("CARGO_BIN_EXE_urxe"));
    command.args(["run", "sh", "-c", "echo $URXE_SYSFS; readlink /proc/self/ns/net"]);
    let output = command.env("XDG_RUNTIME_DIR", runtime.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (tree, inode) = text.split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    assert!(tree.contains("/sysfs-"), "{output:?}");
    (tree.into(), inode.into())
}

#[test]
fn namespace_with_the_inode_number_of_an_earlier_one_has_another_tree() {
    if !netns::is_available() {
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let netns = Netns::new();
    let (first, inode) = tree_and_inode(&netns, &runtime);
    assert_eq!(tree_and_inode(&netns, &runtime).0, first);
    assert_ne!(tree_and_inode(&Netns::new(), &runtime).0, first);
    drop(netns);
    // The kernel removes the namespace in a thread.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let (tree, reused) = tree_and_inode(&Netns::new(), &runtime);
        assert_ne!(tree, first);
        if reused == inode || Instant::now() > deadline {
            break;
        }
    }
}

//! Tests that the same verbs calls have the same results on the kernel's rxe and on urxe with the personality
//! `rxe` (`tests/programs/personalities.rs`). Needs the test guest.
//!
//! Repeated with Linux 6.12.

use std::process::Command;
use std::time::Duration;

use urxe_test_support::guest::{Guest, GuestConfig, Net, Suite};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn calls_on_the_kernels_rxe_have_the_results_of_personality_rxe() {
    let dir = tempfile::tempdir().unwrap();
    let [local, remote] = ["a", "b"].map(|name| dir.path().join(name));
    // The other end of the wire is not connected: the program's packets stay in the guest.
    let guest = Guest::start(GuestConfig::new(Net::Dgram { local, remote }, 1)).unwrap();
    let program = dir.path().join("personality");
    let source = concat!(env!("URXE_REPOSITORY"), "/tests/c/personality.c");
    let mut cc = Command::new("cc");
    let compile = cc.args(["-O1", "-s", "-Wall", "-Werror", "-o"]).args([
        program.as_os_str(),
        source.as_ref(),
        "-libverbs".as_ref(),
    ]);
    assert!(
        compile
            .status()
            .expect("this test needs a C compiler (apt-get install gcc libibverbs-dev)")
            .success()
    );
    guest.install(&program, "/tmp/personality").unwrap();
    let gid = guest.gid_index("10.77.0.1").unwrap();
    let result = guest.exec(&format!("/tmp/personality {gid}"), LIMIT).unwrap();
    assert_eq!((result.status, result.stderr.as_str()), (0, ""));
    let expected = include_str!("../c/personality.rxe");
    assert_eq!(
        result.stdout,
        match Suite::from_env() {
            Suite::Bookworm => expected.to_owned(),
            // Linux 6.12 completes all requests that fail in its requester with WR_FLUSH_ERR.
            Suite::Trixie => expected.replace("LOC_QP_OP_ERR", "WR_FLUSH_ERR"),
        }
    );
}

//! Programs where there is least: as a user without privilege, in a user and a network namespace of its own, with nothing
//! under /dev/infiniband; and as that user outside of it.

mod support;

use std::process::Command;

use support::{addresses, built, port, text};

/// A server and a client of perftest, by `urxe run` alone.
const BOTH_ENDS: &str = r#"
    run() { ip=$1; shift; "$URXE" run --ip "$ip" -- ib_write_bw -F -n 100 -p "$PORT" "$@"; }
    run "$SERVER" >"$DIR/server" 2>&1 &
    until grep -q "$(printf ':%04X ' "$PORT").* 0A " /proc/net/tcp || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    run "$CLIENT" 127.0.0.1 || { cat "$DIR/server"; exit 1; }
    wait $! || { cat "$DIR/server"; exit 1; }
"#;

/// Runs a script as nobody, if this is root; else as who runs the tests.
fn as_nobody(before: &[&str], script: &str) {
    let dir = tempfile::tempdir().unwrap();
    // Programs and libraries where nobody may look: a checkout may lie in a directory of root's.
    for name in ["urxe", "libibverbs.so", "liburxe_preload.so"] {
        let file = built(name).expect("cargo build --workspace, or cargo test --workspace");
        std::fs::copy(file, dir.path().join(name)).unwrap();
    }
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let nobody = "--reuid=nobody --regid=nogroup --clear-groups".split(' ');
    let is_root = nix::unistd::geteuid().is_root();
    let mut command = Command::new(if is_root { "setpriv" } else { "env" });
    if is_root {
        command.args(nobody);
    }
    let [server, client] = addresses();
    command.args(before).args(["timeout", "60", "sh", "-c", script]).current_dir(dir.path());
    command.env("URXE", dir.path().join("urxe")).env("DIR", dir.path()).env("PORT", port().to_string());
    command.env("SERVER", server).env("CLIENT", client).env_remove("XDG_RUNTIME_DIR");
    command.env_remove("URXE_LIBRARY");
    let out = command.output().expect("setpriv and unshare (apt-get install util-linux)");
    let told = text(&out);
    assert!(out.status.success() && told.contains("#bytes"), "{:?}\n{told}", out.status);
}

#[test]
fn in_namespaces_of_its_own() {
    // Without a word of what is forbidden the programs would try it: there is no device, and nobody is root outside.
    let script = format!("ip link set lo up && test ! -e /dev/infiniband && {BOTH_ENDS}");
    as_nobody(&["unshare", "-Urn"], &script);
}

#[test]
fn without_privilege() {
    as_nobody(&[], BOTH_ENDS);
}

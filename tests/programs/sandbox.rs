//! Tests of programs without privilege or RDMA devices: as an unprivileged user in new user and network
//! namespaces, and as the same user outside them.

use std::process::Command;

use urxe_test_support::programs::{addresses, copy_built, port, text};

/// Script that runs a perftest server and client, each under `urxe run`.
const BOTH_ENDS: &str = r#"
    run() { ip=$1; shift; "$URXE" run --ip "$ip" -- ib_write_bw -F -n 100 -p "$PORT" "$@"; }
    run "$SERVER" >"$DIR/server" 2>&1 &
    until grep -q "$(printf ':%04X ' "$PORT").* 0A " /proc/net/tcp || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    run "$CLIENT" 127.0.0.1 || { cat "$DIR/server"; exit 1; }
    wait $! || { cat "$DIR/server"; exit 1; }
"#;

/// Runs a script and returns its output. The script runs as the user nobody if the tests run as root, and as
/// the current user otherwise.
fn as_nobody(before: &[&str], script: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    // The programs and libraries are copied to a directory that every user can read, because the checkout may
    // be in one of root's.
    for name in ["urxe", "libibverbs.so", "liburxe_preload.so"] {
        copy_built(name, &dir.path().join(name));
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
    let printed = text(&out);
    assert!(out.status.success(), "{:?}\n{printed}", out.status);
    printed
}

#[test]
fn perftest_runs_in_its_own_user_and_network_namespace() {
    // Whatever needs privilege would fail here: there is no RDMA device, and the user is not root outside.
    let script = format!("ip link set lo up && test ! -e /dev/infiniband && {BOTH_ENDS}");
    assert!(as_nobody(&["unshare", "-Urn"], &script).contains("#bytes"));
}

#[test]
fn perftest_runs_without_privilege() {
    assert!(as_nobody(&[], BOTH_ENDS).contains("#bytes"));
}

/// The directory of the broker's sockets exists already, as after a broker that was killed.
#[test]
fn perftest_runs_with_a_read_only_runtime_directory() {
    let script = format!(
        r#"
        ip link set lo up && mount -t tmpfs -o mode=755 tmpfs /run || exit 3
        inode() {{ printf %x "$(stat -Lc %i /proc/self/ns/$1)"; }}
        mkdir -m 700 "/run/urxe-$(inode user)-$(inode net)" "/run/urxe-$(id -u)" && mount -o remount,bind,ro /run || exit 3
        export XDG_RUNTIME_DIR=/run
        {BOTH_ENDS}
        "#
    );
    assert!(as_nobody(&["unshare", "-Urnm"], &script).contains("#bytes"));
}

/// Runs `ibv_asyncwatch`, which prints events as they arrive, while the port's interface goes down and comes
/// up again.
#[test]
fn asyncwatch_reports_port_error_and_port_active() {
    let script = r#"
        ip link set lo up
        ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v0 && ip link set v1 up && ip link set v0 up || exit 3
        until ip link show v0 | grep -q "state UP"; do sleep 0.02; done
        "$URXE" run --ip 10.77.0.1 -- stdbuf -oL ibv_asyncwatch >"$DIR/told" 2>&1 &
        seen() { for _ in $(seq 300); do grep -q "$1" "$DIR/told" && return; sleep 0.02; done; cat "$DIR/told"; exit 1; }
        seen "async event FD"
        ip link set v0 down
        seen IBV_EVENT_PORT_ERR
        ip link set v0 up
        seen IBV_EVENT_PORT_ACTIVE
        kill $!
        cat "$DIR/told"
    "#;
    let printed = as_nobody(&["unshare", "-Urn"], script);
    assert!(printed.contains("PORT_ERR") && printed.contains("PORT_ACTIVE"), "{printed}");
}

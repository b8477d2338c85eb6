//! Tests of unmodified libfabric on the library: device discovery, and messages between two programs over
//! each type of endpoint.
//!
//! Repeated over sockets.

use std::time::Duration;

use urxe_test_support::huge_pages;
use urxe_test_support::programs::{Running, addresses, in_namespace, text, urxe};

#[test]
fn fi_info_lists_the_device() {
    let [address, _] = addresses();
    let out = Running::new(urxe(&["run", "--ip", &address, "--", "fi_info", "-p", "verbs"]));
    let out = out.finish(Duration::from_secs(30));
    let printed = text(&out);
    assert!(out.status.success(), "{printed} (apt-get install libfabric-bin)");
    for line in ["domain: urxe0", "FI_EP_DGRAM", "FI_PROTO_IB_UD"] {
        assert!(printed.contains(line), "{line:?} is not in:\n{printed}");
    }
}

/// Runs both ends of `fi_pingpong`, the client on the address `client`, with messages of all sizes that the
/// endpoints support, and checks the data. It runs in a network namespace with another interface, because
/// libfabric ignores the addresses of `lo`.
fn pingpong(endpoint: &str, transport: &str, client: &str, sizes: usize) {
    let _huge_pages = huge_pages::leave();
    let script = r#"
        ip link set lo up && ip link add port type veth peer name far && ip link set port up && ip link set far up || exit 3
        ip addr add 10.7.0.1/24 dev port && ip addr add 10.7.0.2/24 dev port || exit 3
        run 10.7.0.1 fi_info -p verbs -t "$TYPE"
        run 10.7.0.1 fi_pingpong -p "$PROVIDER" -e "$ENDPOINT" -c -I 20 >"$DIR/server" 2>&1 &
        until grep -q ":B9E8 .* 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done
        run "$CLIENT" fi_pingpong -p "$PROVIDER" -e "$ENDPOINT" -c -I 20 10.7.0.1 || exit 1
        wait $! || { cat "$DIR/server"; exit 1; }
    "#;
    let kind = format!("FI_EP_{}", endpoint.to_uppercase());
    let variables = [("ENDPOINT", endpoint), ("TYPE", &kind), ("PROVIDER", transport), ("CLIENT", client)];
    let printed = in_namespace(script, &variables);
    assert!(printed.contains(&format!("provider: {transport}\n")), "{printed}");
    // There is a line for each size, `64 20 =20 ...`: as many messages as were sent were answered.
    let is_result = |line: &&str| line.split_whitespace().skip(1).take(2).eq(["20", "=20"]);
    let results = printed.lines().filter(is_result).count();
    assert_eq!(results, sizes, "{endpoint}: {printed}");
}

#[test]
fn libfabric_pingpong_over_datagram_endpoints_completes() {
    pingpong("dgram", "verbs", "10.7.0.2", 3);
}

/// Runs both ends on one address, because a server with connected endpoints announces 127.0.0.1 as its
/// address.
#[test]
fn libfabric_pingpong_over_connected_endpoints_completes() {
    pingpong("msg", "verbs", "10.7.0.1", 6);
}

/// Tests reliable datagram endpoints, which libfabric implements as a layer over connected endpoints.
#[test]
fn libfabric_pingpong_over_reliable_datagram_endpoints_completes() {
    pingpong("rdm", "verbs;ofi_rxm", "10.7.0.1", 6);
}

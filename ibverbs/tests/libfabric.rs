//! libfabric, unmodified, on the library: what it finds, and messages between two programs by each kind of endpoint.

mod support;

use std::time::Duration;

use support::{Running, addresses, in_namespace, text, urxe};

#[test]
fn the_device_is_listed() {
    let [address, _] = addresses();
    let out = Running::new(urxe(&["run", "--ip", &address, "--", "fi_info", "-p", "verbs"]));
    let out = out.finish(Duration::from_secs(30));
    let told = text(&out);
    assert!(out.status.success(), "{told} (apt-get install libfabric-bin)");
    for line in ["domain: urxe0", "FI_EP_DGRAM", "FI_PROTO_IB_UD"] {
        assert!(told.contains(line), "{line:?} is not in:\n{told}");
    }
}

/// Both ends of `fi_pingpong`, with `client` for the second's address: messages of all sizes that these endpoints have, with
/// their data checked. libfabric looks for addresses on every interface but `lo`, so this is in a network namespace with
/// another.
fn pingpong(endpoint: &str, transport: &str, client: &str, sizes: usize) {
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
    let told = in_namespace(script, &variables);
    assert!(told.contains(&format!("provider: {transport}\n")), "{told}");
    // A line for each size: `64  20  =20  …`, as many as were sent answered.
    let is_result = |line: &&str| line.split_whitespace().skip(1).take(2).eq(["20", "=20"]);
    let results = told.lines().filter(is_result).count();
    assert_eq!(results, sizes, "{endpoint}: {told}");
}

#[test]
fn datagrams() {
    pingpong("dgram", "verbs", "10.7.0.2", 3);
}

/// A server that connects tells its client that it is at 127.0.0.1, so both are at one address.
#[test]
fn connected_endpoints() {
    pingpong("msg", "verbs", "10.7.0.1", 6);
}

/// By way of libfabric's own layer over connected endpoints.
#[test]
fn reliable_datagrams() {
    pingpong("rdm", "verbs;ofi_rxm", "10.7.0.1", 6);
}

//! libfabric, unmodified, on the library: what it finds. Its endpoints want a connection manager.

mod support;

use std::time::Duration;

use support::{Running, addresses, text, urxe};

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

//! Many connections by the drop-in librdmacm, between two processes on two addresses.

mod support;

use std::time::Duration;

use support::{CProgram, Library, Running, TCP_PORTS, addresses, port, text, wait_for_service};

/// How long all may take: two minutes of a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn ten_thousand_in_sequence_and_a_thousand_at_once() {
    let (library, many, number) = (Library::new(), CProgram::build("many"), port());
    let [a, b] = addresses();
    let start = |address: &str, role: &[&str]| {
        let mut command = library.program(many.program(), address);
        Running::new({
            command.args([&a, &number.to_string(), "10000", "1000"]).args(role);
            command
        })
    };
    let serving = start(&a, &[]);
    wait_for_service(&[TCP_PORTS], number);
    let client = start(&b, &["client"]).finish(LIMIT);
    let server = serving.finish(Duration::from_secs(10));
    let told = format!("{}\n{}", text(&client), text(&server));
    println!("{told}");
    assert!(client.status.success() && server.status.success(), "{told}");
}

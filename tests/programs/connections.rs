//! Test of many connections through the drop-in librdmacm, between processes on two addresses.

use std::time::Duration;

use urxe_test_support::programs::{
    CProgram, Library, TCP_PORTS, addresses, both_ends, port, wait_for_service,
};

/// Time limit for the whole test, long enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn ten_thousand_connections_in_sequence_and_a_thousand_at_once_leak_nothing() {
    let (library, many, number) = (Library::new(), CProgram::build("many"), port());
    let [a, b] = addresses();
    let command = |address: &str, role: &[&str]| {
        let mut command = library.program(many.program(), address);
        command.args([&a, &number.to_string(), "10000", "1000"]).args(role);
        command
    };
    let (server_command, client_command) = (command(&a, &[]), command(&b, &["client"]));
    let printed = both_ends(server_command, || wait_for_service(&[TCP_PORTS], number), client_command, LIMIT);
    println!("{}", printed.join("\n"));
}

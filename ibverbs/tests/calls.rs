//! What calls of verbs return, and what they write into the program's structs (`c/calls.c`).

mod support;

use support::{CProgram, addresses};

fn case(name: &str) {
    let [address, _] = addresses();
    CProgram::build("calls").run(&address, &[name]);
}

#[test]
fn bind_of_a_type_2_window_takes_its_index_from_the_window_and_writes_its_key_back() {
    case("windows");
}

//! Tests of the return values of verbs calls and the struct fields that they write (`c/calls.c`).

use std::time::Duration;

use urxe::verbs::Personality;
use urxe_test_support::programs::{CProgram, Library, Running, addresses, text};

fn case(name: &str) {
    let [address, _] = addresses();
    CProgram::build("calls").run(&address, &[name]);
}

#[test]
fn bind_of_a_type_2_window_sets_only_the_low_byte_of_its_rkey() {
    case("windows");
}

#[test]
fn call_that_returns_an_error_number_sets_errno_to_it() {
    case("numbers");
}

#[test]
fn call_on_a_destroyed_object_or_one_with_an_overwritten_context_or_handle_fails() {
    case("handles");
}

#[test]
fn capacity_of_a_receive_queue_is_ignored_for_a_queue_pair_without_one() {
    case("receives of others");
}

#[test]
fn address_without_a_grh_is_refused_in_every_personality_with_one_warning() {
    for personality in Personality::ALL.map(|p| p.name) {
        let [address, _] = addresses();
        let library = Library::new();
        let mut command = library.program(CProgram::build("calls").program(), &address);
        command.arg("no grh").env("URXE_PERSONALITY", personality).env("URXE_WARNINGS", "1");
        let out = Running::new(command).finish(Duration::from_secs(60));
        let printed = text(&out);
        assert!(out.status.success(), "{personality}: {printed}");
        assert_eq!(printed.matches("urxe run --lid-routing").count(), 1, "{personality}: {printed}");
    }
}

#[test]
fn header_of_a_received_datagram_has_the_fields_of_its_address() {
    case("header of a datagram");
}

#[test]
fn call_that_succeeds_leaves_errno_unchanged() {
    case("errno");
}

#[test]
fn address_with_another_port_than_1_is_refused() {
    case("ports");
}

#[test]
fn reg_dmabuf_mr_of_a_closed_or_another_descriptor_fails_with_ebadf_or_einval() {
    let (library, program) = (Library::new(), CProgram::build("dma_buf"));
    for (variable, value) in [("URXE_DMA_BUF", "1"), ("URXE_PERSONALITY", "mlx5")] {
        let mut command = library.program(program.program(), &addresses()[0]);
        command.arg("refused").env(variable, value);
        let out = Running::new(command).finish(Duration::from_secs(60));
        assert!(out.status.success(), "{variable}: {}", text(&out));
    }
}

/// Programs take any other error for support of GPUDirect.
#[test]
fn reg_dmabuf_mr_is_unsupported_unless_asked_for() {
    let [address, _] = addresses();
    CProgram::build("dma_buf").run(&address, &["unsupported"]);
}

#[test]
fn posting_a_cyclic_list_fails_with_enomem_when_the_queue_is_full() {
    case("circles");
}

#[test]
fn failed_rereg_mr_returns_err_input_or_err_cmd() {
    case("registered anew");
}

#[test]
fn parent_domain_accepts_allow_cc_unprotected_alloc() {
    case("unprotected");
}

#[test]
fn device_has_no_kernel_index() {
    case("device index");
}

#[test]
fn null_mr_has_rkey_0_and_peers_cannot_use_its_lkey() {
    case("null region");
}

#[test]
fn req_notify_raises_an_event_for_earlier_completions_except_in_personality_rxe() {
    case("missed");
    let (library, program, [address, _]) = (Library::new(), CProgram::build("calls"), addresses());
    let mut command = library.program(program.program(), &address);
    command.arg("missed as rxe").env("URXE_PERSONALITY", "rxe");
    let out = Running::new(command).finish(Duration::from_secs(60));
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
}

//! Tests of the calls that rdma-core 65 has and 44 lacks (`c/release65.c`), in their version nodes.

use urxe_test_support::programs::{CProgram, addresses};

fn case(name: &str) {
    let [address, _] = addresses();
    CProgram::build_with("release65", &["-lrdmacm", "-libverbs", "-ldl"]).run(&address, &[name, &address]);
}

#[test]
fn dma_handle_is_busy_while_a_region_has_it_and_invalid_hints_are_refused() {
    case("dma handles");
}

#[test]
fn reg_mr_ex_registers_memory_and_refuses_contradictory_attributes() {
    case("registration");
}

#[test]
fn buffer_is_registered_in_its_own_domain_and_within_its_range() {
    case("buffers");
}

#[test]
fn completion_counters_count_signaled_and_unsignaled_operations_and_failures() {
    case("counters");
}

#[test]
fn flush_through_qp_ex_completes_if_the_region_permits_it() {
    case("flushes");
}

#[test]
fn own_event_wakes_a_waiting_thread_and_addrinfo_is_resolved_on_another_thread() {
    case("cm events");
}

#[test]
fn repoll_set_reports_rsockets_and_other_descriptors() {
    case("sets");
}

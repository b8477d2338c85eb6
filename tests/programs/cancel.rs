//! Tests of thread cancellation (`pthread_cancel`) in library calls (`c/cancel.c`).

use urxe_test_support::programs::{CProgram, addresses};

/// Runs one case of `c/cancel.c`, with deferred and asynchronous cancellation. It cancels threads blocked in
/// library calls: they must end as cancelled, and the objects for which they waited must remain usable by
/// other threads.
fn cancelled_in(case: &str) {
    let [address, _] = addresses();
    let program = CProgram::build("cancel");
    program.run(&address, &[case, &address]);
    // The case of a thread that goes on after its cancellation does not apply to the asynchronous type.
    if case != "not blocking" {
        program.run(&address, &[case, &address, "asynchronous"]);
    }
}

#[test]
fn thread_blocked_in_ibv_get_cq_event_is_cancelled() {
    cancelled_in("cq event");
}

#[test]
fn thread_blocked_in_ibv_get_async_event_is_cancelled() {
    cancelled_in("async event");
}

#[test]
fn thread_that_calls_ibv_get_cq_event_without_a_pause_is_cancelled() {
    cancelled_in("busy");
}

#[test]
fn cancelled_thread_continues_through_calls_that_do_not_block() {
    cancelled_in("not blocking");
}

#[test]
fn thread_blocked_in_rdma_get_cm_event_is_cancelled() {
    cancelled_in("cm event");
}

#[test]
fn thread_blocked_in_rdma_get_request_or_rdma_connect_is_cancelled() {
    cancelled_in("request");
}

#[test]
fn thread_blocked_in_any_call_of_a_stream_rsocket_is_cancelled() {
    cancelled_in("streams");
}

#[test]
fn thread_blocked_in_any_call_of_a_datagram_rsocket_is_cancelled() {
    cancelled_in("datagrams");
}

//! Tests of the verbs API beyond posting and polling: batches of work requests, extended polling, completion
//! channels, asynchronous events.

mod batches;
mod events;
mod injection;
mod notifications;
mod polling;

mod queries;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use urxe::verbs::errors::DestroyCqError;
use urxe::verbs::*;
use urxe_test_support::nic::{connect, qp_pair};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a fabric in virtual time with a latency of 10 µs from port to port.
fn slow_fabric() -> Fabric {
    let latency = Duration::from_micros(10);
    Fabric::virtual_time(FabricConfig::default().latency(latency)).unwrap()
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// Registers a region of `len` bytes with all access rights.
fn region(node: &TestEndpoint, len: usize) -> Mr {
    node.pd.reg_mr(len, Access::ALL).unwrap()
}

/// Returns all queued events.
fn events(context: &Context) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| context.next_event()).collect()
}

#[test]
fn queue_pair_is_destroyed_with_its_last_handle() {
    let (a, b) = slow_fabric().pair().unwrap();
    let clone = a.qp.clone();
    drop(a.qp);
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    clone.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    assert_eq!(a.cq.clone().destroy(Duration::ZERO), Err(DestroyCqError::InUse(2)));
    drop(clone);
    assert_eq!(a.cq.destroy(Duration::ZERO), Ok(()));
}

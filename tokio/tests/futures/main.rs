//! Tests of the futures: delivery, dropped futures, connections, requests, streams, virtual time. Uses
//! the fabric, and UDP sockets on loopback addresses.

mod connections;
mod requests;
mod stream;
mod virtual_time;

use std::future::Future;
use std::pin::pin;
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use urxe::verbs::errors::{CqOverflow, WaitError};
use urxe::verbs::*;
use urxe_test_support::nic::{connect, on_udp, qp_pair};
use urxe_tokio::*;

/// Time limit for waits, far longer than a passing test needs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a future to completion on a single-threaded runtime; panics after [`LIMIT`].
fn run<R>(future: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("the future does not end") })
}

/// Polls a future once and drops it; returns whether it was pending.
fn is_pending_and_dropped(future: impl Future) -> bool {
    pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())).is_pending()
}

/// A NIC with a connected queue pair and a completion queue for asynchronous waits.
struct Node {
    context: Context,
    cq: AsyncCq,
    qp: Qp,
}

impl Node {
    fn new(context: Context, capacity: usize) -> Node {
        let cq = AsyncCq::new(&context, capacity).unwrap();
        let qp = context.alloc_pd().unwrap().create_qp(cq.cq(), cq.cq(), &QpOptions::default()).unwrap();
        Node { context, cq, qp }
    }

    fn pair(contexts: [Context; 2]) -> [Node; 2] {
        let nodes = contexts.map(|context| Node::new(context, 64));
        connect(&nodes[0].qp, &nodes[1].qp);
        nodes
    }
}

fn on_fabric() -> [Context; 2] {
    let fabric = Fabric::new();
    [(); 2].map(|()| Context::on_fabric(&fabric).unwrap())
}

fn over_udp(addresses: [&str; 2]) -> [Context; 2] {
    addresses.map(|ip| on_udp(ip, 1))
}

/// Drops a pending wait, and a wait that has already been woken, and checks that each completion is then
/// delivered exactly once.
async fn completions_are_delivered_once_after_dropped_waits([mut a, mut b]: [Node; 2]) {
    assert!(is_pending_and_dropped(b.cq.wait()));
    for round in 0..50 {
        b.qp.post_recv(&RecvWr::empty(round)).unwrap();
        {
            let mut wait = pin!(b.cq.wait());
            let mut task = TaskContext::from_waker(Waker::noop());
            assert!(wait.as_mut().poll(&mut task).is_pending());
            a.qp.post_send(&SendWr::send(100 + round, &[])).unwrap();
            // The sender's completion shows that the message has arrived, so the wait above is woken.
            assert_eq!(a.cq.wait().await.unwrap().wr_id, 100 + round);
        }
        assert_eq!(b.cq.wait().await.unwrap().wr_id, round);
        assert!(is_pending_and_dropped(b.cq.wait()), "delivered twice in round {round}");
    }
    assert!(is_pending_and_dropped(a.cq.wait()));
}

#[test]
fn dropped_waits_lose_no_completion_on_a_fabric() {
    run(completions_are_delivered_once_after_dropped_waits(Node::pair(on_fabric())));
}

#[test]
fn dropped_waits_lose_no_completion_over_udp() {
    let contexts = over_udp(["127.61.0.1", "127.61.0.2"]);
    run(completions_are_delivered_once_after_dropped_waits(Node::pair(contexts)));
}

/// Receives messages sent by another thread while waits are dropped at arbitrary points. Each message must be
/// delivered exactly once and in order.
async fn messages_arrive_once_although_waits_are_dropped([a, mut b]: [Node; 2]) {
    const MESSAGES: u64 = 2000;
    const RECEIVES: u64 = 32;
    (0..RECEIVES).for_each(|wr_id| b.qp.post_recv(&RecvWr::empty(wr_id)).unwrap());
    let sender = std::thread::spawn(move || {
        for wr_id in 0..MESSAGES {
            a.qp.post_send(&SendWr::send_imm(wr_id, &[], wr_id as u32)).unwrap();
            assert_eq!(a.cq.cq().wait(LIMIT).unwrap().wr_id, wr_id);
        }
    });
    let mut expected = 0;
    while expected < MESSAGES {
        let completion = tokio::select! {
            biased;
            completion = b.cq.wait() => completion.unwrap(),
            () = tokio::task::yield_now() => continue,
        };
        assert_eq!(completion.imm, Some(expected as u32));
        b.qp.post_recv(&RecvWr::empty(completion.wr_id)).unwrap();
        expected += 1;
    }
    sender.join().unwrap();
    assert!(is_pending_and_dropped(b.cq.wait()));
}

#[test]
fn messages_sent_by_another_thread_arrive_exactly_once_on_a_fabric() {
    run(messages_arrive_once_although_waits_are_dropped(Node::pair(on_fabric())));
}

#[test]
fn messages_sent_by_another_thread_arrive_exactly_once_over_udp() {
    let contexts = over_udp(["127.61.0.3", "127.61.0.4"]);
    run(messages_arrive_once_although_waits_are_dropped(Node::pair(contexts)));
}

#[test]
fn failed_work_request_ends_the_wait_with_its_completion() {
    run(async {
        let [mut a, _b] = Node::pair(on_fabric());
        a.qp.post_send(&SendWr::write(7, &[], RemoteAddr::default())).unwrap();
        assert!(a.cq.wait().await.is_ok(), "a WRITE without data accesses no memory");
        a.qp.post_send(&SendWr::write(8, &[], RemoteAddr::default()).inline(b"x")).unwrap();
        let Err(WaitError::Failed(completion)) = a.cq.wait().await else { panic!("no error") };
        assert_eq!((completion.wr_id, completion.status), (8, WcStatus::RemAccessErr));
    });
}

#[test]
fn cq_overflow_ends_the_wait_after_the_earlier_completions() {
    run(async {
        let contexts = on_fabric();
        let [mut a, b] = contexts.map(|context| Node::new(context, 2));
        connect(&a.qp, &b.qp);
        for wr_id in 0..3 {
            a.qp.post_send(&SendWr::write(wr_id, &[], RemoteAddr::default())).unwrap();
        }
        assert_eq!(a.cq.wait().await.unwrap().wr_id, 0);
        assert_eq!(a.cq.wait().await.unwrap().wr_id, 1);
        assert_eq!(a.cq.wait().await, Err(WaitError::Overflow(CqOverflow { capacity: 2 })));
    });
}

#[test]
fn each_event_of_a_completion_channel_names_its_cq() {
    run(async {
        let (a, b) = Fabric::new().pair().unwrap();
        let mut channel = AsyncCompletionChannel::new(b.context.create_channel().unwrap());
        let cqs =
            [(); 2].map(|()| b.context.create_cq(CqOptions::new(8).channel(channel.channel())).unwrap());
        let pairs = cqs.each_ref().map(|cq| qp_pair((&b.pd, cq), (&a.pd, &a.cq)));
        cqs.iter().for_each(|cq| cq.req_notify(Notify::Any));
        for first in [1, 0] {
            assert!(is_pending_and_dropped(channel.get_event()));
            pairs[first].0.post_recv(&RecvWr::empty(first as u64)).unwrap();
            pairs[first].1.post_send(&SendWr::send(9, &[])).unwrap();
            let event = channel.get_event().await.unwrap();
            assert_eq!(*event, cqs[first]);
        }
        assert!(is_pending_and_dropped(channel.get_event()));
    });
}

#[test]
fn dropped_wait_loses_no_asynchronous_event() {
    run(async {
        let fabric = Fabric::new();
        let context = Context::on_fabric(&fabric).unwrap();
        let address = context.query_gid(0).unwrap().ip();
        let mut events = EventStream::new(&context);
        for up in [false, true, false] {
            {
                let mut next = pin!(events.next());
                let mut task = TaskContext::from_waker(Waker::noop());
                assert!(next.as_mut().poll(&mut task).is_pending());
                fabric.set_port_up(address, up).unwrap();
            }
            let expected = if up { AsyncEvent::PortActive } else { AsyncEvent::PortError };
            assert_eq!(events.next().await, Ok(expected));
            assert!(is_pending_and_dropped(events.next()));
        }
        fabric.remove_device(address).unwrap();
        assert_eq!(events.next().await, Ok(AsyncEvent::DeviceFatal));
    });
}

#[test]
fn messages_of_each_task_wake_the_waiting_other_task() {
    run(async {
        let [mut a, mut b] = Node::pair(over_udp(["127.61.0.5", "127.61.0.6"]));
        for wr_id in 0..8 {
            a.qp.post_recv(&RecvWr::empty(wr_id)).unwrap();
            b.qp.post_recv(&RecvWr::empty(wr_id)).unwrap();
        }
        let echo = tokio::spawn(async move {
            for wr_id in 0..100 {
                assert_eq!(receive(&mut b).await, wr_id);
                b.qp.post_send(&SendWr::send_imm(wr_id, &[], wr_id as u32)).unwrap();
            }
            // The last acknowledgement leaves this NIC before it is dropped.
            b.context
        });
        for wr_id in 0..100 {
            a.qp.post_send(&SendWr::send_imm(wr_id, &[], wr_id as u32)).unwrap();
            assert_eq!(receive(&mut a).await, wr_id);
        }
        echo.await.unwrap();
    });
}

/// Waits for the next message, reposts its receive, and returns its immediate data.
async fn receive(node: &mut Node) -> u64 {
    loop {
        let completion = node.cq.wait().await.unwrap();
        if let Some(imm) = completion.imm {
            node.qp.post_recv(&RecvWr::empty(completion.wr_id)).unwrap();
            return imm.into();
        }
    }
}

//! Tests of the futures of work requests: results, several tasks, full queues, dropped futures, errors.

use std::sync::Arc;

use urxe::Error;
use urxe::verbs::service::{Connected, Service};

use super::*;

fn connected(contexts: [Context; 2], options: &QpOptions) -> [AsyncQp; 2] {
    connected_by(contexts, options)
}

fn connected_by<S: Service + Connected>(contexts: [Context; 2], options: &QpOptions) -> [AsyncQp<S>; 2] {
    let qps = contexts.map(|context| AsyncQp::new(&context.alloc_pd().unwrap(), options).unwrap());
    connect(&qps[0].qp().untyped(), &qps[1].qp().untyped());
    qps
}

fn region<S: Service + Connected>(qp: &AsyncQp<S>, len: usize) -> Arc<Mr> {
    Arc::new(qp.qp().pd().reg_mr(len, Access::ALL).unwrap())
}

fn in_virtual_time(seed: u64) -> (Fabric, [Context; 2]) {
    let latency = Duration::from_micros(10);
    let config = FabricConfig::default().seed(seed).latency(latency).loss(0.1);
    let fabric = Fabric::virtual_time(config).unwrap();
    let contexts = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
    (fabric, contexts)
}

fn small_queues(depth: u32) -> QpOptions {
    QpOptions::default()
        .send(SendCaps { max_wr: depth, max_sge: 1, max_inline: 16 })
        .recv(RecvCaps { max_wr: depth, max_sge: 1 })
}

/// Runs a future on a runtime with several threads; panics after [`LIMIT`].
fn run_on_threads<R>(future: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("the future does not end") })
}

/// Polls a future once; panics if it is ready.
fn poll_once(future: std::pin::Pin<&mut impl Future>) {
    assert!(future.poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
}

async fn each_verb_has_its_result([a, b]: [AsyncQp; 2]) {
    let (source, target) = (region(&a, 64), region(&b, 64));
    source.write(0, b"hello").unwrap();
    a.write(&source, 0..5, target.remote(10)).await.unwrap();
    assert_eq!(target.read_vec(10..15).unwrap(), b"hello");
    a.read(&source, 20..25, target.remote(10)).await.unwrap();
    assert_eq!(source.read_vec(20..25).unwrap(), b"hello");
    assert_eq!(a.fetch_add(target.remote(32), 5).await.unwrap(), 0);
    assert_eq!(a.compare_swap(target.remote(32), 5, 9).await.unwrap(), 5);
    assert_eq!(a.compare_swap(target.remote(32), 5, 7).await.unwrap(), 9);
    assert_eq!(target.buffer().load_u64(32), Ok(9));

    let (received, sent) = tokio::join!(b.recv(&target, 40..60), a.send(&source, 0..5));
    let received = received.unwrap();
    assert_eq!((received.byte_len, received.imm, sent.unwrap()), (5, None, ()));
    assert_eq!(target.read_vec(40..45).unwrap(), b"hello");
    let (received, sent) = tokio::join!(b.recv(&target, 40..60), a.execute(SendWr::send_imm(0, &[], 7), &[]));
    assert_eq!((received.unwrap().imm, sent.unwrap().opcode), (Some(7), WcOpcode::Send));
    let wr = SendWr::write_imm(99, &[], target.remote(0), 8).inline(b"inline");
    let (received, sent) = tokio::join!(b.recv(&target, 0..0), a.execute(wr, &[]));
    assert_eq!((received.unwrap().imm, sent.unwrap().opcode), (Some(8), WcOpcode::RdmaWrite));
    assert_eq!(target.read_vec(0..6).unwrap(), b"inline");
}

#[test]
fn each_verb_has_its_result_on_a_fabric() {
    run(each_verb_has_its_result(connected(on_fabric(), &QpOptions::default())));
}

#[test]
fn each_verb_has_its_result_over_udp() {
    let contexts = over_udp(["127.61.0.9", "127.61.0.10"]);
    run(each_verb_has_its_result(connected(contexts, &QpOptions::default())));
}

#[test]
fn each_verb_has_its_result_in_virtual_time_with_loss() {
    for seed in 0..5 {
        let (_fabric, contexts) = in_virtual_time(seed);
        run(each_verb_has_its_result(connected(contexts, &QpOptions::default())));
    }
}

#[test]
fn sends_and_writes_of_an_unreliable_connection_have_results() {
    run(async {
        let [a, b] = connected_by::<Uc>(on_fabric(), &QpOptions::default());
        let (source, target) = (region(&a, 8), region(&b, 8));
        a.write(&source, 0..8, target.remote(0)).await.unwrap();
        let (received, sent) = tokio::join!(b.recv(&target, 0..8), a.send(&source, 0..3));
        assert_eq!((received.unwrap().byte_len, sent.unwrap()), (3, ()));
    });
}

/// Lets many tasks, each with a place in the regions, use one queue pair whose queues are shorter than the
/// number of tasks.
async fn many_tasks([a, b]: [AsyncQp; 2]) {
    const TASKS: usize = 40;
    const ROUNDS: u64 = 25;
    let (source, target) = (region(&a, TASKS * 16), region(&b, TASKS * 16 + 8));
    let tasks = (0..TASKS).map(|task| {
        let (a, source, target) = (a.clone(), source.clone(), target.clone());
        tokio::spawn(async move {
            let (out, back) = (task * 16, task * 16 + 8);
            for round in 0..ROUNDS {
                let value = (round << 32 | task as u64).to_ne_bytes();
                source.write(out, &value).unwrap();
                a.write(&source, out..out + 8, target.remote(out)).await.unwrap();
                a.read(&source, back..back + 8, target.remote(out)).await.unwrap();
                assert_eq!(source.read_vec(back..back + 8).unwrap(), value);
                a.fetch_add(target.remote(TASKS * 16), 1).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(target.buffer().load_u64(TASKS * 16), Ok(TASKS as u64 * ROUNDS));
}

#[test]
fn many_tasks_share_a_queue_pair_on_one_thread() {
    run(many_tasks(connected(on_fabric(), &small_queues(8))));
}

#[test]
fn many_tasks_share_a_queue_pair_on_several_threads() {
    run_on_threads(many_tasks(connected(on_fabric(), &small_queues(8))));
}

#[test]
fn many_tasks_share_a_queue_pair_over_udp() {
    let contexts = over_udp(["127.61.0.11", "127.61.0.12"]);
    run_on_threads(many_tasks(connected(contexts, &small_queues(8))));
}

#[test]
fn many_tasks_in_virtual_time_replay_from_the_seed() {
    let times = [1, 1, 2].map(|seed| {
        let (fabric, contexts) = in_virtual_time(seed);
        run(many_tasks(connected(contexts, &small_queues(8))));
        assert!(fabric.counters().lost > 0);
        fabric.now().0
    });
    assert_eq!(times[0], times[1]);
    assert_ne!(times[0], times[2]);
}

/// Drops futures at arbitrary points, and checks that their slots become free and that others get their
/// completions.
async fn requests_complete_although_others_are_dropped([a, b]: [AsyncQp; 2]) {
    let (source, target) = (region(&a, 8), region(&b, 8));
    for round in 0..300 {
        let yields = async {
            for _ in 0..round % 4 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            written = a.write(&source, 0..8, target.remote(0)) => written.unwrap(),
            () = yields => {}
        }
        if round % 3 == 0 {
            a.read(&source, 0..8, target.remote(0)).await.unwrap();
        }
    }
    assert!(a.qp().state() == QpState::Rts);
}

#[test]
fn requests_complete_although_others_are_dropped_on_a_fabric() {
    run(requests_complete_although_others_are_dropped(connected(on_fabric(), &small_queues(4))));
}

#[test]
fn requests_complete_although_others_are_dropped_over_udp() {
    let contexts = over_udp(["127.61.0.13", "127.61.0.14"]);
    run(requests_complete_although_others_are_dropped(connected(contexts, &small_queues(4))));
}

#[test]
fn requests_complete_although_others_are_dropped_in_virtual_time() {
    let (_fabric, contexts) = in_virtual_time(7);
    run(requests_complete_although_others_are_dropped(connected(contexts, &small_queues(4))));
}

#[test]
fn region_of_a_dropped_future_exists_until_its_request_completes() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(1);
        let [a, b] = connected(contexts, &QpOptions::default());
        let (source, target) = (region(&a, 8), region(&b, 8));
        target.write(0, b"original").unwrap();
        let result = region(&a, 8);
        let dropped = Arc::downgrade(&result);
        poll_once(pin!(a.read(&result, 0..8, target.remote(0))));
        drop(result);
        assert!(dropped.upgrade().is_some(), "the NIC may still write to the region");
        // Requests complete in order.
        a.write(&source, 0..8, target.remote(0)).await.unwrap();
        assert!(dropped.upgrade().is_none(), "the region is held after the completion");
    });
}

#[test]
fn dropped_receive_still_consumes_a_message_and_frees_its_slot() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(2);
        let [a, b] = connected(contexts, &small_queues(1));
        let (source, target) = (region(&a, 8), region(&b, 8));
        poll_once(pin!(b.recv(&target, 0..8)));
        source.write(0, b"first").unwrap();
        a.send(&source, 0..5).await.unwrap();
        assert_eq!(target.read_vec(0..5).unwrap(), b"first");
        // The only slot of the receive queue is free once the first message has been taken.
        let (received, sent) = tokio::join!(b.recv(&target, 0..8), a.send(&source, 0..3));
        assert_eq!((received.unwrap().byte_len, sent.unwrap()), (3, ()));
    });
}

#[test]
fn receive_that_is_awaited_by_reference_keeps_its_message_after_a_timeout() {
    run(async {
        let [a, b] = connected(on_fabric(), &QpOptions::default());
        let (source, target) = (region(&a, 8), region(&b, 8));
        let mut receive = pin!(b.recv(&target, 0..8));
        assert!(tokio::time::timeout(Duration::from_millis(5), &mut receive).await.is_err());
        a.send(&source, 0..6).await.unwrap();
        assert_eq!(receive.await.unwrap().byte_len, 6);
    });
}

#[test]
fn future_that_is_kept_but_not_polled_delays_no_other() {
    run(async {
        let [a, b] = connected(over_udp(["127.61.0.15", "127.61.0.16"]), &QpOptions::default());
        let (source, target) = (region(&a, 8), region(&b, 8));
        let mut kept = pin!(b.recv(&target, 0..8));
        poll_once(kept.as_mut());
        let task = tokio::spawn({
            let (b, target) = (b.clone(), region(&b, 8));
            async move { b.recv(&target, 0..8).await.unwrap().imm }
        });
        tokio::task::yield_now().await;
        let mut last = pin!(b.read(&target, 0..0, source.remote(0)));
        poll_once(last.as_mut());
        a.execute(SendWr::send_imm(0, &[], 1), &[]).await.unwrap();
        a.execute(SendWr::send_imm(0, &[], 2), &[]).await.unwrap();
        assert_eq!(task.await.unwrap(), Some(2));
        assert_eq!(kept.await.unwrap().imm, Some(1));
    });
}

#[test]
fn all_futures_end_with_flushed_requests_after_an_error() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(3);
        let [a, b] = connected(contexts, &small_queues(4));
        let (mr, target) = (region(&a, 8), region(&b, 8));
        let receives = (0..3).map(|_| {
            let (a, mr) = (a.clone(), mr.clone());
            tokio::spawn(async move { a.recv(&mr, 0..8).await })
        });
        let receives: Vec<_> = receives.collect();
        tokio::task::yield_now().await;
        let bad = RemoteAddr { rkey: RKey(0), ..target.remote(0) };
        // More than fit into the queue: the last ones are posted after the error.
        let writes = (0..6).map(|_| {
            let (a, mr) = (a.clone(), mr.clone());
            tokio::spawn(async move { a.write(&mr, 0..8, bad).await })
        });
        let mut statuses = Vec::new();
        for write in writes.collect::<Vec<_>>() {
            let Err(Error::Wait(WaitError::Failed(completion))) = write.await.unwrap() else { panic!() };
            statuses.push(completion.status);
        }
        assert_eq!(statuses[0], WcStatus::RemAccessErr);
        assert!(statuses[1..].iter().all(|&status| status == WcStatus::WrFlushErr), "{statuses:?}");
        for receive in receives {
            let Err(Error::Wait(WaitError::Failed(completion))) = receive.await.unwrap() else { panic!() };
            assert_eq!(completion.status, WcStatus::WrFlushErr);
        }
    });
}

#[test]
fn range_outside_of_the_region_is_refused_without_an_error_of_the_queue_pair() {
    run(async {
        let [a, b] = connected(on_fabric(), &QpOptions::default());
        let (source, target) = (region(&a, 8), region(&b, 8));
        for range in [0..9, 9..9, 5..usize::MAX] {
            let refused = a.write(&source, range, target.remote(0)).await;
            assert!(matches!(refused, Err(Error::Memory(_))), "{refused:?}");
        }
        a.write(&source, 8..8, target.remote(0)).await.unwrap();
    });
}

#[test]
fn idle_fabric_ends_the_wait_but_not_the_request() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(4);
        let [a, b] = connected(contexts, &small_queues(2));
        let (source, target) = (region(&a, 8), region(&b, 8));
        for _ in 0..2 {
            let idle = b.recv(&target, 0..8).await;
            assert!(matches!(idle, Err(Error::Wait(WaitError::Idle))), "{idle:?}");
        }
        a.send(&source, 0..8).await.unwrap();
        a.send(&source, 0..8).await.unwrap();
        // Both receives were still posted, and have completed.
        let (received, sent) = tokio::join!(b.recv(&target, 0..8), a.send(&source, 0..2));
        assert_eq!((received.unwrap().byte_len, sent.unwrap()), (2, ()));
    });
}

//! Tests of asynchronous tasks on a fabric in virtual time: the tasks' waits advance the clock, and the seed
//! determines the run.

use super::*;

fn lossy_fabric(seed: u64) -> Fabric {
    let latency = Duration::from_micros(10);
    Fabric::virtual_time(FabricConfig::default().seed(seed).latency(latency).loss(0.2)).unwrap()
}

/// Exchanges messages between two tasks; returns the virtual time at the end and the number of lost packets.
fn ping_pong(seed: u64) -> (Duration, u64) {
    run(async {
        let fabric = lossy_fabric(seed);
        let [mut a, mut b] = Node::pair([(); 2].map(|()| Context::on_fabric(&fabric).unwrap()));
        for wr_id in 0..8 {
            a.qp.post_recv(&RecvWr::empty(wr_id)).unwrap();
            b.qp.post_recv(&RecvWr::empty(wr_id)).unwrap();
        }
        let echo = tokio::spawn(async move {
            for _ in 0..20 {
                let imm = receive(&mut b).await;
                b.qp.post_send(&SendWr::send_imm(0, &[], imm as u32)).unwrap();
            }
            b
        });
        for wr_id in 0..20 {
            a.qp.post_send(&SendWr::send_imm(wr_id, &[], wr_id as u32)).unwrap();
            assert_eq!(receive(&mut a).await, wr_id);
        }
        drop(echo.await.unwrap());
        (Duration::from_nanos(fabric.now().0), fabric.counters().lost)
    })
}

#[test]
fn tasks_with_the_same_seed_give_the_same_result() {
    let first = ping_pong(1);
    assert!(first.1 > 0, "nothing was lost: {first:?}");
    assert_eq!(ping_pong(1), first);
    assert_ne!(ping_pong(2), first);
}

#[test]
fn dropped_wait_loses_no_completion_in_virtual_time() {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let nodes = Node::pair([(); 2].map(|()| Context::on_fabric(&fabric).unwrap()));
    run(completions_are_delivered_once_after_dropped_waits(nodes));
}

#[test]
fn wait_fails_when_the_fabric_is_idle() {
    run(async {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let [mut a, _b] = Node::pair([(); 2].map(|()| Context::on_fabric(&fabric).unwrap()));
        assert_eq!(a.cq.wait().await, Err(WaitError::Idle));
        assert_eq!(EventStream::new(&a.context).next().await, Err(WaitError::Idle));
    });
}

#[test]
fn wait_of_one_task_ends_when_another_task_posts_a_message() {
    run(async {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let [mut a, b] = Node::pair([(); 2].map(|()| Context::on_fabric(&fabric).unwrap()));
        a.qp.post_recv(&RecvWr::empty(1)).unwrap();
        let waiter = tokio::spawn(async move { a.cq.wait().await.map(|completion| completion.wr_id) });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        b.qp.post_send(&SendWr::send(2, &[])).unwrap();
        assert_eq!(waiter.await.unwrap(), Ok(1));
    });
}

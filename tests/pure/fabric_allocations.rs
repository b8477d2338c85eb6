//! Tests that a warmed-up fabric carries packets without allocating memory.

use std::time::Duration;

use urxe::fabric::{Fabric, FabricConfig};
use urxe::link::Link;
use urxe::transport::TxQueue;
use urxe::wire::{Bth, Flow, Headers, Opcode};

/// Sends bursts of packets of three sizes from one port to another. Returns the number of allocations after
/// the warm-up, and the number of packets received.
fn carry(fabric: &Fabric, rounds: usize) -> (u64, u64) {
    let mut a = fabric.port(&fabric.auto_address()).unwrap();
    let mut b = fabric.port(&fabric.auto_address()).unwrap();
    let queues = [8, 400, 4096].map(|len| {
        let flow = Flow::new(a.info().addresses[1], b.info().addresses[1], 50_000);
        let mut queue = TxQueue::new(a.info().burst);
        for _ in 0..40 {
            let bth = Bth { opcode: Opcode(0x0a), ..Bth::default() };
            queue.push(&flow, Headers { bth, ..Headers::default() }, &vec![1; len]);
        }
        queue
    });
    let mut received = 0;
    let mut run_rounds = |n: usize| {
        for i in 0..n {
            a.transmit(fabric.now(), &queues[i % 3]).unwrap();
            if i % 4 == 3 {
                fabric.advance(Duration::from_micros(1));
                let now = fabric.now();
                while b.receive(now, &mut |r| received += r.packets().count() as u64).unwrap() > 0 {}
            }
        }
    };
    run_rounds(rounds);
    let count = allocation_counter::measure(|| run_rounds(rounds));
    (count.count_total, received)
}

#[test]
fn lossless_fabric_does_not_allocate_after_warm_up() {
    let fabric = Fabric::new();
    let mut a = fabric.port(&fabric.auto_address()).unwrap();
    assert_eq!(a.receive(fabric.now(), &mut |_| {}).unwrap(), 0);
    let (allocations, received) = carry(&fabric, 1200);
    assert_eq!((allocations, received), (0, 2 * 1200 * 40));
}

#[test]
fn lossy_fabric_does_not_allocate_after_warm_up() {
    let config = FabricConfig::default().loss(0.02).duplicate(0.02).corrupt(0.02).seed(5);
    let (allocations, received) = carry(&Fabric::with_config(config).unwrap(), 1200);
    assert_eq!(allocations, 0);
    assert!(received > 90_000);
}

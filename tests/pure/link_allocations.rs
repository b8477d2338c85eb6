//! Tests that frames and packet links do not allocate memory after a warm-up.

use std::time::Instant as Clock;

use urxe::link::{FramesLink, Link, PacketLink, PortState};
use urxe::transport::{Instant, TxQueue};
use urxe::wire::{Bth, Flow, Headers, Opcode};

/// Sends bursts in both directions, and returns the number of allocations after the warm-up.
fn allocations<L: Link + PortState>(a: &mut L, b: &mut L) -> u64 {
    let start = Clock::now();
    let now = || Instant::default() + start.elapsed();
    let (x, y) = (a.info().addresses[0], b.info().addresses[0]);
    let (mut forward, mut back) = (TxQueue::new(a.info().burst), TxQueue::new(b.info().burst));
    for (queue, flow) in [(&mut forward, Flow::new(x, y, 1)), (&mut back, Flow::new(y, x, 1))] {
        for len in [1024; 20].into_iter().chain([8, 8, 300]) {
            let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
            queue.push(&flow, headers, &vec![7; len]);
        }
    }
    let mut exchange = || {
        for is_forward in [true, false] {
            let (tx, rx, queue) =
                if is_forward { (&mut *a, &mut *b, &forward) } else { (&mut *b, &mut *a, &back) };
            tx.transmit(now(), queue).unwrap();
            let mut received = 0;
            while received < queue.packets() {
                assert!(
                    start.elapsed().as_secs() < 20,
                    "{received}: {:?} {:?}",
                    tx.counters(),
                    rx.counters()
                );
                rx.receive(now(), &mut |burst| received += burst.packets().count()).unwrap();
                tx.receive(now(), &mut |_| {}).unwrap();
            }
        }
    };
    (0..20).for_each(|_| exchange());
    allocation_counter::measure(|| (0..100).for_each(|_| exchange())).count_total
}

#[test]
fn frames_link_does_not_allocate_after_warm_up() {
    let dir = std::env::temp_dir();
    let path = |side: &str| format!("{}/urxe-alloc-{}-{side}", dir.display(), std::process::id());
    let open = |l: &str, r: &str, n: u32| {
        let spec = format!("frames:dgram:{},{},ip=10.77.0.{n}/24", path(l), path(r));
        FramesLink::open(spec.parse().unwrap()).unwrap()
    };
    assert_eq!(allocations(&mut open("a", "b", 1), &mut open("b", "a", 2)), 0);
}

/// Uses two packet links on the loopback interface, each with its own host stack and a MAC address unknown to
/// the kernel. Needs CAP_NET_RAW.
#[test]
fn packet_link_does_not_allocate_after_warm_up() {
    for (offload, net) in [("on", 1), ("off", 2)] {
        let open = |n: u32| {
            let spec = format!("packet:lo,ip=10.77.{net}.{n}/24,offload={offload}");
            PacketLink::open(spec.parse().unwrap()).unwrap_or_else(|e| panic!("{e}"))
        };
        assert_eq!(allocations(&mut open(1), &mut open(2)), 0, "offload={offload}");
    }
}

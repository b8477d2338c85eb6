//! Numbered packets, to test that a link delivers them in order.

use std::time::{Duration, Instant as Clock};

use urxe::link::Link;
use urxe::transport::{Instant, TxQueue};
use urxe::wire::{Bth, Flow, Headers, Opcode, Packet, icrc};

pub fn now(start: Clock) -> Instant {
    Instant::default() + start.elapsed()
}

/// Queues `n` packets, each with a payload of `len` bytes that begins with the packet's number.
pub fn packets(queue: &mut TxQueue, flow: &Flow, n: u32, len: usize) {
    for i in 0..n {
        let mut payload = vec![i as u8; len];
        payload[..4].copy_from_slice(&i.to_be_bytes());
        let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
        queue.push(flow, headers, &payload);
    }
}

/// Receives until `n` packets of the flow have arrived in order and intact, and returns the number of bursts.
pub fn expect(rx: &mut dyn Link, tx: &mut dyn Link, start: Clock, flow: &Flow, n: u32) -> usize {
    let (mut next, mut bursts) = (0, 0);
    let deadline = start.elapsed() + Duration::from_secs(20);
    while next < n {
        let counters = |link: &mut dyn Link| link.port_state().map(|port| port.counters());
        assert!(start.elapsed() < deadline, "{next} of {n}; {:?}", (counters(rx), counters(tx)));
        rx.receive(now(start), &mut |burst| {
            bursts += 1;
            assert_eq!(burst.flow, *flow);
            for (i, data) in burst.packets() {
                assert!(
                    icrc::verify(&burst.flow, burst.ident, i, data),
                    "ICRC of packet {next}, {i} of its burst"
                );
                assert_eq!(Packet::parse(data).unwrap().payload()[..4], next.to_be_bytes());
                next += 1;
            }
        })
        .unwrap();
        tx.receive(now(start), &mut |_| panic!("the sender received a packet")).unwrap();
    }
    assert_eq!(next, n);
    bursts
}

//! Tests of packet links on kernels without virtio-net headers, or without UDP super-packets in them, which a
//! seccomp filter simulates.

use std::ops::Range;
use std::time::Instant as Clock;

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter, sock_fprog};
use urxe::link::{Link, LinkCounters, PortState};
use urxe::transport::TxQueue;
use urxe::wire::Flow;

use super::offload::{FAMILIES, addresses, expect, kernel_supports_udp_gso, queue, resolve_neighbours};
use super::{now, open};
use urxe_test_support::netns::Veth;

const PACKET_VNET_HDR_SZ: u32 = 24;

/// Makes the system call `call` fail with EINVAL on this thread if its third argument is in `values`.
fn fail_syscall(call: libc::c_long, values: Range<u32>) {
    // Offsets in `struct seccomp_data`: the number of the call, and the low half of the argument.
    let argument = 16 + 8 * 2 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let op = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let program = [
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, call as u32),
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0, argument),
        op(BPF_JMP | BPF_JGE | BPF_K, 0, 1, values.start),
        op(BPF_JMP | BPF_JGE | BPF_K, 0, 1, values.end),
        op(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
    ];
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points to the live array, which the kernel copies; both calls concern this thread
    // only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let installed = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program);
        assert_eq!(installed, 0, "seccomp: {}", std::io::Error::last_os_error());
    }
}

#[test]
fn socket_without_virtio_net_headers_transfers_packets() {
    let net = Veth::new(1500);
    let mut a = net.sides[0].run(|| {
        fail_syscall(libc::SYS_setsockopt, PACKET_VNET_HDR_SZ..PACKET_VNET_HDR_SZ + 1);
        urxe::link::PacketLink::open("packet:v0".parse().unwrap()).unwrap()
    });
    let mut b = open(&net, 1, "packet:v1");
    assert_eq!([a.offloads(), b.offloads()], [false, kernel_supports_udp_gso()]);
    for [x, y] in FAMILIES.map(addresses) {
        resolve_neighbours(&mut a, &mut b, &Flow::new(x, y, 4000));
        resolve_neighbours(&mut b, &mut a, &Flow::new(y, x, 4000));
        for lens in [&[1024; 100][..], &[8; 100], &[1001, 1001, 7]] {
            let flow = Flow::new(x, y, 4000);
            a.transmit(now(Clock::now()), &queue(&a, &flow, lens)).unwrap();
            assert_eq!(expect(&mut a, &mut b, &flow, lens), vec![1; lens.len()]);
            let flow = Flow::new(y, x, 4000);
            let sent = queue(&b, &flow, lens);
            b.transmit(now(Clock::now()), &sent).unwrap();
            let bursts = if b.offloads() { sent.bursts().len() } else { lens.len() };
            assert_eq!(expect(&mut b, &mut a, &flow, lens).len(), bursts);
        }
    }
    assert_eq!([a.counters(), b.counters()], [LinkCounters::default(); 2]);
}

#[test]
fn gso_packet_rejected_by_the_kernel_is_sent_as_packets_and_disables_offload() {
    if !kernel_supports_udp_gso() {
        println!("skipped: the kernel does not support UDP GSO on packet sockets");
        return;
    }
    for [x, y] in FAMILIES.map(addresses) {
        let net = Veth::new(1500);
        let (mut a, mut b) = (open(&net, 0, "packet:v0"), open(&net, 1, "packet:v1"));
        let flow = Flow::new(x, y, 4000);
        resolve_neighbours(&mut a, &mut b, &flow);
        resolve_neighbours(&mut b, &mut a, &Flow::new(y, x, 4000));
        // Single packets between and after the super-packets; the filter would mistake single packets before
        // them for super-packets.
        let lens = [&[1000; 100][..], &[1001], &[1200; 90], &[3, 2, 1]].concat();
        let sent: TxQueue = queue(&a, &flow, &lens);
        let bursts = sent.bursts().len();
        assert!((5..10).contains(&bursts));
        net.sides[0].run(|| {
            // A sendmmsg of few messages contains super-packets.
            fail_syscall(libc::SYS_sendmmsg, 1..10);
            a.transmit(now(Clock::now()), &sent).unwrap();
        });
        assert!(!a.offloads());
        assert_eq!(expect(&mut a, &mut b, &flow, &lens), vec![1; lens.len()]);
        // Now the kernel would accept them, but the link does not try again.
        a.transmit(now(Clock::now()), &sent).unwrap();
        assert_eq!(expect(&mut a, &mut b, &flow, &lens), vec![1; lens.len()]);
        // The link still receives super-packets unsegmented.
        let back = Flow::new(y, x, 4000);
        let sent = queue(&b, &back, &lens);
        b.transmit(now(Clock::now()), &sent).unwrap();
        assert_eq!(expect(&mut b, &mut a, &back, &lens).len(), sent.bursts().len());
        assert_eq!([a.counters(), b.counters()], [LinkCounters::default(); 2]);
    }
}

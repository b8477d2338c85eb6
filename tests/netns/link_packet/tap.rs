//! Tests of packet links to a machine behind a tap: the packets that it receives, depending on the offloads
//! that it has enabled, and the packets that it sends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use urxe::link::{Link, LinkCounters, PacketLink, PortState};
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Flow, IpIdent, Mac, Packet, icrc};

use super::now;
use super::offload::{FAMILIES, addresses, byte, expect_from_peer, kernel_supports_udp_gso, queue};
use urxe_test_support::netns::Veth;

/// From linux/if_tun.h.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TAP: i16 = 0x0002;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
const CSUM: libc::c_ulong = 0x01;
const TSO: libc::c_ulong = 0x06;
const USO: libc::c_ulong = 0x60;

const PEER: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 2]);
const VNET_LEN: usize = 10;

/// The machine's end of `tap0`. The interface is in the first namespace, where the host has the first address
/// of each family and a neighbour entry for the second.
struct Tap {
    file: File,
    /// Whether each frame has a virtio-net header.
    vnet: bool,
}

impl Tap {
    fn new(net: &Veth, offloads: Option<libc::c_ulong>) -> Tap {
        let vnet = offloads.is_some();
        let file = net.sides[0].run(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/net/tun")
                .expect("opening /dev/net/tun needs root");
            // SAFETY: an all-zero ifreq is valid; the kernel reads and writes it within its size, and takes
            // the offloads by value.
            unsafe {
                let mut request: libc::ifreq = std::mem::zeroed();
                let name = b"tap0".map(|b| b as libc::c_char);
                request.ifr_name[..4].copy_from_slice(&name);
                request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI | if vnet { IFF_VNET_HDR } else { 0 };
                assert_eq!(libc::ioctl(file.as_raw_fd(), TUNSETIFF, &mut request), 0);
                if let Some(offloads) = offloads {
                    assert_eq!(libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, offloads), 0);
                }
                let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
                assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
            }
            file
        });
        let host = &net.sides[0];
        host.ip("addr flush dev v0");
        host.ip("link set tap0 up mtu 1500");
        for (family, bits) in FAMILIES.into_iter().zip([24, 64]) {
            let [own, peer] = addresses(family);
            let flags = if own.is_ipv6() { "nodad" } else { "" };
            host.ip(&format!("addr add {own}/{bits} dev tap0 {flags}"));
            host.ip(&format!("neigh replace {peer} lladdr {PEER} dev tap0 nud permanent"));
        }
        Tap { file, vnet }
    }

    /// Reads the next RoCEv2 frame and the virtio-net header in front of it, all zeros if frames have no such
    /// header.
    fn next(&mut self) -> ([u8; VNET_LEN], Vec<u8>) {
        let start = Clock::now();
        let mut buffer = vec![0; 70_000];
        loop {
            assert!(start.elapsed() < Duration::from_secs(5), "no frame arrived at the tap");
            let Ok(n) = self.file.read(&mut buffer) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let (head, frame) = buffer[..n].split_at(if self.vnet { VNET_LEN } else { 0 });
            let mut vnet = [0; VNET_LEN];
            vnet[..head.len()].copy_from_slice(head);
            if let Ok(read) = frame::parse(frame, Checksums::Trust)
                && let Content::Roce(_) = read.content
            {
                return (vnet, frame.to_vec());
            }
        }
    }
}

fn open(net: &Veth) -> PacketLink {
    net.sides[0].run(|| PacketLink::open("packet:tap0".parse().unwrap()).unwrap())
}

fn roce(bytes: &[u8], checksums: Checksums) -> (Flow, IpIdent, Vec<u8>) {
    match frame::parse(bytes, checksums).unwrap().content {
        Content::Roce(roce) => (roce.flow, roce.ident, bytes[roce.payload].to_vec()),
        other => panic!("{other:?}"),
    }
}

const LENS: [usize; 12] = [1001, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 18];

/// Sends a super-packet, and checks that the tap delivers single packets: the kernel must segment it with
/// valid checksums, and with increasing IPv4 IDs so that the ICRCs are valid.
fn check_segmented(tap: &mut Tap, link: &mut PacketLink, [x, y]: [IpAddr; 2]) {
    let flow = Flow::new(x, y, 4000);
    link.transmit(now(Clock::now()), &queue(link, &flow, &LENS)).unwrap();
    for (i, len) in LENS.into_iter().enumerate() {
        let (head, bytes) = tap.next();
        assert_eq!(head[1], 0, "the frame is a super-packet");
        // The machine may have to complete the checksum, if it has announced that it can.
        let checksums = if head[0] & 1 == 0 { Checksums::Verify } else { Checksums::Partial };
        let (seen, ident, packet) = roce(&bytes, checksums);
        assert_eq!(seen, flow);
        let counted = IpIdent::Exact { id: i as u16, flags: IpIdent::DONT_FRAGMENT };
        assert_eq!(ident, if x.is_ipv4() { counted } else { IpIdent::Unknown });
        assert!(icrc::verify(&flow, ident, 0, &packet), "packet {i}");
        let payload = Packet::parse(&packet).unwrap().payload().to_vec();
        assert_eq!(payload, (0..len).map(|at| byte(i, at)).collect::<Vec<_>>());
    }
    assert_eq!(link.offloads(), kernel_supports_udp_gso());
    assert_eq!(link.counters(), LinkCounters::default());
}

#[test]
fn tap_without_offloads_receives_segmented_packets() {
    let net = Veth::new(1500);
    let mut tap = Tap::new(&net, None);
    let mut link = open(&net);
    for family in FAMILIES {
        check_segmented(&mut tap, &mut link, addresses(family));
    }
}

#[test]
fn tap_without_udp_segmentation_offload_receives_segmented_packets() {
    for offloads in [0, CSUM, CSUM | TSO] {
        let net = Veth::new(1500);
        let mut tap = Tap::new(&net, Some(offloads));
        let mut link = open(&net);
        for family in FAMILIES {
            check_segmented(&mut tap, &mut link, addresses(family));
        }
    }
}

#[test]
fn tap_with_udp_segmentation_exchanges_gso_packets() {
    if !kernel_supports_udp_gso() {
        println!("skipped: the kernel does not support taps with UDP segmentation offload");
        return;
    }
    let net = Veth::new(1500);
    let mut tap = Tap::new(&net, Some(CSUM | USO));
    let mut link = open(&net);
    for [x, y] in FAMILIES.map(addresses) {
        let flow = Flow::new(x, y, 4000);
        let sent = queue(&link, &flow, &LENS);
        link.transmit(now(Clock::now()), &sent).unwrap();
        let (head, bytes) = tap.next();
        let headers = 14 + flow.header_len() as u16;
        let field = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        assert_eq!(head[..2], [1, 5], "a partial checksum and UDP GSO");
        assert_eq!([2, 4, 6, 8].map(field), [headers, 12 + 1004 + 4, headers - 8, 6]);
        let (seen, ident, data) = roce(&bytes, Checksums::Partial);
        let mut all = Vec::new();
        sent.bursts().next().unwrap().copy_to(&mut all);
        assert_eq!((seen, &data), (flow, &all));
        assert_eq!(ident, if x.is_ipv4() { IpIdent::SENT } else { IpIdent::Unknown });

        // The other direction, first as a super-packet, then packet by packet.
        let back = Flow::new(y, x, 4001);
        let sent = queue(&link, &back, &LENS);
        let own = Mac(link.info().mac);
        let burst = sent.bursts().next().unwrap();
        let mut all = Vec::new();
        burst.copy_to(&mut all);
        let mut super_packet = head.to_vec();
        frame::append_frame(&mut super_packet, (own, PEER), None, &back, 0, &all);
        let sum = frame::udp_pseudo_sum(&back, all.len() as u16 + 8);
        super_packet[VNET_LEN + usize::from(headers) - 2..][..2].copy_from_slice(&sum.to_be_bytes());
        tap.file.write_all(&super_packet).unwrap();
        assert_eq!(expect_from_peer(&mut link, &back, &LENS), [LENS.len()]);
        for (i, packet) in all.chunks(burst.segment).enumerate() {
            let mut single = vec![0; VNET_LEN];
            frame::append_frame(&mut single, (own, PEER), None, &back, i as u16, packet);
            tap.file.write_all(&single).unwrap();
        }
        assert_eq!(expect_from_peer(&mut link, &back, &LENS), [1; LENS.len()]);
    }
    assert_eq!(link.counters(), LinkCounters::default());
}

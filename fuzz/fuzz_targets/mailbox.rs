//! Fuzz target: the mailboxes through which processes that share an address get requests for their services.
//! Hostile processes send datagrams to the mailbox of a service, and hostile hosts send packets that the
//! broker forwards to it. The process must count or deliver each datagram unchanged; neither it nor the
//! broker may panic.
#![no_main]

#[path = "input.rs"]
#[allow(dead_code)]
mod input;
#[path = "shared.rs"]
mod shared;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;

use input::Input;
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use urxe::broker::{SharedMemory, SharedUdpLink};
use urxe::link::{Link, SharedAddress};
use urxe::transport::Instant;
use urxe::wire::mad::{CommId, Mad, Req, ServiceId};
use urxe::wire::{
    Bth, Deth, Flow, Gid, Headers, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Opcode, QKey, Qpn, icrc,
};

const SERVICE: ServiceId = ServiceId(0x0106_1234);
/// Length of the header of a forwarded MAD: version, traffic class, source port, two addresses.
const HEADER_LEN: usize = 36;
/// UDP port of RoCEv2.
const PORT: u16 = 4791;
/// Opcode of UD SEND Only.
const UD_SEND_ONLY: Opcode = Opcode(0x64);

struct Process {
    link: SharedUdpLink,
    now: u64,
    /// Socket of a hostile process, and of a hostile host.
    attacker: OwnedFd,
    host: UdpSocket,
}

impl Process {
    fn start() -> Process {
        let mut link = shared::start_broker(SharedMemory::Off);
        link.claim(SERVICE, None).expect("no other process has the service");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let attacker = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("a socket");
        let [a, b, c, _] = shared::address().octets();
        let host = UdpSocket::bind((Ipv4Addr::new(a, b, c, 2), 0)).expect("a port");
        Process { link, now: 1_000_000_000, attacker, host }
    }

    /// Receives all datagrams, and returns their packets.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        loop {
            // More than the interval between polls.
            self.now += 1_000_000;
            let received = self.link.receive(Instant(self.now), &mut |burst| {
                assert_eq!(burst.flow.src.is_ipv4(), burst.flow.dst.is_ipv4());
                assert_eq!(burst.segment, burst.data.len());
                packets.push(burst.data.to_vec());
            });
            if received.expect("the link works") == 0 {
                return packets;
            }
        }
    }
}

/// Returns a datagram in the format of the broker, more or less.
fn datagram(p: &mut Input<'_>) -> Vec<u8> {
    let kind = p.u8();
    let mut bytes = vec![if kind & 3 == 3 { p.u8() } else { 1 }, p.u8(), p.u8(), p.u8()];
    for n in 0..2 {
        let ip =
            if kind >> (2 + n) & 1 == 0 { IpAddr::from(shared::address()) } else { IpAddr::from([0xfd; 16]) };
        bytes.extend(Gid::from(ip).0);
    }
    let len = if kind & 0x30 == 0x30 { 988 + p.u16() as usize % 300 } else { p.u16() as usize % 300 };
    bytes.extend((0..len).map(|_| p.u8()));
    if kind & 0xc0 == 0xc0 {
        bytes.truncate(p.u8() as usize);
    }
    bytes
}

/// Returns the packet of a datagram that is valid.
fn packet_of(bytes: &[u8]) -> Option<&[u8]> {
    let is_ipv4 =
        |at: usize| bytes[at..at + 10].iter().all(|b| *b == 0) && bytes[at + 10..at + 12] == [0xff; 2];
    let is_valid =
        (HEADER_LEN + 1..=1024).contains(&bytes.len()) && bytes[0] == 1 && is_ipv4(4) == is_ipv4(20);
    is_valid.then(|| &bytes[HEADER_LEN..])
}

/// Returns a packet to QP1 with a request for the service, more or less.
fn request(host: IpAddr, p: &mut Input<'_>) -> Vec<u8> {
    let req = Req { local: CommId(p.u8().into()), service: SERVICE, ..Req::default() };
    let mut mad = Mad { transaction: p.u8().into(), modifier: 0, message: req.into() }.bytes().to_vec();
    for _ in 0..p.below(4) {
        let at = p.u16() as usize % mad.len();
        mad[at] ^= p.u8();
    }
    let headers = Headers {
        bth: Bth { opcode: UD_SEND_ONLY, dest_qp: Qpn::GSI, ..Bth::default() },
        deth: Deth { qkey: QKey(0x8001_0000), src_qp: Qpn::GSI },
        ..Headers::default()
    };
    let mut buffer = [0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut buffer);
    let mut bytes = [&buffer[..len], &mad, &[0; ICRC_LEN]].concat();
    if p.chance(4) {
        bytes.truncate(ICRC_LEN + p.u16() as usize % bytes.len());
    }
    let flow = Flow::new(host, shared::address().into(), PORT);
    if bytes.len() >= len + ICRC_LEN {
        let end = bytes.len() - ICRC_LEN;
        let sum = icrc::compute(&flow, 0, IpIdent::DONT_FRAGMENT, &bytes);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    // Never dropped: the broker ends when its only client does, which is a finding before the fuzzer ends.
    thread_local!(static PROCESS: RefCell<Option<ManuallyDrop<Process>>> = const { RefCell::new(None) });
    PROCESS.with_borrow_mut(|process| {
        let process = process.get_or_insert_with(|| ManuallyDrop::new(Process::start()));
        let mut p = Input::new(data);
        let name = format!("urxe-service/{}/{:016x}", shared::address(), SERVICE.0);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the name is short");
        for _ in 0..16 {
            if p.is_empty() {
                break;
            }
            // Requests that the broker has forwarded since.
            process.receive();
            if p.chance(4) {
                let bytes = request(IpAddr::from([127, 0, 0, 1]), &mut p);
                // Fails only while the socket's buffer is full.
                let _ = process.host.send_to(&bytes, (shared::address(), PORT));
                continue;
            }
            let bytes = datagram(&mut p);
            if sendto(&process.attacker, &bytes, SendFlags::NOSIGNAL, &name).is_ok()
                && let Some(packet) = packet_of(&bytes)
            {
                let is_delivered = process.receive().iter().any(|received| received == packet);
                assert!(is_delivered, "a valid datagram of {} bytes is lost", bytes.len());
            }
        }
        process.receive();
    });
});

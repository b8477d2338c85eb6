//! Cases with the kernel as a peer: rxe in two guests, or the network stack in two namespaces.

use std::time::Duration;

use urxe::wire::Syndrome;
use urxe::wire::mad::MessageKind;

use super::shot::Kind;
use super::{CLIENT, Case, Container, Source};

const RXE: &[(&str, Container)] = &[("", Container::PcapNanos)];

pub const CASES: &[Case] = &[
    Case {
        name: "rxe-unknown-qp",
        diagnosis: "unknown-qp",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_request() && s.again)],
        text: "Two rxe hosts. The server destroys its queue pair and creates another one after the client's second SEND, as a \
               restarted process does. The third SEND still goes to the old number and is repeated without an answer, while \
               the new queue pair answers the WRITE of another client on the same path.",
    },
    Case {
        name: "rxe-not-ready-655-ms",
        diagnosis: "receiver-not-ready",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_rnr())],
        text: "Two rxe hosts. The server's queue pair has `min_rnr_timer` 0, which does not mean 'at once' but 655.36 ms: the RNR \
               NAK (syndrome 0x20) of a SEND whose receive is posted a few milliseconds later delays it by two thirds of a second.",
    },
    Case {
        name: "rxe-remote-access",
        diagnosis: "remote-access-error",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_nak())],
        text: "Two rxe hosts. WRITEs with the R_Key of the server's region succeed; then the server deregisters it and registers \
               another one, and the client still uses the old key: NAK 'remote access error'.",
    },
    Case {
        name: "rxe-wrong-qkey",
        diagnosis: "datagram-dropped",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.packet().is_some_and(|p| p.deth().is_some_and(|d| d.qkey.0 == 0x2222_2222)))],
        text: "Two rxe hosts, UD. The server answers each datagram with the Q_Key 0x11111111, which its own packets show too. The \
               last datagrams of the client carry the Q_Key 0x22222222 and are dropped: there is no answer.",
    },
    Case {
        name: "rxe-retry-exceeded",
        diagnosis: "retry-exceeded",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_request() && s.again)],
        text: "Two rxe hosts. After an acknowledged SEND nothing of the client arrives any more. The client sends its request four \
               times, at intervals of its timer (code 14, 67 ms; three retries), and stops.",
    },
    Case {
        name: "rxe-no-listener",
        diagnosis: "connection-refused",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_cm(MessageKind::Rej))],
        text: "Two rxe hosts; the client's ucmatose connects to TCP port 7999 of the rdma_cm, where no program listens. The kernel of \
               the server answers the REQ with a REJ of reason 8, invalid service ID.",
    },
    Case {
        name: "rxe-path-mtu-differs",
        diagnosis: "path-mtu-differs",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| s.is_nak()), (0, |s| s.is_request() && s.len == 1024)],
        text: "Two rxe hosts over IPv6. The client's queue pair has a path MTU of 1024, the server's 256: a SEND of the server of \
               600 bytes comes in packets of 256 bytes. The client's WRITE First has 1024 bytes and is refused with a NAK \
               'invalid request'.",
    },
    Case {
        name: "rxe-no-receive-left",
        diagnosis: "receiver-not-ready",
        files: RXE,
        source: Source::Live,
        shown: &[(0, |s| matches!(s.syndrome, Some(Syndrome::RnrNak(_))))],
        text: "Two rxe hosts. The server posts two receives for three SENDs. The third gets RNR NAKs of timer code 18 (5.12 ms) until \
               the client's RNR retry count of 2 is exhausted.",
    },
    Case {
        name: "peer-silent-arp",
        diagnosis: "peer-silent",
        files: CLIENT,
        source: Source::Live,
        shown: &[(0, |s| s.kind == Kind::Arp)],
        text: "The kernel of the client asks for the MAC address of 10.77.0.9 by ARP, again and again, and no host answers. The RoCE \
               packets wait in the kernel for the answer, so the capture has none.",
    },
    Case {
        name: "peer-silent-nd",
        diagnosis: "peer-silent",
        files: &[("", Container::Cooked)],
        source: Source::Live,
        shown: &[(0, |s| s.kind == Kind::Neighbour && s.sent)],
        text: "The same over IPv6: neighbour solicitations for fd77::9, without an advertisement. No RoCE packet leaves the host.",
    },
    Case {
        name: "port-unreachable",
        diagnosis: "port-unreachable",
        files: CLIENT,
        source: Source::Live,
        shown: &[(0, |s| s.kind == Kind::Icmp), (0, |s| s.is_request())],
        text: "The peer exists and answers ARP, but has no RoCE NIC: its kernel answers each packet to UDP port 4791 with an ICMP \
               message of type 3 and code 3, port unreachable.",
    },
    Case {
        name: "port-unreachable-v6",
        diagnosis: "port-unreachable",
        files: &[("", Container::PcapMicros)],
        source: Source::Live,
        shown: &[(0, |s| s.kind == Kind::Icmp && s.idle < Duration::from_secs(1)), (0, |s| s.is_request())],
        text: "The same over IPv6: ICMPv6 messages of type 1 and code 4, port unreachable, which quote the RoCE packets.",
    },
];

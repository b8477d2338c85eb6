//! Test that the connection manager allocates no further memory during an endless flood of messages once its
//! limits are reached. It runs in its own process because its global allocator counts the allocated bytes.

use urxe::cm::{Cm, CmConfig};
use urxe::transport::{AddressVector, Instant};
use urxe::wire::mad::{
    CommId, Dreq, Lap, Mad, Message, PathInfo, Rej, RejReason, Rep, Req, ServiceId, SidrReq, TransportService,
};
use urxe::wire::{Gid, Mtu, Qpn};

const LISTENING: ServiceId = ServiceId(0x0106_0007);
/// Service ID with a pending listener.
const PENDING: ServiceId = ServiceId(0x0106_0008);
const MAX_CONNECTIONS: usize = 100;

fn gid(host: u8) -> Gid {
    std::net::Ipv4Addr::new(10, 0, 0, host).into()
}

/// Delivers `count` messages of one kind from many peer addresses, numbered from `from` on.
fn flood(cm: &mut Cm, from: u32, count: u32, is_read: bool, message: &dyn Fn(u32) -> Message) {
    for n in from..from + count {
        let from = AddressVector::to(std::net::Ipv4Addr::from(0x0b00_0000 | n >> 4).into());
        let mad = Mad { transaction: n.into(), modifier: 0, message: message(n) };
        cm.handle_mad(Instant(n.into()), &from, Qpn::GSI, &mad.bytes());
        while is_read && cm.poll_transmit().is_some() {}
    }
}

#[test]
fn flood_of_any_message_kind_uses_bounded_memory() {
    let req = |n: u32, service| {
        let local_gid = std::net::Ipv4Addr::from(0x0b00_0000 | n >> 4).into();
        Req {
            local: CommId(n + 1),
            qpn: Qpn::new(n + 2),
            ca_guid: n.into(),
            service,
            transport: TransportService::Rc,
            mtu: Some(Mtu::Mtu1024),
            primary: PathInfo { local_gid, remote_gid: gid(1), hop_limit: 64, ..PathInfo::default() },
            ..Req::default()
        }
    };
    let (local, remote) = (CommId(7), CommId(8));
    let kinds: [(&str, &dyn Fn(u32) -> Message); 9] = [
        ("REQ", &|n| req(n, LISTENING).into()),
        ("REQ, no listener", &|n| req(n, ServiceId(9)).into()),
        ("REQ, pending listener", &|n| req(n, PENDING).into()),
        ("REQ, invalid path", &|n| Req { primary: PathInfo::default(), ..req(n, LISTENING) }.into()),
        ("SIDR_REQ", &|n| SidrReq { request: CommId(n), service: LISTENING, ..SidrReq::default() }.into()),
        ("REP", &|_| Rep { local, remote, ..Rep::default() }.into()),
        ("REJ", &|n| Rej { local: CommId(n), reason: RejReason::Timeout, ..Rej::default() }.into()),
        ("DREQ", &|n| Dreq { local: CommId(n), remote, ..Dreq::default() }.into()),
        ("LAP", &|n| Lap { local: CommId(n), remote, ..Lap::default() }.into()),
    ];
    for (name, message) in kinds {
        for is_read in [true, false] {
            let config = CmConfig { max_connections: MAX_CONNECTIONS, ..CmConfig::new(1, vec![gid(1)]) };
            let mut cm = Cm::new(config, 1);
            cm.listen(LISTENING).unwrap();
            cm.expect_listener(Instant(0), PENDING);
            flood(&mut cm, 0, 2000, is_read, message);
            let growth = allocation_counter::measure(|| flood(&mut cm, 2000, 8000, is_read, message));
            assert_eq!((growth.count_current, growth.bytes_current), (0, 0), "{name}, read: {is_read}");
            assert!(cm.connection_counts().0 <= MAX_CONNECTIONS, "{name}");
            let responses = cm.counters().sent.iter().sum::<u64>() + cm.counters().responses_dropped;
            let expected = match name {
                "SIDR_REQ" => 10_000 - MAX_CONNECTIONS as u64,
                // Requests beyond `MAX_CONNECTIONS` are dropped.
                "REQ" => 0,
                // The others are queued for the pending listener.
                "REQ, pending listener" => 10_000 - 256,
                "REJ" => 0,
                _ => 10_000,
            };
            assert_eq!(responses, expected, "{name}");
        }
    }
}

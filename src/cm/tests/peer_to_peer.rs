//! Simultaneous (peer-to-peer) connect.

use super::bench::*;
use crate::cm::*;
use crate::transport::{AddressVector, Instant};
use crate::wire::Qpn;
use crate::wire::mad::*;

fn req_sent(config: CmConfig) -> (Bench, ConnId) {
    let mut bench = Bench::with(config);
    let id = bench.cm.connect(bench.now, &Request { peer_to_peer: true, ..request(b"") }).unwrap();
    bench.sent_one();
    (bench, id)
}

#[test]
fn side_with_the_smaller_ca_guid_becomes_the_server() {
    let (mut bench, id) = req_sent(config());
    bench.inject(req());
    let (of, Event::Requested(requested)) = bench.event() else { panic!() };
    assert_eq!((of, requested.is_peer_to_peer), (id, true));
    assert_eq!(bench.cm.poll_timeout(), None, "the own request is withdrawn");
    bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
    assert!(matches!(bench.sent_one(), Message::Rep(rep) if rep.local == id.0));
    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    assert!(matches!(bench.event(), (_, Event::Established)));
    bench.cm.check();
}

#[test]
fn side_with_the_larger_ca_guid_remains_the_client() {
    let (mut bench, id) = req_sent(CmConfig { ca_guid: PEER_GUID + 1, ..config() });
    bench.inject(req());
    bench.assert_quiet();
    bench.inject(rep(id));
    assert!(matches!(bench.event(), (_, Event::Accepted { .. })));
    bench.cm.ready(id).unwrap();
    assert!(matches!(bench.sent_one(), Message::Rtu(_)));
    // The losing request arrives late.
    bench.inject(req());
    bench.assert_quiet();
}

#[test]
fn tie_between_equal_ca_guids_is_broken_by_queue_pair_then_address() {
    let config = || CmConfig { ca_guid: PEER_GUID, ..config() };
    let (mut bench, _) = req_sent(config());
    bench.inject(Req { qpn: Qpn::new(OUR_QPN.get() + 1), ..req() });
    assert!(matches!(bench.event(), (_, Event::Requested(_))));
    let (mut bench, id) = req_sent(config());
    bench.inject(Req { qpn: Qpn::new(OUR_QPN.get() - 1), ..req() });
    bench.assert_quiet();
    assert_eq!(bench.cm.state(id), Some(State::ReqSent));
    // Hosts that wrongly share a GUID do not both become clients: 10.0.0.2 is the larger address.
    let (mut bench, _) = req_sent(config());
    bench.inject(Req { qpn: OUR_QPN, ..req() });
    assert!(matches!(bench.event(), (_, Event::Requested(_))));
}

#[test]
fn request_matches_only_a_peer_to_peer_request() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    bench.inject(req());
    assert_eq!(bench.sent_rej().reason, RejReason::InvalidServiceId);
    assert_eq!(bench.cm.state(id), Some(State::ReqSent));
    // A request for another service does not cross either.
    let (mut bench, _) = req_sent(config());
    bench.inject(Req { service: ServiceId(1), ..req() });
    bench.sent_rej();
}

/// A simultaneous connect establishes a single connection, whichever side sends its request first.
#[test]
fn simultaneous_connect_makes_one_connection() {
    for order in 0..2 {
        let mut world = super::lossy::World::new(1, super::lossy::Faults::NONE);
        world.connect_simultaneously(order);
        world.run_until_idle();
        let established = world.sides.iter().flatten().filter(|(_, p)| p.established).count();
        assert_eq!(established, 2, "one established end on each side");
        assert_eq!(world.sides.each_ref().map(|e| e.len()), [1, 1]);
    }
}

/// Two queue pairs of one NIC connect to each other, and neither mistakes its own request for the other's.
#[test]
fn simultaneous_connect_within_one_nic_makes_one_connection() {
    for qpns in [[0x10, 0x20], [0x20, 0x10]] {
        let mut cm = Cm::new(config(), 7);
        let av = AddressVector { sgid_index: 2, ..AddressVector::to(our_gid()) };
        let ids = qpns.map(|qpn| {
            let qp = LocalQp { qpn: Qpn::new(qpn), ..our_qp() };
            let path = Path { av, ..path() };
            cm.connect(Instant(0), &Request { peer_to_peer: true, qp, path, ..request(b"") }).unwrap()
        });
        while let Some((_, mad)) = cm.poll_transmit() {
            cm.handle_mad(Instant(0), &av, Qpn::GSI, &mad);
        }
        let smaller = ids[usize::from(qpns[1] < qpns[0])];
        assert!(matches!(cm.poll_event(), Some((id, Event::Requested(_))) if id == smaller), "{qpns:x?}");
        assert_eq!(cm.poll_event(), None);
        cm.check();
    }
}

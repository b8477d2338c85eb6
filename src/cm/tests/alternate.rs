//! Alternate paths: how a connection offers them (LAP), and accepts or rejects the peer's (APR).

use super::bench::*;
use crate::cm::*;
use crate::wire::mad::*;
use crate::wire::{AckTimeout, Gid, Qpn};

fn lap(to: ConnId) -> Lap {
    Lap {
        local: PEER_ID,
        remote: to.0,
        remote_qpn: OUR_QPN,
        local_gid: gid(102),
        remote_gid: gid(101),
        hop_limit: 64,
        ack_timeout: AckTimeout::new(15),
        ..Lap::default()
    }
}

fn apr(bench: &mut Bench) -> Apr {
    match bench.sent_one() {
        Message::Apr(apr) => apr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_an_apr_with_the_transaction_id_of_the_lap_completes_it() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.load_alternate(bench.now, id, &path()).unwrap();
    assert!(bench.cm.load_alternate(bench.now, id, &path()).is_err(), "only one LAP may be outstanding");
    let sent = bench.sent_mads();
    let Message::Lap(ours) = sent[0].message else { panic!() };
    assert_eq!((ours.local_gid, ours.remote_gid, ours.remote_qpn), (our_gid(), peer_gid(), PEER_QPN));
    let mra = Mra { local: PEER_ID, remote: id.0, message: Acknowledged::Lap, ..Mra::default() };
    bench.inject(mra);
    bench.inject(mra);
    assert_eq!(bench.events().len(), 1);
    let apr = Apr { local: PEER_ID, remote: id.0, status: AprStatus::InvalidLid, ..Apr::default() };
    bench.inject_as(&source(), sent[0].transaction + 1, apr);
    bench.assert_quiet();
    bench.inject_as(&source(), sent[0].transaction, apr);
    assert_eq!(bench.event(), (id, Event::AlternateResponse(AprStatus::InvalidLid)));
    assert_eq!(bench.cm.poll_timeout(), None);
}

#[test]
fn lap_of_the_peer_raises_one_event_per_transaction() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject_as(&source(), 0x10, lap(id));
    let (_, Event::AlternateOffered(path)) = bench.event() else { panic!() };
    assert_eq!((path.av.dgid, path.av.sgid_index, path.packet_life.code()), (gid(102), 0, 14));
    bench.inject_as(&source(), 0x10, lap(id));
    assert!(matches!(bench.sent_one(), Message::Mra(m) if m.message == Acknowledged::Lap));
    bench.cm.respond_to_alternate(id, AprStatus::Loaded).unwrap();
    let response = apr(&mut bench);
    assert_eq!(response.status, AprStatus::Loaded);
    bench.inject_as(&source(), 0x10, lap(id));
    assert_eq!(apr(&mut bench), response, "the APR is replayed");
    bench.inject_as(&source(), 0x11, lap(id));
    assert_eq!(bench.events().len(), 1, "a new transaction is a new offer");
    assert!(bench.cm.respond_to_alternate(id, AprStatus::Rejected).is_ok());
    assert!(bench.cm.respond_to_alternate(id, AprStatus::Rejected).is_err());
}

#[test]
fn invalid_lap_is_rejected_with_the_reason() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject(Lap { remote_qpn: Qpn::new(9), ..lap(id) });
    assert_eq!(apr(&mut bench).status, AprStatus::InvalidQpn);
    bench.inject(Lap { remote_gid: gid(50), ..lap(id) });
    assert_eq!(apr(&mut bench).status, AprStatus::InvalidGid);
    bench.inject(Lap { local_gid: Gid::default(), ..lap(id) });
    assert_eq!(apr(&mut bench).status, AprStatus::InvalidGid);
    bench.inject(Lap { remote: CommId(12345), ..lap(id) });
    assert_eq!(apr(&mut bench).status, AprStatus::InvalidCommId);
    // Both ends offer at the same time: each waits for the response to its own offer.
    bench.cm.load_alternate(bench.now, id, &path()).unwrap();
    bench.sent_one();
    bench.inject(lap(id));
    bench.assert_quiet();
}

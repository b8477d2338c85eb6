//! Tests of the `ibv_srq_pingpong` handshake against a recorded handshake.

use super::super::super::replay::{Replay, ScriptedPeer, Side, recording, sent_bytes};
use super::super::DESTINATION_LEN;
use super::*;
use std::io::ErrorKind;

const RECORDED: &str = include_str!("../../testdata/pingpong_srq.txt");

/// Returns the addresses of one side's queue pairs in the recording.
fn addresses(side: Side) -> Vec<Destination> {
    let all = recording(RECORDED).into_iter().filter(|(s, m)| *s == side && m.len() == DESTINATION_LEN);
    all.take(3).map(|(_, m)| Destination::parse(&m.try_into().unwrap()).unwrap()).collect()
}

#[test]
fn replays_the_recorded_client_and_server() {
    let (c, s) = (addresses(Side::Client), addresses(Side::Server));
    assert_eq!((c[2].qpn, s[0].psn), (0x16, 0x81_7263));
    let mut r = Replay::new(RECORDED, Side::Client).byte_by_byte();
    assert_eq!(client(&mut r, &c).unwrap(), s);
    assert!(r.is_finished());
    let mut r = Replay::new(RECORDED, Side::Server);
    let server = Server::accept(&mut r).unwrap();
    assert_eq!(server.remote(), c);
    server.reply(&s).unwrap();
    assert!(r.is_finished());
}

#[test]
fn truncated_handshake_is_closed_or_timed_out() {
    let all = sent_bytes(RECORDED, Side::Client);
    assert_eq!(all.len(), MAX_QPS * DESTINATION_LEN + DONE.len());
    let local = addresses(Side::Server);
    // Every position in the first and last addresses and in the final message, and some positions between.
    let near = |n: &usize| *n < 110 || *n > all.len() - 110 || n.is_multiple_of(97);
    for n in (0..all.len()).filter(near) {
        let run = |p| Server::accept(p).and_then(|s| s.reply(&local));
        let e = run(ScriptedPeer::closing(&all[..n])).unwrap_err();
        assert!(matches!(e, ExchangeError::Closed { got, .. } if got == n % DESTINATION_LEN), "{n}: {e}");
        let e = run(ScriptedPeer::failing(&all[..n], ErrorKind::TimedOut)).unwrap_err();
        assert!(matches!(e, ExchangeError::TimedOut { .. }), "{n}: {e}");
    }
    let all = sent_bytes(RECORDED, Side::Server);
    for n in (0..all.len()).filter(|n| n.is_multiple_of(97)) {
        let e = client(&mut ScriptedPeer::closing(&all[..n]), &local).unwrap_err();
        assert!(matches!(e, ExchangeError::Closed { got, .. } if got == n % DESTINATION_LEN), "{n}: {e}");
    }
}

#[test]
fn invalid_bytes_yield_an_error_that_quotes_them() {
    let mut all = sent_bytes(RECORDED, Side::Client);
    all[200 * DESTINATION_LEN] = b'?';
    let e = Server::accept(ScriptedPeer::closing(&all)).err().unwrap();
    assert!(matches!(&e, ExchangeError::Malformed { bytes, .. } if bytes.starts_with('?')), "{e}");
    let mut all = sent_bytes(RECORDED, Side::Client);
    *all.last_mut().unwrap() = b'!';
    let server = Server::accept(ScriptedPeer::closing(&all)).unwrap();
    let e = server.reply(&addresses(Side::Server)).unwrap_err();
    assert_eq!(e.to_string(), "ping-pong \"done\": not \"done\" in \"done!\"");
}

#[test]
fn number_of_qps_is_limited() {
    let one = addresses(Side::Client)[0];
    for n in [0, MAX_QPS + 1] {
        let e = client(&mut ScriptedPeer::closing(&[]), &vec![one; n]).unwrap_err();
        assert!(matches!(e, ExchangeError::OutOfRange { what: "number of QPs", .. }), "{e}");
    }
    let full = one.encode().unwrap().repeat(MAX_QPS);
    assert_eq!(client(&mut ScriptedPeer::closing(&full), &[one; MAX_QPS]).unwrap(), [one; MAX_QPS]);
}

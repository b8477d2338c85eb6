//! Tests of the `ibv_srq_pingpong` handshake against a recorded conversation.

use super::super::super::replay::{Parrot, Replay, Side, recording, said};
use super::super::DESTINATION_LEN;
use super::*;
use std::io::ErrorKind;

const RECORDED: &str = include_str!("../../testdata/pingpong_srq.txt");

/// Returns the addresses of one side's queue pairs in the recording.
fn destinations(side: Side) -> Vec<Destination> {
    let all = recording(RECORDED).into_iter().filter(|(s, m)| *s == side && m.len() == DESTINATION_LEN);
    all.take(3).map(|(_, m)| Destination::parse(&m.try_into().unwrap()).unwrap()).collect()
}

#[test]
fn replays_the_recorded_client_and_server() {
    let (c, s) = (destinations(Side::Client), destinations(Side::Server));
    assert_eq!((c[2].qpn, s[0].psn), (0x16, 0x81_7263));
    let mut r = Replay::new(RECORDED, Side::Client).dribbling();
    assert_eq!(client(&mut r, &c).unwrap(), s);
    assert!(r.is_over());
    let mut r = Replay::new(RECORDED, Side::Server);
    let server = Server::accept(&mut r).unwrap();
    assert_eq!(server.remote(), c);
    server.reply(&s).unwrap();
    assert!(r.is_over());
}

#[test]
fn truncated_handshake_is_closed_or_timed_out() {
    let all = said(RECORDED, Side::Client);
    assert_eq!(all.len(), PLACES * DESTINATION_LEN + DONE.len());
    let local = destinations(Side::Server);
    // Every position in the first and last addresses and in the final message, and some positions between.
    let near = |n: &usize| *n < 110 || *n > all.len() - 110 || n.is_multiple_of(97);
    for n in (0..all.len()).filter(near) {
        let run = |p| Server::accept(p).and_then(|s| s.reply(&local));
        let e = run(Parrot::closing(&all[..n])).unwrap_err();
        assert!(matches!(e, ExchangeError::Closed { got, .. } if got == n % DESTINATION_LEN), "{n}: {e}");
        let e = run(Parrot::failing(&all[..n], ErrorKind::TimedOut)).unwrap_err();
        assert!(matches!(e, ExchangeError::TimedOut { .. }), "{n}: {e}");
    }
    let all = said(RECORDED, Side::Server);
    for n in (0..all.len()).filter(|n| n.is_multiple_of(97)) {
        let e = client(&mut Parrot::closing(&all[..n]), &local).unwrap_err();
        assert!(matches!(e, ExchangeError::Closed { got, .. } if got == n % DESTINATION_LEN), "{n}: {e}");
    }
}

#[test]
fn invalid_bytes_yield_an_error_that_quotes_them() {
    let mut all = said(RECORDED, Side::Client);
    all[200 * DESTINATION_LEN] = b'?';
    let e = Server::accept(Parrot::closing(&all)).err().unwrap();
    assert!(matches!(&e, ExchangeError::Garbled { bytes, .. } if bytes.starts_with('?')), "{e}");
    let mut all = said(RECORDED, Side::Client);
    *all.last_mut().unwrap() = b'!';
    let server = Server::accept(Parrot::closing(&all)).unwrap();
    let e = server.reply(&destinations(Side::Server)).unwrap_err();
    assert_eq!(e.to_string(), "ping-pong \"done\": not \"done\" in \"done!\"");
}

#[test]
fn number_of_qps_is_limited_to_the_places() {
    let one = destinations(Side::Client)[0];
    for n in [0, PLACES + 1] {
        let e = client(&mut Parrot::closing(&[]), &vec![one; n]).unwrap_err();
        assert!(matches!(e, ExchangeError::OutOfRange { what: "number of QPs", .. }), "{e}");
    }
    let full = one.encode().unwrap().repeat(PLACES);
    assert_eq!(client(&mut Parrot::closing(&full), &[one; PLACES]).unwrap(), [one; PLACES]);
}

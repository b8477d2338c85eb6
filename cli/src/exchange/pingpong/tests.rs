//! Tests of the `ibv_rc_pingpong` handshake against recorded handshakes.

use super::super::replay::{Replay, ScriptedPeer, Side, recording, sent_bytes};
use super::*;
use std::io::ErrorKind;

const IPV4: &str = include_str!("../testdata/pingpong_ipv4.txt");
const IPV6: &str = include_str!("../testdata/pingpong_ipv6.txt");

fn destination(text: &str, side: Side) -> Destination {
    let (_, m) = recording(text).into_iter().find(|(s, _)| *s == side).unwrap();
    Destination::parse(&m.try_into().unwrap()).unwrap()
}

#[test]
fn recorded_addresses_parse_and_encode_unchanged() {
    let d = destination(IPV4, Side::Client);
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 2]);
    assert_eq!(d, Destination { lid: 0, qpn: 0x4a, psn: 0xe4_8ec5, gid });
    let d = destination(IPV6, Side::Server);
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 1];
    assert_eq!(d, Destination { lid: 0, qpn: 0x4e, psn: 0xe7_6cb7, gid });
    for text in [IPV4, IPV6] {
        for (_, m) in recording(text).into_iter().filter(|(_, m)| m.len() == DESTINATION_LEN) {
            let m = m.try_into().unwrap();
            assert_eq!(Destination::parse(&m).unwrap().encode().unwrap(), m);
        }
    }
}

#[test]
fn replays_the_recorded_client_and_server() {
    for text in [IPV4, IPV6] {
        let (c, s) = (destination(text, Side::Client), destination(text, Side::Server));
        let mut r = Replay::new(text, Side::Client).byte_by_byte();
        assert_eq!(client(&mut r, &c).unwrap(), s);
        assert!(r.is_finished());
        let mut r = Replay::new(text, Side::Server);
        let server = Server::accept(&mut r).unwrap();
        assert_eq!(*server.remote(), c);
        assert_eq!(server.reply(&s).unwrap(), c);
        assert!(r.is_finished());
    }
}

#[test]
fn truncated_handshake_is_closed_or_timed_out() {
    let all = sent_bytes(IPV4, Side::Client);
    let local = destination(IPV4, Side::Server);
    for n in 0..all.len() {
        let run = |p| Server::accept(p).and_then(|s| s.reply(&local));
        let e = run(ScriptedPeer::closing(&all[..n])).unwrap_err();
        assert!(matches!(e, ExchangeError::Closed { got, .. } if got == n % DESTINATION_LEN), "{e}");
        let e = run(ScriptedPeer::failing(&all[..n], ErrorKind::TimedOut)).unwrap_err();
        assert!(matches!(e, ExchangeError::TimedOut { .. }), "{e}");
    }
}

#[test]
fn invalid_bytes_yield_an_error_that_quotes_them() {
    let good = destination(IPV4, Side::Client).encode().unwrap();
    for at in 0..good.len() {
        let mut bad = good;
        bad[at] = b'?';
        let e = Destination::parse(&bad).unwrap_err();
        assert!(matches!(&e, ExchangeError::Malformed { bytes, .. } if bytes.contains('?')), "{e}");
    }
    let e = Destination::parse(b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nAccept: */*\r\n").unwrap_err();
    assert_eq!(
        e.to_string(),
        "ping-pong address: the LID at offset 0 is not hexadecimal (\"GET \") in \
         \"GET / HTTP/1.1\\r\\nHost: localhost:18515\\r\\nAccept: */*\\r\\n\""
    );
    let mut sent = good.to_vec();
    sent.extend(b"gone!");
    let e = Server::accept(ScriptedPeer::closing(&sent))
        .unwrap()
        .reply(&destination(IPV4, Side::Server))
        .unwrap_err();
    assert_eq!(e.to_string(), "ping-pong \"done\": not \"done\" in \"gone!\"");
}

#[test]
fn out_of_range_numbers_are_not_encoded() {
    let d = Destination { lid: 0, qpn: 0x100_0000, psn: 0, gid: [0; 16] };
    assert!(matches!(d.encode(), Err(ExchangeError::OutOfRange { what: "QP number", .. })));
    let d = Destination { qpn: 0, psn: u32::MAX, ..d };
    assert_eq!(d.encode().unwrap_err().to_string(), "PSN: 0xffffffff is outside 0x0..=0xffffff");
}

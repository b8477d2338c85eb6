//! Tests of the handshake against recordings of rdma-core's ping-pong programs.

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use super::*;

const IPV4: &str = include_str!("pingpong_ipv4.txt");
const IPV6: &str = include_str!("pingpong_ipv6.txt");
const SRQ: &str = include_str!("pingpong_srq.txt");
/// Recorded handshakes, each with the numbers of addresses and of queue pairs per side.
const RECORDINGS: [(&str, usize, usize); 3] = [(IPV4, 1, 1), (IPV6, 1, 1), (SRQ, SRQ_ADDRESSES, 3)];

/// Parses a recording into messages with their senders, `C` or `S`. The prefix `N*` marks a message that is
/// sent N times.
fn recording(text: &str) -> VecDeque<(char, Vec<u8>)> {
    let mut out = VecDeque::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.ends_with("end")) {
        let (side, message) = line.split_once(' ').expect("side and message");
        let times = message.split_once('*').and_then(|(n, m)| Some((n.parse().ok()?, m)));
        let (n, message) = times.unwrap_or((1, message));
        let message = message.replace("\\x00", "\0").into_bytes();
        out.extend(std::iter::repeat_n((side.chars().next().expect("a letter"), message), n));
    }
    out
}

/// Returns all bytes that `side` sends in a recording.
fn sent_bytes(text: &str, side: char) -> Vec<u8> {
    recording(text).into_iter().filter(|(s, _)| *s == side).flat_map(|(_, m)| m).collect()
}

/// Returns the addresses that `side` sends for its queue pairs in a recording.
fn addresses(text: &str, side: char, qps: usize) -> Vec<Endpoint> {
    let bytes = sent_bytes(text, side);
    bytes.chunks(ADDRESS_LEN).take(qps).map(|m| parse(m.try_into().unwrap()).unwrap()).collect()
}

/// The other end of a recorded handshake, which delivers its messages byte by byte. Each write must be the
/// message that the recording contains at this point. A read that the recording has no message for would
/// block forever, so it fails with a timeout.
struct Replay {
    events: VecDeque<(char, Vec<u8>)>,
    local: char,
}

impl Read for Replay {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some((side, message)) = self.events.front_mut() else { return Ok(0) };
        if *side == self.local {
            return Err(ErrorKind::WouldBlock.into());
        }
        buf[0] = message.remove(0);
        if message.is_empty() {
            self.events.pop_front();
        }
        Ok(1)
    }
}

impl Write for Replay {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        assert_eq!(self.events.pop_front(), Some((self.local, buf.to_vec())));
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer that sends the given bytes regardless of what it receives, and then closes the connection or fails
/// with the given error.
#[derive(Debug)]
struct ScriptedPeer<'a>(&'a [u8], Option<ErrorKind>);

impl Read for ScriptedPeer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.1 {
            Some(kind) if self.0.is_empty() => Err(kind.into()),
            _ => self.0.read(buf),
        }
    }
}

impl Write for ScriptedPeer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn recorded_addresses_are_parsed_and_encoded_unchanged() {
    let address = |gid: &str, qpn, psn| {
        let gid = Gid(gid.parse::<Ipv6Addr>().unwrap().octets());
        vec![Endpoint { gid, qpn: Qpn::new(qpn), psn: Psn::new(psn) }]
    };
    assert_eq!(addresses(IPV4, 'C', 1), address("::ffff:10.77.0.2", 0x4a, 0xe4_8ec5));
    assert_eq!(addresses(IPV6, 'S', 1), address("fe80::5054:ff:fe77:1", 0x4e, 0xe7_6cb7));
    for (text, _, _) in RECORDINGS {
        for (_, m) in recording(text).into_iter().filter(|(_, m)| m.len() == ADDRESS_LEN) {
            assert_eq!(encode(&parse(m[..].try_into().unwrap()).unwrap()), m[..]);
        }
    }
}

#[test]
fn client_and_server_complete_the_recorded_handshakes() {
    for (text, count, qps) in RECORDINGS {
        let (c, s) = (addresses(text, 'C', qps), addresses(text, 'S', qps));
        let mut replay = Replay { events: recording(text), local: 'C' };
        assert_eq!(client(&mut replay, &c, count).unwrap(), s);
        assert!(replay.events.is_empty());
        let mut replay = Replay { events: recording(text), local: 'S' };
        assert_eq!(recv_addresses(&mut replay, count).unwrap(), c);
        reply(&mut replay, &s, count).unwrap();
        assert!(replay.events.is_empty());
    }
}

#[test]
fn truncated_handshake_fails_with_a_closed_or_timed_out_error() {
    for (text, count, qps) in RECORDINGS {
        let (all, local) = (sent_bytes(text, 'C'), addresses(text, 'S', qps));
        assert_eq!(all.len(), count * ADDRESS_LEN + DONE.len());
        // Every position in the first and last addresses and in the final message, and some positions
        // between.
        for n in (0..all.len()).filter(|n| *n < 110 || *n > all.len() - 110 || n.is_multiple_of(97)) {
            let run = |end| {
                let mut peer = ScriptedPeer(&all[..n], end);
                recv_addresses(&mut peer, count).and_then(|_| reply(&mut peer, &local, count))
            };
            let e = run(None).unwrap_err();
            assert!(matches!(e, HandshakeError::Closed { got, .. } if got == n % ADDRESS_LEN), "{n}: {e}");
            let e = run(Some(ErrorKind::TimedOut)).unwrap_err();
            assert!(matches!(e, HandshakeError::TimedOut { .. }), "{n}: {e}");
        }
        let all = sent_bytes(text, 'S');
        for n in (0..all.len()).filter(|n| n.is_multiple_of(97)) {
            let e = client(&mut ScriptedPeer(&all[..n], None), &local, count).unwrap_err();
            assert!(matches!(e, HandshakeError::Closed { got, .. } if got == n % ADDRESS_LEN), "{n}: {e}");
        }
    }
}

#[test]
fn invalid_bytes_yield_an_error_that_quotes_them() {
    let good = encode(&addresses(IPV4, 'C', 1)[0]);
    for at in 0..good.len() {
        let mut bad = good;
        bad[at] = b'?';
        let e = parse(&bad).unwrap_err();
        assert!(matches!(&e, HandshakeError::Malformed { bytes, .. } if bytes.contains('?')), "{e}");
    }
    let e = parse(b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nAccept: */*\r\n").unwrap_err();
    assert_eq!(
        e.to_string(),
        "ping-pong address: the LID at offset 0 is not hexadecimal (\"GET \") in \
         \"GET / HTTP/1.1\\r\\nHost: localhost:18515\\r\\nAccept: */*\\r\\n\""
    );
    for (text, count, qps) in RECORDINGS {
        let mut all = sent_bytes(text, 'C');
        *all.last_mut().unwrap() = b'!';
        let mut peer = ScriptedPeer(&all, None);
        recv_addresses(&mut peer, count).unwrap();
        let e = reply(&mut peer, &addresses(text, 'S', qps), count).unwrap_err();
        assert_eq!(e.to_string(), "ping-pong \"done\": not \"done\" in \"done!\"");
    }
    let mut all = sent_bytes(SRQ, 'C');
    all[200 * ADDRESS_LEN] = b'?';
    let e = recv_addresses(&mut ScriptedPeer(&all, None), SRQ_ADDRESSES).unwrap_err();
    assert!(matches!(&e, HandshakeError::Malformed { bytes, .. } if bytes.starts_with('?')), "{e}");
}

#[test]
fn handshake_carries_256_queue_pairs_and_fails_if_the_first_qp_number_is_0() {
    let one = addresses(SRQ, 'C', 1)[0];
    let full = encode(&one).repeat(SRQ_ADDRESSES);
    let remote = client(&mut ScriptedPeer(&full, None), &[one; SRQ_ADDRESSES], SRQ_ADDRESSES).unwrap();
    assert_eq!(remote, [one; SRQ_ADDRESSES]);
    let zeros = encode(&Endpoint { qpn: Qpn::new(0), ..one });
    let e = recv_addresses(&mut ScriptedPeer(&zeros, None), 1).unwrap_err();
    assert!(e.to_string().contains("the QP number is 0"), "{e}");
}

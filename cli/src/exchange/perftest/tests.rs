//! Tests of the perftest handshake against recorded handshakes.

use super::super::replay::{Replay, ScriptedPeer, Side, recording, sent_bytes};
use super::*;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The recordings: test, number of QPs, recording.
const ALL: [(Test, usize, &str); 7] = [
    (Test::WriteBw, 2, include_str!("../testdata/write_bw_q2.txt")),
    (Test::WriteBw, 2, include_str!("../testdata/write_bw_q2_ipv6.txt")),
    (Test::ReadBw, 1, include_str!("../testdata/read_bw.txt")),
    (Test::SendBw, 2, include_str!("../testdata/send_bw_q2.txt")),
    (Test::AtomicBw, 1, include_str!("../testdata/atomic_bw.txt")),
    (Test::WriteLat, 1, include_str!("../testdata/write_lat.txt")),
    (Test::SendLat, 1, include_str!("../testdata/send_lat.txt")),
];
const IPV6: &str = ALL[1].2;
const READ: &str = ALL[2].2;

/// Returns the messages of one length that a side sent.
fn messages<const N: usize>(text: &str, side: Side) -> Vec<[u8; N]> {
    recording(text).into_iter().filter(|(s, _)| *s == side).filter_map(|(_, m)| m.try_into().ok()).collect()
}

fn destinations(text: &str, side: Side, qps: usize) -> Vec<Destination> {
    messages(text, side).iter().take(qps).map(|m| Destination::parse(m).unwrap()).collect()
}

fn mtu(text: &str, side: Side) -> u32 {
    parse_mtu(&messages(text, side)[0]).unwrap()
}

fn report(text: &str, side: Side) -> BwReport {
    messages(text, side).try_into().map(|m| BwReport::parse(&m)).unwrap_or_default()
}

/// Drives one side through a whole handshake and returns what it has received.
fn run_handshake<S: Read + Write>(
    stream: S,
    role: Role,
    config: &Config,
    local: &[Destination],
    result: &BwReport,
) -> Result<(Agreed, Vec<Destination>, Option<BwReport>), ExchangeError> {
    let mut x = match role {
        Role::Client => Exchange::client(stream, config)?,
        Role::Server => Exchange::server(stream, config)?,
    };
    let agreed = *x.agreed();
    let remote = x.swap_destinations(local)?;
    assert_eq!(x.remote(), remote);
    x.start()?;
    Ok((agreed, remote, x.finish(result)?))
}

const SIDES: [(Role, Side, Side); 2] =
    [(Role::Client, Side::Client, Side::Server), (Role::Server, Side::Server, Side::Client)];

#[test]
fn replays_both_sides_of_every_recorded_program() {
    for (test, qps, text) in ALL {
        for (role, local_side, peer_side) in SIDES {
            for byte_by_byte in [false, true] {
                let mut r = Replay::new(text, local_side);
                if byte_by_byte {
                    r = r.byte_by_byte();
                }
                let config = Config::new(test, mtu(text, local_side));
                let local = destinations(text, local_side, qps);
                let (agreed, remote, result) =
                    run_handshake(&mut r, role, &config, &local, &report(text, local_side))
                        .unwrap_or_else(|e| panic!("{test:?} {role:?}: {e}"));
                assert!(r.is_finished(), "{test:?} {role:?}");
                assert_eq!(agreed.mtu, mtu(text, local_side).min(mtu(text, peer_side)));
                assert_eq!((agreed.cycle_buffer, agreed.cache_line), (4096, 64));
                assert_eq!(remote, destinations(text, peer_side, qps));
                assert_eq!(result.is_some(), test.has_report());
                if let (Some(r), Role::Server) = (result, role) {
                    assert_eq!(r, report(text, peer_side));
                }
            }
        }
    }
}

#[test]
fn recorded_messages_parse_and_encode_unchanged() {
    let [d] = destinations(READ, Side::Client, 1)[..] else { panic!() };
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 2]);
    let expected = Destination {
        lid: 0,
        out_reads: 128,
        qpn: 0x50,
        psn: 0xef_0af7,
        rkey: 0x3351,
        vaddr: 0x7f71_03a4_7000,
        gid,
        srqn: 0,
    };
    assert_eq!(d, expected);
    let r = report(READ, Side::Client);
    assert_eq!((r.size, r.iterations), (65536, 5));
    // The client printed: 11.10, 11.10, 0.000178
    assert_eq!(format!("{:.2} {:.2} {:.6}", r.peak, r.average, r.msg_rate), "11.10 11.10 0.000178");
    // The message rate and the bandwidth agree.
    assert!((r.msg_rate * 1e6 * 65536.0 / 1048576.0 - r.average).abs() < 1e-6, "{r:?}");
    for (_, _, text) in ALL {
        for side in [Side::Client, Side::Server] {
            for m in messages(text, side) {
                assert_eq!(Destination::parse(&m).unwrap().encode().unwrap(), m);
            }
            for m in messages(text, side) {
                parse_version(&m).unwrap();
                assert_eq!(encode_version(), m);
            }
        }
    }
    // The server was started with -m 512; its device has 1024.
    assert_eq!((mtu(IPV6, Side::Client), mtu(IPV6, Side::Server)), (1024, 512));
}

#[test]
fn client_and_server_complete_every_test_over_tcp() {
    for (test, qps, text) in ALL {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = move |s: TcpStream| {
            s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            s
        };
        let client = std::thread::spawn(move || {
            let s = connect(TcpStream::connect(("127.0.0.1", port)).unwrap());
            let local = destinations(text, Side::Client, qps);
            run_handshake(s, Role::Client, &Config::new(test, 4096), &local, &report(text, Side::Client))
        });
        let s = connect(listener.accept().unwrap().0);
        let local = destinations(text, Side::Server, qps);
        let config = Config { cycle_buffer: 65536, cache_line: 128, ..Config::new(test, 2048) };
        let (agreed, remote, result) =
            run_handshake(s, Role::Server, &config, &local, &BwReport::default()).unwrap();
        let (client_agreed, client_remote, _) = client.join().unwrap().unwrap();
        assert_eq!(agreed, Agreed { mtu: 2048, cycle_buffer: 65536, cache_line: 128 });
        assert_eq!(agreed, client_agreed);
        assert_eq!(client_remote, local);
        assert_eq!(remote, destinations(text, Side::Client, qps));
        assert_eq!(result, test.has_report().then(|| report(text, Side::Client)));
    }
}

#[test]
fn truncated_handshake_is_closed_or_timed_out() {
    for (test, qps, text) in ALL {
        for (role, local_side, peer_side) in SIDES {
            let all = sent_bytes(text, peer_side);
            let needed = all.strip_suffix(DONE).unwrap_or(&all);
            let run = |p| {
                let config = Config::new(test, 1024);
                run_handshake(p, role, &config, &destinations(text, local_side, qps), &BwReport::default())
            };
            for n in 0..needed.len() {
                let e = run(ScriptedPeer::closing(&needed[..n])).unwrap_err();
                assert!(matches!(e, ExchangeError::Closed { got, want, .. } if got < want), "{e}");
                let e = run(ScriptedPeer::failing(&needed[..n], ErrorKind::WouldBlock)).unwrap_err();
                assert!(matches!(e, ExchangeError::TimedOut { got, want, .. } if got < want), "{e}");
            }
            // The final "done" may be missing.
            run(ScriptedPeer::closing(needed)).unwrap();
            run(ScriptedPeer::failing(needed, ErrorKind::ConnectionReset)).unwrap();
        }
    }
}

#[test]
fn changed_byte_in_repeated_data_is_an_error() {
    for (test, qps, text) in ALL {
        for (role, local_side, peer_side) in SIDES {
            let all = sent_bytes(text, peer_side);
            let reports = if test.has_report() { 40 } else { 0 };
            for at in 0..all.len() {
                for c in [0, b'?', b':', 0xff, all[at] ^ 1] {
                    let mut bad = all.clone();
                    bad[at] = c;
                    let local = destinations(text, local_side, qps);
                    let result = run_handshake(
                        ScriptedPeer::closing(&bad),
                        role,
                        &Config::new(test, 1024),
                        &local,
                        &BwReport::default(),
                    );
                    // Values may differ, but the second copy of a QP's data must equal the first.
                    let second = VERSION_LEN + 10 + qps * DESTINATION_LEN;
                    let in_report =
                        (all.len() - DONE.len() - DESTINATION_LEN - reports..all.len()).contains(&at);
                    if c != all[at] && at >= second && !(test.has_report() && in_report) {
                        assert!(result.is_err(), "{test:?} {role:?} byte {at} = {c}");
                    }
                }
            }
        }
    }
}

fn open(input: &[u8]) -> String {
    Exchange::client(ScriptedPeer::closing(input), &Config::new(Test::WriteBw, 1024))
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

#[test]
fn other_versions_and_protocols_are_rejected() {
    assert_eq!(
        open(b"24.04\0\0\0\0\0\0\0\0\0\0\0"),
        "the peer runs perftest 24.04, this side implements the protocol of 6.06 (Debian 12's 4.5+0.17)"
    );
    assert_eq!(
        open(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"),
        "perftest version: not a version number in \"SSH-2.0-OpenSSH_\""
    );
    assert_eq!(
        open(&[0; 16]),
        format!("perftest version: not a version number in \"{}\"", r"\x00".repeat(16))
    );
    assert_eq!(open(b"6.0"), "perftest version: the peer closed the connection after 3 of 16 bytes");
}

#[test]
fn invalid_parameters_yield_errors_that_name_them() {
    let error = |rest: &[u8]| open(&[&encode_version(), rest].concat());
    assert_eq!(error(&[0; 4]), r#"perftest cycle buffer size: 0 is out of range in "\x00\x00\x00\x00""#);
    assert_eq!(
        error(&[0, 0, 16, 0, 0xff, 0, 0, 0]),
        r#"perftest cache line size: 4278190080 is out of range in "\xff\x00\x00\x00""#
    );
    assert_eq!(error(b"\0\0\x10\0\0\0\0\x406\0"), r#"perftest MTU: MTU code is not in 1..=5 in "6\x00""#);
    for (bytes, code) in [(256, b"1\0"), (512, b"2\0"), (1024, b"3\0"), (2048, b"4\0"), (4096, b"5\0")] {
        assert_eq!(encode_mtu(bytes).unwrap(), *code);
        assert_eq!(parse_mtu(code).unwrap(), bytes);
    }
    for bad in [0, 128, 1000, 1500, 8192, u32::MAX] {
        assert!(matches!(encode_mtu(bad), Err(ExchangeError::OutOfRange { .. })), "{bad}");
    }
    for bad in [b"0\0", b"31", b"3 ", b"\0\0"] {
        assert!(matches!(parse_mtu(bad), Err(ExchangeError::Malformed { .. })), "{bad:?}");
    }
    let config = Config { cycle_buffer: 0, ..Config::new(Test::ReadBw, 1024) };
    let e = Exchange::server(ScriptedPeer::closing(b""), &config).map(|_| ()).unwrap_err();
    assert!(matches!(e, ExchangeError::OutOfRange { .. }), "{e}");
}

#[test]
fn invalid_address_yields_an_error_that_quotes_it() {
    let good: [u8; DESTINATION_LEN] = messages(READ, Side::Server)[0];
    for at in 0..good.len() {
        let mut bad = good;
        bad[at] = b'?';
        let e = Destination::parse(&bad).unwrap_err();
        assert!(matches!(&e, ExchangeError::Malformed { bytes, .. } if bytes.contains('?')), "{e}");
    }
    let mut bad = good;
    bad[12] = b'x';
    assert_eq!(
        Destination::parse(&bad).unwrap_err().to_string(),
        "perftest address: the QP number at offset 10 is not hexadecimal (\"00x053\") in \
         \"0000:0080:00x053:9ca614:000034e9:00007f35fa3b9000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:\
         00000000:\\x00\""
    );
    let d = Destination::parse(&good).unwrap();
    assert!(Destination { qpn: 1 << 24, ..d }.encode().is_err());
    assert!(Destination { psn: 1 << 24, ..d }.encode().is_err());
}

#[test]
fn changed_address_is_reported_with_both_copies() {
    let mut all = sent_bytes(READ, Side::Server);
    let second = VERSION_LEN + 10 + DESTINATION_LEN;
    all[second + 15] = b'7';
    let local = destinations(READ, Side::Client, 1);
    let mut x = Exchange::client(ScriptedPeer::closing(&all), &Config::new(Test::ReadBw, 1024)).unwrap();
    x.swap_destinations(&local).unwrap();
    let e = x.start().unwrap_err();
    let ExchangeError::Changed { index: 0, first, second } = &e else { panic!("{e}") };
    assert!(first.starts_with("0000:0080:000053:") && second.starts_with("0000:0080:000057:"), "{e}");
}

#[test]
fn steps_out_of_order_are_errors() {
    let all = sent_bytes(READ, Side::Server);
    let open = || Exchange::client(ScriptedPeer::closing(&all), &Config::new(Test::ReadBw, 1024)).unwrap();
    assert!(matches!(open().start(), Err(ExchangeError::OutOfRange { .. })));
    assert!(matches!(open().swap_destinations(&[]), Err(ExchangeError::OutOfRange { .. })));
}

#[test]
fn missing_done_is_accepted_and_wrong_done_is_rejected() {
    let head = [&encode_version()[..], &[0, 0, 16, 0, 0, 0, 0, 64], b"3\0"].concat();
    let done = |tail: &[u8], write_error| {
        let stream = ScriptedPeer::closing(&[&head, tail].concat());
        let mut x = Exchange::client(stream, &Config::new(Test::SendBw, 1024)).unwrap();
        x.stream.write_error = write_error;
        x.done()
    };
    done(b"", None).unwrap();
    done(b"don", None).unwrap();
    done(DONE, None).unwrap();
    done(b"", Some(ErrorKind::BrokenPipe)).unwrap();
    assert!(matches!(done(b"", Some(ErrorKind::OutOfMemory)), Err(ExchangeError::Io { .. })));
    assert!(matches!(done(b"done?", None), Err(ExchangeError::Malformed { .. })));
}

#[test]
fn write_lat_server_waits_for_the_connection_to_close() {
    let all = sent_bytes(ALL[5].2, Side::Client);
    let run = |p| {
        let config = Config::new(Test::WriteLat, 1024);
        run_handshake(
            p,
            Role::Server,
            &config,
            &destinations(ALL[5].2, Side::Server, 1),
            &BwReport::default(),
        )
    };
    assert!(run(ScriptedPeer::closing(&all)).unwrap().2.is_none());
    run(ScriptedPeer::failing(&all, ErrorKind::ConnectionReset)).unwrap();
    assert!(matches!(
        run(ScriptedPeer::failing(&all, ErrorKind::WouldBlock)),
        Err(ExchangeError::TimedOut { .. })
    ));
    let more = [&all[..], b"x"].concat();
    assert!(matches!(run(ScriptedPeer::closing(&more)), Err(ExchangeError::Malformed { .. })));
}

/// Compares with addresses seen in packets of the stock clients.
#[test]
fn layout_matches_the_addresses_of_the_stock_clients() {
    let agreed = Agreed { mtu: 1024, cycle_buffer: 4096, cache_line: 64 };
    let first = |test, size, n: usize| {
        let l = Layout::new(test, size, &agreed);
        (l.slot, (0..n as u64).map(|i| l.offset(i)).collect::<Vec<_>>())
    };
    // ib_write_bw -s 1000 -n 300: 4 positions, 1024 bytes apart
    assert_eq!(first(Test::WriteBw, 1000, 6), (4096, vec![0, 0x400, 0x800, 0xc00, 0, 0x400]));
    // ib_read_bw -s 100 -n 300: 32 positions, 128 bytes apart
    let (_, read) = first(Test::ReadBw, 100, 300);
    assert_eq!((read[29], read[31], read[32], read[33], read[299]), (0xe80, 0xf80, 0, 0x80, 0x580));
    // ib_atomic_bw: 64 words, 64 bytes apart
    assert_eq!(first(Test::AtomicBw, 8, 5), (4096, vec![0, 0x40, 0x80, 0xc0, 0x100]));
    assert_eq!(Layout::new(Test::AtomicBw, 8, &agreed).positions, 64);
    // ib_write_bw -s 4096 and -s 65536, ib_write_lat -s 100: all at the same position
    assert_eq!(first(Test::WriteBw, 4096, 3), (4096, vec![0; 3]));
    assert_eq!(first(Test::WriteBw, 65536, 3), (65536, vec![0; 3]));
    assert_eq!(first(Test::WriteLat, 100, 3), (4096, vec![0; 3]));
    // ib_send_lat -s 5000: the slot is not rounded up
    assert_eq!(first(Test::SendLat, 5000, 2), (5000, vec![0; 2]));
    assert_eq!(Layout::new(Test::WriteBw, 4096, &agreed).region(2), 8192);
    // No division by zero, and every message lies within the slot.
    for cycle_buffer in [1, 7, 64, 4096] {
        for cache_line in [0, 1, 64, 8192] {
            for size in [0, 1, 3, 8, 2048, 1 << 31] {
                let agreed = Agreed { mtu: 256, cycle_buffer, cache_line };
                let l = Layout::new(Test::AtomicBw, size, &agreed);
                assert!((0..200).all(|n| l.offset(n) + u64::from(size) <= l.slot), "{agreed:?} {size}");
            }
        }
    }
}

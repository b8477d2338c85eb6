//! Test that kills the guest, the peer of urxe, in the middle of transfers on three connections: a stream of
//! WRITEs, one of SENDs, and one of SENDs over a connection of the connection manager. Every work request
//! must complete exactly once, and none with success that the guest has not acknowledged. Then a guest with
//! the same addresses boots, and the same NIC of urxe connects to it again. Needs the test guest.

use pcap_file::pcap::PcapReader;
use std::fs::File;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use urxe::verbs::cm::*;
use urxe::verbs::errors::CreateError;
use urxe::verbs::*;
use urxe::wire::frame::{self, Checksums, Content};
use urxe::wire::{Packet, Syndrome};
use urxe_test_support::guest::{hash, pattern};
use urxe_test_support::peer::{ConnectParams, Shell, Side};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

/// Time limit for everything, because the guest is emulated and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(300);
const MTU: usize = 4096;
/// Length of a message, 16 packets.
const LEN: usize = 16 * MTU;
/// Number of send work requests outstanding on each connection.
const DEPTH: usize = 16;
/// Number of successes on each connection before the guest is killed.
const BEFORE: usize = 24;
/// Number of messages for which the guest has buffers; fewer are sent, because nothing completes with success
/// long after the guest is killed.
const ROOM: usize = 100;
/// Number of receives that stay outstanding on each connection.
const RECEIVES: usize = 4;
/// Offset in the local region of the buffer for all messages from the guest.
const INCOMING: usize = 1 << 20;
/// First ID of a receive; lower ones are those of sends.
const RECEIVE: u64 = 1 << 32;
/// Port of programs in the guest.
const PORT: u16 = 7471;

/// Returns the offset in the local region of message `i`.
fn source(i: usize) -> usize {
    i * 64
}

/// A connection with a stream of messages to the guest, and the statuses of its completions.
struct Stream<'a> {
    name: &'static str,
    qp: &'a Qp,
    /// First byte in the guest's region for WRITEs; `None` for SENDs.
    to: Option<RemoteAddr>,
    posted: usize,
    sends: Vec<WcStatus>,
    /// Number of receives posted.
    receives_posted: usize,
    receives: Vec<WcStatus>,
}

/// Reports whether successes come first, and what follows equals `expected`.
fn ends_with(statuses: &[WcStatus], expected: impl Iterator<Item = WcStatus>) -> bool {
    let failures = statuses.iter().skip_while(|status| **status == WcStatus::Success);
    failures.copied().eq(expected.take(statuses.len() - successes(statuses)))
}

fn successes(statuses: &[WcStatus]) -> usize {
    statuses.iter().take_while(|status| **status == WcStatus::Success).count()
}

impl<'a> Stream<'a> {
    /// Posts receives to the queue pair. `incoming` is the number of messages that the guest sends.
    fn new(
        name: &'static str,
        side: &Side,
        qp: &'a Qp,
        to: Option<RemoteAddr>,
        incoming: usize,
    ) -> Stream<'a> {
        let receives_posted = incoming + RECEIVES;
        for i in 0..receives_posted {
            let buffer = [side.mr.sge(INCOMING..INCOMING + LEN)];
            qp.post_recv(&RecvWr::new(RECEIVE + i as u64, &buffer)).unwrap();
        }
        Stream { name, qp, to, posted: 0, sends: Vec::new(), receives_posted, receives: Vec::new() }
    }

    fn has_failed(&self) -> bool {
        successes(&self.sends) < self.sends.len()
    }

    /// Reports whether no work request is outstanding.
    fn is_complete(&self) -> bool {
        (self.sends.len(), self.receives.len()) == (self.posted, self.receives_posted)
    }

    /// Posts work requests until `DEPTH` are outstanding or `limit` were posted, unless the queue pair has
    /// failed.
    fn fill(&mut self, side: &Side, limit: usize) {
        while !self.has_failed() && self.posted < limit.min(self.sends.len() + DEPTH) {
            let i = self.posted;
            let sges = [side.mr.sge(source(i)..source(i) + LEN)];
            let wr = match self.to {
                Some(to) => SendWr::write(i as u64, &sges, RemoteAddr { va: to.va + (i * LEN) as u64, ..to }),
                None => SendWr::send(i as u64, &sges),
            };
            self.qp.post_send(&wr).unwrap();
            self.posted += 1;
        }
    }

    /// Stores a completion; those of sends must arrive in order.
    fn complete(&mut self, wc: &Completion) {
        let (first, statuses) =
            if wc.wr_id >= RECEIVE { (RECEIVE, &mut self.receives) } else { (0, &mut self.sends) };
        assert_eq!(wc.wr_id, first + statuses.len() as u64, "{}: {wc:?}", self.name);
        statuses.push(wc.status);
    }

    /// Checks that what did not succeed is one send with exhausted retries, followed by flushed work
    /// requests.
    fn check_failure(&self) {
        let Stream { name, sends, receives, .. } = self;
        let flushed = std::iter::repeat(WcStatus::WrFlushErr);
        let failed = std::iter::once(WcStatus::RetryExcErr).chain(flushed.clone());
        assert!(self.has_failed() && ends_with(sends, failed), "{name}: {sends:?}");
        assert!(ends_with(receives, flushed), "{name}: {receives:?}");
        assert_eq!(self.qp.state(), QpState::Err, "{name}");
    }
}

/// Posts up to `limit` messages on each stream, and polls until all streams are `done`.
fn run(side: &Side, streams: &mut [Stream<'_>], limit: usize, done: impl Fn(&Stream<'_>) -> bool) {
    let begin = Instant::now();
    loop {
        streams.iter_mut().for_each(|stream| stream.fill(side, limit));
        if streams.iter().all(&done) {
            return;
        }
        for wc in side.poll(1, Duration::from_millis(100)) {
            let stream = streams.iter_mut().find(|s| s.qp.qpn() == wc.qpn);
            stream.unwrap_or_else(|| panic!("unexpected completion: {wc:?}")).complete(&wc);
        }
        let progress: Vec<_> = streams.iter().map(|s| (s.name, s.posted, &s.sends, &s.receives)).collect();
        let limit =
            if limit < ROOM && streams.iter().any(Stream::has_failed) { Duration::ZERO } else { LIMIT };
        assert!(
            begin.elapsed() < limit,
            "no result within {limit:?}: (posted, sends, receives) {progress:?}"
        );
    }
}

/// Connects two local queue pairs to a new shell in the guest, which stores WRITEs in the first half of its
/// region, and SENDs in the second.
fn connect_shell(setup: &Testbed, side: &Side, ip: Ip) -> (Shell, [Qp; 2]) {
    let mut shell = setup.shell(2 * ROOM * LEN);
    let mut params = ConnectParams::new(ip, MTU);
    // Two seconds, so that a guest on a busy machine does not fail too early.
    params.ours = params.ours.timeout(AckTimeout::new(19));
    params.their_qp = format!("rq={ROOM}");
    let qps = ["w", "s"].map(|name| setup.connect_named(side, &mut shell, name, &params));
    for i in 0..ROOM {
        shell.vsh.cmd(&format!("recv s m {} {LEN} id={i}", (ROOM + i) * LEN)).unwrap();
    }
    (shell, qps)
}

/// Checks that the guest has the first `BEFORE` messages of both streams.
fn check_memory(shell: &mut Shell, side: &Side) {
    let received = shell.vsh.poll(BEFORE, LIMIT).unwrap();
    let received: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.status.as_str(), wc.len)).collect();
    let expected: Vec<_> = (0..BEFORE as u64).map(|i| (i, "SUCCESS", LEN as u32)).collect();
    assert_eq!(received, expected, "receives in the guest");
    for i in 0..BEFORE {
        let want = hash(&side.mr.read_vec(source(i)..source(i) + LEN).unwrap());
        for (what, at) in [("WRITE", i * LEN), ("SEND", (ROOM + i) * LEN)] {
            let got = shell.vsh.cmd(&format!("hash m {at} {LEN}")).unwrap().num("hash");
            assert_eq!(got, want, "{what} {i} differs in the guest");
        }
    }
}

/// Returns the number of packets from PSN `first` on that the guest has acknowledged to the local queue pair
/// `qpn`, according to the recording.
fn acknowledged(setup: &Testbed, qp: &Qp) -> usize {
    let (qpn, first) = (qp.qpn(), qp.endpoint().psn);
    let mut reader = PcapReader::new(File::open(setup.recording().unwrap()).unwrap()).unwrap();
    let mut count = 0;
    // QEMU may have been killed in the middle of a record.
    while let Some(Ok(record)) = reader.next_packet() {
        let Ok(frame) = frame::parse(&record.data, Checksums::Trust) else { continue };
        let Content::Roce(roce) = frame.content else { continue };
        let Ok(packet) = Packet::parse(&record.data[roce.payload]) else { continue };
        let is_ack = packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        if packet.bth().dest_qp == qpn && is_ack {
            count = count.max((packet.bth().psn.get().wrapping_sub(first.get()) & 0xff_ffff) as usize + 1);
        }
    }
    count
}

/// Returns a queue pair for a connection of the connection manager.
fn unconnected(side: &Side) -> Result<Qp, CreateError> {
    let qp = side.qp(QpType::Rc);
    // The queue pair accepts receives from INIT on; attaching it keeps that state.
    qp.enter_init(Access::ALL).unwrap();
    Ok(qp)
}

/// Exchanges a text with `rping` in the guest: it READs the text, prints it, and WRITEs it back.
fn ping(setup: &Testbed, side: &Side, manager: &ConnectionManager, at: SocketAddr) {
    const SIZE: usize = 64;
    let [text, copy, message] = [0, SIZE, 2 * SIZE].map(|at| at + (1 << 20));
    let mut server = setup.guest.spawn(&format!("rping -s -v -a {} -p {PORT}", at.ip())).unwrap();
    setup.guest.wait_listening(PORT, LIMIT).unwrap();
    let sent: Vec<u8> = b"after the reboot".iter().copied().chain([0; SIZE]).take(SIZE).collect();
    side.mr.write(text, &sent).unwrap();
    side.mr.write(copy, &[0; SIZE]).unwrap();
    let session = manager.connect(at, |_| unconnected(side), &ConnParam::default(), LIMIT).unwrap();
    let qp = session.qp();
    for (i, buffer) in [text, copy].into_iter().enumerate() {
        qp.post_recv(&RecvWr::new(RECEIVE, &[side.mr.sge(message + 16..message + 32)])).unwrap();
        let remote = side.mr.remote(buffer);
        let parts =
            [&remote.va.to_be_bytes()[..], &remote.rkey.0.to_be_bytes(), &(SIZE as u32).to_be_bytes()];
        qp.post_send(&SendWr::send(i as u64, &[]).inline_list(&parts)).unwrap();
        let completions = side.poll(2, LIMIT);
        assert_eq!(completions.len(), 2, "rping does not answer");
        assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    }
    server.wait_for("after the reboot", LIMIT).unwrap();
    let returned = side.mr.read_vec(copy..copy + 17).unwrap();
    assert_eq!(returned, sent[..17], "the guest returned other bytes");
    session.disconnect(LIMIT).unwrap();
}

/// Kills the guest in the middle of transfers, checks the results, boots a guest again and connects to it.
fn kill_and_reboot(via: LinkKind, ip: Ip) {
    let mut setup = Testbed::start_recorded(via);
    let side = setup.open(ip);
    side.mr.write(0, &pattern(source(ROOM) + LEN, 7)).unwrap();
    let manager = ConnectionManager::new(vec![side.context.clone()]).unwrap();
    let at = SocketAddr::new(ip.of(1), PORT);
    let connect = || manager.connect(at, |_| unconnected(&side), &ConnParam::default(), LIMIT);

    let (mut shell, qps) = connect_shell(&setup, &side, ip);
    let server = format!("ucmatose -b {} -p {PORT} -c 1 -C {ROOM} -S {LEN}", at.ip());
    let _server = setup.guest.spawn(&server).unwrap();
    setup.guest.wait_listening(PORT, LIMIT).unwrap();
    let session = connect().unwrap();
    let mut streams = [
        Stream::new("WRITEs", &side, &qps[0], Some(shell.to), 0),
        Stream::new("SENDs", &side, &qps[1], None, 0),
        Stream::new("SENDs of a CM connection", &side, session.qp(), None, ROOM),
    ];
    run(&side, &mut streams, BEFORE, |s| s.sends.len() == BEFORE);
    check_memory(&mut shell, &side);
    // The limit leaves messages to be sent after the guest is killed, so every connection fails.
    run(&side, &mut streams, BEFORE + 2 * DEPTH, |s| s.sends.len() > BEFORE);
    setup.guest.kill();
    run(&side, &mut streams, ROOM, |s| s.has_failed() && s.is_complete());
    assert_eq!(side.poll(1, Duration::from_millis(100)), [], "more completions than work requests");
    streams.iter().for_each(Stream::check_failure);
    for stream in &streams[..2] {
        let (successes, packets) = (successes(&stream.sends), acknowledged(&setup, stream.qp));
        assert!(
            successes * LEN / MTU <= packets,
            "{}: {successes} successes, but the guest has acknowledged only {packets} packets",
            stream.name
        );
    }
    for Stream { name, sends, receives, .. } in &streams {
        let [sent, received] = [sends, receives].map(|s| format!("{} of {}", successes(s), s.len()));
        println!("{via}: {name}: {sent} sends and {received} receives succeeded");
    }

    // Both take 70 s, until the connection manager has retried 15 times.
    let unreachable = std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        session.disconnect(LIMIT).expect("the disconnect ends although the peer does not reply");
        connecting.join().unwrap()
    });
    let unreachable = unreachable.expect_err("nobody is there to accept");
    let is_unreachable = matches!(unreachable, SessionError::Failed { kind: CmEventKind::Unreachable, .. });
    assert!(is_unreachable, "{unreachable}");
    assert_eq!(manager.connections(), 0);

    setup.reboot();
    let (mut shell, qps) = connect_shell(&setup, &side, ip);
    let mut streams = [
        Stream::new("WRITEs", &side, &qps[0], Some(shell.to), 0),
        Stream::new("SENDs", &side, &qps[1], None, 0),
    ];
    run(&side, &mut streams, BEFORE, |s| s.sends.len() == BEFORE);
    check_memory(&mut shell, &side);
    ping(&setup, &side, &manager, at);
}

#[test]
fn work_requests_fail_when_the_guest_is_killed_and_new_connections_reach_the_next_guest_over_frames() {
    kill_and_reboot(LinkKind::Dgram, Ip::V4);
}

#[test]
fn work_requests_fail_when_the_guest_is_killed_and_new_connections_reach_the_next_guest_over_udp() {
    kill_and_reboot(LinkKind::Udp, Ip::Ula);
}

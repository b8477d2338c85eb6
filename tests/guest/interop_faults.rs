//! Tests of urxe against the kernel's rxe over a wire that loses, duplicates, reorders and corrupts packets
//! in either direction or both, over IPv4 and IPv6: all data must arrive, and the counters of both sides must
//! show the expected errors. Needs the test guest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use urxe::middleware::faults::{Action, Direction, FaultCounters, Faults, Rule, When};
use urxe::verbs::*;
use urxe_test_support::guest::{hash, pattern};
use urxe_test_support::peer::{ConnectParams, Shell, Side, remote_args};
use urxe_test_support::table::Table;
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

const MINUTE: Duration = Duration::from_secs(60);
/// Timeout of a poll, shorter than the ACK timeouts of both sides (268 and 67 ms).
const POLL_TIMEOUT: Duration = Duration::from_millis(40);
/// Path MTU, small enough that each message takes several packets.
const MTU: usize = 1024;
const LEN: usize = 10_000;
/// Number of messages in a round.
const BATCH: usize = 12;
/// Distance in bytes between the buffers of consecutive messages.
const STEP: usize = 16_384;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    Send,
    Read,
    Add,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Urxe,
    Rxe,
}

/// Offset of the destination buffers, which follow the source buffers.
const DST: usize = STEP * BATCH;

struct Bench {
    side: Side,
    shell: Shell,
    qp: Qp,
    /// A second QP, which sends only filler messages.
    other: Qp,
    filler_count: usize,
    seed: u8,
}

impl Bench {
    /// Checks the contents of the message buffers on one side; message `i` lies at `base + i * STEP`.
    fn check(&mut self, on: Role, base: usize, len: usize, seeds: &[u8], kind: Kind) {
        for (i, seed) in seeds.iter().enumerate() {
            let (off, want) = (base + i * STEP, pattern(len, *seed));
            let got = match on {
                Role::Urxe => {
                    let mut got = vec![0; len];
                    self.side.mr.read(off, &mut got).unwrap();
                    hash(&got)
                }
                Role::Rxe => self.shell.vsh.cmd(&format!("hash m {off} {len}")).unwrap().num("hash"),
            };
            assert_eq!(got, hash(&want), "{kind:?}: message {i} of {len} bytes at {on:?}");
        }
    }

    /// Sends short messages on the other QP, to advance the counter that selects every 13th packet. Without
    /// them, a sender that retransmits 13 packets would lose the same packet in each retry. The number of
    /// messages varies, so that retransmitted packets and filler messages do not add up to 13 each time.
    fn send_filler(&mut self) {
        self.filler_count = self.filler_count % 5 + 1;
        for _ in 0..self.filler_count {
            let wr = SendWr::write(0, &[], self.shell.at(0)).signaled(false);
            // The post fails if the queue is full because this QP waits for an acknowledgement too.
            let _ = self.other.post_send(&wr);
        }
    }

    fn check_urxe_completions(&mut self, n: usize, kind: Kind) {
        let begin = Instant::now();
        let mut got = Vec::new();
        while got.len() < n && begin.elapsed() < MINUTE {
            got.extend(self.side.poll(n - got.len(), POLL_TIMEOUT));
            if got.len() < n {
                self.send_filler();
            }
        }
        let unexpected =
            got.iter().enumerate().find(|(i, wc)| wc.status != WcStatus::Success || wc.wr_id != *i as u64);
        assert!(
            got.len() == n && unexpected.is_none(),
            "{kind:?}: urxe has {} of {n} completions, first unexpected: {unexpected:?}; {:?}",
            got.len(),
            self.side.counters()
        );
    }

    fn check_rxe_completions(&mut self, n: usize, kind: Kind) {
        let begin = Instant::now();
        let mut got = Vec::new();
        while got.len() < n && begin.elapsed() < MINUTE {
            got.extend(self.shell.vsh.poll(n - got.len(), POLL_TIMEOUT).unwrap());
            if got.len() < n {
                self.send_filler();
            }
        }
        let unexpected =
            got.iter().enumerate().find(|(i, wc)| wc.status != "SUCCESS" || wc.wr_id != *i as u64);
        let counters = self.side.counters();
        assert!(
            got.len() == n && unexpected.is_none(),
            "{kind:?}: rxe has {} of {n} completions, first unexpected: {unexpected:?}; urxe: {counters:?}",
            got.len()
        );
    }

    /// Transfers `BATCH` messages of one kind, all posted at once, and checks their data.
    fn round(&mut self, kind: Kind, requester: Role) {
        self.seed = self.seed.wrapping_add(50);
        let seeds: Vec<u8> = (0..BATCH as u8).map(|i| self.seed.wrapping_add(i)).collect();
        let source = match (kind, requester) {
            (Kind::Read, Role::Urxe) | (Kind::Write | Kind::Send, Role::Rxe) => Role::Rxe,
            _ => Role::Urxe,
        };
        for (i, seed) in seeds.iter().enumerate() {
            match source {
                Role::Urxe => self.side.mr.write(i * STEP, &pattern(LEN, *seed)).unwrap(),
                Role::Rxe => {
                    drop(self.shell.vsh.cmd(&format!("pattern m {} {LEN} {seed}", i * STEP)).unwrap())
                }
            }
        }
        if kind == Kind::Add {
            return self.check_adds(requester);
        }
        for i in 0..BATCH {
            let (src, dst, id) = (i * STEP, DST + i * STEP, i as u64);
            let ours = |off| [self.side.mr.sge(off..off + LEN)];
            match requester {
                Role::Urxe => {
                    let (from, to) = (ours(src), ours(dst));
                    if kind == Kind::Send {
                        self.shell.vsh.cmd(&format!("recv q m {dst} {LEN} id={i}")).unwrap();
                    }
                    let wr = match kind {
                        Kind::Write => SendWr::write(id, &from, self.shell.at(dst)),
                        Kind::Send => SendWr::send(id, &from),
                        _ => SendWr::read(id, &to, self.shell.at(src)),
                    };
                    self.qp.post_send(&wr).unwrap();
                }
                Role::Rxe => {
                    let to = ours(dst);
                    if kind == Kind::Send {
                        self.qp.post_recv(&RecvWr::new(id, &to)).unwrap();
                    }
                    let line = match kind {
                        Kind::Write => {
                            format!("write q m {src} {LEN} {}", remote_args(self.side.mr.remote(dst)))
                        }
                        Kind::Send => format!("send q m {src} {LEN}"),
                        _ => format!("read q m {dst} {LEN} {}", remote_args(self.side.mr.remote(src))),
                    };
                    self.shell.vsh.cmd(&format!("{line} id={i}")).unwrap();
                }
            }
        }
        let both = kind == Kind::Send;
        if both || requester == Role::Urxe {
            self.check_urxe_completions(BATCH, kind);
        }
        if both || requester == Role::Rxe {
            self.check_rxe_completions(BATCH, kind);
        }
        let target = if source == Role::Urxe { Role::Rxe } else { Role::Urxe };
        self.check(target, DST, LEN, &seeds, kind);
    }

    /// Checks that every FETCH_AND_ADD is executed exactly once in spite of retransmissions: the old values
    /// must be 0, 1, 2 …
    fn check_adds(&mut self, requester: Role) {
        for i in 0..BATCH {
            let off = i * 8;
            match requester {
                Role::Urxe => {
                    if i == 0 {
                        self.shell.vsh.cmd(&format!("fill m {DST} 8 0")).unwrap();
                    }
                    let sges = [self.side.mr.sge(off..off + 8)];
                    self.qp.post_send(&SendWr::fetch_add(i as u64, &sges, self.shell.at(DST), 1)).unwrap();
                }
                Role::Rxe => {
                    if i == 0 {
                        self.side.mr.write(DST, &[0; 8]).unwrap();
                    }
                    let to = remote_args(self.side.mr.remote(DST));
                    self.shell.vsh.cmd(&format!("fadd q m {off} {to} add=1 id={i}")).unwrap();
                }
            }
        }
        let got = match requester {
            Role::Urxe => {
                self.check_urxe_completions(BATCH, Kind::Add);
                let mut got = vec![0; BATCH * 8];
                self.side.mr.read(0, &mut got).unwrap();
                got
            }
            Role::Rxe => {
                self.check_rxe_completions(BATCH, Kind::Add);
                self.shell.vsh.get("m", 0, BATCH * 8).unwrap()
            }
        };
        let want: Vec<u8> = (0..BATCH as u64).flat_map(u64::to_le_bytes).collect();
        assert_eq!(got, want, "old values of {BATCH} additions by {requester:?}");
    }
}

/// A case: faults on the wire, and the counters that they must and must not increase. The prefix `rxe.` marks
/// the guest's counters, `urxe.` the local ones; `a|b` means that at least one of the two must increase.
struct Case {
    name: &'static str,
    rules: &'static [(Direction, Action, When)],
    requester: Role,
    kinds: &'static [Kind],
    /// Counters that the case must increase.
    counted: &'static [&'static str],
    /// Counters that the case must not increase.
    zero: &'static [&'static str],
}

const ALL: &[Kind] = &[Kind::Write, Kind::Send, Kind::Read, Kind::Add];
const WRITE_AND_SEND: &[Kind] = &[Kind::Write, Kind::Send];
const READ: &[Kind] = &[Kind::Read];

const fn every(n: u64) -> When {
    When::Every(n)
}

/// Faults in each direction, with the counters that show how each side detects them.
#[rustfmt::skip]
const CASES: &[Case] = &[
    // Towards the guest.
    Case { name: "drop tx", rules: &[(Direction::Tx, Action::Drop, every(13))], requester: Role::Urxe, kinds: WRITE_AND_SEND,
        counted: &["rxe.out_of_seq_request", "urxe.rcvd_seq_err", "urxe.requester_retry"], zero: &["urxe.out_of_seq_request"] },
    Case { name: "drop tx", rules: &[(Direction::Tx, Action::Drop, every(13))], requester: Role::Urxe, kinds: ALL,
        counted: &["rxe.out_of_seq_request", "urxe.rcvd_seq_err", "urxe.requester_retry"], zero: &["urxe.duplicate_request"] },
    Case { name: "drop tx", rules: &[(Direction::Tx, Action::Drop, every(13))], requester: Role::Rxe, kinds: READ,
        counted: &["rxe.completer_retry_err", "urxe.duplicate_request"], zero: &["urxe.out_of_seq_request"] },
    // The next acknowledgement covers a lost one.
    Case { name: "drop tx", rules: &[(Direction::Tx, Action::Drop, every(3))], requester: Role::Rxe, kinds: WRITE_AND_SEND,
        counted: &[], zero: &["urxe.out_of_seq_request"] },
    Case { name: "drop tx", rules: &[(Direction::Tx, Action::Drop, every(13))], requester: Role::Rxe, kinds: ALL,
        counted: &["rxe.completer_retry_err", "urxe.duplicate_request"], zero: &[] },
    // From the guest.
    Case { name: "drop rx", rules: &[(Direction::Rx, Action::Drop, every(13))], requester: Role::Urxe, kinds: READ,
        counted: &["rxe.duplicate_request", "urxe.requester_retry", "urxe.implied_nak_seq_err|urxe.local_ack_timeout_err"],
        zero: &["rxe.out_of_seq_request"] },
    Case { name: "drop rx", rules: &[(Direction::Rx, Action::Drop, every(13))], requester: Role::Urxe, kinds: ALL,
        counted: &["rxe.duplicate_request", "urxe.requester_retry"], zero: &[] },
    Case { name: "drop rx", rules: &[(Direction::Rx, Action::Drop, every(13))], requester: Role::Rxe, kinds: WRITE_AND_SEND,
        counted: &["urxe.out_of_seq_request", "rxe.rcvd_seq_err", "rxe.completer_retry_err|rxe.rcvd_seq_err"], zero: &["rxe.out_of_seq_request"] },
    Case { name: "drop rx", rules: &[(Direction::Rx, Action::Drop, every(13))], requester: Role::Rxe, kinds: ALL,
        counted: &["urxe.out_of_seq_request", "rxe.rcvd_seq_err"], zero: &[] },
    // Both directions.
    Case { name: "drop both", rules: &[(Direction::Tx, Action::Drop, every(13)), (Direction::Rx, Action::Drop, every(13))],
        requester: Role::Urxe, kinds: ALL, counted: &["rxe.out_of_seq_request", "urxe.requester_retry"], zero: &[] },
    Case { name: "drop both", rules: &[(Direction::Tx, Action::Drop, every(13)), (Direction::Rx, Action::Drop, every(13))],
        requester: Role::Rxe, kinds: ALL, counted: &["urxe.out_of_seq_request", "rxe.completer_retry_err|rxe.rcvd_seq_err"], zero: &[] },
    // Duplicates.
    Case { name: "duplicate tx", rules: &[(Direction::Tx, Action::Duplicate, every(5))], requester: Role::Urxe, kinds: ALL,
        counted: &["rxe.duplicate_request"], zero: &["rxe.out_of_seq_request", "urxe.rcvd_seq_err"] },
    Case { name: "duplicate tx", rules: &[(Direction::Tx, Action::Duplicate, every(5))], requester: Role::Rxe, kinds: ALL,
        counted: &[], zero: &["urxe.out_of_seq_request"] },
    Case { name: "duplicate rx", rules: &[(Direction::Rx, Action::Duplicate, every(5))], requester: Role::Urxe, kinds: ALL,
        counted: &["urxe.unexpected_response"], zero: &["rxe.out_of_seq_request"] },
    Case { name: "duplicate rx", rules: &[(Direction::Rx, Action::Duplicate, every(5))], requester: Role::Rxe, kinds: ALL,
        counted: &["urxe.duplicate_request"], zero: &["urxe.out_of_seq_request", "rxe.rcvd_seq_err"] },
    Case { name: "duplicate both", rules: &[(Direction::Tx, Action::Duplicate, every(5)), (Direction::Rx, Action::Duplicate, every(5))],
        requester: Role::Urxe, kinds: ALL, counted: &["rxe.duplicate_request", "urxe.unexpected_response"], zero: &[] },
    Case { name: "duplicate both", rules: &[(Direction::Tx, Action::Duplicate, every(5)), (Direction::Rx, Action::Duplicate, every(5))],
        requester: Role::Rxe, kinds: ALL, counted: &["urxe.duplicate_request"], zero: &[] },
    // Reordering.
    Case { name: "reorder tx", rules: &[(Direction::Tx, Action::Reorder, every(13))], requester: Role::Urxe, kinds: WRITE_AND_SEND,
        counted: &["rxe.out_of_seq_request", "urxe.rcvd_seq_err", "urxe.requester_retry"], zero: &[] },
    Case { name: "reorder tx", rules: &[(Direction::Tx, Action::Reorder, every(13))], requester: Role::Rxe, kinds: ALL,
        counted: &["rxe.completer_retry_err"], zero: &["urxe.out_of_seq_request"] },
    Case { name: "reorder rx", rules: &[(Direction::Rx, Action::Reorder, every(13))], requester: Role::Urxe, kinds: ALL,
        counted: &["urxe.implied_nak_seq_err"], zero: &["rxe.out_of_seq_request"] },
    Case { name: "reorder rx", rules: &[(Direction::Rx, Action::Reorder, every(13))], requester: Role::Rxe, kinds: WRITE_AND_SEND,
        counted: &["urxe.out_of_seq_request", "rxe.rcvd_seq_err"], zero: &["rxe.out_of_seq_request"] },
    Case { name: "reorder both", rules: &[(Direction::Tx, Action::Reorder, every(13)), (Direction::Rx, Action::Reorder, every(13))],
        requester: Role::Urxe, kinds: ALL, counted: &["rxe.out_of_seq_request"], zero: &[] },
    Case { name: "reorder both", rules: &[(Direction::Tx, Action::Reorder, every(13)), (Direction::Rx, Action::Reorder, every(13))],
        requester: Role::Rxe, kinds: ALL, counted: &["urxe.out_of_seq_request"], zero: &[] },
    // Wrong ICRCs: the receiver drops the packets, so the rest is as with losses.
    Case { name: "corrupt tx", rules: &[(Direction::Tx, Action::Corrupt, every(13))], requester: Role::Urxe, kinds: WRITE_AND_SEND,
        counted: &["rxe.out_of_seq_request", "urxe.rcvd_seq_err", "urxe.requester_retry"], zero: &["urxe.rx_icrc_err"] },
    Case { name: "corrupt tx", rules: &[(Direction::Tx, Action::Corrupt, every(13))], requester: Role::Rxe, kinds: ALL,
        counted: &["rxe.completer_retry_err"], zero: &["urxe.rx_icrc_err"] },
    Case { name: "corrupt rx", rules: &[(Direction::Rx, Action::Corrupt, every(13))], requester: Role::Urxe, kinds: ALL,
        counted: &["urxe.rx_icrc_err", "urxe.requester_retry"], zero: &["rxe.out_of_seq_request"] },
    Case { name: "corrupt rx", rules: &[(Direction::Rx, Action::Corrupt, every(13))], requester: Role::Rxe, kinds: WRITE_AND_SEND,
        counted: &["urxe.rx_icrc_err", "urxe.out_of_seq_request", "rxe.rcvd_seq_err"], zero: &["rxe.out_of_seq_request"] },
];

/// Opens a NIC on the testbed's link, with the given faults.
fn open(setup: &Testbed, ip: Ip, rules: &[(Direction, Action, When)]) -> (Side, FaultCounters) {
    let rules = rules.iter().map(|(d, a, w)| Rule::new(*d, *a, *w)).collect();
    let mut counters = None;
    let side = setup.open_wrapped(ip, |link| {
        let faults = Faults::new(link, rules, 1);
        counters = Some(faults.fault_counters());
        Box::new(faults)
    });
    (side, counters.unwrap())
}

type Named = BTreeMap<String, u64>;

/// Returns the counters of both sides, with names prefixed `urxe.` and `rxe.`.
fn counters(setup: &Testbed, side: &Side) -> Named {
    let theirs = setup.guest.counters().unwrap();
    let ours = side.counters();
    let ours = ours.iter().map(|(k, v)| (format!("urxe.{k}"), v));
    theirs.into_iter().map(|(k, v)| (format!("rxe.{k}"), v)).chain(ours).collect()
}

/// Runs one case, and returns its relevant counters or an error.
fn run(setup: &Testbed, ip: Ip, case: &Case) -> Result<(String, String), String> {
    let (side, faults) = open(setup, ip, case.rules);
    let before = counters(setup, &side);
    let mut shell = setup.shell(2 * STEP * BATCH + 4096);
    let mut params = ConnectParams::new(ip, MTU);
    params.ours.timeout = AckTimeout::new(16);
    let qp = setup.connect(&side, &mut shell, &params);
    // The few errors of this QP are ignored.
    let other = setup.connect_named(&side, &mut shell, "other", &params);
    let mut bench = Bench { side, shell, qp, other, filler_count: 0, seed: 0 };
    for kind in case.kinds {
        bench.round(*kind, case.requester);
    }
    let after = counters(setup, &bench.side);
    let grown: Named = after.iter().map(|(k, v)| (k.clone(), v - before.get(k).unwrap_or(&0))).collect();
    let get = |name: &str| *grown.get(name).unwrap_or_else(|| panic!("no counter {name}: {grown:?}"));
    for any in case.counted {
        if any.split('|').all(|name| get(name) == 0) {
            return Err(format!("{any} is 0; {grown:?}"));
        }
    }
    for name in case.zero {
        if get(name) != 0 {
            return Err(format!("{name} is {}, expected 0; {grown:?}", get(name)));
        }
    }
    let mut done = String::new();
    for direction in [Direction::Tx, Direction::Rx] {
        let c = faults.get(direction);
        let n = c.dropped + c.duplicated + c.reordered + c.corrupted;
        let has_rule = case.rules.iter().any(|r| r.0 == direction);
        if has_rule != (n > 0) {
            return Err(format!("{n} faults in direction {direction}, rules for it: {has_rule}"));
        }
        if has_rule {
            done += &format!("{n} {direction} ");
        }
        if direction == Direction::Rx && c.corrupted != get("urxe.rx_icrc_err") {
            return Err(format!(
                "{} packets corrupted, {} ICRC errors counted",
                c.corrupted,
                get("urxe.rx_icrc_err")
            ));
        }
    }
    let names = [
        "out_of_seq_request",
        "duplicate_request",
        "rcvd_seq_err",
        "completer_retry_err",
        "requester_retry",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "unexpected_response",
        "rx_icrc_err",
    ];
    let text = |side: &str| {
        let one =
            |n: &&str| grown.get(&format!("{side}.{n}")).filter(|v| **v > 0).map(|v| format!("{n} {v}"));
        names.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    };
    Ok((done.trim().into(), format!("urxe: {}; rxe: {}", text("urxe"), text("rxe"))))
}

#[test]
fn data_arrives_intact_despite_faults_in_every_direction() {
    let setup = Testbed::start(LinkKind::Dgram);
    let mut table =
        Table::new("faults", &["fault", "IP", "requester", "operations", "faults", "s", "counted"]);
    let mut failed = Vec::new();
    for (case, ip) in CASES.iter().flat_map(|case| Ip::VERSIONS.map(|ip| (case, ip))) {
        let begin = Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&setup, ip, case)));
        let result = result.unwrap_or_else(|_| Err("the check panicked, see above".into()));
        let requester = format!("{:?}", case.requester).to_lowercase();
        let kinds = case.kinds.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join(" ");
        let (done, counted) = result.unwrap_or_else(|e| {
            failed.push(format!("{} ({ip}, {requester}, {kinds}): {e}", case.name));
            ("-".into(), "FAILED".into())
        });
        let seconds = format!("{:.1}", begin.elapsed().as_secs_f64());
        table.row(&[case.name.into(), ip.to_string(), requester, kinds, done, seconds, counted]);
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

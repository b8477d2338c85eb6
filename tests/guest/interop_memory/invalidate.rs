//! SEND with invalidate, which revokes a key at the receiver.

use super::windows::{Operation, Requester, WINDOW, WindowPair, assert_no_errors, check_eq};
use urxe::verbs::*;
use urxe_test_support::guest::pattern;
use urxe_test_support::pair::status_name;
use urxe_test_support::testbed::{Ip, Testbed};

/// Receive completion.
#[derive(PartialEq, Debug)]
struct Received {
    id: u64,
    status: String,
    /// Length and invalidated key of a successful receive; `None` for an error.
    details: Option<(usize, Option<u32>)>,
}

/// Sends `len` bytes in a SEND that invalidates `rkey`. Returns the requester's status and the receiver's
/// completion.
fn send(o: &mut WindowPair<'_>, len: usize, rkey: RKey) -> (String, Received) {
    let (side, shell) = (&o.pair.side, &mut o.pair.shell);
    match o.requester {
        Requester::Urxe => {
            side.mr.write(0, &pattern(len, 9)).unwrap();
            shell.vsh.cmd("recv q m 8192 8192 id=2").unwrap();
            o.qp.post_send(&SendWr::send_inval(1, &[side.mr.sge(0..len)], rkey)).unwrap();
            let sent = status_name(side.one().unwrap().status).to_string();
            let wc = shell.one().unwrap();
            let details = (wc.status == "SUCCESS").then_some((wc.len as usize, wc.inv));
            (sent, Received { id: wc.wr_id, status: wc.status, details })
        }
        Requester::Rxe => {
            o.qp.post_recv(&RecvWr::new(2, &[side.mr.sge(8192..16384)])).unwrap();
            shell.vsh.cmd(&format!("pattern m 0 {} 9", len.max(1))).unwrap();
            shell.vsh.cmd(&format!("sendinv q m 0 {len} rkey={:#x} id=1", rkey.0)).unwrap();
            let sent = shell.one().unwrap().status;
            let wc = side.one().unwrap();
            let details = (wc.status == WcStatus::Success)
                .then_some((wc.byte_len as usize, wc.invalidated.map(|k| k.0)));
            (sent, Received { id: wc.wr_id, status: status_name(wc.status).into(), details })
        }
    }
}

fn check_valid(setup: &Testbed, ip: Ip, requester: Requester) {
    let mut o = WindowPair::new(setup, ip, requester);
    // ONLY, and FIRST, MIDDLE and LAST.
    for len in [0, 101, 3001] {
        o.window(2);
        let (key, _) = o.bind(WINDOW, "wra");
        assert_eq!(
            o.execute(Operation::Write(100), WINDOW.start as i64, key),
            Ok("SUCCESS".into()),
            "before the invalidation"
        );
        let (sent, received) = send(&mut o, len, key);
        assert_eq!(sent, "SUCCESS");
        assert_eq!(received, Received { id: 2, status: "SUCCESS".into(), details: Some((len, Some(key.0))) });
        let got = match requester {
            Requester::Urxe => o.pair.shell.vsh.get("m", 8192, len).unwrap(),
            Requester::Rxe => o.pair.memory(8192 + len)[8192..].to_vec(),
        };
        assert_eq!(got, pattern(len, 9));
        // The window can be bound again, and its old key stays invalid.
        let (new, bound) = o.bind(WINDOW, "wra");
        assert_eq!(bound, "BIND_MW");
        assert_eq!(
            o.execute(Operation::Read(100), WINDOW.start as i64, new),
            Ok("SUCCESS".into()),
            "after the window is bound again"
        );
        assert_eq!(
            o.execute(Operation::Write(100), WINDOW.start as i64, key),
            Ok("REM_ACCESS_ERR".into()),
            "after the invalidation"
        );
    }
}

pub fn by_urxe(setup: &Testbed, ip: Ip) {
    check_valid(setup, ip, Requester::Urxe);
}

pub fn by_rxe(setup: &Testbed, ip: Ip) {
    check_valid(setup, ip, Requester::Rxe);
}

/// Checks that a SEND that invalidates an invalid key is acknowledged although its receive fails, and that
/// the receiver's QP enters ERR (IBA 9.9.6.3, class J).
fn check_invalid(setup: &Testbed, ip: Ip, requester: Requester) {
    let mut o = WindowPair::new(setup, ip, requester);
    let mut errors = Vec::new();
    // Linux 6.1 dereferences a null pointer for an unbound window, and panics.
    let unbound: &[&str] = if requester == Requester::Rxe { &["unbound window"] } else { &[] };
    for &case in ["unknown key", "next generation of the key", "key of a region", "type 1 window"]
        .iter()
        .chain(unbound)
    {
        let unbound = o.window(if case == "type 1 window" { 1 } else { 2 });
        let bound = if case == "unbound window" { unbound } else { o.bind(WINDOW, "wra").0 };
        let key = match case {
            "unknown key" => RKey(0x00ab_cd12),
            "next generation of the key" => RKey(bound.0 & !0xff | bound.0.wrapping_add(1) & 0xff),
            "key of a region" => o.at.rkey,
            _ => bound,
        };
        let (sent, received) = send(&mut o, 100, key);
        let want = Received { id: 2, status: "REM_INV_REQ_ERR".into(), details: None };
        errors.extend(check_eq(case, (sent.as_str(), received), ("SUCCESS", want)).err());
        let states = [o.qp.state().to_string(), o.pair.shell.state("q")];
        let want = if requester == Requester::Urxe { ["RTS", "ERR"] } else { ["ERR", "RTS"] };
        errors.extend(check_eq(case, states, want.map(String::from)).err());
    }
    assert_no_errors(errors);
}

pub fn invalid_key_by_urxe(setup: &Testbed, ip: Ip) {
    check_invalid(setup, ip, Requester::Urxe);
}

pub fn invalid_key_by_rxe(setup: &Testbed, ip: Ip) {
    check_invalid(setup, ip, Requester::Rxe);
}

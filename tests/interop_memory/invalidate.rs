//! SEND with invalidate, which revokes a key at the receiver.

use super::guest::pattern;
use super::pair::name;
use super::peer::{Ip, Site};
use super::windows::{Ask, Asks, OPEN, Opened, none, same};
use urxe::verbs::*;

/// Completion of the receiver.
#[derive(PartialEq, Debug)]
struct Received {
    id: u64,
    status: String,
    /// Length and invalidated key, of a success.
    rest: Option<(usize, Option<u32>)>,
}

/// The requester sends `len` bytes and invalidates `rkey`. Returns its status and the receiver's completion.
fn send(o: &mut Opened<'_>, len: usize, rkey: RKey) -> (String, Received) {
    let (side, shell) = (&o.pair.side, &mut o.pair.shell);
    match o.asks {
        Asks::Urxe => {
            side.mr.write(0, &pattern(len, 9)).unwrap();
            shell.vsh.cmd("recv q m 8192 8192 id=2").unwrap();
            o.qp.post_send(&SendWr::send_with_inv(1, &[side.mr.sge(0..len)], rkey)).unwrap();
            let sent = name(side.one().unwrap().status).to_string();
            let wc = shell.one().unwrap();
            let rest = (wc.status == "SUCCESS").then_some((wc.len as usize, wc.inv));
            (sent, Received { id: wc.wr_id, status: wc.status, rest })
        }
        Asks::Rxe => {
            o.qp.post_recv(&RecvWr { wr_id: 2, sges: &[side.mr.sge(8192..16384)] }).unwrap();
            shell.vsh.cmd(&format!("pattern m 0 {} 9", len.max(1))).unwrap();
            shell.vsh.cmd(&format!("sendinv q m 0 {len} rkey={:#x} id=1", rkey.0)).unwrap();
            let sent = shell.one().unwrap().status;
            let wc = side.one().unwrap();
            let rest = (wc.status == WcStatus::Success)
                .then_some((wc.byte_len as usize, wc.invalidated.map(|k| k.0)));
            (sent, Received { id: wc.wr_id, status: name(wc.status).into(), rest })
        }
    }
}

fn good(site: &Site, ip: Ip, asks: Asks) {
    let mut o = Opened::new(site, ip, asks);
    // ONLY, and FIRST, MIDDLE and LAST.
    for len in [0, 101, 3001] {
        o.window(2);
        let (key, _) = o.bind(OPEN, "wra");
        assert_eq!(o.ask(Ask::Write(100), OPEN.start as i64, key), Ok("SUCCESS".into()), "while it is open");
        let (sent, received) = send(&mut o, len, key);
        assert_eq!(sent, "SUCCESS");
        assert_eq!(received, Received { id: 2, status: "SUCCESS".into(), rest: Some((len, Some(key.0))) });
        let got = match asks {
            Asks::Urxe => o.pair.shell.vsh.get("m", 8192, len).unwrap(),
            Asks::Rxe => o.pair.memory(8192 + len)[8192..].to_vec(),
        };
        assert_eq!(got, pattern(len, 9));
        // The window can be bound again, and its old key stays invalid.
        let (new, bound) = o.bind(OPEN, "wra");
        assert_eq!(bound, "BIND_MW");
        assert_eq!(o.ask(Ask::Read(100), OPEN.start as i64, new), Ok("SUCCESS".into()), "bound anew");
        assert_eq!(o.ask(Ask::Write(100), OPEN.start as i64, key), Ok("REM_ACCESS_ERR".into()), "closed");
    }
}

pub fn by_urxe(site: &Site, ip: Ip) {
    good(site, ip, Asks::Urxe);
}

pub fn by_rxe(site: &Site, ip: Ip) {
    good(site, ip, Asks::Rxe);
}

/// The SEND is acknowledged and its receive fails; the receiver's QP goes to ERR (IBA 9.9.6.3, class J).
fn wrong(site: &Site, ip: Ip, asks: Asks) {
    let mut o = Opened::new(site, ip, asks);
    let mut wrong = Vec::new();
    // A window that is not bound is a null pointer in Linux 6.1, which panics.
    let unbound: &[&str] = if asks == Asks::Rxe { &["not bound"] } else { &[] };
    for &what in ["unknown", "a generation later", "a region's", "type 1"].iter().chain(unbound) {
        let unbound = o.window(if what == "type 1" { 1 } else { 2 });
        let bound = if what == "not bound" { unbound } else { o.bind(OPEN, "wra").0 };
        let key = match what {
            "unknown" => RKey(0x00ab_cd12),
            "a generation later" => RKey(bound.0 & !0xff | bound.0.wrapping_add(1) & 0xff),
            "a region's" => o.at.rkey,
            _ => bound,
        };
        let (sent, received) = send(&mut o, 100, key);
        let want = Received { id: 2, status: "REM_INV_REQ_ERR".into(), rest: None };
        wrong.extend(same(what, (sent.as_str(), received), ("SUCCESS", want)).err());
        let states = [o.qp.state().to_string(), o.pair.shell.state("q")];
        let want = if asks == Asks::Urxe { ["RTS", "ERR"] } else { ["ERR", "RTS"] };
        wrong.extend(same(what, states, want.map(String::from)).err());
    }
    none(wrong);
}

pub fn wrong_by_urxe(site: &Site, ip: Ip) {
    wrong(site, ip, Asks::Urxe);
}

pub fn wrong_by_rxe(site: &Site, ip: Ip) {
    wrong(site, ip, Asks::Rxe);
}

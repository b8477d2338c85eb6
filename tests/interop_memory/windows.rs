//! Memory windows, bound by one side and used by the other.

use super::guest::{Suite, pattern};
use super::pair::{MTU, Pair, name};
use super::peer::{How, Ip, Site, words};
use std::fmt::Debug;
use urxe::verbs::*;

/// The side that sends the requests; the other side has the memory and the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    Urxe,
    Rxe,
}

/// Size of the region, and the range of it that a window covers.
pub const AREA: usize = 8192;
pub const OPEN: std::ops::Range<usize> = 1024..5120;
/// Initial contents of the region, and of the requester's buffer.
const OWNERS: u8 = 3;
const ASKERS: u8 = 77;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    Write(usize),
    Read(usize),
    Add,
    Swap,
}

/// A pair of which one side has a region `x` and a window on it.
pub struct Opened<'a> {
    pub pair: Pair<'a>,
    pub asks: Asks,
    pub qp: Qp,
    /// The local region, which is the target if the local side is the owner.
    pub x: Mr,
    /// Address of the owner's region.
    pub at: RemoteAddr,
    pub mw: Option<Mw>,
}

pub fn access(text: &str) -> Access {
    let bits = text.chars().map(|c| match c {
        'l' => Access::LOCAL_WRITE,
        'w' => Access::REMOTE_WRITE,
        'r' => Access::REMOTE_READ,
        'a' => Access::REMOTE_ATOMIC,
        'b' => Access::MW_BIND,
        'z' => Access::ZERO_BASED,
        _ => panic!("access {text}"),
    });
    bits.fold(Access::LOCAL_READ, |all, one| all | one)
}

pub fn same<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?}, not {want:?}")) }
}

impl<'a> Opened<'a> {
    pub fn new(site: &'a Site, ip: Ip, asks: Asks) -> Opened<'a> {
        let mut pair = Pair::open(site, ip);
        let x = pair.side.pd.reg_mr(AREA, Access::ALL | Access::MW_BIND).unwrap();
        let theirs = pair.shell.vsh.cmd(&format!("mr x {AREA} access=lwrab")).unwrap();
        let at = match asks {
            Asks::Urxe => RemoteAddr { va: theirs.num("addr"), rkey: RKey(theirs.num("rkey") as u32) },
            Asks::Rxe => x.remote(0),
        };
        let qp = pair.connect();
        Opened { pair, asks, qp, x, at, mw: None }
    }

    /// Allocates a window of type 1 or 2, in place of the one before, and connects new QPs. Returns the key
    /// of the window.
    pub fn window(&mut self, kind: u8) -> RKey {
        self.mw = None;
        // There is none the first time.
        let _ = self.pair.shell.vsh.raw("destroy w").unwrap();
        self.qp = self.pair.connect();
        match self.asks {
            Asks::Urxe => RKey(self.pair.shell.vsh.cmd(&format!("mw w {kind}")).unwrap().num("rkey") as u32),
            Asks::Rxe => {
                let kind = if kind == 1 { WindowKind::Type1 } else { WindowKind::Type2B };
                self.mw.insert(self.pair.side.pd.alloc_mw(kind).unwrap()).rkey()
            }
        }
    }

    /// Binds the window to a part of `x`; a type 1 window with an empty range is unbound. Returns the new key
    /// and the result.
    pub fn bind(&mut self, part: std::ops::Range<usize>, may: &str) -> (RKey, String) {
        match self.asks {
            Asks::Urxe => {
                let line = format!("bind q w x {} {} access={may} id=50", part.start, part.len());
                let reply = self.pair.shell.vsh.cmd(&line).unwrap();
                let wc = self.pair.shell.one().unwrap();
                let status = if wc.status == "SUCCESS" { wc.op } else { wc.status };
                (RKey(reply.num("rkey") as u32), status)
            }
            Asks::Rxe => {
                let mw = self.mw.as_ref().unwrap();
                let (addr, len) = (self.x.addr() + part.start as u64, part.len() as u64);
                let bind = Bind { rkey: mw.rkey(), region: self.x.lkey(), addr, len, access: access(may) };
                let rkey = match mw.kind() {
                    WindowKind::Type1 => self.qp.bind_mw(mw, 50, &bind, SendFlags::SIGNALED).unwrap(),
                    _ => {
                        let rkey = mw.next_rkey();
                        self.qp.post_send(&SendWr::bind_mw(50, Bind { rkey, ..bind })).unwrap();
                        rkey
                    }
                };
                (rkey, self.our_status())
            }
        }
    }

    /// Returns the status of a local completion, or the opcode of a success.
    fn our_status(&self) -> String {
        let wc = self.pair.side.one().unwrap();
        match wc.status {
            WcStatus::Success => match wc.opcode {
                WcOpcode::BindMw => "BIND_MW".into(),
                WcOpcode::LocalInv => "LOCAL_INV".into(),
                other => format!("{other:?}"),
            },
            bad => name(bad).into(),
        }
    }

    /// Invalidates a key at its owner, and returns the status.
    pub fn invalidate(&mut self, rkey: RKey) -> String {
        match self.asks {
            Asks::Urxe => {
                self.pair.cmd(&format!("localinv q rkey={:#x} id=51", rkey.0));
                let wc = self.pair.shell.one().unwrap();
                if wc.status == "SUCCESS" { wc.op } else { wc.status }
            }
            Asks::Rxe => {
                self.qp.post_send(&SendWr::local_inv(51, rkey)).unwrap();
                self.our_status()
            }
        }
    }

    /// Executes a request on byte `at` of the region under `rkey`. Returns the status; wrong data is an
    /// error.
    pub fn ask(&mut self, ask: Ask, at: i64, rkey: RKey) -> Result<String, String> {
        let to = RemoteAddr { va: self.at.va.wrapping_add_signed(at), rkey };
        self.ask_at(ask, at, to)
    }

    /// As [`ask`](Self::ask), with an address that is not the region's.
    pub fn ask_at(&mut self, ask: Ask, at: i64, to: RemoteAddr) -> Result<String, String> {
        let shell = &mut self.pair.shell.vsh;
        let mut owners = pattern(AREA, OWNERS);
        let old = if let Ask::Add | Ask::Swap = ask {
            owners[at as usize..][..8].try_into().unwrap()
        } else {
            [0; 8]
        };
        let old = u64::from_le_bytes(old);
        let status = match self.asks {
            Asks::Urxe => {
                shell.cmd(&format!("pattern x 0 {AREA} {OWNERS}")).unwrap();
                let mr = &self.pair.side.mr;
                mr.write(0, &pattern(AREA, ASKERS)).unwrap();
                let sges = [mr.sge(0..if let Ask::Write(n) | Ask::Read(n) = ask { n } else { 8 })];
                let wr = match ask {
                    Ask::Write(_) => SendWr::write(7, &sges, to),
                    Ask::Read(_) => SendWr::read(7, &sges, to),
                    Ask::Add => SendWr::fetch_add(7, &sges, to, 5),
                    Ask::Swap => SendWr::compare_swap(7, &sges, to, old, !old),
                };
                self.qp.post_send(&wr).unwrap();
                name(self.pair.side.one()?.status).into()
            }
            Asks::Rxe => {
                self.x.write(0, &owners).unwrap();
                shell.cmd(&format!("pattern m 0 {AREA} {ASKERS}")).unwrap();
                let to = words(to);
                let line = match ask {
                    Ask::Write(n) => format!("write q m 0 {n} {to}"),
                    Ask::Read(n) => format!("read q m 0 {n} {to}"),
                    Ask::Add => format!("fadd q m 0 {to} add=5"),
                    Ask::Swap => format!("cswap q m 0 {to} cmp={old} swap={}", !old),
                };
                shell.cmd(&format!("{line} id=7")).unwrap();
                self.pair.shell.one()?.status
            }
        };
        let mut askers = pattern(AREA, ASKERS);
        if status == "SUCCESS" {
            let at = at as usize;
            match ask {
                Ask::Write(n) => owners[at..at + n].copy_from_slice(&askers[..n]),
                Ask::Read(n) => askers[..n].copy_from_slice(&owners[at..at + n]),
                Ask::Add | Ask::Swap => {
                    askers[..8].copy_from_slice(&owners[at..at + 8]);
                    let new = if ask == Ask::Add { old.wrapping_add(5) } else { !old };
                    owners[at..at + 8].copy_from_slice(&new.to_le_bytes());
                }
            }
        }
        let (theirs, ours) = if self.asks == Asks::Urxe { ("x", "m") } else { ("m", "x") };
        let shells = self.pair.shell.vsh.get(theirs, 0, AREA).unwrap();
        let mine = if ours == "x" { self.x.to_vec() } else { self.pair.memory(AREA) };
        let (got_owners, got_askers) = if self.asks == Asks::Urxe { (shells, mine) } else { (mine, shells) };
        for (whose, got, want) in [("owner", got_owners, owners), ("requester", got_askers, askers)] {
            if let Some(i) = (0..AREA).find(|i| got[*i] != want[*i]) {
                return Err(format!(
                    "{status}, and byte {i} of the {whose} is {:#x}, not {:#x}",
                    got[i], want[i]
                ));
            }
        }
        Ok(status)
    }
}

/// Panics with all errors, if there are any.
pub fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

struct Case {
    /// Access of the window.
    may: &'static str,
    ask: Ask,
    /// Offset from the window's first byte.
    at: i64,
    /// Status at urxe with rxe as responder, and at rxe with urxe as responder.
    status: [&'static str; 2],
}

const fn case(may: &'static str, ask: Ask, at: i64, status: &'static str) -> Case {
    Case { may, ask, at, status: [status, status] }
}

/// A case outside the window but inside its region: rxe of Linux 6.1 checks the region's range only.
const fn out_of_range(ask: Ask, at: i64) -> Case {
    Case { status: [GOOD, REFUSED], ..case("wra", ask, at, "") }
}

const GOOD: &str = "SUCCESS";
const REFUSED: &str = "REM_ACCESS_ERR";

const CASES: &[Case] = &[
    case("wra", Ask::Write(4096), 0, GOOD),
    case("wra", Ask::Read(4096), 0, GOOD),
    case("wra", Ask::Write(1), 4095, GOOD),
    case("wra", Ask::Add, 4088, GOOD),
    case("wra", Ask::Swap, 0, GOOD),
    case("r", Ask::Read(100), 7, GOOD),
    case("w", Ask::Write(100), 7, GOOD),
    case("a", Ask::Add, 8, GOOD),
    case("r", Ask::Write(100), 0, REFUSED),
    case("wr", Ask::Add, 0, REFUSED),
    case("w", Ask::Read(100), 0, REFUSED),
    case("wa", Ask::Read(100), 0, REFUSED),
    out_of_range(Ask::Write(2), 4095),
    out_of_range(Ask::Read(3000), 1097),
    out_of_range(Ask::Write(1), -1),
    out_of_range(Ask::Read(1), 4096),
    out_of_range(Ask::Add, 4096),
    case("wra", Ask::Write(4096), 4096, REFUSED),
];

fn used(site: &Site, ip: Ip, asks: Asks) {
    let mut opened = Opened::new(site, ip, asks);
    let mut wrong = Vec::new();
    for kind in [1, 2] {
        for c in CASES {
            let what = format!("type {kind} {:?}, {:?} at {}", c.may, c.ask, c.at);
            opened.window(kind);
            let (rkey, bound) = opened.bind(OPEN, c.may);
            wrong.extend(same(&what, bound.as_str(), "BIND_MW").err());
            let seen = opened.ask(c.ask, OPEN.start as i64 + c.at, rkey);
            wrong.extend(same(&what, seen, Ok(c.status[asks as usize].into())).err());
        }
    }
    // Only a window of type 2 can be zero-based.
    opened.window(2);
    let (rkey, bound) = opened.bind(OPEN, "wraz");
    wrong.extend(same("zero-based", bound.as_str(), "BIND_MW").err());
    let seen = opened.ask_at(Ask::Write(96), OPEN.start as i64 + 4000, RemoteAddr { va: 4000, rkey });
    wrong.extend(same("zero-based", seen, Ok(GOOD.into())).err());
    none(wrong);
}

pub fn used_by_urxe(site: &Site, ip: Ip) {
    used(site, ip, Asks::Urxe);
}

pub fn used_by_rxe(site: &Site, ip: Ip) {
    used(site, ip, Asks::Rxe);
}

/// A window of type 2 belongs to its QP, one of type 1 to its protection domain.
fn other_qp(site: &Site, ip: Ip, asks: Asks) {
    let mut opened = Opened::new(site, ip, asks);
    let mut wrong = Vec::new();
    for (kind, status) in [(1, GOOD), (2, REFUSED)] {
        opened.window(kind);
        let (rkey, bound) = opened.bind(OPEN, "wra");
        wrong.extend(same("bind", bound.as_str(), "BIND_MW").err());
        let Pair { site, side, shell, ip } = &mut opened.pair;
        let other = site.connect_named(side, shell, "other", &How::new(*ip, MTU));
        let to = RemoteAddr { va: opened.at.va + OPEN.start as u64, rkey };
        let seen = match asks {
            Asks::Urxe => {
                other.post_send(&SendWr::write(1, &[side.mr.sge(0..100)], to)).unwrap();
                name(side.one().unwrap().status).to_string()
            }
            Asks::Rxe => {
                shell.vsh.cmd(&format!("write other m 0 100 {}", words(to))).unwrap();
                shell.one().unwrap().status
            }
        };
        wrong.extend(same(&format!("type {kind}"), seen.as_str(), status).err());
        shell.vsh.cmd("destroy other").unwrap();
        // The QP of the window still has access.
        let seen = opened.ask(Ask::Write(10), OPEN.start as i64, rkey);
        wrong.extend(same(&format!("type {kind}, its own QP"), seen, Ok(GOOD.into())).err());
    }
    none(wrong);
}

pub fn other_qp_by_urxe(site: &Site, ip: Ip) {
    other_qp(site, ip, Asks::Urxe);
}

pub fn other_qp_by_rxe(site: &Site, ip: Ip) {
    other_qp(site, ip, Asks::Rxe);
}

fn closed(site: &Site, ip: Ip, asks: Asks) {
    let mut o = Opened::new(site, ip, asks);
    let mut wrong = Vec::new();
    let start = OPEN.start as i64;
    let mut hold = |what: &str, seen: Result<String, String>, want: &str| {
        wrong.extend(same(what, seen, Ok(want.into())).err());
    };
    // A refusal moves the QPs to ERR, so each is the last use of its window.
    for kind in [1, 2] {
        let first = o.window(kind);
        hold("never bound", o.ask(Ask::Write(1), start, first), REFUSED);
    }

    o.window(1);
    let (old, _) = o.bind(OPEN, "wra");
    hold("type 1", o.ask(Ask::Write(1), start, old), GOOD);
    let (new, bound) = o.bind(4096..8192, "r");
    hold("type 1 bound anew", Ok(bound), "BIND_MW");
    hold("type 1 bound anew", o.ask(Ask::Read(4096), 4096, new), GOOD);
    hold("type 1, old key", o.ask(Ask::Read(1), 4096, old), REFUSED);

    for which in [0, 1] {
        o.window(1);
        let (old, _) = o.bind(OPEN, "wra");
        let (new, bound) = o.bind(0..0, "wra");
        hold("type 1 unbound", Ok(bound), "BIND_MW");
        hold("type 1 unbound", o.ask(Ask::Read(1), start, [old, new][which]), REFUSED);
    }

    o.window(2);
    let (old, _) = o.bind(OPEN, "wra");
    hold("type 2", o.ask(Ask::Write(1), start, old), GOOD);
    hold("type 2 invalidated", Ok(o.invalidate(old)), "LOCAL_INV");
    let (new, bound) = o.bind(4096..8192, "r");
    hold("type 2 bound anew", Ok(bound), "BIND_MW");
    hold("type 2 bound anew", o.ask(Ask::Read(4096), 4096, new), GOOD);
    hold("type 2, old key", o.ask(Ask::Read(1), 4096, old), REFUSED);

    o.window(2);
    let (key, _) = o.bind(OPEN, "wra");
    o.invalidate(key);
    hold("type 2 invalidated", o.ask(Ask::Write(1), start, key), REFUSED);

    for kind in [1, 2] {
        o.window(kind);
        let (key, _) = o.bind(OPEN, "wra");
        match asks {
            Asks::Urxe => o.pair.cmd("destroy w"),
            Asks::Rxe => o.mw = None,
        }
        hold(&format!("type {kind} freed"), o.ask(Ask::Write(1), start, key), REFUSED);
    }
    none(wrong);
}

pub fn closed_to_urxe(site: &Site, ip: Ip) {
    closed(site, ip, Asks::Urxe);
}

pub fn closed_to_rxe(site: &Site, ip: Ip) {
    closed(site, ip, Asks::Rxe);
}

/// Checks the owner's status where a window cannot be bound or invalidated; its QP goes to ERR.
fn unbindable(site: &Site, ip: Ip, asks: Asks, not_invalidated: &str) {
    let mut o = Opened::new(site, ip, asks);
    let mut wrong = Vec::new();
    // rxe of Linux 6.12 flushes, at its own QP, the failed request together with those behind it; 6.1 reports
    // the reason.
    let flushes = asks == Asks::Urxe && Suite::chosen() == Suite::Trixie;
    let refused = if flushes { "WR_FLUSH_ERR" } else { "MW_BIND_ERR" };
    let not_invalidated = if flushes { "WR_FLUSH_ERR" } else { not_invalidated };
    let mut hold = |what: &str, seen: String| wrong.extend(same(what, seen.as_str(), refused).err());
    for kind in [1, 2] {
        o.window(kind);
        hold("beyond the region", o.bind(8000..8193, "wra").1);
    }
    o.window(2);
    o.bind(OPEN, "wra");
    hold("bound already", o.bind(OPEN, "wra").1);
    o.window(2);
    hold("no bytes", o.bind(10..10, "wra").1);
    // A region that windows must not be bound to, and a read-only one.
    o.pair.cmd("mr none 4096 access=lwra");
    o.pair.cmd("mr readable 4096 access=rb");
    let none_ = o.pair.side.pd.reg_mr(4096, Access::ALL).unwrap();
    let readable = o.pair.side.pd.reg_mr(4096, access("rb")).unwrap();
    for (region, ours) in [("none", &none_), ("readable", &readable)] {
        o.window(2);
        let status = match asks {
            Asks::Urxe => {
                o.pair.cmd(&format!("bind q w {region} 0 4096 access=wra"));
                o.pair.shell.one().unwrap().status
            }
            Asks::Rxe => {
                let rkey = o.mw.as_ref().unwrap().next_rkey();
                let (region, addr) = (ours.lkey(), ours.addr());
                let bind = Bind { rkey, region, addr, len: 4096, access: access("wra") };
                o.qp.post_send(&SendWr::bind_mw(1, bind)).unwrap();
                o.our_status()
            }
        };
        hold(region, status);
    }
    o.window(1);
    let (key, _) = o.bind(OPEN, "wra");
    wrong.extend(same("of type 1, invalidated", o.invalidate(key).as_str(), not_invalidated).err());
    // Linux 6.1 crashes on this.
    if asks == Asks::Rxe {
        let key = o.window(2);
        wrong.extend(same("not bound, invalidated", o.invalidate(key).as_str(), not_invalidated).err());
    }
    let state = if asks == Asks::Urxe { o.pair.shell.state("q") } else { o.qp.state().to_string() };
    wrong.extend(same("state", state.as_str(), "ERR").err());
    none(wrong);
}

pub fn unbindable_at_rxe(site: &Site, ip: Ip) {
    unbindable(site, ip, Asks::Urxe, "LOC_QP_OP_ERR");
}

pub fn unbindable_at_urxe(site: &Site, ip: Ip) {
    unbindable(site, ip, Asks::Rxe, "MW_BIND_ERR");
}

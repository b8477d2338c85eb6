//! Memory windows, bound by one side and used by the other.

use std::fmt::Debug;
use urxe::verbs::memory::{Bind, Mw, WindowKind};
use urxe::verbs::*;
use urxe_test_support::guest::{Suite, pattern};
use urxe_test_support::pair::{MTU, Pair, status_name};
use urxe_test_support::peer::{ConnectParams, remote_args};
use urxe_test_support::testbed::{Ip, Testbed};

/// The side that sends the requests; the other side owns the memory and the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester {
    Urxe,
    Rxe,
}

/// Size of the region in bytes; `WINDOW` is the part of the region that a window covers.
pub const REGION_LEN: usize = 8192;
pub const WINDOW: std::ops::Range<usize> = 1024..5120;
/// Seed of the pattern in the owner's region; `REQUESTER_SEED` is the seed for the requester's buffer.
const OWNER_SEED: u8 = 3;
const REQUESTER_SEED: u8 = 77;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Write(usize),
    Read(usize),
    Add,
    Swap,
}

/// A pair in which one side, the owner, has a region `x` and a memory window on it.
pub struct WindowPair<'a> {
    pub pair: Pair<'a>,
    pub requester: Requester,
    pub qp: Qp,
    /// Local region, the target of the requests if rxe is the requester.
    pub x: Mr,
    /// Remote address of the owner's region.
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

pub fn check_eq<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?}, expected {want:?}")) }
}

impl<'a> WindowPair<'a> {
    pub fn new(setup: &'a Testbed, ip: Ip, requester: Requester) -> WindowPair<'a> {
        let mut pair = Pair::open(setup, ip);
        let x = pair.side.pd.reg_mr(REGION_LEN, Access::ALL | Access::MW_BIND).unwrap();
        let theirs = pair.shell.vsh.cmd(&format!("mr x {REGION_LEN} access=lwrab")).unwrap();
        let at = match requester {
            Requester::Urxe => RemoteAddr { va: theirs.num("addr"), rkey: RKey(theirs.num("rkey") as u32) },
            Requester::Rxe => x.remote(0),
        };
        let qp = pair.connect();
        WindowPair { pair, requester, qp, x, at, mw: None }
    }

    /// Replaces the window by a new one of type 1 or 2, and connects new QPs. Returns the window's key.
    pub fn window(&mut self, kind: u8) -> RKey {
        self.mw = None;
        // The first time there is no window to destroy.
        let _ = self.pair.shell.vsh.raw("destroy w").unwrap();
        self.qp = self.pair.connect();
        match self.requester {
            Requester::Urxe => {
                RKey(self.pair.shell.vsh.cmd(&format!("mw w {kind}")).unwrap().num("rkey") as u32)
            }
            Requester::Rxe => {
                let kind = if kind == 1 { WindowKind::Type1 } else { WindowKind::Type2B };
                self.mw.insert(self.pair.side.pd.alloc_mw(kind).unwrap()).rkey()
            }
        }
    }

    /// Binds the window to a range of `x`; an empty range unbinds a type 1 window. Returns the new key, and
    /// the opcode or error status of the completion.
    pub fn bind(&mut self, part: std::ops::Range<usize>, rights: &str) -> (RKey, String) {
        match self.requester {
            Requester::Urxe => {
                let line = format!("bind q w x {} {} access={rights} id=50", part.start, part.len());
                let reply = self.pair.shell.vsh.cmd(&line).unwrap();
                let wc = self.pair.shell.one().unwrap();
                let status = if wc.status == "SUCCESS" { wc.op } else { wc.status };
                (RKey(reply.num("rkey") as u32), status)
            }
            Requester::Rxe => {
                let mw = self.mw.as_ref().unwrap();
                let (addr, len) = (self.x.addr() + part.start as u64, part.len() as u64);
                let bind = Bind { rkey: mw.rkey(), region: self.x.lkey(), addr, len, access: access(rights) };
                let rkey = match mw.kind() {
                    WindowKind::Type1 => self.qp.bind_mw(mw, 50, &bind, SendFlags::SIGNALED).unwrap(),
                    _ => {
                        let rkey = mw.next_rkey();
                        self.qp.post_send(&SendWr::bind_mw(50, Bind { rkey, ..bind })).unwrap();
                        rkey
                    }
                };
                (rkey, self.host_status())
            }
        }
    }

    /// Returns the opcode of the next local completion, or its status if it is not successful.
    fn host_status(&self) -> String {
        let wc = self.pair.side.one().unwrap();
        match wc.status {
            WcStatus::Success => match wc.opcode {
                WcOpcode::BindMw => "BIND_MW".into(),
                WcOpcode::LocalInv => "LOCAL_INV".into(),
                other => format!("{other:?}"),
            },
            bad => status_name(bad).into(),
        }
    }

    /// Invalidates a key at its owner. Returns the opcode of the completion, or its status if it is not
    /// successful.
    pub fn invalidate(&mut self, rkey: RKey) -> String {
        match self.requester {
            Requester::Urxe => {
                self.pair.cmd(&format!("localinv q rkey={:#x} id=51", rkey.0));
                let wc = self.pair.shell.one().unwrap();
                if wc.status == "SUCCESS" { wc.op } else { wc.status }
            }
            Requester::Rxe => {
                self.qp.post_send(&SendWr::local_inv(51, rkey)).unwrap();
                self.host_status()
            }
        }
    }

    /// Executes a request on the owner's region at offset `at`, with the key `rkey`. Returns the completion
    /// status, or an error if the data is wrong.
    pub fn execute(&mut self, op: Operation, at: i64, rkey: RKey) -> Result<String, String> {
        let to = RemoteAddr { va: self.at.va.wrapping_add_signed(at), rkey };
        self.execute_at(op, at, to)
    }

    /// Like [`execute`](Self::execute), but sends `to` as the remote address, for windows that are not
    /// addressed like their region.
    pub fn execute_at(&mut self, op: Operation, at: i64, to: RemoteAddr) -> Result<String, String> {
        let shell = &mut self.pair.shell.vsh;
        let mut owner_data = pattern(REGION_LEN, OWNER_SEED);
        let old = if let Operation::Add | Operation::Swap = op {
            owner_data[at as usize..][..8].try_into().unwrap()
        } else {
            [0; 8]
        };
        let old = u64::from_le_bytes(old);
        let status = match self.requester {
            Requester::Urxe => {
                shell.cmd(&format!("pattern x 0 {REGION_LEN} {OWNER_SEED}")).unwrap();
                let mr = &self.pair.side.mr;
                mr.write(0, &pattern(REGION_LEN, REQUESTER_SEED)).unwrap();
                let sges = [mr.sge(0..if let Operation::Write(n) | Operation::Read(n) = op { n } else { 8 })];
                let wr = match op {
                    Operation::Write(_) => SendWr::write(7, &sges, to),
                    Operation::Read(_) => SendWr::read(7, &sges, to),
                    Operation::Add => SendWr::fetch_add(7, &sges, to, 5),
                    Operation::Swap => SendWr::compare_swap(7, &sges, to, old, !old),
                };
                self.qp.post_send(&wr).unwrap();
                status_name(self.pair.side.one()?.status).into()
            }
            Requester::Rxe => {
                self.x.write(0, &owner_data).unwrap();
                shell.cmd(&format!("pattern m 0 {REGION_LEN} {REQUESTER_SEED}")).unwrap();
                let to = remote_args(to);
                let line = match op {
                    Operation::Write(n) => format!("write q m 0 {n} {to}"),
                    Operation::Read(n) => format!("read q m 0 {n} {to}"),
                    Operation::Add => format!("fadd q m 0 {to} add=5"),
                    Operation::Swap => format!("cswap q m 0 {to} cmp={old} swap={}", !old),
                };
                shell.cmd(&format!("{line} id=7")).unwrap();
                self.pair.shell.one()?.status
            }
        };
        let mut requester_data = pattern(REGION_LEN, REQUESTER_SEED);
        if status == "SUCCESS" {
            let at = at as usize;
            match op {
                Operation::Write(n) => owner_data[at..at + n].copy_from_slice(&requester_data[..n]),
                Operation::Read(n) => requester_data[..n].copy_from_slice(&owner_data[at..at + n]),
                Operation::Add | Operation::Swap => {
                    requester_data[..8].copy_from_slice(&owner_data[at..at + 8]);
                    let new = if op == Operation::Add { old.wrapping_add(5) } else { !old };
                    owner_data[at..at + 8].copy_from_slice(&new.to_le_bytes());
                }
            }
        }
        let (guest_region, host_region) =
            if self.requester == Requester::Urxe { ("x", "m") } else { ("m", "x") };
        let guest_memory = self.pair.shell.vsh.get(guest_region, 0, REGION_LEN).unwrap();
        let host_memory = if host_region == "x" { self.x.to_vec() } else { self.pair.memory(REGION_LEN) };
        let (owner_memory, requester_memory) = if self.requester == Requester::Urxe {
            (guest_memory, host_memory)
        } else {
            (host_memory, guest_memory)
        };
        for (side, got, want) in
            [("owner", owner_memory, owner_data), ("requester", requester_memory, requester_data)]
        {
            if let Some(i) = (0..REGION_LEN).find(|i| got[*i] != want[*i]) {
                return Err(format!(
                    "{status}, and byte {i} of the {side}'s memory is {:#x}, expected {:#x}",
                    got[i], want[i]
                ));
            }
        }
        Ok(status)
    }
}

/// Panics with the list of errors unless it is empty.
pub fn assert_no_errors(errors: Vec<String>) {
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

struct Case {
    /// Access rights of the window.
    rights: &'static str,
    op: Operation,
    /// Offset from the window's first byte.
    at: i64,
    /// Expected status of the request, when urxe sends it and when rxe sends it.
    status: [&'static str; 2],
}

const fn case(rights: &'static str, op: Operation, at: i64, status: &'static str) -> Case {
    Case { rights, op, at, status: [status, status] }
}

/// Returns a case that accesses memory outside the window but inside its region, which rxe in Linux 6.1
/// permits because it checks only the region's range.
const fn out_of_range(op: Operation, at: i64) -> Case {
    Case { status: [SUCCESS, ACCESS_ERROR], ..case("wra", op, at, "") }
}

const SUCCESS: &str = "SUCCESS";
const ACCESS_ERROR: &str = "REM_ACCESS_ERR";

const CASES: &[Case] = &[
    case("wra", Operation::Write(4096), 0, SUCCESS),
    case("wra", Operation::Read(4096), 0, SUCCESS),
    case("wra", Operation::Write(1), 4095, SUCCESS),
    case("wra", Operation::Add, 4088, SUCCESS),
    case("wra", Operation::Swap, 0, SUCCESS),
    case("r", Operation::Read(100), 7, SUCCESS),
    case("w", Operation::Write(100), 7, SUCCESS),
    case("a", Operation::Add, 8, SUCCESS),
    case("r", Operation::Write(100), 0, ACCESS_ERROR),
    case("wr", Operation::Add, 0, ACCESS_ERROR),
    case("w", Operation::Read(100), 0, ACCESS_ERROR),
    case("wa", Operation::Read(100), 0, ACCESS_ERROR),
    out_of_range(Operation::Write(2), 4095),
    out_of_range(Operation::Read(3000), 1097),
    out_of_range(Operation::Write(1), -1),
    out_of_range(Operation::Read(1), 4096),
    out_of_range(Operation::Add, 4096),
    case("wra", Operation::Write(4096), 4096, ACCESS_ERROR),
];

fn check_access(setup: &Testbed, ip: Ip, requester: Requester) {
    let mut w = WindowPair::new(setup, ip, requester);
    let mut errors = Vec::new();
    for kind in [1, 2] {
        for c in CASES {
            let what = format!("type {kind} {:?}, {:?} at {}", c.rights, c.op, c.at);
            w.window(kind);
            let (rkey, bound) = w.bind(WINDOW, c.rights);
            errors.extend(check_eq(&what, bound.as_str(), "BIND_MW").err());
            let seen = w.execute(c.op, WINDOW.start as i64 + c.at, rkey);
            errors.extend(check_eq(&what, seen, Ok(c.status[requester as usize].into())).err());
        }
    }
    // Only a window of type 2 can be zero-based.
    w.window(2);
    let (rkey, bound) = w.bind(WINDOW, "wraz");
    errors.extend(check_eq("zero-based", bound.as_str(), "BIND_MW").err());
    let seen = w.execute_at(Operation::Write(96), WINDOW.start as i64 + 4000, RemoteAddr { va: 4000, rkey });
    errors.extend(check_eq("zero-based", seen, Ok(SUCCESS.into())).err());
    assert_no_errors(errors);
}

pub fn access_by_urxe(setup: &Testbed, ip: Ip) {
    check_access(setup, ip, Requester::Urxe);
}

pub fn access_by_rxe(setup: &Testbed, ip: Ip) {
    check_access(setup, ip, Requester::Rxe);
}

/// Checks that a type 1 window is accessible through every QP of its protection domain, and a type 2 window
/// only through the QP that bound it.
fn check_other_qp(setup: &Testbed, ip: Ip, requester: Requester) {
    let mut w = WindowPair::new(setup, ip, requester);
    let mut errors = Vec::new();
    for (kind, status) in [(1, SUCCESS), (2, ACCESS_ERROR)] {
        w.window(kind);
        let (rkey, bound) = w.bind(WINDOW, "wra");
        errors.extend(check_eq("bind", bound.as_str(), "BIND_MW").err());
        let Pair { setup, side, shell, ip } = &mut w.pair;
        let other = setup.connect_named(side, shell, "other", &ConnectParams::new(*ip, MTU));
        let to = RemoteAddr { va: w.at.va + WINDOW.start as u64, rkey };
        let seen = match requester {
            Requester::Urxe => {
                other.post_send(&SendWr::write(1, &[side.mr.sge(0..100)], to)).unwrap();
                status_name(side.one().unwrap().status).to_string()
            }
            Requester::Rxe => {
                shell.vsh.cmd(&format!("write other m 0 100 {}", remote_args(to))).unwrap();
                shell.one().unwrap().status
            }
        };
        errors.extend(check_eq(&format!("type {kind}"), seen.as_str(), status).err());
        shell.vsh.cmd("destroy other").unwrap();
        // The QP of the window still has access.
        let seen = w.execute(Operation::Write(10), WINDOW.start as i64, rkey);
        errors.extend(check_eq(&format!("type {kind}, QP of the window"), seen, Ok(SUCCESS.into())).err());
    }
    assert_no_errors(errors);
}

pub fn other_qp_by_urxe(setup: &Testbed, ip: Ip) {
    check_other_qp(setup, ip, Requester::Urxe);
}

pub fn other_qp_by_rxe(setup: &Testbed, ip: Ip) {
    check_other_qp(setup, ip, Requester::Rxe);
}

fn check_revoked(setup: &Testbed, ip: Ip, requester: Requester) {
    let mut o = WindowPair::new(setup, ip, requester);
    let mut errors = Vec::new();
    let start = WINDOW.start as i64;
    let mut check = |what: &str, seen: Result<String, String>, want: &str| {
        errors.extend(check_eq(what, seen, Ok(want.into())).err());
    };
    // A failed request moves the QPs to ERR, so it is the last use of its window.
    for kind in [1, 2] {
        let first = o.window(kind);
        check("unbound", o.execute(Operation::Write(1), start, first), ACCESS_ERROR);
    }

    o.window(1);
    let (old, _) = o.bind(WINDOW, "wra");
    check("type 1", o.execute(Operation::Write(1), start, old), SUCCESS);
    let (new, bound) = o.bind(4096..8192, "r");
    check("type 1 bound again", Ok(bound), "BIND_MW");
    check("type 1 bound again", o.execute(Operation::Read(4096), 4096, new), SUCCESS);
    check("type 1, old key", o.execute(Operation::Read(1), 4096, old), ACCESS_ERROR);

    for which in [0, 1] {
        o.window(1);
        let (old, _) = o.bind(WINDOW, "wra");
        let (new, bound) = o.bind(0..0, "wra");
        check("type 1 unbound", Ok(bound), "BIND_MW");
        check("type 1 unbound", o.execute(Operation::Read(1), start, [old, new][which]), ACCESS_ERROR);
    }

    o.window(2);
    let (old, _) = o.bind(WINDOW, "wra");
    check("type 2", o.execute(Operation::Write(1), start, old), SUCCESS);
    check("type 2 invalidated", Ok(o.invalidate(old)), "LOCAL_INV");
    let (new, bound) = o.bind(4096..8192, "r");
    check("type 2 bound again", Ok(bound), "BIND_MW");
    check("type 2 bound again", o.execute(Operation::Read(4096), 4096, new), SUCCESS);
    check("type 2, old key", o.execute(Operation::Read(1), 4096, old), ACCESS_ERROR);

    o.window(2);
    let (key, _) = o.bind(WINDOW, "wra");
    o.invalidate(key);
    check("type 2 invalidated", o.execute(Operation::Write(1), start, key), ACCESS_ERROR);

    for kind in [1, 2] {
        o.window(kind);
        let (key, _) = o.bind(WINDOW, "wra");
        match requester {
            Requester::Urxe => o.pair.cmd("destroy w"),
            Requester::Rxe => o.mw = None,
        }
        check(&format!("type {kind} deallocated"), o.execute(Operation::Write(1), start, key), ACCESS_ERROR);
    }
    assert_no_errors(errors);
}

pub fn revoked_for_urxe(setup: &Testbed, ip: Ip) {
    check_revoked(setup, ip, Requester::Urxe);
}

pub fn revoked_for_rxe(setup: &Testbed, ip: Ip) {
    check_revoked(setup, ip, Requester::Rxe);
}

/// Checks that an invalid bind or invalidation completes with an error at the owner, and moves the owner's QP
/// to ERR.
fn check_invalid_bind(setup: &Testbed, ip: Ip, requester: Requester, not_invalidated: &str) {
    let mut o = WindowPair::new(setup, ip, requester);
    let mut errors = Vec::new();
    // rxe of Linux 6.12 flushes the failed request of its own QP together with the following ones; 6.1
    // reports the reason.
    let flushes = requester == Requester::Urxe && Suite::from_env() == Suite::Trixie;
    let refused = if flushes { "WR_FLUSH_ERR" } else { "MW_BIND_ERR" };
    let not_invalidated = if flushes { "WR_FLUSH_ERR" } else { not_invalidated };
    let mut check = |what: &str, seen: String| errors.extend(check_eq(what, seen.as_str(), refused).err());
    for kind in [1, 2] {
        o.window(kind);
        check("beyond the region", o.bind(8000..8193, "wra").1);
    }
    o.window(2);
    o.bind(WINDOW, "wra");
    check("already bound", o.bind(WINDOW, "wra").1);
    o.window(2);
    check("empty range", o.bind(10..10, "wra").1);
    // A region without the right to bind windows to it, and a read-only region.
    o.pair.cmd("mr none 4096 access=lwra");
    o.pair.cmd("mr readable 4096 access=rb");
    let not_bindable = o.pair.side.pd.reg_mr(4096, Access::ALL).unwrap();
    let readable = o.pair.side.pd.reg_mr(4096, access("rb")).unwrap();
    for (region, ours) in [("none", &not_bindable), ("readable", &readable)] {
        o.window(2);
        let status = match requester {
            Requester::Urxe => {
                o.pair.cmd(&format!("bind q w {region} 0 4096 access=wra"));
                o.pair.shell.one().unwrap().status
            }
            Requester::Rxe => {
                let rkey = o.mw.as_ref().unwrap().next_rkey();
                let (region, addr) = (ours.lkey(), ours.addr());
                let bind = Bind { rkey, region, addr, len: 4096, access: access("wra") };
                o.qp.post_send(&SendWr::bind_mw(1, bind)).unwrap();
                o.host_status()
            }
        };
        check(region, status);
    }
    o.window(1);
    let (key, _) = o.bind(WINDOW, "wra");
    errors
        .extend(check_eq("LOCAL_INV of a type 1 window", o.invalidate(key).as_str(), not_invalidated).err());
    // Linux 6.1 crashes on this.
    if requester == Requester::Rxe {
        let key = o.window(2);
        errors.extend(
            check_eq("LOCAL_INV of an unbound window", o.invalidate(key).as_str(), not_invalidated).err(),
        );
    }
    let state = if requester == Requester::Urxe { o.pair.shell.state("q") } else { o.qp.state().to_string() };
    errors.extend(check_eq("state", state.as_str(), "ERR").err());
    assert_no_errors(errors);
}

pub fn invalid_bind_at_rxe(setup: &Testbed, ip: Ip) {
    check_invalid_bind(setup, ip, Requester::Urxe, "LOC_QP_OP_ERR");
}

pub fn invalid_bind_at_urxe(setup: &Testbed, ip: Ip) {
    check_invalid_bind(setup, ip, Requester::Rxe, "MW_BIND_ERR");
}

//! Work requests one call at a time (`ibv_wr_start` and what follows), through functions in the queue pair's struct.

use std::ffi::{c_int, c_void};

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use urxe::verbs::{BegunWr, LKey, QKey, QpType, Qpn, RKey, RemoteAddr, Sge, SrqId, WrSession};

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::address::Handle;
use crate::object::{Object, Shown};
use crate::pair::Pair;
use crate::post::{self, bytes};

/// The session that is going on: from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` the queue pair's struct is one
/// thread's.
pub struct Session {
    lock: RawMutex,
    /// Borrows from the queue pair beside which it lies.
    begun: Shown<Option<WrSession<'static>>>,
    /// What was wrong with a call that had no way to say so.
    refused: Shown<Option<c_int>>,
    /// Windows that the session binds, and their new keys.
    bound: Shown<Vec<(*mut ibv_mw, u32)>>,
}

impl Default for Session {
    fn default() -> Session {
        Session {
            lock: RawMutex::INIT,
            begun: Shown::new(None),
            refused: Shown::new(None),
            bound: Shown::new(Vec::new()),
        }
    }
}

/// `enum ibv_qp_create_send_ops_flags`.
const RDMA_WRITE: u64 = 1 << 0;
const RDMA_WRITE_IMM: u64 = 1 << 1;
const SEND: u64 = 1 << 2;
const SEND_IMM: u64 = 1 << 3;
const RDMA_READ: u64 = 1 << 4;
const CMP_SWP: u64 = 1 << 5;
const FETCH_ADD: u64 = 1 << 6;
const LOCAL_INV: u64 = 1 << 7;
const BIND_MW: u64 = 1 << 8;
const SEND_INV: u64 = 1 << 9;
const ATOMIC_WRITE: u64 = 1 << 12;

/// What each service has to offer.
fn operations(service: QpType) -> u64 {
    let datagram = SEND | SEND_IMM;
    let unreliable = datagram | RDMA_WRITE | RDMA_WRITE_IMM | LOCAL_INV | BIND_MW | SEND_INV;
    match service {
        QpType::Ud => datagram,
        QpType::Uc => unreliable,
        QpType::Rc | QpType::XrcSend => unreliable | RDMA_READ | CMP_SWP | FETCH_ADD | ATOMIC_WRITE,
        QpType::XrcRecv => 0,
    }
}

/// Gives a queue pair's struct the functions for the operations that its maker asks for. False if it has not all of them.
pub fn set_functions(c: &mut ibv_qp_ex, service: QpType, wanted: u64) -> bool {
    if wanted & !operations(service) != 0 {
        return false;
    }
    macro_rules! set {
        ($($flag:ident: $function:ident,)*) => {
            $(if wanted & $flag != 0 { c.$function = Some($function); })*
        };
    }
    set! {
        RDMA_WRITE: wr_rdma_write,
        RDMA_WRITE_IMM: wr_rdma_write_imm,
        SEND: wr_send,
        SEND_IMM: wr_send_imm,
        RDMA_READ: wr_rdma_read,
        CMP_SWP: wr_atomic_cmp_swp,
        FETCH_ADD: wr_atomic_fetch_add,
        LOCAL_INV: wr_local_inv,
        BIND_MW: wr_bind_mw,
        SEND_INV: wr_send_inv,
        ATOMIC_WRITE: wr_atomic_write,
    }
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    true
}

unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: a queue pair that was given out, which stays until the session has ended.
    let pair: &'static Pair = unsafe { Pair::of(c.cast()) };
    pair.session.lock.lock();
    // SAFETY: the session is this thread's.
    unsafe {
        *pair.session.begun.get() = Some(pair.qp.wr_start());
        *pair.session.refused.get() = None;
        (*pair.session.bound.get()).clear();
    }
}

/// Ends a session, if one is going on.
unsafe fn end(c: *mut ibv_qp_ex) -> Option<WrSession<'static>> {
    // SAFETY: a queue pair that was given out, in a session of this thread or none.
    unsafe {
        let session = &Pair::of(c.cast()).session;
        (*session.begun.get()).take().inspect(|_| session.lock.unlock())
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a queue pair that was given out, in a session of this thread or none.
    let (refused, bound) = unsafe {
        let session = &Pair::of(c.cast()).session;
        (*session.refused.get(), std::mem::take(&mut *session.bound.get()))
    };
    // SAFETY: as the caller vouches.
    match (unsafe { end(c) }, refused) {
        (None, _) => libc::EINVAL,
        (Some(_), Some(errno)) => errno,
        (Some(session), None) => match session.complete() {
            Ok(()) => {
                for (mw, rkey) in bound {
                    // SAFETY: the program's window, which it bound in this session.
                    unsafe { (*mw).rkey = rkey };
                }
                0
            }
            Err(e) => e.errno(),
        },
    }
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as the caller vouches.
    if let Some(session) = unsafe { end(c) } {
        session.abort();
    }
}

/// Begins a work request with the number and flags that the program has put into the struct.
unsafe fn begin(c: *mut ibv_qp_ex, add: impl FnOnce(&mut WrSession<'static>)) {
    // SAFETY: a queue pair that was given out, in a session of this thread.
    unsafe {
        if let Some(session) = &mut *Pair::of(c.cast()).session.begun.get() {
            (session.wr_id, session.flags) = ((*c).wr_id, post::flags((*c).wr_flags));
            add(session);
        }
    }
}

/// Says more of the work request that was begun last.
unsafe fn set(c: *mut ibv_qp_ex, set: impl FnOnce(BegunWr<'_>)) {
    // SAFETY: a queue pair that was given out, in a session of this thread.
    let session = unsafe { &mut *Pair::of(c.cast()).session.begun.get() };
    if let Some(begun) = session.as_mut().and_then(WrSession::current) {
        set(begun);
    }
}

fn remote(rkey: u32, va: u64) -> RemoteAddr {
    RemoteAddr { va, rkey: RKey(rkey) }
}

/// Functions that begin a work request.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) = $add:expr;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_qp_ex, $($argument: $kind),*) {
            // SAFETY: as the caller vouches.
            unsafe { begin(c, |session| { let add: fn(&mut WrSession<'static>, $($kind),*) = $add; add(session, $($argument),*); }) };
        })*
    };
}

operations! {
    wr_send() = |s| { s.wr_send(); };
    wr_send_imm(imm: u32) = |s, imm| { s.wr_send_imm(u32::from_be(imm)); };
    wr_send_inv(rkey: u32) = |s, rkey| { s.wr_send_inv(RKey(rkey)); };
    wr_local_inv(rkey: u32) = |s, rkey| { s.wr_local_inv(RKey(rkey)); };
    wr_rdma_write(rkey: u32, va: u64) = |s, rkey, va| { s.wr_rdma_write(remote(rkey, va)); };
    wr_rdma_write_imm(rkey: u32, va: u64, imm: u32) = |s, rkey, va, imm| {
        s.wr_rdma_write_imm(remote(rkey, va), u32::from_be(imm));
    };
    wr_rdma_read(rkey: u32, va: u64) = |s, rkey, va| { s.wr_rdma_read(remote(rkey, va)); };
    wr_atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64) = |s, rkey, va, compare, swap| {
        s.wr_atomic_cmp_swp(remote(rkey, va), compare, swap);
    };
    wr_atomic_fetch_add(rkey: u32, va: u64, add: u64) = |s, rkey, va, add| {
        s.wr_atomic_fetch_add(remote(rkey, va), add);
    };
}

unsafe extern "C" fn wr_atomic_write(c: *mut ibv_qp_ex, rkey: u32, va: u64, value: *const c_void) {
    // SAFETY: eight bytes of the caller's, and as it vouches.
    unsafe {
        let value: [u8; 8] = value.cast::<[u8; 8]>().read_unaligned();
        begin(c, |session| {
            session.wr_atomic_write(remote(rkey, va), value);
        });
    }
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: a window that was given out, and the caller's struct with a region that was.
    unsafe {
        let session = &Pair::of(c.cast()).session;
        let rkey = match post::window_key(mw, rkey) {
            Ok(rkey) => rkey,
            Err(errno) => return *session.refused.get() = Some(errno),
        };
        (*session.bound.get()).push((mw, rkey));
        let bind = post::bind(rkey, &*info);
        begin(c, |session| {
            session.wr_bind_mw(bind);
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: a handle that was given out, and as the caller vouches.
    unsafe {
        let ah = &Handle::of(ah).ah;
        set(c, |begun| {
            begun.set_ud_addr(ah, Qpn::new(qpn & 0xff_ffff), QKey(qkey));
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as the caller vouches.
    unsafe {
        set(c, |begun| {
            begun.set_xrc_srqn(SrqId(srqn));
        })
    };
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        set(c, |begun| {
            begun.set_inline_data(bytes(addr, length));
        })
    };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as the caller vouches.
    unsafe {
        let pieces = (0..count).map(|i| &*list.add(i)).map(|piece| bytes(piece.addr, piece.length));
        set(c, |begun| {
            pieces.fold(begun.set_inline_data(&[]), BegunWr::add_inline_data);
        });
    }
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as the caller vouches.
    unsafe {
        set(c, |begun| {
            begun.set_sge(Sge { addr, length, lkey: LKey(lkey) });
        })
    };
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as the caller vouches.
    unsafe {
        let count = c_int::try_from(count).map_err(|_| libc::EINVAL);
        match count.and_then(|count| post::elements(list, count)) {
            Ok(sges) => set(c, |begun| {
                begun.set_sge_list(sges);
            }),
            Err(errno) => *Pair::of(c.cast()).session.refused.get() = Some(errno),
        }
    }
}

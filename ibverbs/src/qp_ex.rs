//! Work requests built by one call per part (`ibv_wr_start` and its companions), through the function
//! pointers in the C struct of the queue pair.

use std::ffi::{c_int, c_void};

use parking_lot::lock_api::RawMutex as _;
use urxe::verbs::{LKey, QKey, QpType, Qpn, RKey, RemoteAddr, Sge, SrqId, WrBuilder, WrSession};

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::address::AddressHandle;
use crate::buffers::{bytes, elements};
use crate::object::FfiObject;
use crate::post;
use crate::qp::QueuePair;

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

/// Returns the operations that a service type supports, as `send_ops_flags`.
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

/// Sets the function pointers of the operations in `wanted` (`send_ops_flags`). Returns false if the service
/// type does not support all of them.
pub(crate) fn set_functions(c: &mut ibv_qp_ex, service: QpType, wanted: u64) -> bool {
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
    // SAFETY: `ibv_wr_start` requires a live queue pair. The program must not destroy it before the session
    // has ended, so the reference and what borrows from it stay valid although they are `'static`.
    let qp: &'static QueuePair = unsafe { QueuePair::from_raw_ref(c.cast()) };
    qp.session.lock.lock();
    // SAFETY: the session lock is held, so no other thread accesses the cells.
    unsafe {
        *qp.session.active.get() = Some(qp.qp.wr_start());
        *qp.session.error.get() = None;
        (*qp.session.bound_windows.get()).clear();
    }
}

/// Ends the session, if one is in progress, and releases its lock.
///
/// # Safety
/// `c` is a live queue pair, with a session of this thread or with none.
unsafe fn end(c: *mut ibv_qp_ex) -> Option<WrSession<'static>> {
    // SAFETY: `c` is live as the caller guarantees. If the cell holds a session, this thread holds the lock
    // and may access the cell and unlock.
    unsafe {
        let session = &QueuePair::from_raw_ref(c.cast()).session;
        (*session.active.get()).take().inspect(|_| session.lock.unlock())
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `c` is a live queue pair in a session that this thread started: `ibv_wr_complete` may only
    // follow `ibv_wr_start`. The cells are this thread's until `end`.
    let (error, bound_windows) = unsafe {
        let session = &QueuePair::from_raw_ref(c.cast()).session;
        (*session.error.get(), std::mem::take(&mut *session.bound_windows.get()))
    };
    // SAFETY: `c` is a live queue pair, in a session of this thread or in none, as `ibv_wr_complete`
    // requires.
    match (unsafe { end(c) }, error) {
        (None, _) => libc::EINVAL,
        (Some(_), Some(errno)) => errno,
        (Some(session), None) => match session.complete() {
            Ok(()) => {
                for (mw, rkey) in bound_windows {
                    // SAFETY: the program passed the window to `wr_bind_mw` in this session; the program must
                    // not deallocate it before the request that binds it is posted.
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
    // SAFETY: `ibv_wr_abort` may only follow `ibv_wr_start` on the same thread, for a live queue pair.
    if let Some(session) = unsafe { end(c) } {
        session.abort();
    }
}

/// Begins a work request with the `wr_id` and flags that the program has stored in the C struct.
///
/// # Safety
/// `c` is a live queue pair, in a session of this thread.
unsafe fn begin(c: *mut ibv_qp_ex, add: impl FnOnce(&mut WrSession<'static>)) {
    // SAFETY: `c` is live and the session is this thread's, so this is the only reference to the cell; the
    // program does not write the C struct during the call.
    unsafe {
        if let Some(session) = &mut *QueuePair::from_raw_ref(c.cast()).session.active.get() {
            (session.wr_id, session.flags) = ((*c).wr_id, post::flags((*c).wr_flags));
            add(session);
        }
    }
}

/// Sets data or the destination of the work request that was begun last.
///
/// # Safety
/// `c` is a live queue pair, in a session of this thread.
unsafe fn set(c: *mut ibv_qp_ex, set: impl FnOnce(WrBuilder<'_>)) {
    // SAFETY: `c` is live and the session is this thread's, so this is the only reference to the cell.
    let session = unsafe { &mut *QueuePair::from_raw_ref(c.cast()).session.active.get() };
    if let Some(wr) = session.as_mut().and_then(WrSession::current) {
        set(wr);
    }
}

fn remote_addr(rkey: u32, va: u64) -> RemoteAddr {
    RemoteAddr { va, rkey: RKey(rkey) }
}

/// Defines the C functions that begin a work request.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) = $add:expr;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_qp_ex, $($argument: $kind),*) {
            // SAFETY: the header's inline functions may only be called between `ibv_wr_start` and
            // `ibv_wr_complete`, by the thread that started the session.
            unsafe {
                begin(c, |session| {
                    let add: fn(&mut WrSession<'static>, $($kind),*) = $add;
                    add(session, $($argument),*);
                })
            };
        })*
    };
}

operations! {
    wr_send() = |s| { s.wr_send(); };
    wr_send_imm(imm: u32) = |s, imm| { s.wr_send_imm(u32::from_be(imm)); };
    wr_send_inv(rkey: u32) = |s, rkey| { s.wr_send_inv(RKey(rkey)); };
    wr_local_inv(rkey: u32) = |s, rkey| { s.wr_local_inv(RKey(rkey)); };
    wr_rdma_write(rkey: u32, va: u64) = |s, rkey, va| { s.wr_rdma_write(remote_addr(rkey, va)); };
    wr_rdma_write_imm(rkey: u32, va: u64, imm: u32) = |s, rkey, va, imm| {
        s.wr_rdma_write_imm(remote_addr(rkey, va), u32::from_be(imm));
    };
    wr_rdma_read(rkey: u32, va: u64) = |s, rkey, va| { s.wr_rdma_read(remote_addr(rkey, va)); };
    wr_atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64) = |s, rkey, va, compare, swap| {
        s.wr_atomic_cmp_swp(remote_addr(rkey, va), compare, swap);
    };
    wr_atomic_fetch_add(rkey: u32, va: u64, add: u64) = |s, rkey, va, add| {
        s.wr_atomic_fetch_add(remote_addr(rkey, va), add);
    };
}

unsafe extern "C" fn wr_atomic_write(c: *mut ibv_qp_ex, rkey: u32, va: u64, value: *const c_void) {
    // SAFETY: `value` points to eight readable bytes (`ibv_wr_atomic_write`), at any alignment. The session
    // is this thread's, as for every call in it.
    unsafe {
        let value: [u8; 8] = value.cast::<[u8; 8]>().read_unaligned();
        begin(c, |session| {
            session.wr_atomic_write(remote_addr(rkey, va), value);
        });
    }
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: `mw` and the region of `info` are live or null, and `info` is readable during the call
    // (`ibv_wr_bind_mw`). The session is this thread's, so the cells are too.
    unsafe {
        let session = &QueuePair::from_raw_ref(c.cast()).session;
        let rkey = match post::window_key(mw, rkey) {
            Ok(rkey) => rkey,
            Err(errno) => return *session.error.get() = Some(errno),
        };
        (*session.bound_windows.get()).push((mw, rkey));
        let bind = post::bind(rkey, &*info);
        begin(c, |session| {
            session.wr_bind_mw(bind);
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: `ah` is live until the request is posted (`ibv_wr_set_ud_addr`), and the session is this
    // thread's.
    unsafe {
        let ah = &AddressHandle::from_raw_ref(ah).ah;
        set(c, |wr| {
            wr.set_ud_addr(ah, Qpn::new(qpn & 0xff_ffff), QKey(qkey));
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: `c` is a live queue pair in a session of this thread, as for every call of a session.
    unsafe {
        set(c, |wr| {
            wr.set_xrc_srqn(SrqId(srqn));
        })
    };
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program provides `length` readable bytes at `addr`, which are copied during the call. The
    // session is this thread's.
    unsafe {
        set(c, |wr| {
            wr.set_inline_data(bytes(addr, length));
        })
    };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: `list` has `count` readable elements, each of which names readable bytes; all are copied during
    // the call. The session is this thread's.
    unsafe {
        let buffers = (0..count).map(|i| &*list.add(i)).map(|buffer| bytes(buffer.addr, buffer.length));
        set(c, |wr| {
            buffers.fold(wr.set_inline_data(&[]), WrBuilder::add_inline_data);
        });
    }
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: `c` is a live queue pair in a session of this thread, as for every call of a session.
    unsafe {
        set(c, |wr| {
            wr.set_sge(Sge { addr, length, lkey: LKey(lkey) });
        })
    };
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: `list` has `count` readable elements, which are copied during the call. The session is this
    // thread's, and with it the cell `error`.
    unsafe {
        let count = c_int::try_from(count).map_err(|_| libc::EINVAL);
        match count.and_then(|count| elements(list, count)) {
            Ok(sges) => set(c, |wr| {
                wr.set_sge_list(sges);
            }),
            Err(errno) => *QueuePair::from_raw_ref(c.cast()).session.error.get() = Some(errno),
        }
    }
}

//! Work requests built with one call per part (`ibv_wr_start` and its companions), through the function
//! pointers in `ibv_qp_ex`.

use std::ffi::{c_int, c_void};

use parking_lot::lock_api::RawMutex as _;
use urxe::verbs::faults::Call;
use urxe::verbs::{AtomicOp, Destination, LKey, Placement, QKey, QpType, Qpn, RKey, Sge, SrqId, WrOp};

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::address::AddressHandle;
use crate::buffers::{bytes, elements};
use crate::call_faults;
use crate::object::FfiObject;
use crate::post;
use crate::qp::QueuePair;
use crate::wr_session::Requests;

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
const FLUSH: u64 = 1 << 11;
const ATOMIC_WRITE: u64 = 1 << 12;

/// Returns the operations that a service type supports, as a `send_ops_flags` mask.
fn operations(service: QpType) -> u64 {
    let datagram = SEND | SEND_IMM;
    let unreliable = datagram | RDMA_WRITE | RDMA_WRITE_IMM | LOCAL_INV | BIND_MW | SEND_INV;
    match service {
        QpType::Ud => datagram,
        QpType::Uc => unreliable,
        QpType::Rc | QpType::XrcSend => unreliable | RDMA_READ | CMP_SWP | FETCH_ADD | FLUSH | ATOMIC_WRITE,
        QpType::XrcRecv => 0,
    }
}

/// Sets the function pointers for the operations in `wanted` (`send_ops_flags`). Returns false if the service
/// type does not support all of them.
pub(crate) fn set_functions(c: &mut ibv_qp_ex, service: QpType, wanted: u64) -> bool {
    if wanted & !operations(service) != 0 {
        return false;
    }
    set_operations(c, wanted);
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
    // SAFETY: `ibv_wr_start` requires a live queue pair, which the program must not destroy before the
    // session has ended.
    let session = unsafe { &QueuePair::from_raw_ref(c.cast()).session };
    session.lock.lock();
    // SAFETY: the session lock is held, so no other thread accesses the cell.
    unsafe { &mut *session.state.get() }.open();
}

/// Ends the session, if one is in progress: passes its work requests to `f` and then releases its lock.
///
/// # Safety
/// `c` is a live queue pair, with a session of this thread or with none.
unsafe fn end<R>(c: *mut ibv_qp_ex, f: impl FnOnce(&QueuePair, &Requests) -> R) -> Option<R> {
    // SAFETY: `c` is live as the caller guarantees. If a session is open, this thread holds the lock, which
    // gives it the cell until it unlocks; `f` does not reach the cell otherwise.
    unsafe {
        let pair = QueuePair::from_raw_ref(c.cast());
        let requests = &mut *pair.session.state.get();
        std::mem::take(&mut requests.is_open).then(|| {
            let result = f(pair, requests);
            pair.session.lock.unlock();
            result
        })
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    let _uncancelled = crate::cancel::disable();
    let complete = |pair: &QueuePair, requests: &Requests| {
        let injected = call_faults::on_call(Call::ibv_wr_complete);
        if let Some(errno) = requests.error.or(injected) {
            return errno;
        }
        if let Err(e) = pair.qp.post_all_or_none(requests.send_wrs()) {
            return e.errno();
        }
        for (mw, rkey) in &requests.bound_windows {
            // SAFETY: the program passed the window to `wr_bind_mw` in this session; the program must not
            // deallocate it before the request that binds it is posted.
            unsafe { (**mw).rkey = *rkey };
        }
        0
    };
    // SAFETY: `c` is a live queue pair in a session that this thread started: `ibv_wr_complete` may only
    // follow `ibv_wr_start`.
    unsafe { end(c, complete) }.unwrap_or(libc::EINVAL)
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_wr_abort` may only follow `ibv_wr_start` on the same thread, for a live queue pair.
    unsafe { end(c, |_, _| ()) };
}

/// Calls `f` with the requests of the session in progress, if there is one.
///
/// # Safety
/// `c` is a live queue pair, with a session of this thread or with none.
unsafe fn change(c: *mut ibv_qp_ex, f: impl FnOnce(&mut Requests)) {
    // SAFETY: `c` is live and the session is this thread's, so this is the only reference to the cell.
    let requests = unsafe { &mut *QueuePair::from_raw_ref(c.cast()).session.state.get() };
    if requests.is_open {
        f(requests);
    }
}

/// Begins a work request with the `wr_id` and flags from the C struct.
///
/// # Safety
/// As for [`change`].
unsafe fn begin(c: *mut ibv_qp_ex, op: WrOp) {
    // SAFETY: `c` is live, and the program does not write the C struct during the call.
    unsafe {
        let (wr_id, flags) = ((*c).wr_id, post::flags((*c).wr_flags));
        change(c, |requests| requests.begin(wr_id, op, flags));
    }
}

/// Defines the C functions that begin a work request, except for those without arguments here, and a function
/// that sets their pointers.
macro_rules! operations {
    ($($flag:ident $name:ident $(($($argument:ident: $kind:ty),*) = $op:expr)?;)*) => {
        $($(unsafe extern "C" fn $name(c: *mut ibv_qp_ex, $($argument: $kind),*) {
            // SAFETY: the header's inline functions may only be called between `ibv_wr_start` and
            // `ibv_wr_complete`, by the thread that started the session.
            unsafe { begin(c, $op) };
        })?)*

        /// Sets the function pointers for the operations in `wanted`.
        fn set_operations(c: &mut ibv_qp_ex, wanted: u64) {
            $(if wanted & $flag != 0 {
                c.$name = Some($name);
            })*
        }
    };
}

operations! {
    SEND wr_send() = WrOp::Send;
    SEND_IMM wr_send_imm(imm: u32) = WrOp::SendWithImm(u32::from_be(imm));
    SEND_INV wr_send_inv(rkey: u32) = WrOp::SendWithInv(RKey(rkey));
    LOCAL_INV wr_local_inv(rkey: u32) = WrOp::LocalInv(RKey(rkey));
    RDMA_WRITE wr_rdma_write(rkey: u32, va: u64) = WrOp::Write { va, rkey: RKey(rkey) };
    RDMA_WRITE_IMM wr_rdma_write_imm(rkey: u32, va: u64, imm: u32) =
        WrOp::WriteWithImm { va, rkey: RKey(rkey), imm: u32::from_be(imm) };
    RDMA_READ wr_rdma_read(rkey: u32, va: u64) = WrOp::Read { va, rkey: RKey(rkey) };
    CMP_SWP wr_atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64) =
        WrOp::Atomic { va, rkey: RKey(rkey), op: AtomicOp::CompareSwap { compare, swap } };
    FETCH_ADD wr_atomic_fetch_add(rkey: u32, va: u64, add: u64) =
        WrOp::Atomic { va, rkey: RKey(rkey), op: AtomicOp::FetchAdd(add) };
    BIND_MW wr_bind_mw;
    FLUSH wr_flush;
    ATOMIC_WRITE wr_atomic_write;
}

unsafe extern "C" fn wr_flush(c: *mut ibv_qp_ex, rkey: u32, va: u64, len: usize, placement: u8, level: u8) {
    /// `enum ibv_selectivity_level`.
    const RANGE: u8 = 0;
    const WHOLE_REGION: u8 = 1;
    let placement = Placement::from_bits(placement.into());
    let (Ok(len), Some(placement), RANGE | WHOLE_REGION) = (u32::try_from(len), placement, level) else {
        // SAFETY: the session is this thread's, as for every call in it.
        return unsafe { change(c, |requests| requests.error = Some(libc::EINVAL)) };
    };
    let op = WrOp::Flush { va, rkey: RKey(rkey), len, placement, whole_region: level == WHOLE_REGION };
    // SAFETY: `ibv_wr_flush` may only be called between `ibv_wr_start` and `ibv_wr_complete`, by the thread
    // that started the session.
    unsafe { begin(c, op) };
}

unsafe extern "C" fn wr_atomic_write(c: *mut ibv_qp_ex, rkey: u32, va: u64, value: *const c_void) {
    // SAFETY: `value` points to eight readable bytes (`ibv_wr_atomic_write`), at any alignment. The session
    // is this thread's, as for every call in it.
    unsafe {
        let value: [u8; 8] = value.cast::<[u8; 8]>().read_unaligned();
        begin(c, WrOp::AtomicWrite { va, rkey: RKey(rkey), value });
    }
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: `mw` and the region of `info` are live or null, and `info` is readable during the call
    // (`ibv_wr_bind_mw`). The session is this thread's.
    unsafe {
        match post::window_key(mw, rkey) {
            Ok(rkey) => {
                begin(c, WrOp::BindMw(post::bind(rkey, &*info)));
                change(c, |requests| requests.bound_windows.push((mw, rkey)));
            }
            Err(errno) => change(c, |requests| requests.error = Some(errno)),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: `ah` is live until the request is posted (`ibv_wr_set_ud_addr`), and the session is this
    // thread's.
    unsafe {
        let to = AddressHandle::from_raw_ref(ah).ah.to(Qpn::new(qpn & 0xff_ffff), QKey(qkey));
        change(c, |requests| requests.set_destination(to));
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: `c` is a live queue pair in a session of this thread, as for every call of a session.
    unsafe { change(c, |requests| requests.set_destination(Destination::Srq(SrqId(srqn)))) };
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program provides `length` readable bytes at `addr`, which are copied during the call. The
    // session is this thread's.
    unsafe { change(c, |requests| requests.set_inline(std::iter::once(bytes(addr, length)))) };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: `list` has `count` readable elements, each of which names readable bytes; all are copied during
    // the call. The session is this thread's.
    unsafe {
        let buffers = (0..count).map(|i| &*list.add(i)).map(|buffer| bytes(buffer.addr, buffer.length));
        change(c, |requests| requests.set_inline(buffers));
    }
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: `c` is a live queue pair in a session of this thread, as for every call of a session.
    unsafe { change(c, |requests| requests.set_sges(&[Sge { addr, length, lkey: LKey(lkey) }])) };
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: `list` has `count` readable elements, which are copied during the call. The session is this
    // thread's.
    unsafe {
        let count = c_int::try_from(count).map_err(|_| libc::EINVAL);
        let sges = count.and_then(|count| elements(list, count));
        change(c, |requests| match sges {
            Ok(sges) => requests.set_sges(&sges),
            Err(errno) => requests.error = Some(errno),
        });
    }
}

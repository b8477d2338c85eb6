//! Extended completion queues: completions are read one at a time, field by field, through the function
//! pointers in the queue's C struct.

use std::ffi::{c_int, c_uint};

use parking_lot::lock_api::RawMutex as _;
use urxe::verbs::{CqPoll, Wc, WcFlags};

use crate::abi::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use crate::cq::{CompletionQueue, header_kind};
use crate::explain::explain;
use crate::object::FfiObject;

/// Advances to the next completion. Returns 0, `ENOENT` if there is none, or the queue's error number.
///
/// # Safety
/// `c` is the C struct of `queue`, in a batch of this thread.
unsafe fn advance(c: *mut ibv_cq_ex, queue: &CompletionQueue) -> c_int {
    // SAFETY: the batch is this thread's, which holds the lock next to the cell, so this is the only
    // reference to its content.
    let Some(poll) = (unsafe { &mut *queue.batch.state.get() }) else { return libc::EINVAL };
    match poll.next_poll() {
        Ok(Some(wc)) => {
            // SAFETY: `c` is the live C struct of the queue, and the program's other threads do not access it
            // during the batch.
            unsafe { ((*c).wr_id, (*c).status) = (wc.wr_id, wc.status as c_uint) };
            explain(&queue.cq, std::slice::from_ref(&*wc));
            0
        }
        Ok(None) => libc::ENOENT,
        Err(e) => e.errno(),
    }
}

unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    inject_fault!(ibv_start_poll, store);
    // SAFETY: `ibv_start_poll` requires a non-null `attr` to point to a readable struct.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: `ibv_start_poll` requires a live queue. The program must not destroy it before the batch has
    // ended, so the reference and what borrows from it stay valid although they are `'static`.
    let queue: &'static CompletionQueue = unsafe { CompletionQueue::from_raw_ref(c.cast()) };
    queue.batch.lock.lock();
    // SAFETY: the batch lock is held, so no other thread accesses the cell; `c` is the C struct of `queue`.
    let result = unsafe {
        *queue.batch.state.get() = Some(queue.cq.start_poll());
        advance(c, queue)
    };
    if result != 0 {
        // The program calls `ibv_end_poll` only after a successful start.
        // SAFETY: the batch began above on this thread, which therefore holds the lock that `end_batch`
        // releases.
        unsafe { end_batch(queue) };
    }
    result
}

unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    // SAFETY: `ibv_next_poll` may only follow a successful `ibv_start_poll` of the same thread, on a live
    // queue.
    unsafe { advance(c, CompletionQueue::from_raw_ref(c.cast())) }
}

unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    // SAFETY: `ibv_end_poll` may only follow a successful `ibv_start_poll` of the same thread, on a live
    // queue.
    unsafe { end_batch(CompletionQueue::from_raw_ref(c.cast())) };
}

/// Ends the batch and releases its lock.
///
/// # Safety
/// A batch of this thread is in progress.
unsafe fn end_batch(queue: &CompletionQueue) {
    // SAFETY: the batch is this thread's, which therefore holds the lock that guards the cell.
    unsafe {
        *queue.batch.state.get() = None;
        queue.batch.lock.unlock();
    }
}

/// Returns a field of the batch's current completion, or the default value if there is none.
///
/// # Safety
/// `c` is a live queue, in a batch of this thread.
unsafe fn read_current<T: Default>(c: *mut ibv_cq_ex, read: impl FnOnce(&Wc<'_>) -> T) -> T {
    // SAFETY: the caller passes a live queue in a batch of this thread, which holds the lock next to the
    // cell, so no other reference to its content exists.
    let poll = unsafe { &*CompletionQueue::from_raw_ref(c.cast()).batch.state.get() };
    poll.as_ref().and_then(CqPoll::current).map_or_else(T::default, |wc| read(&wc))
}

/// Defines the C functions that read a field of the current completion, and `set_functions`.
macro_rules! read {
    ($($name:ident: $kind:ty = $read:expr;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_cq_ex) -> $kind {
            // SAFETY: the `ibv_wc_read_*` functions may only be called in a polling batch of the calling
            // thread, on a live queue.
            unsafe { read_current(c, $read) }
        })*

        /// Sets the function pointers in a queue's C struct.
        pub(crate) fn set_functions(c: &mut ibv_cq_ex) {
            c.start_poll = Some(start_poll);
            c.next_poll = Some(next_poll);
            c.end_poll = Some(end_poll);
            c.read_tm_info = Some(read_tm_info);
            $(c.$name = Some($name);)*
        }
    };
}

read! {
    read_opcode: c_uint = |wc| wc.opcode as c_uint;
    read_vendor_err: u32 = |wc| wc.vendor_err;
    read_byte_len: u32 = |wc| wc.byte_len;
    read_imm_data: u32 =
        |wc| wc.imm.map(u32::to_be).or(wc.invalidated.map(|key| key.0)).unwrap_or(0);
    read_qp_num: u32 = |wc| wc.qpn.get();
    read_src_qp: u32 = |wc| wc.src_qpn.get();
    read_wc_flags: c_uint = |wc| wc.wc_flags().bits();
    read_completion_ts: u64 = |wc| wc.completion_timestamp();
    read_completion_wallclock_ns: u64 = |wc| wc.completion_wallclock_ns();
    read_sl: u8 = |wc| header_kind(wc.wc_flags().contains(WcFlags::GRH), wc.over_ipv4);
    read_slid: u32 = |_| 0;
    read_dlid_path_bits: u8 = |_| 0;
    read_cvlan: u16 = |_| 0;
    read_flow_tag: u32 = |_| 0;
}

unsafe extern "C" fn read_tm_info(_c: *mut ibv_cq_ex, out: *mut ibv_wc_tm_info) {
    // SAFETY: `ibv_wc_read_tm_info` requires `out` to point to a writable struct.
    unsafe { *out = ibv_wc_tm_info { tag: 0, r#priv: 0 } };
}

//! Completion counters (`ibv_comp_cntr`).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use urxe::verbs::{CompCounter, CountUnit, CountedOps};

use crate::abi::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_qp,
    ibv_qp_attach_comp_cntr_attr,
};
use crate::object::{FfiCell, FfiObject, ffi_object};
use crate::qp::QueuePair;
use crate::query::copy_part;

entry_points! {
    "IBVERBS_1.18" store _ibv_query_comp_cntr_caps as ibv_query_comp_cntr_caps(context: *mut ibv_context,
        out: *mut ibv_comp_cntr_caps, len: usize) = query_caps;
    "IBVERBS_1.18" null ibv_create_comp_cntr(context: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr)
        -> *mut ibv_comp_cntr = create_comp_cntr;
    "IBVERBS_1.18" store ibv_destroy_comp_cntr(c: *mut ibv_comp_cntr) on CompletionCounter(c)
        unless is_inherited = destroy_comp_cntr;
    "IBVERBS_1.18" store ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, c: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr) on QueuePair(qp) = attach_comp_cntr;
    "IBVERBS_1.18" store ibv_set_comp_cntr(c: *mut ibv_comp_cntr, value: u64) on CompletionCounter(c)
        => with(c, |counter| counter.set_completed(value));
    "IBVERBS_1.18" store ibv_set_err_comp_cntr(c: *mut ibv_comp_cntr, value: u64) on CompletionCounter(c)
        => with(c, |counter| counter.set_failed(value));
    "IBVERBS_1.18" store ibv_inc_comp_cntr(c: *mut ibv_comp_cntr, amount: u64) on CompletionCounter(c)
        => with(c, |counter| counter.add_completed(amount));
    "IBVERBS_1.18" store ibv_inc_err_comp_cntr(c: *mut ibv_comp_cntr, amount: u64) on CompletionCounter(c)
        => with(c, |counter| counter.add_failed(amount));
    // SAFETY: both C functions require `out` to point to a writable integer.
    "IBVERBS_1.18" store ibv_read_comp_cntr(c: *mut ibv_comp_cntr, out: *mut u64) on CompletionCounter(c)
        => with(c, |counter| *out = counter.completed());
    "IBVERBS_1.18" store ibv_read_err_comp_cntr(c: *mut ibv_comp_cntr, out: *mut u64) on CompletionCounter(c)
        => with(c, |counter| *out = counter.failed());
}

/// A completion counter with its C struct.
#[repr(C)]
pub(crate) struct CompletionCounter {
    c: FfiCell<ibv_comp_cntr>,
    counter: CompCounter,
}

ffi_object! { CompletionCounter { c: ibv_comp_cntr } [context, handle] }

/// Number of counters that `ibv_query_comp_cntr_caps` reports; only memory limits it.
const MAX_COUNTERS: u32 = i32::MAX as u32;

unsafe fn query_caps(
    _context: *mut ibv_context,
    out: *mut ibv_comp_cntr_caps,
    len: usize,
) -> Result<(), c_int> {
    let caps = ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: MAX_COUNTERS,
        supported_qp_attach_ops: CountedOps::all().bits(),
    };
    // SAFETY: `len` is the size of the caller's struct as its header defines it.
    unsafe { copy_part(&caps, out, len) };
    Ok(())
}

unsafe fn create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> Result<*mut ibv_comp_cntr, c_int> {
    static HANDLES: AtomicU32 = AtomicU32::new(0);
    // SAFETY: `ibv_create_comp_cntr` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    let unit = match attr.r#type {
        0 => CountUnit::Operations,
        1 => CountUnit::Bytes,
        _ => return Err(libc::EOPNOTSUPP),
    };
    if attr.comp_mask != 0 || attr.flags != 0 {
        return Err(libc::EINVAL);
    }
    let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
    let c = FfiCell::new(ibv_comp_cntr { context, handle });
    Ok(CompletionCounter { c, counter: CompCounter::new(unit) }.into_raw())
}

unsafe fn destroy_comp_cntr(c: *mut ibv_comp_cntr) -> Result<(), c_int> {
    // SAFETY: `c` is live (checked by the entry point). Without attachments, no queue pair refers to the
    // counter, and the program gives up its pointer.
    unsafe {
        if CompletionCounter::from_raw_ref(c).counter.is_attached() {
            return Err(libc::EBUSY);
        }
        drop(CompletionCounter::from_raw(c));
    }
    Ok(())
}

unsafe fn attach_comp_cntr(
    qp: *mut ibv_qp,
    c: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> Result<(), c_int> {
    // SAFETY: `ibv_qp_attach_comp_cntr` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the queue pair is live (checked by the entry point), and the program must not destroy the two
    // objects during the call.
    let (qp, counter) = unsafe { (QueuePair::from_raw_ref(qp), CompletionCounter::live(c)?) };
    let ops = CountedOps::from_bits_retain(attr.op_mask);
    qp.qp.attach_counter(&counter.counter, ops).map_err(|e| e.errno())
}

/// Calls `f` with a counter.
///
/// # Safety
/// `c` is live.
unsafe fn with(c: *mut ibv_comp_cntr, f: impl FnOnce(&CompCounter)) -> Result<(), c_int> {
    // SAFETY: the caller passes a live counter, which the program must not destroy during the call.
    f(unsafe { &CompletionCounter::from_raw_ref(c).counter });
    Ok(())
}

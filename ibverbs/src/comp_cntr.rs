//! Completion counters (`ibv_comp_cntr`).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use urxe::verbs::{CompCounter, CountUnit, CountedOps};

use crate::abi::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_qp,
    ibv_qp_attach_comp_cntr_attr,
};
use crate::context::is_inherited;
use crate::errno::null;
use crate::object::{FfiCell, FfiObject, ffi_object};
use crate::qp::QueuePair;
use crate::query::copy_part;

export! {
    "IBVERBS_1.18":
        ibv_create_comp_cntr = create_comp_cntr;
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

pub(crate) unsafe fn query_caps(
    _context: *mut ibv_context,
    out: *mut ibv_comp_cntr_caps,
    len: usize,
) -> c_int {
    let caps = ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: MAX_COUNTERS,
        supported_qp_attach_ops: CountedOps::all().bits(),
    };
    // SAFETY: `len` is the size of the caller's struct as its header defines it.
    unsafe { copy_part(&caps, out, len) };
    0
}

unsafe extern "C" fn create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_create_comp_cntr, null);
    static HANDLES: AtomicU32 = AtomicU32::new(0);
    // SAFETY: `ibv_create_comp_cntr` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    let unit = match attr.r#type {
        0 => CountUnit::Operations,
        1 => CountUnit::Bytes,
        _ => return null(libc::EOPNOTSUPP),
    };
    if attr.comp_mask != 0 || attr.flags != 0 {
        return null(libc::EINVAL);
    }
    let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
    let c = FfiCell::new(ibv_comp_cntr { context, handle });
    CompletionCounter { c, counter: CompCounter::new(unit) }.into_raw()
}

pub(crate) unsafe fn destroy_comp_cntr(c: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: `c` is live (checked by the `entry_points` wrapper), and its context is open, or a copy of the
    // parent's after fork. Without attachments, no queue pair refers to the counter, and the program gives up
    // its pointer.
    unsafe {
        if is_inherited((*c).context) {
            return 0;
        }
        if CompletionCounter::from_raw_ref(c).counter.is_attached() {
            return libc::EBUSY;
        }
        drop(CompletionCounter::from_raw(c));
    }
    0
}

pub(crate) unsafe fn attach_comp_cntr(
    qp: *mut ibv_qp,
    c: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: `ibv_qp_attach_comp_cntr` requires `attr` to point to a readable struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask != 0 || !CompletionCounter::is_live(c) {
        return libc::EINVAL;
    }
    // SAFETY: both objects are live (the queue pair is checked by the `entry_points` wrapper), and the
    // program must not destroy them during the call.
    let (qp, counter) = unsafe { (QueuePair::from_raw_ref(qp), CompletionCounter::from_raw_ref(c)) };
    let ops = CountedOps::from_bits_retain(attr.op_mask);
    crate::errno::number(qp.qp.attach_counter(&counter.counter, ops), |e| e.errno())
}

/// Defines the calls that change or read a counter.
macro_rules! calls {
    ($($name:ident($counter:ident, $value:ident: $kind:ty) $do:expr;)*) => {$(
        pub(crate) unsafe fn $name(c: *mut ibv_comp_cntr, $value: $kind) -> c_int {
            // SAFETY: `c` is live (checked by the `entry_points` wrapper), and the program must not destroy
            // it during the call.
            let $counter = unsafe { &CompletionCounter::from_raw_ref(c).counter };
            $do;
            0
        }
    )*};
}

calls! {
    set_comp_cntr(counter, value: u64) counter.set_completed(value);
    set_err_comp_cntr(counter, value: u64) counter.set_failed(value);
    inc_comp_cntr(counter, amount: u64) counter.add_completed(amount);
    inc_err_comp_cntr(counter, amount: u64) counter.add_failed(amount);
    // SAFETY: `ibv_read_comp_cntr` requires `out` to point to a writable integer.
    read_comp_cntr(counter, out: *mut u64) unsafe { *out = counter.completed() };
    // SAFETY: `ibv_read_err_comp_cntr` requires `out` to point to a writable integer.
    read_err_comp_cntr(counter, out: *mut u64) unsafe { *out = counter.failed() };
}

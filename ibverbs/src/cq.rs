//! Completion queues (`ibv_cq`, `ibv_cq_ex`).

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::time::Duration;

use urxe::verbs::errors::DestroyCqError;
use urxe::verbs::faults::Call;
use urxe::verbs::{Completion, Cq, CqPoll, Notify, WcFlags};

use crate::abi::{ibv_cq, ibv_cq_ex, ibv_wc};
use crate::call_faults;
use crate::channel::{CompChannel, MAX_WAIT};
use crate::context::Context;
use crate::explain::explain;
use crate::object::{FfiCell, FfiObject, Session, Use, ffi_object};
use crate::pd::ProtectionDomain;

entry_points! {
    "IBVERBS_1.1" store ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) on CompletionQueue(cq) = resize_cq;
    "IBVERBS_1.1" store ibv_destroy_cq(cq: *mut ibv_cq) on CompletionQueue(cq) unless is_inherited
        = destroy_cq;
    store ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) = req_notify_cq;
}

export! {
    "IBVERBS_1.1": ibv_ack_cq_events = ack_cq_events;
}

/// Flag in a completion whose receive buffer begins with a GRH (`IBV_WC_GRH`).
pub(crate) const WC_GRH: u32 = WcFlags::GRH.bits();

/// A completion queue with its C struct.
#[repr(C)]
pub(crate) struct CompletionQueue {
    /// Extended C struct, which begins with the fields of `ibv_cq`.
    pub c: FfiCell<ibv_cq_ex>,
    /// Polling batch, which is in progress from `ibv_start_poll` to `ibv_end_poll`. Declared before `cq` so
    /// that it is dropped first, because it borrows from `cq`.
    pub batch: Session<Option<CqPoll<'static>>>,
    pub cq: Cq,
    /// Parent domain in which the queue was created, if there is one.
    pub _parent: Option<Use<ProtectionDomain>>,
    pub _channel: Option<Use<CompChannel>>,
}

ffi_object! { CompletionQueue { c: ibv_cq_ex as ibv_cq } [context, handle] }

thread_local! {
    /// Per-thread buffer for completions before their conversion to `ibv_wc`, reused by all polls.
    static COMPLETIONS: RefCell<Vec<Completion>> = const { RefCell::new(Vec::new()) };
}

unsafe fn resize_cq(c: *mut ibv_cq, cqe: c_int) -> Result<(), c_int> {
    // SAFETY: the entry point found a live queue at `c`.
    let queue = unsafe { CompletionQueue::from_raw_ref(c) };
    queue.cq.resize(usize::try_from(cqe).map_err(|_| libc::EINVAL)?).map_err(|e| e.errno())?;
    // SAFETY: `c` is live and the field is an aligned integer; the program does not read it while the
    // queue is resized.
    unsafe { (*c).cqe = queue.cq.capacity() as c_int };
    Ok(())
}

/// Destroys a queue (`ibv_destroy_cq`).
///
/// # Safety
/// `c` is live, and its context is open. The program gives up its pointer.
pub(crate) unsafe fn destroy_cq(c: *mut ibv_cq) -> Result<(), c_int> {
    // SAFETY: `c` and its context are live as the caller guarantees.
    let (queue, owner) = unsafe { (CompletionQueue::from_raw_ref(c), Context::from_raw_ref((*c).context)) };
    if let Err(e @ DestroyCqError::InUse(_)) = queue.cq.clone().destroy(Duration::ZERO) {
        return Err(e.errno());
    }
    owner.event_objects.cqs.remove(queue.cq.id());
    // Like libibverbs, waits until all events that the program has taken are acknowledged.
    while queue.cq.clone().destroy(MAX_WAIT).is_err() {}
    owner.unacked.wait(c.addr());
    // SAFETY: no queue pair uses the queue and no event refers to it; the program gives up its pointer, and
    // the references above are not used any more.
    drop(unsafe { CompletionQueue::from_raw(c) });
    Ok(())
}

/// Returns the network header type, which hardware stores in the SL field of a datagram's completion: 0
/// without a GRH, 1 for IPv6, 2 for IPv4. UCX uses it to decide which bytes of the 40-byte GRH to read.
pub(crate) fn header_kind(grh: bool, over_ipv4: bool) -> u8 {
    match (grh, over_ipv4) {
        (false, _) => 0,
        (true, true) => 2,
        (true, false) => 1,
    }
}

/// Converts a completion to `ibv_wc`.
fn work_completion(from: &Completion) -> ibv_wc {
    let flags = WcFlags::from(from);
    // The two share a field in C; no message has both.
    let imm_data = from.imm.map_or(from.invalidated.map_or(0, |rkey| rkey.0), u32::to_be);
    ibv_wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: from.vendor_err,
        byte_len: from.byte_len,
        imm_data,
        qp_num: from.qpn.get(),
        src_qp: from.src_qpn.get(),
        wc_flags: flags.bits(),
        pkey_index: from.pkey_index,
        slid: 0,
        sl: header_kind(from.grh, from.over_ipv4),
        dlid_path_bits: 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(c: *mut ibv_cq, max: c_int, out: *mut ibv_wc) -> c_int {
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    if let Some(errno) = call_faults::on_call(Call::ibv_poll_cq) {
        return -errno;
    }
    // SAFETY: `ibv_poll_cq` requires a live queue, which the program does not destroy during the call.
    let queue = unsafe { CompletionQueue::from_raw_ref(c) };
    let Ok(max) = usize::try_from(max) else { return -libc::EINVAL };
    let poll = |completions: &mut Vec<Completion>| {
        completions.clear();
        let Ok(count) = queue.cq.poll(max, completions) else {
            // The queue has overflowed: a negative number, as from hardware drivers.
            return -1;
        };
        for (i, completion) in completions.iter().enumerate() {
            // SAFETY: `ibv_poll_cq` requires an array of `max` elements, and `poll` returns at most as many
            // completions.
            unsafe { out.add(i).write(work_completion(completion)) };
        }
        explain(&queue.cq, completions);
        count as c_int
    };
    // The thread-local value of an exiting thread may be destroyed already.
    COMPLETIONS
        .try_with(|completions| poll(&mut completions.borrow_mut()))
        .unwrap_or_else(|_| poll(&mut Vec::new()))
}

unsafe fn req_notify_cq(c: *mut ibv_cq, solicited_only: c_int) -> Result<(), c_int> {
    let notify = if solicited_only != 0 { Notify::Solicited } else { Notify::Any };
    // SAFETY: `ibv_req_notify_cq` requires a live queue; its context stays open as long as the queue exists.
    let (cq, owner) = unsafe { (&CompletionQueue::from_raw_ref(c).cq, Context::from_raw_ref((*c).context)) };
    match owner.device.settings.personality.quirks.reports_missed_completions {
        true => cq.req_notify_with_missed(notify),
        false => cq.req_notify(notify),
    }
    Ok(())
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_ack_cq_events` requires a live queue: its destruction waits for these acknowledgements.
    // Acknowledging more events than were taken is a program error that the call cannot report.
    let _ = unsafe { CompletionQueue::from_raw_ref(cq) }.cq.ack_events(count.into());
}

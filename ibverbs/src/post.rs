//! Posting of work requests: conversion of C lists to the NIC's requests.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::c_int;

use urxe::verbs::faults::Call;
use urxe::verbs::memory::Bind;
use urxe::verbs::{
    Access, AtomicOp, Destination, LKey, ListPolicy, QKey, Qpn, RKey, RecvWr, SendFlags, SendWr, Sge, SrqId,
    WrData, WrOp,
};

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use crate::address::AddressHandle;
use crate::buffers::{bytes, elements};
use crate::call_faults;
use crate::mr::MemoryWindow;
use crate::object::FfiObject;
use crate::qp::{QueuePair, UD, XRC_SEND};
use crate::srq::SharedReceiveQueue;

const SEND_FENCE: u32 = 1;
const SEND_SIGNALED: u32 = 2;
const SEND_SOLICITED: u32 = 4;
const SEND_INLINE: u32 = 8;

/// `IBV_WR_ATOMIC_WRITE`.
const ATOMIC_WRITE: u32 = 15;

/// Buffers for the conversion of a list. They are thread-local, and empty between posts; each post reuses the
/// allocations of the previous one.
#[derive(Default)]
struct Scratch {
    requests: Vec<SendWr<'static>>,
    pieces: Vec<&'static [u8]>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { requests: Vec::new(), pieces: Vec::new() }) };
}

/// Clears a vector and returns it, with its allocation, as a vector of another element type of the same
/// layout.
fn recycle<T, U>(mut used: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    used.clear();
    // `collect` keeps the allocation of a vector if the elements have the same layout.
    used.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}

/// Converts the `send_flags` of a work request.
pub(crate) fn flags(bits: u32) -> SendFlags {
    SendFlags {
        signaled: bits & SEND_SIGNALED != 0,
        solicited: bits & SEND_SOLICITED != 0,
        fence: bits & SEND_FENCE != 0,
    }
}

/// Returns the rkey with which a type 2 window is bound: the index of the window, and the low byte of
/// `requested`.
///
/// # Safety
/// `mw` is a live window, or null.
pub(crate) unsafe fn window_key(mw: *const ibv_mw, requested: u32) -> Result<u32, c_int> {
    // SAFETY: `mw` is null or live; the program does not write the C struct during the call.
    let window = unsafe { mw.as_ref() }.ok_or(libc::EINVAL)?;
    Ok(window.rkey & !0xff | requested & 0xff)
}

/// Converts the parameters of a memory window binding.
///
/// # Safety
/// `info.mr` is a live region, or null, which binds nothing.
pub(crate) unsafe fn bind(rkey: u32, info: &ibv_mw_bind_info) -> Bind {
    // SAFETY: the caller passes a live region or null. Only `ibv_rereg_mr` writes the C struct, during which
    // the program does not use the region.
    let region = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    Bind {
        rkey: RKey(rkey),
        region: LKey(region),
        addr: info.addr,
        len: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    }
}

/// Converts the opcode and its operands.
///
/// # Safety
/// Pointers in `wr` that its opcode uses are valid as `ibv_post_send` requires.
unsafe fn operation(wr: &ibv_send_wr) -> Result<WrOp, c_int> {
    // SAFETY: every union member consists of integers and raw pointers, for which any bytes are valid; the
    // opcode selects those that are used. The window, region and elements behind the pointers are valid as
    // the caller guarantees.
    unsafe {
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        let imm = u32::from_be(wr.imm_data);
        let (va, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
        let atomic_op = |op| WrOp::Atomic { va: atomic.remote_addr, rkey: RKey(atomic.rkey), op };
        Ok(match wr.opcode {
            0 => WrOp::Write { va, rkey },
            1 => WrOp::WriteWithImm { va, rkey, imm },
            2 => WrOp::Send,
            3 => WrOp::SendWithImm(imm),
            4 => WrOp::Read { va, rkey },
            5 => atomic_op(AtomicOp::CompareSwap { compare: atomic.compare_add, swap: atomic.swap }),
            6 => atomic_op(AtomicOp::FetchAdd(atomic.compare_add)),
            7 => WrOp::LocalInv(RKey(wr.imm_data)),
            8 => WrOp::BindMw(bind(window_key(wr.bind_mw.mw, wr.bind_mw.rkey)?, &wr.bind_mw.bind_info)),
            9 => WrOp::SendWithInv(RKey(wr.imm_data)),
            ATOMIC_WRITE => WrOp::AtomicWrite { va, rkey, value: atomic_write_value(wr)? },
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Returns the eight bytes to write with an ATOMIC WRITE, which the C interface passes as one SGE or as
/// inline data.
///
/// # Safety
/// The elements of `wr` are readable, and so is the memory that they name.
unsafe fn atomic_write_value(wr: &ibv_send_wr) -> Result<[u8; 8], c_int> {
    // SAFETY: the caller passes a request with readable elements, and the result is used in this function
    // only.
    match &*unsafe { elements(wr.sg_list, wr.num_sge) }? {
        [sge] if sge.length == 8 => {
            let at: *const [u8; 8] = std::ptr::with_exposed_provenance(sge.addr as usize);
            // SAFETY: the element names eight readable bytes, whose address the program has passed as an
            // integer and thus exposed. They are read at any alignment.
            Ok(unsafe { at.read_unaligned() })
        }
        _ => Err(libc::EINVAL),
    }
}

/// Returns the destination of a request if the service type requires one in each request.
///
/// # Safety
/// The address handle in `wr` is live, or null, where the request has one.
unsafe fn destination(service: u32, wr: &ibv_send_wr) -> Result<Option<Destination>, c_int> {
    match service {
        // Opcodes other than SEND have no destination on UD; the union then holds the operands of another
        // operation.
        UD if !matches!(wr.opcode, 2 | 3) => Ok(None),
        UD => {
            // SAFETY: a SEND on UD uses this union member; it consists of integers and a raw pointer, for
            // which any bytes are valid.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: `ibv_post_send` requires the address handle of a datagram to be live, and null was
            // excluded.
            let handle = unsafe { AddressHandle::from_raw_ref(ud.ah) };
            Ok(Some(handle.ah.to(Qpn::new(ud.remote_qpn & 0xff_ffff), QKey(ud.remote_qkey))))
        }
        XRC_SEND => Ok(Some(Destination::Srq(SrqId(wr.qp_type)))),
        _ => Ok(None),
    }
}

/// Returns the bytes in program memory that an inline SGE refers to.
///
/// # Safety
/// The element names readable bytes, which are not written during `'a`.
unsafe fn inline_piece<'a>(sge: &Sge) -> &'a [u8] {
    // SAFETY: the caller passes an element of readable bytes. The program has passed their address as an
    // integer, and thus exposed it.
    unsafe { bytes(std::ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize) }
}

/// Reports whether the inline data of a request is passed to the NIC as a list of pieces. A single piece is
/// passed without a list, and the data of an ATOMIC WRITE is part of the operation.
fn has_piece_list(wr: &ibv_send_wr) -> bool {
    wr.send_flags & SEND_INLINE != 0 && wr.opcode != ATOMIC_WRITE && wr.num_sge != 1
}

/// Appends the inline data pieces of the first `max` requests in a list, and the elements that are not
/// aligned, in list order, for [`convert`].
///
/// # Safety
/// `list` is null or the head of a list that is readable and unchanged while the pieces are used, with its
/// elements and inline data.
unsafe fn collect_pieces(
    list: *const ibv_send_wr,
    max: usize,
    pieces: &mut Vec<&[u8]>,
    copies: &mut Vec<Sge>,
) {
    let mut next = list;
    for _ in 0..max {
        // SAFETY: the pointer comes from a list whose elements the caller guarantees to be readable, or is
        // null at its end.
        let Some(wr) = (unsafe { next.as_ref() }) else { break };
        // SAFETY: the caller guarantees the elements of the list.
        let Ok(sges) = (unsafe { elements(wr.sg_list, wr.num_sge) }) else {
            // The conversion stops at this request too.
            break;
        };
        if let Cow::Owned(copy) = &sges {
            copies.extend(copy);
        }
        if has_piece_list(wr) {
            // SAFETY: the caller guarantees that inline data is readable and unchanged while the
            // pieces are used.
            pieces.extend(sges.iter().map(|sge| unsafe { inline_piece(sge) }));
        }
        next = wr.next;
    }
}

/// Converts the data of a request. `pieces` begins with the inline pieces of the request, and `copies` with
/// its elements if they are not aligned; this function removes them.
///
/// # Safety
/// The elements of `wr` and its inline data are readable and unchanged during `'a`.
unsafe fn data<'a>(
    wr: &ibv_send_wr,
    pieces: &mut &'a [&'a [u8]],
    copies: &mut &'a [Sge],
) -> Result<WrData<'a>, c_int> {
    // SAFETY: the caller guarantees that the elements are readable and unchanged during `'a`.
    let sges = match unsafe { elements(wr.sg_list, wr.num_sge) }? {
        Cow::Borrowed(sges) => sges,
        Cow::Owned(copy) => copies.split_off(..copy.len()).ok_or(libc::EINVAL)?,
    };
    if wr.opcode == ATOMIC_WRITE {
        return Ok(WrData::Sges(&[]));
    }
    if has_piece_list(wr) {
        let (own, rest) = pieces.split_at_checked(sges.len()).ok_or(libc::EINVAL)?;
        *pieces = rest;
        return Ok(WrData::InlineList(own));
    }
    match sges {
        // SAFETY: the caller guarantees that inline data is readable and unchanged during `'a`.
        [sge] if wr.send_flags & SEND_INLINE != 0 => Ok(WrData::Inline(unsafe { inline_piece(sge) })),
        sges => Ok(WrData::Sges(sges)),
    }
}

/// Converts up to `max` requests of a list and appends them to `requests`; `pieces` and `copies`
/// come from [`collect_pieces`]. If a request cannot be converted, returns it with the error number.
///
/// # Safety
/// The requirements of `ibv_post_send`: `list` is null or the head of a list of work requests of a queue pair
/// of this type, all of which are readable and unchanged during `'a`, with what their pointers point to.
unsafe fn convert<'a>(
    qp_type: u32,
    list: *mut ibv_send_wr,
    max: usize,
    mut pieces: &'a [&'a [u8]],
    mut copies: &'a [Sge],
    requests: &mut Vec<SendWr<'a>>,
) -> Option<(*mut ibv_send_wr, c_int)> {
    let mut next = list;
    // SAFETY: `next` is an element of the list, which the caller guarantees to be readable, or null at its
    // end.
    while let Some(wr) = unsafe { next.as_ref() } {
        if requests.len() == max {
            return Some((next, libc::ENOMEM));
        }
        let mut request = || {
            // SAFETY: the caller guarantees what `ibv_post_send` requires of each request: that the pointers
            // that its opcode and the service type use are valid, and elements and inline data unchanged
            // during `'a`.
            unsafe {
                Ok(SendWr::new(wr.wr_id, operation(wr)?, &[])
                    .data(data(wr, &mut pieces, &mut copies)?)
                    .flags(flags(wr.send_flags))
                    .to(destination(qp_type, wr)?))
            }
        };
        match request() {
            Ok(request) => requests.push(request),
            Err(errno) => return Some((next, errno)),
        }
        next = wr.next;
    }
    None
}

pub(crate) unsafe extern "C" fn post_send(
    c: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    if let Some(errno) = call_faults::on_call(Call::ibv_post_send) {
        // SAFETY: `ibv_post_send` requires `bad` to point to a writable pointer.
        unsafe { *bad = list };
        return errno;
    }
    // SAFETY: `ibv_post_send` requires a live queue pair, and `qp_type` was set when it was made.
    let (pair, qp_type) = unsafe { (QueuePair::from_raw_ref(c), (*c).qp_type) };
    // Upper bound of the requests read from a list, which may be circular: one more than the queue holds,
    // for the NIC to reject.
    let max = pair.init.cap.max_send_wr as usize + 1;
    // The thread-local value of an exiting thread may be destroyed already.
    let Scratch { requests, pieces } = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let (mut requests, mut pieces): (Vec<SendWr<'_>>, Vec<&[u8]>) = (requests, pieces);
    let mut copies = Vec::new();
    // SAFETY: `ibv_post_send` requires a list of readable work requests that ends with null (or is circular),
    // which the program leaves unchanged during this call, with elements and inline data. Both vectors are
    // cleared before the call ends.
    let mut failed = unsafe {
        collect_pieces(list, max, &mut pieces, &mut copies);
        convert(qp_type, list, max, &pieces, &copies, &mut requests)
    };
    let mut accepted = requests.len();
    if let Err(e) = pair.qp.post_send_list(&requests, ListPolicy::UntilRejected) {
        accepted = e.index;
        let mut at = list;
        for _ in 0..e.index {
            // SAFETY: the request at `e.index` was converted from the list, so the list has as many elements
            // before it.
            at = unsafe { (*at).next };
        }
        failed = Some((at, e.errno()));
    }
    if requests[..accepted].iter().any(|request| matches!(request.op, WrOp::BindMw(_))) {
        // SAFETY: the accepted requests were converted from the first elements of the list, in this order.
        unsafe { store_window_rkeys(list, &requests[..accepted]) };
    }
    let scratch = Scratch { requests: recycle(requests), pieces: recycle(pieces) };
    // Fails, and drops the buffers, if the thread is exiting.
    let _ = SCRATCH.try_with(|cell| cell.set(scratch));
    let Some((at, errno)) = failed else { return 0 };
    // SAFETY: `ibv_post_send` requires `bad` to point to a writable pointer.
    unsafe { *bad = at };
    errno
}

/// Updates the rkey in the C struct of each window that an accepted request binds.
///
/// # Safety
/// `list` begins with the requests that `accepted` was converted from, and their windows are live.
unsafe fn store_window_rkeys(list: *mut ibv_send_wr, accepted: &[SendWr<'_>]) {
    let mut next = list;
    for request in accepted {
        // SAFETY: the caller passes a list at least as long as `accepted`. A bind was accepted only with a
        // window, and the program leaves the struct of that window alone during the call.
        unsafe {
            if let WrOp::BindMw(bind) = &request.op {
                (*(*next).bind_mw.mw).rkey = bind.rkey.0;
            }
            next = (*next).next;
        }
    }
}

/// Posts a list of receives, after applying the faults on `call`. The list may be circular, so at most as
/// many receives are posted as the queue can hold.
///
/// # Safety
/// `list` is a readable list, as `ibv_post_recv` requires, and `bad` a writable pointer.
unsafe fn post_receives(
    call: Call,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    depth: impl FnOnce() -> usize,
    post: impl Fn(&RecvWr<'_>) -> Result<(), c_int>,
) -> c_int {
    /// Longest list that is posted without querying the queue depth. The depth of a shared receive queue can
    /// change, so it must be queried for each longer list.
    const UNQUERIED_DEPTH: usize = 64;
    let _uncancelled = crate::cancel::disable_and_keep_errno();
    if let Some(errno) = call_faults::on_call(call) {
        // SAFETY: the caller guarantees that `bad` points to a writable pointer.
        unsafe { *bad = list };
        return errno;
    }
    let (mut posted, mut max, mut depth) = (0, UNQUERIED_DEPTH, Some(depth));
    let mut next = list;
    // SAFETY: `next` is an element of the readable list, or null at its end.
    while let Some(wr) = unsafe { next.as_ref() } {
        if posted == max
            && let Some(depth) = depth.take()
        {
            max = depth().max(UNQUERIED_DEPTH);
        }
        let has_room = if posted < max { Ok(()) } else { Err(libc::ENOMEM) };
        posted += 1;
        // SAFETY: the list's elements and their scatter lists stay valid until the call returns; `post`
        // copies what it needs.
        let posted = has_room
            .and_then(|()| unsafe { elements(wr.sg_list, wr.num_sge) })
            .and_then(|sges| post(&RecvWr::new(wr.wr_id, &sges)));
        if let Err(errno) = posted {
            // SAFETY: the caller guarantees that `bad` points to a writable pointer.
            unsafe { *bad = next };
            return errno;
        }
        next = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    c: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_recv` requires a live queue pair, a readable list and a writable `bad`.
    unsafe {
        let pair = QueuePair::from_raw_ref(c);
        let depth = || pair.init.cap.max_recv_wr as usize;
        let post = |wr: &RecvWr<'_>| pair.qp.post_recv(wr).map_err(|e| e.errno());
        post_receives(Call::ibv_post_recv, list, bad, depth, post)
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_srq_recv` requires a live queue, a readable list and a writable `bad`.
    unsafe {
        let queue = SharedReceiveQueue::from_raw_ref(c);
        let depth = || queue.srq.query().caps.max_wr as usize;
        let post = |wr: &RecvWr<'_>| queue.srq.post_recv(wr).map_err(|e| e.errno());
        post_receives(Call::ibv_post_srq_recv, list, bad, depth, post)
    }
}

pub(crate) unsafe extern "C" fn bind_mw(c: *mut ibv_qp, mw: *mut ibv_mw, info: *mut ibv_mw_bind) -> c_int {
    let _uncancelled = crate::cancel::disable();
    inject_fault!(ibv_bind_mw, store);
    // SAFETY: `ibv_bind_mw` requires a live queue pair, a live window and a readable struct, whose region is
    // live or null.
    unsafe {
        let (pair, window, info) = (QueuePair::from_raw_ref(c), MemoryWindow::from_raw_ref(mw), &*info);
        let bind = bind(0, &info.bind_info);
        match pair.qp.bind_mw(&window.held.0, info.wr_id, &bind, flags(info.send_flags)) {
            Ok(rkey) => {
                (*mw).rkey = rkey.0;
                0
            }
            Err(e) => e.errno(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_vector_is_empty_and_keeps_its_allocation() {
        let mut used: Vec<&'static [u8]> = Vec::with_capacity(7);
        used.extend([&[1][..]; 5]);
        let (start, capacity) = (used.as_ptr().addr(), used.capacity());
        let recycled: Vec<&[u8]> = recycle(used);
        assert!(recycled.is_empty());
        assert_eq!((recycled.as_ptr().addr(), recycled.capacity()), (start, capacity));
    }
}

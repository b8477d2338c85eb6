//! Posting of work requests: converts the lists of the C interface into the NIC's.

use std::cell::RefCell;
use std::ffi::c_int;

use urxe::verbs::Bind;
use urxe::verbs::{
    Access, AtomicOp, Destination, LKey, QKey, Qpn, RKey, RecvWr, SendFlags, SendWr, Sge, SrqId, WrData, WrOp,
};

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use crate::address::AddressHandle;
use crate::buffers::elements;
use crate::mr::{MemoryRegion, MemoryWindow};
use crate::object::FfiObject;
use crate::qp::QueuePair;
use crate::srq::SharedReceiveQueue;

const SEND_FENCE: u32 = 1;
const SEND_SIGNALED: u32 = 2;
const SEND_SOLICITED: u32 = 4;
const SEND_INLINE: u32 = 8;

const QPT_UD: u32 = 4;
const QPT_XRC_SEND: u32 = 9;

/// Buffers in which a list is converted; reused per thread, so that posting allocates nothing.
#[derive(Default)]
struct Scratch {
    requests: Vec<SendWr<'static>>,
    pieces: Vec<&'static [u8]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Converts the `send_flags` of a work request.
pub fn flags(bits: u32) -> SendFlags {
    SendFlags {
        signaled: bits & SEND_SIGNALED != 0,
        solicited: bits & SEND_SOLICITED != 0,
        fence: bits & SEND_FENCE != 0,
    }
}

/// Returns the rkey under which a type 2 window is bound: the index of the window, with the low byte that the
/// request asks for.
///
/// # Safety
/// `mw` is a live window, or null.
pub unsafe fn window_key(mw: *const ibv_mw, requested: u32) -> Result<u32, c_int> {
    // SAFETY: `mw` is null or live; the program does not write the C struct during the call.
    let window = unsafe { mw.as_ref() }.ok_or(libc::EINVAL)?;
    Ok(window.rkey & !0xff | requested & 0xff)
}

/// Converts the description of a binding.
///
/// # Safety
/// `info.mr` is a live region, or null, which binds nothing.
pub unsafe fn bind(rkey: u32, info: &ibv_mw_bind_info) -> Bind {
    // SAFETY: the caller passes a live region, which begins with the C struct at `info.mr`.
    let region = if info.mr.is_null() { 0 } else { unsafe { MemoryRegion::from_raw_ref(info.mr) }.lkey() };
    Bind {
        rkey: RKey(rkey),
        region: LKey(region),
        addr: info.addr,
        len: info.length,
        access: Access(info.mw_access_flags),
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
            15 => WrOp::AtomicWrite { va, rkey, value: atomic_write_value(wr)? },
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Returns the eight bytes of an ATOMIC WRITE, which the C interface passes as one element or as inline data.
///
/// # Safety
/// The elements of `wr` are readable, and so is the memory that they name.
unsafe fn atomic_write_value(wr: &ibv_send_wr) -> Result<[u8; 8], c_int> {
    // SAFETY: the caller vouches for the elements, which are read before the C call returns.
    match unsafe { elements(wr.sg_list, wr.num_sge) }? {
        [sge] if sge.length == 8 => {
            let at: *const [u8; 8] = std::ptr::with_exposed_provenance(sge.addr as usize);
            // SAFETY: the element names eight readable bytes, whose address the program has passed as an
            // integer and thus exposed. They are read at any alignment.
            Ok(unsafe { at.read_unaligned() })
        }
        _ => Err(libc::EINVAL),
    }
}

/// Returns the destination of a request, if the service type needs one.
///
/// # Safety
/// The address handle in `wr` is live, or null, where the request has one.
unsafe fn destination(service: u32, wr: &ibv_send_wr) -> Result<Option<Destination>, c_int> {
    match service {
        // Opcodes other than SEND have no destination on UD; the union then holds the operands of another
        // operation.
        QPT_UD if !matches!(wr.opcode, 2 | 3) => Ok(None),
        QPT_UD => {
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
        QPT_XRC_SEND => Ok(Some(Destination::Srq(SrqId(wr.qp_type)))),
        _ => Ok(None),
    }
}

impl Scratch {
    /// Reserves room for the inline pieces of the first `max` requests of a list, so that `pieces` does not
    /// move while the list is converted.
    ///
    /// # Safety
    /// `wr` is null or the head of a list that is readable during the call.
    unsafe fn reserve(&mut self, mut wr: *const ibv_send_wr, max: usize) {
        let mut pieces = 0_usize;
        for _ in 0..max {
            // SAFETY: the pointer comes from a list whose elements the caller guarantees to be readable, or
            // is null at its end.
            let Some(request) = (unsafe { wr.as_ref() }) else { break };
            let inline = if request.send_flags & SEND_INLINE != 0 { request.num_sge } else { 0 };
            pieces = pieces.saturating_add(usize::try_from(inline).unwrap_or(0));
            wr = request.next;
        }
        self.pieces.clear();
        self.pieces.reserve(pieces);
    }

    /// Converts the data of a request.
    ///
    /// # Safety
    /// The program's list, the memory that it names and `self.pieces` must stay unchanged while the result is
    /// used, which borrows from them; `reserve` has made room for the pieces of `wr`.
    unsafe fn data(&mut self, wr: &ibv_send_wr) -> Result<WrData<'static>, c_int> {
        // SAFETY: the caller keeps the elements unchanged while the result is used.
        let sges = unsafe { elements(wr.sg_list, wr.num_sge) }?;
        if wr.opcode == 15 {
            return Ok(WrData::Sges(&[]));
        }
        if wr.send_flags & SEND_INLINE == 0 {
            return Ok(WrData::Sges(sges));
        }
        let piece = |sge: &Sge| -> &'static [u8] {
            if sge.length == 0 {
                return &[];
            }
            // SAFETY: `ibv_post_send` requires inline data to be readable during the call, and it is copied
            // before the call ends.
            unsafe {
                std::slice::from_raw_parts(
                    std::ptr::with_exposed_provenance(sge.addr as usize),
                    sge.length as usize,
                )
            }
        };
        if let [sge] = sges {
            return Ok(WrData::Inline(piece(sge)));
        }
        let first = self.pieces.len();
        self.pieces.extend(sges.iter().map(piece));
        let pieces: *const [&'static [u8]] = &raw const self.pieces[first..];
        // SAFETY: `reserve` made room for the pieces of all requests, so later ones do not move these;
        // `pieces` is cleared only when no converted request is left.
        Ok(WrData::InlineList(unsafe { &*pieces }))
    }

    /// Converts a request.
    ///
    /// # Safety
    /// The requirements of [`data`](Self::data), [`operation`] and [`destination`].
    unsafe fn request(&mut self, service: u32, wr: &ibv_send_wr) -> Result<SendWr<'static>, c_int> {
        // SAFETY: the caller meets the requirements of the three functions.
        unsafe {
            Ok(SendWr {
                wr_id: wr.wr_id,
                op: operation(wr)?,
                data: self.data(wr)?,
                flags: flags(wr.send_flags),
                to: destination(service, wr)?,
            })
        }
    }
}

pub unsafe extern "C" fn post_send(
    c: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_post_send` requires a live queue pair, and `qp_type` was set when it was made.
    let (pair, service) = unsafe { (QueuePair::from_raw_ref(c), (*c).qp_type) };
    // Upper bound of the requests read from a list, which may be circular: one more than the queue holds,
    // for the NIC to reject.
    let max = pair.send_depth() + 1;
    let post = |scratch: &mut Scratch| {
        scratch.requests.clear();
        // SAFETY: `ibv_post_send` requires a list of readable work requests that ends with null (or is
        // circular).
        unsafe { scratch.reserve(list, max) };
        let mut failed = None;
        let mut next = list;
        // SAFETY: as above: `next` is an element of the list, or null at its end.
        while let Some(wr) = unsafe { next.as_ref() } {
            if scratch.requests.len() == max {
                failed = Some((next, libc::ENOMEM));
                break;
            }
            // SAFETY: the program keeps the list and the memory that it names valid and unchanged until this
            // call returns; the converted requests are cleared before that, and `reserve` has counted their
            // pieces.
            match unsafe { scratch.request(service, wr) } {
                Ok(request) => scratch.requests.push(request),
                Err(errno) => {
                    failed = Some((next, errno));
                    break;
                }
            }
            next = wr.next;
        }
        let mut accepted = scratch.requests.len();
        if let Err(e) = pair.qp.post_send_list(&scratch.requests) {
            accepted = e.index;
            let mut at = list;
            for _ in 0..e.index {
                // SAFETY: the request at `e.index` was converted from the list, so the list has as many
                // elements before it.
                at = unsafe { (*at).next };
            }
            failed = Some((at, e.errno()));
        }
        // SAFETY: the accepted requests were converted from the first elements of the list, in this order.
        unsafe { store_window_rkeys(list, &scratch.requests[..accepted]) };
        scratch.requests.clear();
        let Some((at, errno)) = failed else { return 0 };
        // SAFETY: `ibv_post_send` requires `bad` to point to a writable pointer.
        unsafe { *bad = at };
        errno
    };
    // The thread-local value of an exiting thread may be destroyed already.
    SCRATCH
        .try_with(|scratch| post(&mut scratch.borrow_mut()))
        .unwrap_or_else(|_| post(&mut Scratch::default()))
}

/// Stores the new rkeys of the windows that accepted requests bind in the C structs of these windows.
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

/// Posts a list of receives, which may be circular: no more than the queue holds.
///
/// # Safety
/// `list` is a readable list, as `ibv_post_recv` requires, and `bad` a writable pointer.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    depth: impl FnOnce() -> usize,
    post: impl Fn(&RecvWr<'_>) -> Result<(), c_int>,
) -> c_int {
    /// Length up to which the depth of the queue is not queried. The depth of a shared receive queue can
    /// change, and its query is saved for short lists.
    const UNQUERIED_DEPTH: usize = 64;
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
            .and_then(|sges| post(&RecvWr { wr_id: wr.wr_id, sges }));
        if let Err(errno) = posted {
            // SAFETY: the caller passes a writable pointer.
            unsafe { *bad = next };
            return errno;
        }
        next = wr.next;
    }
    0
}

pub unsafe extern "C" fn post_recv(
    c: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_post_recv` requires a live queue pair, a readable list and a writable `bad`.
    unsafe {
        let pair = QueuePair::from_raw_ref(c);
        post_receives(list, bad, || pair.receive_depth(), |wr| pair.qp.post_recv(wr).map_err(|e| e.errno()))
    }
}

pub unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_post_srq_recv` requires a live queue, a readable list and a writable `bad`.
    unsafe {
        let queue = SharedReceiveQueue::from_raw_ref(c);
        let depth = || queue.srq.query().caps.max_wr as usize;
        post_receives(list, bad, depth, |wr| queue.srq.post_recv(wr).map_err(|e| e.errno()))
    }
}

pub unsafe extern "C" fn bind_mw(c: *mut ibv_qp, mw: *mut ibv_mw, info: *mut ibv_mw_bind) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_bind_mw` requires a live queue pair, a live window and a readable struct, whose region is
    // live or null.
    unsafe {
        let (pair, window, info) = (QueuePair::from_raw_ref(c), MemoryWindow::from_raw_ref(mw), &*info);
        let bind = bind(0, &info.bind_info);
        match pair.qp.bind_mw(&window.mw, info.wr_id, &bind, flags(info.send_flags)) {
            Ok(rkey) => {
                window.set_rkey(rkey.0);
                0
            }
            Err(e) => e.errno(),
        }
    }
}

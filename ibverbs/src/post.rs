//! Work requests, from C's lists to the NIC's.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use urxe::verbs::Bind;
use urxe::verbs::{
    Access, AtomicOp, Destination, LKey, QKey, Qpn, RKey, RecvWr, SendFlags, SendWr, Sge, SrqId, WrData, WrOp,
};

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use crate::address::Handle;
use crate::object::Object;
use crate::pair::Pair;
use crate::region::{Region, Window};
use crate::shared::SharedQueue;

const SEND_FENCE: u32 = 1;
const SEND_SIGNALED: u32 = 2;
const SEND_SOLICITED: u32 = 4;
const SEND_INLINE: u32 = 8;

const QPT_UD: u32 = 4;
const QPT_XRC_SEND: u32 = 9;

/// Where a list is put together; reused, so that posting allocates nothing.
#[derive(Default)]
struct Scratch {
    requests: Vec<SendWr<'static>>,
    pieces: Vec<&'static [u8]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The flags of a work request.
pub fn flags(bits: u32) -> SendFlags {
    SendFlags {
        signaled: bits & SEND_SIGNALED != 0,
        solicited: bits & SEND_SOLICITED != 0,
        fence: bits & SEND_FENCE != 0,
    }
}

/// A program's elements, which are laid out as the NIC's are.
///
/// # Safety
/// They stay as they are until the call ends, which the lifetime does not say.
pub unsafe fn elements(list: *const ibv_sge, count: c_int) -> Result<&'static [Sge], c_int> {
    const { assert!(size_of::<ibv_sge>() == size_of::<Sge>() && align_of::<ibv_sge>() == align_of::<Sge>()) };
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: both are an address, a length and a key, in this order.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) }),
        _ => Err(libc::EINVAL),
    }
}

/// The program's own bytes, until the call ends.
pub unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as the caller vouches.
    unsafe { std::slice::from_raw_parts(addr.cast(), length) }
}

/// The key that a window of type 2 is bound under: the index of the window, and the low byte that the request asks for.
///
/// # Safety
/// A window that was given out, or null.
pub unsafe fn window_key(mw: *const ibv_mw, asked: u32) -> Result<u32, c_int> {
    // SAFETY: the caller's.
    let window = unsafe { mw.as_ref() }.ok_or(libc::EINVAL)?;
    Ok(window.rkey & !0xff | asked & 0xff)
}

/// The part of a window's or region's that is bound.
pub unsafe fn bind(rkey: u32, info: &ibv_mw_bind_info) -> Bind {
    // SAFETY: a region that was given out, or null: nothing is bound.
    let region = if info.mr.is_null() { 0 } else { unsafe { Region::of(info.mr) }.lkey() };
    Bind {
        rkey: RKey(rkey),
        region: LKey(region),
        addr: info.addr,
        len: info.length,
        access: Access(info.mw_access_flags),
    }
}

/// What a request does.
unsafe fn operation(wr: &ibv_send_wr) -> Result<WrOp, c_int> {
    // SAFETY: the opcode says which member of the unions is there.
    unsafe {
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        let imm = u32::from_be(wr.imm_data);
        let (va, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
        let old = |op| WrOp::Atomic { va: atomic.remote_addr, rkey: RKey(atomic.rkey), op };
        Ok(match wr.opcode {
            0 => WrOp::Write { va, rkey },
            1 => WrOp::WriteWithImm { va, rkey, imm },
            2 => WrOp::Send,
            3 => WrOp::SendWithImm(imm),
            4 => WrOp::Read { va, rkey },
            5 => old(AtomicOp::CompareSwap { compare: atomic.compare_add, swap: atomic.swap }),
            6 => old(AtomicOp::FetchAdd(atomic.compare_add)),
            7 => WrOp::LocalInv(RKey(wr.imm_data)),
            8 => WrOp::BindMw(bind(window_key(wr.bind_mw.mw, wr.bind_mw.rkey)?, &wr.bind_mw.bind_info)),
            9 => WrOp::SendWithInv(RKey(wr.imm_data)),
            15 => WrOp::AtomicWrite { va, rkey, value: word(wr)? },
            _ => return Err(libc::EINVAL),
        })
    }
}

/// The eight bytes of an ATOMIC WRITE, which C gives as inline data or as an element.
unsafe fn word(wr: &ibv_send_wr) -> Result<[u8; 8], c_int> {
    // SAFETY: as the caller vouches.
    match unsafe { elements(wr.sg_list, wr.num_sge) }? {
        [sge] if sge.length == 8 => {
            let at: *const [u8; 8] = std::ptr::with_exposed_provenance(sge.addr as usize);
            // SAFETY: the program's own memory.
            Ok(unsafe { at.read_unaligned() })
        }
        _ => Err(libc::EINVAL),
    }
}

/// Where to, if the service asks.
unsafe fn destination(service: u32, wr: &ibv_send_wr) -> Result<Option<Destination>, c_int> {
    match service {
        // Opcodes other than SEND have no destination on UD: the union holds the members of another operation.
        QPT_UD if !matches!(wr.opcode, 2 | 3) => Ok(None),
        QPT_UD => {
            // SAFETY: of datagrams this member of the union is there.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: a handle that was given out.
            let handle = unsafe { Handle::of(ud.ah) };
            Ok(Some(handle.ah.to(Qpn::new(ud.remote_qpn & 0xff_ffff), QKey(ud.remote_qkey))))
        }
        QPT_XRC_SEND => Ok(Some(Destination::Srq(SrqId(wr.qp_type)))),
        _ => Ok(None),
    }
}

impl Scratch {
    /// Room for the inline pieces of the first requests of a list, which must not move while it is put together.
    unsafe fn reserve(&mut self, mut wr: *const ibv_send_wr, most: usize) {
        let mut pieces = 0_usize;
        for _ in 0..most {
            // SAFETY: the program's list.
            let Some(request) = (unsafe { wr.as_ref() }) else { break };
            let inline = if request.send_flags & SEND_INLINE != 0 { request.num_sge } else { 0 };
            pieces = pieces.saturating_add(usize::try_from(inline).unwrap_or(0));
            wr = request.next;
        }
        self.pieces.clear();
        self.pieces.reserve(pieces);
    }

    /// # Safety
    /// What is returned lives as long as the program's list and the pieces are left as they are.
    unsafe fn data(&mut self, wr: &ibv_send_wr) -> Result<WrData<'static>, c_int> {
        // SAFETY: as the caller vouches.
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
            // SAFETY: the program's own memory, which is copied before the call ends.
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
        // SAFETY: `reserve` made room for all, so they stay where they are.
        Ok(WrData::InlineList(unsafe { &*pieces }))
    }

    unsafe fn request(&mut self, service: u32, wr: &ibv_send_wr) -> Result<SendWr<'static>, c_int> {
        // SAFETY: as the caller vouches.
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
    // SAFETY: a queue pair that was given out.
    let (pair, service) = unsafe { (Pair::of(c), (*c).qp_type) };
    // No more than the queue holds and one can come of a list, which may be a circle.
    let most = pair.send_depth() + 1;
    let post = |scratch: &mut Scratch| {
        scratch.requests.clear();
        // SAFETY: the program's list.
        unsafe { scratch.reserve(list, most) };
        let mut refused = None;
        let mut next = list;
        // SAFETY: the program's list.
        while let Some(wr) = unsafe { next.as_ref() } {
            if scratch.requests.len() == most {
                refused = Some((next, libc::ENOMEM));
                break;
            }
            // SAFETY: it is as C's callers have to make it.
            match unsafe { scratch.request(service, wr) } {
                Ok(request) => scratch.requests.push(request),
                Err(errno) => {
                    refused = Some((next, errno));
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
                // SAFETY: it is that long.
                at = unsafe { (*at).next };
            }
            refused = Some((at, e.errno()));
        }
        // SAFETY: the program's list, of which these are the first.
        unsafe { show_keys(list, &scratch.requests[..accepted]) };
        scratch.requests.clear();
        let Some((at, errno)) = refused else { return 0 };
        // SAFETY: the caller's pointer.
        unsafe { *bad = at };
        errno
    };
    // A thread that is ending may have lost it already.
    SCRATCH
        .try_with(|scratch| post(&mut scratch.borrow_mut()))
        .unwrap_or_else(|_| post(&mut Scratch::default()))
}

/// Writes the keys that the windows of the accepted requests of a list have now into the structs of the windows.
unsafe fn show_keys(list: *mut ibv_send_wr, accepted: &[SendWr<'_>]) {
    let mut next = list;
    for request in accepted {
        // SAFETY: the list is as long as the requests, of which a bind names a window.
        unsafe {
            if let WrOp::BindMw(bind) = &request.op {
                (*(*next).bind_mw.mw).rkey = bind.rkey.0;
            }
            next = (*next).next;
        }
    }
}

/// Posts a list, which may be a circle: no more than the queue holds.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    depth: impl FnOnce() -> usize,
    post: impl Fn(&RecvWr<'_>) -> Result<(), c_int>,
) -> c_int {
    /// The depth of a shared queue changes, and is asked for only if a list is as long as this.
    const LONG: usize = 64;
    let (mut posted, mut most, mut depth) = (0, LONG, Some(depth));
    let mut next = list;
    // SAFETY: the program's list.
    while let Some(wr) = unsafe { next.as_ref() } {
        if posted == most
            && let Some(depth) = depth.take()
        {
            most = depth().max(LONG);
        }
        let has_room = if posted < most { Ok(()) } else { Err(libc::ENOMEM) };
        posted += 1;
        // SAFETY: it is as C's callers have to make it.
        let posted = has_room
            .and_then(|()| unsafe { elements(wr.sg_list, wr.num_sge) })
            .and_then(|sges| post(&RecvWr { wr_id: wr.wr_id, sges }));
        if let Err(errno) = posted {
            // SAFETY: the caller's pointer.
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
    // SAFETY: a queue pair that was given out, and the program's list.
    unsafe {
        let pair = Pair::of(c);
        post_receives(list, bad, || pair.receive_depth(), |wr| pair.qp.post_recv(wr).map_err(|e| e.errno()))
    }
}

pub unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a queue that was given out, and the program's list.
    unsafe {
        let queue = SharedQueue::of(c);
        let depth = || queue.srq.query().caps.max_wr as usize;
        post_receives(list, bad, depth, |wr| queue.srq.post_recv(wr).map_err(|e| e.errno()))
    }
}

pub unsafe extern "C" fn bind_mw(c: *mut ibv_qp, mw: *mut ibv_mw, info: *mut ibv_mw_bind) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a queue pair and a window that were given out, and the caller's struct.
    unsafe {
        let (pair, window, info) = (Pair::of(c), Window::of(mw), &*info);
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

//! Fuzz target: calls of the C library in any order, with arbitrary integers, flags, masks and attributes.
//! The library must not panic, change memory outside of registered regions, report more completions than were
//! posted, or refuse to destroy objects without users.
//!
//! Left out is what C programs may not do: use objects that are destroyed or NULL (optional ones are NULL at
//! times), pass pointers or lengths that do not match their memory, post BIND_MW or TSO without a window or
//! header, poll with a negative count, acknowledge events that were not retrieved. Calls that block (events)
//! are left out too.
#![no_main]

#[path = "input.rs"]
mod input;

// The crate has no public items: its functions are found by the linker.
use ibverbs as _;
use input::Input;
use libfuzzer_sys::fuzz_target;
use std::ffi::{c_char, c_int, c_void};
use std::net::Ipv4Addr;
use std::ptr::null_mut;
use std::sync::OnceLock;

type Object = *mut c_void;

unsafe extern "C" {
    #[link_name = "urxe_export_ibv_get_device_list"]
    fn get_device_list(count: *mut c_int) -> *mut Object;
    #[link_name = "urxe_export_ibv_free_device_list"]
    fn free_device_list(list: *mut Object);
    #[link_name = "urxe_export_ibv_open_device"]
    fn open_device(device: Object) -> Object;
    #[link_name = "urxe_export_ibv_alloc_pd"]
    fn alloc_pd(context: Object) -> Object;
    #[link_name = "urxe_export_ibv_dealloc_pd"]
    fn dealloc_pd(pd: Object) -> c_int;
    #[link_name = "urxe_export_ibv_reg_mr"]
    fn reg_mr(pd: Object, addr: *mut u8, len: usize, access: c_int) -> Object;
    #[link_name = "urxe_export_ibv_rereg_mr"]
    fn rereg_mr(mr: Object, flags: c_int, pd: Object, addr: *mut u8, len: usize, access: c_int) -> c_int;
    #[link_name = "urxe_export_ibv_dereg_mr"]
    fn dereg_mr(mr: Object) -> c_int;
    #[link_name = "urxe_export_ibv_create_comp_channel"]
    fn create_comp_channel(context: Object) -> Object;
    #[link_name = "urxe_export_ibv_destroy_comp_channel"]
    fn destroy_comp_channel(channel: Object) -> c_int;
    #[link_name = "urxe_export_ibv_create_cq"]
    fn create_cq(context: Object, cqe: c_int, cookie: Object, channel: Object, vector: c_int) -> Object;
    #[link_name = "urxe_export_ibv_resize_cq"]
    fn resize_cq(cq: Object, cqe: c_int) -> c_int;
    #[link_name = "urxe_export_ibv_destroy_cq"]
    fn destroy_cq(cq: Object) -> c_int;
    #[link_name = "urxe_export_ibv_create_srq"]
    fn create_srq(pd: Object, attr: *mut u64) -> Object;
    #[link_name = "urxe_export_ibv_modify_srq"]
    fn modify_srq(srq: Object, attr: *mut u64, mask: c_int) -> c_int;
    #[link_name = "urxe_export_ibv_query_srq"]
    fn query_srq(srq: Object, attr: *mut u64) -> c_int;
    #[link_name = "urxe_export_ibv_destroy_srq"]
    fn destroy_srq(srq: Object) -> c_int;
    #[link_name = "urxe_export_ibv_create_qp"]
    fn create_qp(pd: Object, attr: *mut u64) -> Object;
    #[link_name = "urxe_export_ibv_modify_qp"]
    fn modify_qp(qp: Object, attr: *mut u64, mask: c_int) -> c_int;
    #[link_name = "urxe_export_ibv_query_qp"]
    fn query_qp(qp: Object, attr: *mut u64, mask: c_int, init: *mut u64) -> c_int;
    #[link_name = "urxe_export_ibv_destroy_qp"]
    fn destroy_qp(qp: Object) -> c_int;
    #[link_name = "urxe_export_ibv_create_ah"]
    fn create_ah(pd: Object, attr: *mut u64) -> Object;
    #[link_name = "urxe_export_ibv_destroy_ah"]
    fn destroy_ah(ah: Object) -> c_int;
    #[link_name = "urxe_export_ibv_query_gid"]
    fn query_gid(context: Object, port: u8, index: c_int, gid: *mut u64) -> c_int;
    #[link_name = "urxe_export_ibv_query_pkey"]
    fn query_pkey(context: Object, port: u8, index: c_int, pkey: *mut u64) -> c_int;
    #[link_name = "urxe_export_ibv_wc_status_str"]
    fn wc_status_str(status: c_int) -> *const c_char;
    #[link_name = "urxe_export_ibv_event_type_str"]
    fn event_type_str(event: c_int) -> *const c_char;
    #[link_name = "urxe_export_ibv_rate_to_mult"]
    fn rate_to_mult(rate: c_int) -> c_int;
    #[link_name = "urxe_export_mbps_to_ibv_rate"]
    fn mbps_to_ibv_rate(mbps: c_int) -> c_int;
}

/// Words of `struct ibv_context` with the functions that `verbs.h` calls directly: after the device, the
/// table.
const POLL_CQ: usize = 1 + 11;
const REQ_NOTIFY_CQ: usize = 1 + 12;
const POST_SRQ_RECV: usize = 1 + 20;
const POST_SEND: usize = 1 + 25;
const POST_RECV: usize = 1 + 26;

type Post = unsafe extern "C" fn(Object, *mut u64, *mut *mut u64) -> c_int;
type Poll = unsafe extern "C" fn(Object, c_int, *mut u64) -> c_int;
type ReqNotify = unsafe extern "C" fn(Object, c_int) -> c_int;

/// Maximum number of objects of a kind.
const MAX_OBJECTS: usize = 6;
/// Memory of the program: what may be registered, between guards.
const MEMORY: usize = 8192;
const GUARD: usize = 4096;
const GUARD_FILL: u8 = 0xa5;
/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;
/// `IBV_WR_BIND_MW` and `IBV_WR_TSO`.
const EXCLUDED_OPCODES: [u32; 2] = [8, 10];
/// Size of `struct ibv_wc` in words.
const WC_WORDS: usize = 6;
const MAX_POLL: usize = 16;

/// Returns the device's address: of loopback, and different for each fuzzer.
fn address(last: u8) -> [u8; 16] {
    let [_, _, a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | a & 0x3f, b, last).to_ipv6_mapped().octets()
}

/// Opens the device once in each process.
fn context() -> Object {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    let open = || {
        let [.., a, b, c, d] = address(1);
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("URXE_LINK", format!("udp:{a}.{b}.{c}.{d}")) };
        let mut count = 0;
        // SAFETY: the list has at least one device, which is opened before the list is freed.
        let context = unsafe {
            let devices = get_device_list(&mut count);
            assert!(!devices.is_null() && count > 0);
            let context = open_device(*devices);
            free_device_list(devices);
            context
        };
        assert!(!context.is_null(), "the device opens");
        context.expose_provenance()
    };
    std::ptr::with_exposed_provenance_mut(*CONTEXT.get_or_init(open))
}

/// Returns a word of a C struct.
unsafe fn word(object: Object, offset: usize) -> u32 {
    // SAFETY: the caller passes the offset of a 32-bit field.
    unsafe { object.cast::<u8>().add(offset).cast::<u32>().read() }
}

struct Program {
    context: Object,
    arena: Box<[u8]>,
    channels: Vec<Object>,
    pds: Vec<Object>,
    mrs: Vec<Object>,
    cqs: Vec<Object>,
    srqs: Vec<Object>,
    qps: Vec<Object>,
    ahs: Vec<Object>,
    posted: u64,
    completed: u64,
}

fn pick(of: &[Object], p: &mut Input<'_>) -> Object {
    if of.is_empty() { null_mut() } else { of[p.below(of.len())] }
}

fn int(p: &mut Input<'_>) -> c_int {
    match p.below(4) {
        0 => p.u64() as c_int,
        1 => (p.u8() as i8).into(),
        2 => 1 << (p.u8() & 31),
        _ => p.u8().into(),
    }
}

/// Fills attributes with arbitrary bytes.
fn fill<const N: usize>(p: &mut Input<'_>) -> [u64; N] {
    let is_small = p.chance(2);
    std::array::from_fn(|_| if is_small { u64::from(p.u8()) << 32 | u64::from(p.u8()) } else { p.u64() })
}

impl Program {
    fn memory(&mut self, p: &mut Input<'_>) -> (*mut u8, usize) {
        let at = p.u16() as usize % MEMORY;
        let len = p.u16() as usize % (MEMORY - at + 1);
        (self.arena[GUARD + at..].as_mut_ptr(), len)
    }

    fn has_room(of: &[Object]) -> bool {
        of.len() < MAX_OBJECTS
    }

    /// Takes an object that a call has created, unless it failed.
    fn keep(of: &mut Vec<Object>, object: Object) {
        if !object.is_null() {
            of.push(object);
        }
    }

    /// Destroys an object, which fails if another uses it.
    fn destroy(of: &mut Vec<Object>, p: &mut Input<'_>, destroy: unsafe extern "C" fn(Object) -> c_int) {
        if !of.is_empty() {
            let at = p.below(of.len());
            // SAFETY: the object exists.
            if unsafe { destroy(of[at]) } == 0 {
                of.swap_remove(at);
            }
        }
    }

    fn create(&mut self, p: &mut Input<'_>) {
        let pd = pick(&self.pds, p);
        // SAFETY: all objects exist, and attributes have at least the sizes of their structs.
        unsafe {
            match p.below(8) {
                0 if Self::has_room(&self.pds) => Self::keep(&mut self.pds, alloc_pd(self.context)),
                1 if Self::has_room(&self.channels) => {
                    Self::keep(&mut self.channels, create_comp_channel(self.context));
                }
                2 if Self::has_room(&self.cqs) => {
                    let channel = if p.chance(2) { pick(&self.channels, p) } else { null_mut() };
                    let (cqe, vector) = (if p.chance(8) { int(p) } else { p.u8().into() }, int(p));
                    let vector = if p.chance(4) { vector } else { 0 };
                    Self::keep(&mut self.cqs, create_cq(self.context, cqe, null_mut(), channel, vector));
                }
                3 if !pd.is_null() && Self::has_room(&self.mrs) => {
                    let ((addr, len), access) = (self.memory(p), if p.chance(4) { int(p) } else { 0xf });
                    Self::keep(&mut self.mrs, reg_mr(pd, addr, len, access));
                }
                4 if !pd.is_null() && Self::has_room(&self.srqs) => {
                    let sizes = [p.u8(), p.u8() & 7, p.u8()].map(u64::from);
                    let mut attr = [0, sizes[0] | sizes[1] << 32, sizes[2], 0];
                    if p.chance(8) {
                        attr[1] = p.u64();
                    }
                    Self::keep(&mut self.srqs, create_srq(pd, attr.as_mut_ptr()));
                }
                5 | 6 if !pd.is_null() && !self.cqs.is_empty() && Self::has_room(&self.qps) => {
                    let srq = if p.chance(4) { pick(&self.srqs, p) } else { null_mut() };
                    let cqs = [pick(&self.cqs, p), pick(&self.cqs, p)];
                    let sizes = [p.u8(), p.u8(), p.u8() & 7, p.u8() & 7].map(u64::from);
                    let mut attr: [u64; 8] = [0; 8];
                    (attr[1], attr[2], attr[3]) = (cqs[0] as u64, cqs[1] as u64, srq as u64);
                    (attr[4], attr[5]) = (sizes[0] | sizes[1] << 32, sizes[2] | sizes[3] << 32);
                    // IBV_QPT_RC, UC, UD; any other at times.
                    let qp_type = if p.chance(8) { p.u8() } else { [2, 3, 4][p.below(3)] };
                    (attr[6], attr[7]) = (u64::from(p.u8()) | u64::from(qp_type) << 32, (p.u8() & 1).into());
                    if p.chance(16) {
                        attr[4] = p.u64();
                    }
                    Self::keep(&mut self.qps, create_qp(pd, attr.as_mut_ptr()));
                }
                7 if !pd.is_null() && Self::has_room(&self.ahs) => {
                    let mut attr: [u64; 8] = fill(p);
                    set_gid(&mut attr, 0, p);
                    if !p.chance(4) {
                        // Global, on port 1.
                        attr[3] = attr[3] & 0xff_ffff | 1 << 40 | 1 << 48;
                        attr[2] &= !(0xff << 32);
                    }
                    Self::keep(&mut self.ahs, create_ah(pd, attr.as_mut_ptr()));
                }
                _ => {}
            }
        }
    }

    fn destroy_one(&mut self, p: &mut Input<'_>) {
        match p.below(7) {
            0 => Self::destroy(&mut self.pds, p, dealloc_pd),
            1 => Self::destroy(&mut self.channels, p, destroy_comp_channel),
            2 => Self::destroy(&mut self.cqs, p, destroy_cq),
            3 => Self::destroy(&mut self.mrs, p, dereg_mr),
            4 => Self::destroy(&mut self.srqs, p, destroy_srq),
            5 => Self::destroy(&mut self.qps, p, destroy_qp),
            _ => Self::destroy(&mut self.ahs, p, destroy_ah),
        }
    }

    /// Modifies a queue pair by arbitrary attributes, or takes it a step towards a connection with another
    /// one.
    fn modify(&mut self, p: &mut Input<'_>) {
        let (qp, peer) = (pick(&self.qps, p), pick(&self.qps, p));
        if qp.is_null() {
            return;
        }
        let mut attr: [u64; 20] = if p.chance(4) { fill(p) } else { [0; 20] };
        let step = p.below(5);
        // SAFETY: both queue pairs exist; `qp_num` is at offset 52 and the type at 60.
        let (peer_qpn, qp_type) = unsafe { (word(peer, 52), word(qp, 60)) };
        let bytes = bytes_of(&mut attr);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let (state, mask): (u32, c_int) = match (step, qp_type) {
            // INIT: state, pkey_index, port, access or qkey.
            (0, 4) => (1, 1 | 1 << 4 | 1 << 5 | 1 << 6),
            (0, _) => (1, 1 | 1 << 4 | 1 << 5 | 1 << 3),
            // RTR: state, av, path_mtu, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer.
            (1, 2) => (2, 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15),
            (1, 3) => (2, 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12),
            (1, _) => (2, 1),
            // RTS: state, sq_psn, timeout, retry_cnt, rnr_retry, max_rd_atomic.
            (2, 2) => (3, 1 | 1 << 16 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13),
            (2, _) => (3, 1 | 1 << 16),
            (3, _) => (u32::from(p.u8() % 8), 1),
            _ => (p.u8().into(), int(p)),
        };
        put(0, &state.to_le_bytes());
        if step < 3 {
            put(8, &1u32.to_le_bytes());
            put(28, &peer_qpn.to_le_bytes());
            put(32, &0xfu32.to_le_bytes());
            // is_global, port_num of the address, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port,
            // timeout, retries.
            put(76, &[0]);
            put(85, &[1, 1]);
            put(126, &[4, 4, 1, 1, 8, 1, 1]);
        }
        set_gid(&mut attr, 7, p);
        set_gid(&mut attr, 11, p);
        // SAFETY: the attributes are larger than the struct.
        unsafe { modify_qp(qp, attr.as_mut_ptr(), mask) };
    }

    fn post(&mut self, p: &mut Input<'_>) {
        let mut sges = [[0u64; 2]; 4];
        let is_inline = p.chance(4);
        for sge in &mut sges {
            let mr = pick(&self.mrs, p);
            let (addr, len) = self.memory(p);
            // SAFETY: the region exists; `lkey` is at offset 36.
            let lkey = if mr.is_null() || p.chance(16) { p.u16().into() } else { unsafe { word(mr, 36) } };
            let is_wild = p.chance(16) && !is_inline;
            let (addr, len) = if is_wild { (p.u64(), p.u64() as u32) } else { (addr as u64, len as u32) };
            *sge = [addr, u64::from(len) | u64::from(lkey) << 32];
        }
        let count = p.below(5) as u64;
        let (mr, ah) = (pick(&self.mrs, p), pick(&self.ahs, p));
        // SAFETY: the region exists; `rkey` is at offset 40.
        let rkey = if mr.is_null() || p.chance(16) { p.u16().into() } else { unsafe { word(mr, 40) } };
        let mut wr = [0u64; 20];
        let kind = p.below(3);
        let (qp, srq) = (pick(&self.qps, p), pick(&self.srqs, p));
        let (object, function) = match kind {
            0 => (qp, POST_RECV),
            1 => (srq, POST_SRQ_RECV),
            _ => (qp, POST_SEND),
        };
        // The address handle of a datagram must exist.
        // SAFETY: the queue pair exists; its type is at offset 60.
        let is_datagram = !qp.is_null() && unsafe { word(qp, 60) } == 4;
        if object.is_null() || kind == 2 && is_datagram && ah.is_null() {
            return;
        }
        (wr[0], wr[2]) = (p.u64(), sges.as_mut_ptr() as u64);
        let opcode = match if p.chance(8) { p.u8() } else { p.u8() % 16 }.into() {
            opcode if EXCLUDED_OPCODES.contains(&opcode) => 0,
            opcode => opcode,
        };
        wr[3] = count | if kind == 2 { u64::from(opcode) << 32 } else { 0 };
        let flags = u32::from(p.u8()) & !INLINE | if is_inline { INLINE } else { 0 };
        wr[4] = u64::from(flags) | u64::from(p.u16()) << 32;
        let (remote, _) = self.memory(p);
        wr[5] = if p.chance(16) { p.u64() } else { remote as u64 & !7 };
        (wr[6], wr[7], wr[8]) = (rkey.into(), p.u64(), rkey.into());
        if is_datagram {
            (wr[5], wr[6]) = (ah as u64, u64::from(p.u16()));
        } else if matches!(opcode, 5 | 6) {
            (wr[6], wr[7]) = (p.u64(), p.u64());
        }
        let mut bad = null_mut();
        // SAFETY: the context has these functions, and the request is larger than its struct.
        let result = unsafe {
            let post: Post = std::mem::transmute(self.context.cast::<*const c_void>().add(function).read());
            post(object, wr.as_mut_ptr(), &mut bad)
        };
        assert!(result == 0 || bad == wr.as_mut_ptr(), "a failed post names its request");
        self.posted += u64::from(result == 0);
    }

    fn poll(&mut self, p: &mut Input<'_>) {
        let cq = pick(&self.cqs, p);
        if cq.is_null() {
            return;
        }
        let mut completions = [0u64; WC_WORDS * MAX_POLL];
        // SAFETY: the context has these functions, and the array has room for the completions.
        let count = unsafe {
            let table = self.context.cast::<*const c_void>();
            if p.chance(4) {
                let notify: ReqNotify = std::mem::transmute(table.add(REQ_NOTIFY_CQ).read());
                notify(cq, int(p));
            }
            let poll: Poll = std::mem::transmute(table.add(POLL_CQ).read());
            poll(cq, p.below(MAX_POLL + 1) as c_int, completions.as_mut_ptr())
        };
        self.completed += count.max(0) as u64;
        assert!(self.completed <= self.posted, "{} completions of {} posts", self.completed, self.posted);
    }

    fn query(&mut self, p: &mut Input<'_>) {
        let (mut attr, mut init) = ([0u64; 32], [0u64; 32]);
        let (qp, srq, cq, mr) =
            (pick(&self.qps, p), pick(&self.srqs, p), pick(&self.cqs, p), pick(&self.mrs, p));
        let (pd, (addr, len)) = (pick(&self.pds, p), self.memory(p));
        // SAFETY: all objects exist, and attributes are larger than their structs.
        unsafe {
            match p.below(10) {
                0 if !qp.is_null() => drop(query_qp(qp, attr.as_mut_ptr(), int(p), init.as_mut_ptr())),
                1 if !srq.is_null() => drop(query_srq(srq, attr.as_mut_ptr())),
                2 if !srq.is_null() => {
                    attr = fill(p);
                    modify_srq(srq, attr.as_mut_ptr(), int(p));
                }
                3 if !cq.is_null() => drop(resize_cq(cq, if p.chance(8) { int(p) } else { p.u8().into() })),
                4 => drop(query_gid(self.context, p.u8(), int(p), attr.as_mut_ptr())),
                5 => drop(query_pkey(self.context, p.u8(), int(p), attr.as_mut_ptr())),
                6 => assert!(!wc_status_str(int(p)).is_null() && !event_type_str(int(p)).is_null()),
                7 => drop((rate_to_mult(int(p)), mbps_to_ibv_rate(int(p)))),
                8 | 9 if !mr.is_null() && !pd.is_null() => drop(rereg_mr(mr, int(p), pd, addr, len, int(p))),
                _ => {}
            }
        }
    }

    /// Destroys all objects in the order in which they use each other, which must succeed.
    fn finish(mut self) {
        let all: [(&mut Vec<Object>, unsafe extern "C" fn(Object) -> c_int); 7] = [
            (&mut self.qps, destroy_qp),
            (&mut self.ahs, destroy_ah),
            (&mut self.srqs, destroy_srq),
            (&mut self.cqs, destroy_cq),
            (&mut self.channels, destroy_comp_channel),
            (&mut self.mrs, dereg_mr),
            (&mut self.pds, dealloc_pd),
        ];
        for (kind, (objects, destroy)) in all.into_iter().enumerate() {
            for object in objects.drain(..) {
                // SAFETY: the object exists.
                assert_eq!(
                    unsafe { destroy(object) },
                    0,
                    "an object of kind {kind} without users is not destroyed"
                );
            }
        }
        let guards = self.arena[..GUARD].iter().chain(&self.arena[GUARD + MEMORY..]);
        assert!(guards.into_iter().all(|b| *b == GUARD_FILL), "memory outside of regions was changed");
    }
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: bytes have no alignment and no invalid values.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Writes a GID of loopback, so that no packet leaves this machine.
fn set_gid(attr: &mut [u64], at: usize, p: &mut Input<'_>) {
    let last = if p.chance(8) { p.u8() } else { 1 };
    bytes_of(attr)[8 * at..8 * at + 16].copy_from_slice(&address(last));
}

fuzz_target!(|data: &[u8]| {
    let mut p = Input::new(data);
    let mut arena = vec![GUARD_FILL; GUARD + MEMORY + GUARD].into_boxed_slice();
    arena[GUARD..GUARD + MEMORY].fill(0);
    let mut program = Program {
        context: context(),
        arena,
        channels: Vec::new(),
        pds: Vec::new(),
        mrs: Vec::new(),
        cqs: Vec::new(),
        srqs: Vec::new(),
        qps: Vec::new(),
        ahs: Vec::new(),
        posted: 0,
        completed: 0,
    };
    for _ in 0..200 {
        if p.is_empty() {
            break;
        }
        match p.u8() & 0x0f {
            0..=4 => program.create(&mut p),
            5 => program.destroy_one(&mut p),
            6..=8 => program.modify(&mut p),
            9..=12 => program.post(&mut p),
            13 => program.poll(&mut p),
            _ => program.query(&mut p),
        }
    }
    program.finish();
});

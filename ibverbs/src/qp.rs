//! Queue pairs (`ibv_qp`, `ibv_qp_ex`).

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

use urxe::transport::{AlternatePath, AttrMask, MigrationState};
use urxe::verbs::{Access, AckTimeout, Gid, Mtu, Psn, QKey, Qp, QpAttr, QpState, QpType, Qpn, RnrTimer};

use crate::abi::{
    ibv_ece, ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_rate_limit_attr,
};
use crate::address;
use crate::context::Context;
use crate::counters::Publisher;
use crate::object::{FfiCell, FfiObject, Session, Use, ffi_object};
use crate::pd::{ProtectionDomain, XrcDomain};
use crate::srq::SharedReceiveQueue;
use crate::wr_session::Requests;

entry_points! {
    "IBVERBS_1.1" store ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) on QueuePair(qp)
        = modify_qp;
    store ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) on QueuePair(qp)
        = modify_qp_rate_limit;
    "IBVERBS_1.1" store ibv_query_qp(qp: *mut ibv_qp, out: *mut ibv_qp_attr, mask: c_int,
        init: *mut ibv_qp_init_attr) on QueuePair(qp) = query_qp;
    "IBVERBS_1.1" store ibv_destroy_qp(qp: *mut ibv_qp) on QueuePair(qp) unless is_inherited = destroy_qp;
    "IBVERBS_1.1" store ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) on QueuePair(qp)
        => QueuePair::from_raw_ref(qp).qp.attach_mcast(Gid((*gid).raw)).map_err(|e| e.errno());
    "IBVERBS_1.1" store ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) on QueuePair(qp)
        => QueuePair::from_raw_ref(qp).qp.detach_mcast(Gid((*gid).raw)).map_err(|e| e.errno());
    "IBVERBS_1.10" store ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) on QueuePair(qp) = set_ece;
}

export! {
    "IBVERBS_1.6": ibv_qp_to_qp_ex = qp_to_qp_ex;
    "IBVERBS_1.10": ibv_query_ece = query_ece;
    "IBVERBS_1.14": ibv_query_qp_data_in_order = query_qp_data_in_order;
}

pub(crate) const UD: c_uint = 4;
pub(crate) const XRC_SEND: c_uint = 9;
pub(crate) const XRC_RECV: c_uint = 10;

/// Service types with their `enum ibv_qp_type`.
const QP_TYPES: [(c_uint, QpType); 5] = [
    (2, QpType::Rc),
    (3, QpType::Uc),
    (UD, QpType::Ud),
    (XRC_SEND, QpType::XrcSend),
    (XRC_RECV, QpType::XrcRecv),
];

/// Converts an `enum ibv_qp_type`, or returns `None` if the type is not supported.
pub(crate) fn qp_type(number: c_uint) -> Option<QpType> {
    QP_TYPES.iter().find(|(other, _)| *other == number).map(|(_, qp_type)| *qp_type)
}

/// Returns the `enum ibv_qp_type` of a service type.
pub(crate) fn qp_type_number(qp_type: QpType) -> c_uint {
    QP_TYPES.iter().find(|(_, other)| *other == qp_type).map_or(0, |(number, _)| *number)
}

/// A queue pair (QP) with its C struct.
#[repr(C)]
pub(crate) struct QueuePair {
    pub c: FfiCell<ibv_qp_ex>,
    /// Work request session, declared before `qp` because it borrows from `qp` and must be dropped first.
    pub session: Session<Requests>,
    pub qp: Qp,
    /// Creation attributes, with the granted capacities.
    pub init: ibv_qp_init_attr,
    pub _held: Held,
}

/// The protection domain of a queue pair, or for an XRC target the XRC domain; and the shared receive queue.
type Held = (Option<Use<ProtectionDomain>>, Option<Use<XrcDomain>>, Option<Use<SharedReceiveQueue>>);

ffi_object! { QueuePair { c: ibv_qp_ex as ibv_qp } [context, handle] }

// `ibv_qp_ex` begins with an `ibv_qp`.
const _: fn(&ibv_qp_ex) -> &ibv_qp = |c| &c.qp_base;
const _: () = assert!(offset_of!(ibv_qp_ex, qp_base) == 0);

/// Converts an `enum ibv_qp_state`.
pub(crate) fn state(number: c_uint) -> Option<QpState> {
    use QpState::*;
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|state| *state as u32 == number)
}

/// Destroys a queue pair (`ibv_destroy_qp`).
///
/// # Safety
/// `c` is live, and its context is open. The program gives up its pointer.
pub(crate) unsafe fn destroy_qp(c: *mut ibv_qp) -> Result<(), c_int> {
    // SAFETY: `c` and its context are live as the caller guarantees.
    unsafe {
        let context = Context::from_raw_ref((*c).context);
        let is_last = context.event_objects.qps.remove(QueuePair::from_raw_ref(c).qp.qpn());
        context.unacked.wait(c.addr());
        drop(QueuePair::from_raw(c));
        if is_last {
            context.device.with_publisher(Publisher::publish_idle);
        }
    }
    Ok(())
}

/// Defines the conversions of attributes from and to their C struct, with an attribute in each row: its mask,
/// its field, the C field, and its value from that of the C field and the reverse.
macro_rules! attributes {
    ($context:ident; $(
        $mask:ident $field:ident = $c_field:ident, |$given:ident| $from:expr, |$value:ident| $to:expr;
    )*) => {
        /// Converts the attributes selected by `mask`. Returns `None` if one has an invalid value.
        fn attr_from_c($context: &Context, from: &ibv_qp_attr, mask: AttrMask) -> Option<QpAttr> {
            let mut attr = QpAttr::default();
            $(if mask.contains(AttrMask::$mask) {
                let $given = from.$c_field;
                attr.$field = Some($from);
            })*
            if mask.contains(AttrMask::ALT_PATH) {
                attr.alt_path = Some(AlternatePath {
                    av: address::path($context, &from.alt_ah_attr).filter(|_| from.alt_port_num == 1)?,
                    pkey_index: from.alt_pkey_index,
                    timeout: AckTimeout::new(from.alt_timeout),
                });
            }
            Some(attr)
        }

        /// Converts attributes to the C struct, and returns it with the mask of the attributes that are set.
        pub(crate) fn attr_to_c(attr: &QpAttr) -> (ibv_qp_attr, c_int) {
            // SAFETY: the struct consists of integers and GIDs, for which zeros are valid.
            let mut to: ibv_qp_attr = unsafe { std::mem::zeroed() };
            $(if let Some($value) = attr.$field {
                to.$c_field = $to;
            })*
            if let Some(alt) = attr.alt_path {
                to.alt_ah_attr = address::attr(&alt.av);
                to.alt_pkey_index = alt.pkey_index;
                to.alt_port_num = 1;
                to.alt_timeout = alt.timeout.code();
            }
            (to, attr.mask().bits() as c_int)
        }
    };
}

attributes! {
    context;
    STATE state = qp_state, |number| state(number)?, |state| state as u32;
    CUR_STATE cur_state = cur_qp_state, |number| state(number)?, |state| state as u32;
    EN_SQD_ASYNC_NOTIFY sqd_notify = en_sqd_async_notify, |on| on != 0, |on| on.into();
    ACCESS_FLAGS access = qp_access_flags, |bits| Access::from_bits_retain(bits), |access| access.bits();
    PKEY_INDEX pkey_index = pkey_index, |index| index, |index| index;
    PORT port = port_num, |port| port, |port| port;
    QKEY qkey = qkey, |key| QKey(key), |key| key.0;
    AV av = ah_attr, |attr| address::path(context, &attr)?, |av| address::attr(&av);
    PATH_MTU path_mtu = path_mtu, |code| Mtu::from_code(code.try_into().ok()?)?, |mtu| mtu.code().into();
    TIMEOUT timeout = timeout, |code| AckTimeout::new(code), |timeout| timeout.code();
    RETRY_CNT retry_cnt = retry_cnt, |count| count, |count| count;
    RNR_RETRY rnr_retry = rnr_retry, |count| count, |count| count;
    RQ_PSN rq_psn = rq_psn, |psn| Psn::new(psn), |psn| psn.get();
    MAX_RD_ATOMIC max_rd_atomic = max_rd_atomic, |count| count, |count| count;
    MIN_RNR_TIMER min_rnr_timer = min_rnr_timer, |code| RnrTimer::new(code), |timer| timer.code();
    SQ_PSN sq_psn = sq_psn, |psn| Psn::new(psn), |psn| psn.get();
    MAX_DEST_RD_ATOMIC max_dest_rd_atomic = max_dest_rd_atomic, |count| count, |count| count;
    PATH_MIG_STATE path_mig_state = path_mig_state, |number| migration_state(number)?, |state| state as u32;
    DEST_QPN dest_qpn = dest_qp_num, |number| Qpn::new(number), |qpn| qpn.get();
    RATE_LIMIT rate_limit = rate_limit, |limit| limit, |limit| limit;
}

/// Converts an `enum ibv_mig_state`.
fn migration_state(number: c_uint) -> Option<MigrationState> {
    use MigrationState::*;
    [Migrated, Rearm, Armed].into_iter().find(|state| *state as u32 == number)
}

/// Mask of all known attributes: bits 0 to 20, and the rate limit.
const ALL_ATTRS: c_int = 0x1f_ffff | 1 << 25;
/// `IBV_QP_CAP`: capacities, which are fixed once the queue pair exists.
const CAP: c_int = 1 << 19;

/// Returns the mask of attributes to ignore. Programs set the same attributes at both ends of an XRC
/// connection, and Linux ignores those that an end does not use: at the initiator, the RNR timer and the
/// limit of incoming READs and atomics; at the target, the retry counts and the limit of outgoing READs and
/// atomics.
fn ignored_attrs(qp_type: c_uint) -> c_int {
    match qp_type {
        XRC_SEND => 1 << 17 | 1 << 15,
        XRC_RECV => 1 << 13 | 1 << 10 | 1 << 11,
        _ => 0,
    }
}

unsafe fn modify_qp(c: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
    // SAFETY: the entry point found a live queue pair at `c`; the C call requires `attr` to be
    // readable.
    let (qp, attr) = unsafe { (QueuePair::from_raw_ref(c), &*attr) };
    let mask = mask & !ignored_attrs(qp.init.qp_type);
    if mask & !ALL_ATTRS != 0 || mask & CAP != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: `c` is live, and the program closes a context only after it has destroyed the objects in it.
    let context = unsafe { Context::from_raw_ref((*c).context) };
    let mask = AttrMask::from_bits_retain(mask as u32);
    let given = attr_from_c(context, attr, mask).ok_or(libc::EINVAL)?;
    qp.qp.modify(&given).map_err(|e| e.errno())?;
    if let Some(state) = given.state {
        // SAFETY: `c` is live and the field is an aligned integer, which the program does not access
        // during the call.
        unsafe { (*c).state = state as u32 };
    }
    Ok(())
}

unsafe fn modify_qp_rate_limit(c: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> Result<(), c_int> {
    // SAFETY: the entry point found a live queue pair at `c`; the C call requires `attr` to be
    // readable.
    let (qp, attr) = unsafe { (QueuePair::from_raw_ref(c), &*attr) };
    // The burst size cannot be chosen here.
    if attr.comp_mask != 0 || attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0 {
        return Err(libc::EINVAL);
    }
    let ready = Some(QpState::Rts);
    let given = QpAttr::default().state(ready).cur_state(ready).rate_limit(attr.rate_limit);
    qp.qp.modify(&given).map_err(|e| e.errno())
}

unsafe fn query_qp(
    c: *mut ibv_qp,
    out: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: the entry point found a live queue pair at `c`.
    let qp = unsafe { QueuePair::from_raw_ref(c) };
    let queried = qp.qp.query();
    let (attr, _) = attr_to_c(&queried);
    let attr = ibv_qp_attr { cur_qp_state: attr.qp_state, cap: qp.init.cap, ..attr };
    // SAFETY: `c` is live, and `ibv_query_qp` requires `out` and `init` to point to writable structs.
    unsafe {
        (*c).state = attr.qp_state;
        *out = attr;
        *init = qp.init;
    }
    Ok(())
}

/// Returns the extended struct, or null if the queue pair was created without `send_ops_flags`.
unsafe extern "C" fn qp_to_qp_ex(c: *mut ibv_qp) -> *mut ibv_qp_ex {
    let qp_ex: *mut ibv_qp_ex = c.cast();
    // SAFETY: `c` is live, and every `ibv_qp` of this library is the beginning of an `ibv_qp_ex`.
    if unsafe { (*qp_ex).wr_start }.is_some() { qp_ex } else { std::ptr::null_mut() }
}

/// Accepts only empty options, because the device has none for enhanced connection establishment (ECE).
unsafe fn set_ece(_c: *mut ibv_qp, ece: *mut ibv_ece) -> Result<(), c_int> {
    // SAFETY: `ibv_set_ece` requires `ece` to point to a readable struct. A vendor of 0 requests no options.
    if unsafe { (*ece).vendor_id } == 0 { Ok(()) } else { Err(libc::EOPNOTSUPP) }
}

unsafe extern "C" fn query_ece(_c: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `ibv_query_ece` requires `ece` to point to a writable struct.
    unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
    0
}

/// Returns 0, meaning that the order in which data is stored is not guaranteed: a retransmitted packet may be
/// stored twice.
unsafe extern "C" fn query_qp_data_in_order(_c: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

//! Ids (`rdma_cm_id`): creation, destruction, and the fields that programs read.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;

use parking_lot::Mutex;
use urxe::transport::QpType;
use urxe::verbs::ClaimError;
use urxe::verbs::cm::{CmEvent, CmEventKind, CmId, EventParam, IdError, PortSpace};

use crate::abi::{
    ibv_gid, ibv_qp, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_event, rdma_cm_id, rdma_event_channel,
    rdma_ib_addr,
};
use crate::cancel::{Call, Step, blocking};
use crate::context::Context;
use crate::device::warn;
use crate::errno::minus_one;
use crate::event_objects::object_at;
use crate::object::{FfiCell, FfiObject};
use crate::qp::QueuePair;
use crate::rdmacm::addrinfo;
use crate::rdmacm::channel::{self, Channel};
use crate::rdmacm::event::{ack_cm_event, next_cm_event, wait_for_acks};
use crate::rdmacm::process::ProcessGlobals;
use crate::rdmacm::sockaddr;

export! {
    "RDMACM_1.0":
        rdma_create_id = create_id,
        rdma_destroy_id = destroy_id,
        rdma_migrate_id = migrate_id,
        rdma_get_src_port = get_src_port,
        rdma_get_dst_port = get_dst_port;
}

/// `enum ibv_qp_type`.
pub const XRC_SEND: c_uint = 9;
pub const XRC_RECV: c_uint = 10;

/// An id with its C struct.
#[repr(C)]
pub struct Id {
    c: FfiCell<rdma_cm_id>,
    /// The path record that `route.path_rec` points to.
    path: FfiCell<ibv_sa_path_rec>,
    pub id: CmId,
    pub process: &'static ProcessGlobals,
    state: Mutex<IdState>,
}

// SAFETY: `#[repr(C)]` with `FfiCell<rdma_cm_id>` as the first field.
unsafe impl FfiObject for Id {
    type C = rdma_cm_id;
}

/// Mutable state of an id.
#[derive(Default)]
struct IdState {
    /// Set for an id with a channel of its own, whose calls wait for the event that reports their completion.
    synchronous: bool,
    /// Attributes for the queue pairs of connections to this listener (`rdma_create_ep`).
    requests: Option<RequestQueues>,
    /// Data sent before the program's private data in a connection request.
    connect_data: Vec<u8>,
    /// READ and atomic limits that the peer of this connection request offers.
    offered: Option<Offered>,
    /// The program's context for each multicast group that was joined.
    joins: HashMap<IpAddr, *mut c_void>,
}

// SAFETY: the pointers are the program's; this library stores them and returns them or passes them to
// calls that the program makes, on any thread, and does not rely on the thread that stored them.
unsafe impl Send for IdState {}

/// Protection domain and attributes for the queue pairs of accepted connections.
#[derive(Clone, Copy)]
pub struct RequestQueues {
    pub pd: *mut crate::abi::ibv_pd,
    pub init: ibv_qp_init_attr,
}

/// READ and atomic limits in a connection request.
#[derive(Clone, Copy)]
pub struct Offered {
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

/// Converts a result to the convention of librdmacm: 0, or -1 with `errno` set.
pub fn result_code(result: Result<(), c_int>) -> c_int {
    result.map_or_else(minus_one, |()| 0)
}

/// Returns the error number of an id's error.
pub fn errno(e: IdError) -> c_int {
    // Printed, as the number alone would not explain this error.
    if let IdError::Claim { source: ClaimError::NoAccess { .. }, .. } = e {
        warn(&e.to_string());
    }
    e.errno()
}

/// Returns the id behind a program's pointer: `EINVAL` for a null or misaligned pointer, `ENODEV` if it
/// belongs to the parent of this process.
///
/// # Safety
/// `c` is a live id, or null.
pub unsafe fn id_ref<'a>(c: *mut rdma_cm_id) -> Result<&'a Id, c_int> {
    // Stale pointers of programs that have failed already are often misaligned, so this check catches some.
    if c.is_null() || !c.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller passes a live id or null, and null was excluded.
    let id = unsafe { Id::from_raw_ref(c) };
    if id.process.is_inherited() { Err(libc::ENODEV) } else { Ok(id) }
}

/// Converts an `enum ibv_qp_type` to a service type.
fn qp_type_from_c(number: c_uint) -> Option<QpType> {
    Some(match number {
        addrinfo::RC => QpType::Rc,
        3 => QpType::Uc,
        addrinfo::UD => QpType::Ud,
        XRC_SEND => QpType::XrcSend,
        XRC_RECV => QpType::XrcRecv,
        _ => return None,
    })
}

/// Converts a service type to its `enum ibv_qp_type`.
fn qp_type_to_c(service: QpType) -> c_uint {
    match service {
        QpType::Rc => addrinfo::RC,
        QpType::Uc => 3,
        QpType::Ud => addrinfo::UD,
        QpType::XrcSend => XRC_SEND,
        QpType::XrcRecv => XRC_RECV,
    }
}

/// Creates an id, on a channel of its own if `on` is null.
///
/// # Safety
/// `on` is a channel of this library, or null.
pub unsafe fn create(
    on: *mut rdma_event_channel,
    context: *mut c_void,
    space: c_uint,
    qp_type: Option<c_uint>,
) -> Result<*mut rdma_cm_id, c_int> {
    let process = ProcessGlobals::current()?;
    let space = u16::try_from(space).ok().and_then(PortSpace::from_code).ok_or(libc::EPROTONOSUPPORT)?;
    let service = match qp_type {
        Some(number) => Some(qp_type_from_c(number).ok_or(libc::EOPNOTSUPP)?),
        None => None,
    };
    let synchronous = on.is_null();
    let raw_channel = if synchronous { new_private_channel()? } else { on };
    let made = Channel::lookup(raw_channel).and_then(|on| {
        let id = match service {
            Some(service) => process.manager.create_id_with_qp_type(&on.channel, space, service),
            None => process.manager.create_id(&on.channel, space),
        };
        id.map_err(errno)
    });
    match made {
        Ok(id) => {
            let state = IdState { synchronous, ..IdState::default() };
            Ok(Id::new_raw(process, id, raw_channel, context, state))
        }
        Err(e) => {
            if synchronous {
                // SAFETY: `new_private_channel` has just created it, and the program has no pointer to it.
                unsafe { channel::destroy(raw_channel) };
            }
            Err(e)
        }
    }
}

/// Creates a channel for a single id, whose calls are synchronous.
fn new_private_channel() -> Result<*mut rdma_event_channel, c_int> {
    let channel = channel::create();
    if channel.is_null() { Err(libc::EMFILE) } else { Ok(channel) }
}

impl Id {
    /// Makes the C struct of a new id and registers the id for events.
    fn new_raw(
        process: &'static ProcessGlobals,
        id: CmId,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        state: IdState,
    ) -> *mut rdma_cm_id {
        // SAFETY: both structs consist of integers and raw pointers, for which zeros are valid.
        let (mut c, path): (rdma_cm_id, ibv_sa_path_rec) = unsafe { std::mem::zeroed() };
        (c.channel, c.context) = (channel, context);
        // Port space and type do not change during the life of the id.
        c.ps = id.port_space().map_or(0, |space| space.code().into());
        c.qp_type = id.qp_type().map_or(0, qp_type_to_c);
        let number = id.number();
        let (c, path, state) = (FfiCell::new(c), FfiCell::new(path), Mutex::new(state));
        let c = Id { c, path, id, process, state }.into_raw();
        process.ids.add(number, c);
        c
    }

    /// Makes the C struct of the new id of a connection request, on the channel of its listener, or on a
    /// channel of its own if the listener is synchronous.
    ///
    /// # Safety
    /// `listener` is live.
    pub unsafe fn of_request(listener: *mut rdma_cm_id, event: &CmEvent) -> Result<*mut rdma_cm_id, c_int> {
        // SAFETY: the caller passes a live id, whose C struct is initialised.
        let (of, mut channel, context) =
            unsafe { (Id::from_raw_ref(listener), (*listener).channel, (*listener).context) };
        let synchronous = of.is_synchronous();
        if synchronous {
            channel = new_private_channel()?;
            let moved = Channel::lookup(channel).and_then(|to| event.id.migrate(&to.channel).map_err(errno));
            if let Err(e) = moved {
                // SAFETY: `new_private_channel` has just created it, and the program has no pointer to it.
                unsafe { channel::destroy(channel) };
                return Err(e);
            }
        }
        let offered = match &event.param {
            EventParam::Connection(with) => Some(Offered {
                responder_resources: with.responder_resources,
                initiator_depth: with.initiator_depth,
            }),
            _ => None,
        };
        let state = IdState { synchronous, offered, ..IdState::default() };
        Ok(Id::new_raw(of.process, event.id.clone(), channel, context, state))
    }

    /// Returns the pointer that the program holds.
    pub fn as_c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Reports whether the id has a channel of its own, so that calls wait for their events.
    pub fn is_synchronous(&self) -> bool {
        self.state.lock().synchronous
    }

    /// Returns the limits in the peer's connection request, for an id that was made from one.
    pub fn offered(&self) -> Option<Offered> {
        self.state.lock().offered
    }

    /// Returns the data to send before the program's private data.
    pub fn connect_data(&self) -> Vec<u8> {
        self.state.lock().connect_data.clone()
    }

    /// Sets the data to send before the program's private data.
    pub fn set_connect_data(&self, data: &[u8]) {
        self.state.lock().connect_data = data.to_vec();
    }

    /// Returns the attributes for the queue pairs of connections to this listener.
    pub fn request_queues(&self) -> Option<RequestQueues> {
        self.state.lock().requests
    }

    /// Sets the attributes for the queue pairs of connections to this listener.
    pub fn set_request_queues(&self, queues: RequestQueues) {
        self.state.lock().requests = Some(queues);
    }

    /// Joins a multicast group and stores the program's context for it on success. The lock makes the
    /// delivery of the event wait until the context is stored.
    pub fn join(
        &self,
        group: IpAddr,
        context: *mut c_void,
        join: impl FnOnce() -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let mut state = self.state.lock();
        join()?;
        state.joins.insert(group, context);
        Ok(())
    }

    /// Removes the context of a multicast group that the id has left.
    pub fn remove_join(&self, group: IpAddr) {
        self.state.lock().joins.remove(&group);
    }

    /// Returns the program's context for a multicast group.
    pub fn join_context(&self, group: IpAddr) -> Option<*mut c_void> {
        self.state.lock().joins.get(&group).copied()
    }

    /// Updates the fields that programs read from the id after an event.
    pub fn apply_event(&self, event: &CmEvent) {
        match event.kind {
            CmEventKind::AddrResolved | CmEventKind::RouteResolved | CmEventKind::ConnectRequest => {
                self.refresh()
            }
            CmEventKind::Established => {
                self.refresh();
                self.sync_qp_state();
            }
            _ => self.sync_qp_state(),
        }
    }

    /// Stores the state of the queue pair in its C struct, as the connection manager has changed it. The
    /// program may destroy the queue pair at any time.
    pub fn sync_qp_state(&self) {
        self.with_qp(|qp| {
            // SAFETY: `with_qp` keeps the queue pair alive during this call; `state` is an aligned integer
            // that only this library writes.
            unsafe { (*qp).state = QueuePair::from_raw_ref(qp).qp.state() as u32 };
        });
    }

    /// Calls `f` with the queue pair, if there is one, which is not destroyed meanwhile.
    fn with_qp(&self, f: impl FnOnce(*mut ibv_qp)) {
        // SAFETY: `as_c` points to the C struct in `self`; only `refresh` writes this field, once.
        let verbs = unsafe { (*self.as_c()).verbs };
        if let Some(qpn) = self.id.attached_qp().filter(|_| !verbs.is_null()) {
            // SAFETY: `verbs` is a context of `ProcessGlobals`, which stays open as long as the process
            // lives.
            unsafe { Context::from_raw_ref(verbs) }
                .event_objects
                .qps
                .look_up(qpn, |address| f(object_at(address)));
        }
    }

    /// Updates device, addresses and path in the C struct.
    pub fn refresh(&self) {
        let c = self.as_c();
        let [src, dst] = [self.id.local_addr(), self.id.peer_addr()];
        // SAFETY: both cells lie in `self`. Only this library writes these fields, in calls on the id and in
        // the delivery of its events, which programs order as with librdmacm.
        unsafe {
            if let Some(src) = src {
                (*c).route.addr.src_storage = sockaddr::write(src).0;
            }
            if let Some(dst) = dst {
                (*c).route.addr.dst_storage = sockaddr::write(dst).0;
            }
            if let Some(index) = self.id.device_index()
                && (*c).verbs.is_null()
            {
                let verbs = self.process.context(index);
                (*c).verbs = verbs;
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = self.process.pd(verbs);
                }
            }
            if let Some(path) = self.id.path() {
                let [sgid, dgid] = [path.sgid, path.dgid].map(|gid| ibv_gid { raw: gid.0 });
                let pkey = path.pkey.0.to_be();
                (*c).route.addr.addr = rdma_ib_addr { sgid, dgid, pkey };
                *self.path.get() = ibv_sa_path_rec {
                    sgid,
                    dgid,
                    pkey,
                    hop_limit: path.hop_limit,
                    traffic_class: path.traffic_class,
                    flow_label: path.flow_label.to_be(),
                    reversible: 1,
                    numb_path: 1,
                    // Selector 2: exactly this value.
                    mtu_selector: 2,
                    mtu: path.mtu.code(),
                    rate_selector: 2,
                    packet_life_time_selector: 2,
                    packet_life_time: path.packet_life_time,
                    ..*self.path.get()
                };
                (*c).route.path_rec = self.path.get();
                (*c).route.num_paths = 1;
            }
        }
    }

    /// Waits for the event that reports the completion of a call of a synchronous id. The id keeps the event
    /// until the next call.
    ///
    /// # Errors
    /// The error that the event reports.
    fn next_call_event(&self, call: &mut Call) -> Step<Result<(), c_int>> {
        let c = self.as_c();
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: a synchronous id has a channel of its own, which lives as long as the id; `event` is a
        // writable local.
        match unsafe { next_cm_event((*c).channel, &mut event, call) } {
            Step::Wait => return Step::Wait,
            Step::Done(0) => {}
            Step::Done(_) => return Step::Done(Err(last_errno())),
        }
        // SAFETY: the event was just returned and not acknowledged, so it is live. The C struct lies in
        // `self`, and only the library writes its field `event`.
        let (kind, status) = unsafe {
            (*c).event = event;
            ((*event).event, (*event).status)
        };
        Step::Done(match status {
            0 if kind == CmEventKind::DeviceRemoval as c_uint => Err(libc::ENODEV),
            0 => Ok(()),
            _ if kind == CmEventKind::Rejected as c_uint => Err(libc::ECONNREFUSED),
            negative => Err(negative.saturating_abs()),
        })
    }

    /// Acknowledges the event that the id has kept since the last synchronous call.
    pub fn ack_kept_event(&self) {
        let c = self.as_c();
        // SAFETY: only the library writes the field `event`. A non-null event there was returned to it and is
        // acknowledged once, as the field is cleared first.
        unsafe {
            let event = std::mem::replace(&mut (*c).event, null_mut());
            if !event.is_null() {
                ack_cm_event(event);
            }
        }
    }
}

/// Returns the error number of the last failed call.
pub fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Makes a call on an id. If `begin` returns true, an event reports its completion, for which a synchronous
/// id waits.
///
/// # Safety
/// `c` is a live id, or null. The caller's frame has nothing to drop ([`blocking`]).
pub unsafe fn call_sync(c: *mut rdma_cm_id, mut begin: impl FnMut(&Id) -> Result<bool, c_int>) -> c_int {
    blocking(|call| {
        // SAFETY: the caller passes a live id or null, which the program does not destroy during the call.
        let id = match unsafe { id_ref(c) } {
            Ok(id) => id,
            Err(e) => return Step::Done(minus_one(e)),
        };
        if !call.started {
            match begin(id) {
                Ok(true) if id.is_synchronous() => id.ack_kept_event(),
                result => return Step::Done(result_code(result.map(|_| ()))),
            }
            call.started = true;
        }
        match id.next_call_event(call) {
            Step::Wait => Step::Wait,
            Step::Done(result) => Step::Done(result_code(result)),
        }
    })
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    let _uncancelled = crate::cancel::disable();
    if out.is_null() {
        return minus_one(libc::EINVAL);
    }
    // SAFETY: `rdma_create_id` requires a channel or null; `out` was checked for null and points to a
    // writable pointer.
    result_code(unsafe { create(channel, context, space, None).map(|id| *out = id) })
}

pub unsafe extern "C" fn destroy_id(c: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `rdma_destroy_id` requires a live id; null is checked.
    let id = match unsafe { id_ref(c) } {
        Ok(id) => id,
        Err(libc::ENODEV) => return 0,
        Err(e) => return minus_one(e),
    };
    let process = id.process;
    process.ids.remove(id.id.number());
    id.id.destroy();
    id.ack_kept_event();
    wait_for_acks(process, c);
    // SAFETY: the id is no longer registered and all its events are acknowledged, so no other thread can
    // reach it; the program gives up its pointer, and `id` is not used after `from_raw`. A channel of the
    // id's own has no other user.
    unsafe {
        let channel = (*c).channel;
        let synchronous = id.is_synchronous();
        drop(Id::from_raw(c));
        if synchronous {
            channel::destroy(channel);
        }
    }
    0
}

/// Moves an id to another channel, or to one of its own if `to` is null (`rdma_migrate_id`).
///
/// # Safety
/// `c` is a live id, or null; `to` is a channel of this library, or null.
unsafe fn migrate(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: the caller passes a live id or null.
    let id = unsafe { id_ref(c) }?;
    let raw_channel = if to.is_null() { new_private_channel()? } else { to };
    if let Err(e) = Channel::lookup(raw_channel).and_then(|to| id.id.migrate(&to.channel).map_err(errno)) {
        if to.is_null() {
            // SAFETY: `new_private_channel` has just created it, and the program has no pointer to it.
            unsafe { channel::destroy(raw_channel) };
        }
        return Err(e);
    }
    id.ack_kept_event();
    let was_synchronous = std::mem::replace(&mut id.state.lock().synchronous, to.is_null());
    // SAFETY: only the library writes the field `channel`. If the id was synchronous, its previous channel
    // was its own and has no other user.
    unsafe {
        let previous = std::mem::replace(&mut (*c).channel, raw_channel);
        if was_synchronous {
            channel::destroy(previous);
        }
    }
    Ok(())
}

unsafe extern "C" fn migrate_id(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `rdma_migrate_id` requires a live id, and a channel or null; a null id is checked.
    result_code(unsafe { migrate(c, to) })
}

/// Returns the port of an address, in network byte order.
fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

unsafe extern "C" fn get_src_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: `rdma_get_src_port` requires a live id, whose address field is zeroed or was written by
    // `refresh`.
    unsafe { port(sockaddr::read((&raw const (*c).route.addr.src_storage).cast())) }
}

unsafe extern "C" fn get_dst_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: `rdma_get_dst_port` requires a live id, whose address field is zeroed or was written by
    // `refresh`.
    unsafe { port(sockaddr::read((&raw const (*c).route.addr.dst_storage).cast())) }
}

//! Ids (`rdma_cm_id`): their state, and the fields of the C struct that programs read.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use urxe::verbs::cm::{CmEvent, CmEventKind, CmId, EventChannel, IdError};
use urxe::verbs::{ClaimError, Qpn};

use crate::abi::{
    ibv_gid, ibv_qp, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel, rdma_ib_addr,
};
use crate::context::Context;
use crate::errno::non_null;
use crate::event_objects::object_at;
use crate::log::warn;
use crate::object::{FfiCell, FfiObject, ffi_object};
use crate::qp::{QueuePair, qp_type_number};
use crate::rdmacm::addrinfo;
use crate::rdmacm::channel::{self, Channel};
use crate::rdmacm::process::{ExitStage, ProcessGlobals, set_exit_action};
use crate::rdmacm::sockaddr;

/// An id with its C struct.
#[repr(C)]
pub(super) struct Id {
    c: FfiCell<rdma_cm_id>,
    /// The path record that `route.path_rec` points to.
    path: FfiCell<ibv_sa_path_rec>,
    pub id: CmId,
    pub process: &'static ProcessGlobals,
    state: Mutex<IdState>,
}

ffi_object! { Id { c: rdma_cm_id } }

/// Mutable state of an id.
#[derive(Default)]
pub(super) struct IdState {
    /// Whether the id has a private channel, so that calls on it wait for the event that reports their
    /// completion.
    pub synchronous: bool,
    /// Attributes for the queue pairs of connections to this listener (`rdma_create_ep`).
    pub requests: Option<RequestQueues>,
    /// Data sent before the program's private data in a connection request.
    pub connect_data: Vec<u8>,
    /// The program's context for each joined multicast group.
    pub joins: HashMap<IpAddr, *mut c_void>,
    /// Addresses that the last successful `rdma_resolve_addrinfo` found.
    pub resolved: Arc<Mutex<Option<addrinfo::Found>>>,
}

// SAFETY: the pointers are the program's; this library stores them and returns them or passes them to
// calls that the program makes, on any thread, and does not rely on the thread that stored them.
unsafe impl Send for IdState {}

/// Protection domain and attributes for the queue pairs of accepted connections.
#[derive(Clone, Copy)]
pub(super) struct RequestQueues {
    pub pd: *mut crate::abi::ibv_pd,
    pub init: ibv_qp_init_attr,
}

/// Returns the error number for a failed operation on an id.
pub(super) fn errno(e: IdError) -> c_int {
    // Printed, as the number alone would not explain this error.
    if let IdError::Claim { source: ClaimError::NoAccess { .. }, .. } = e {
        warn(&e.to_string());
    }
    e.errno()
}

/// Returns the id for a pointer from the program, `EINVAL` for a null or misaligned pointer, or `ENODEV` if
/// the id was created by the parent process.
///
/// # Safety
/// `c` is a live id, or null.
pub(super) unsafe fn id_ref<'a>(c: *mut rdma_cm_id) -> Result<&'a Id, c_int> {
    // Stale pointers of programs that have failed already are often misaligned, so this check catches some.
    if c.is_null() || !c.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller passes a live id or null, and null was excluded.
    let id = unsafe { Id::from_raw_ref(c) };
    if id.process.is_inherited() { Err(libc::ENODEV) } else { Ok(id) }
}

/// Ends the connections of all ids when the process exits.
fn destroy_all(process: &'static ProcessGlobals, on_progress: &dyn Fn()) {
    process.ids.for_each_address(|address| {
        // SAFETY: `for_each_address` calls this with the address of a registered id, and `rdma_destroy_id`
        // removes the registration before it frees the id.
        unsafe { Id::from_raw_ref(object_at(address)) }.id.destroy();
        on_progress();
    });
}

/// Calls `f` with the channel `given` or, if that is null, with a new private channel for a synchronous id.
/// Returns the channel and the result of `f`. If `f` fails, a new channel is destroyed.
pub(super) fn with_channel<T>(
    given: *mut rdma_event_channel,
    f: impl FnOnce(&EventChannel) -> Result<T, IdError>,
) -> Result<(*mut rdma_event_channel, T), c_int> {
    let channel = match given.is_null() {
        // SAFETY: the call has no requirements.
        true => non_null(unsafe { channel::rdma_create_event_channel() }).map_err(|_| libc::EMFILE)?,
        false => given,
    };
    let result = Channel::lookup(channel).and_then(|on| f(&on.channel).map_err(errno));
    if result.is_err() && given.is_null() {
        // SAFETY: the channel was created above, and the program has no pointer to it.
        unsafe { channel::destroy(channel) };
    }
    Ok((channel, result?))
}

impl Id {
    /// Allocates a new id and registers it, so that events can refer to it.
    pub(super) fn new_raw(
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
        c.qp_type = id.qp_type().map_or(0, qp_type_number);
        let number = id.number();
        let (c, path, state) = (FfiCell::new(c), FfiCell::new(path), Mutex::new(state));
        let c = Id { c, path, id, process, state }.into_raw();
        process.ids.add(number, c);
        set_exit_action(ExitStage::Ids, destroy_all);
        c
    }

    /// Allocates the new id for a connection request, on the listener's channel, or on a private channel if
    /// the listener is synchronous.
    ///
    /// # Safety
    /// `listener` is live.
    pub(super) unsafe fn of_request(
        listener: *mut rdma_cm_id,
        event: &CmEvent,
    ) -> Result<*mut rdma_cm_id, c_int> {
        // SAFETY: the caller passes a live id, whose C struct is initialised.
        let (of, channel, context) =
            unsafe { (Id::from_raw_ref(listener), (*listener).channel, (*listener).context) };
        let synchronous = of.is_synchronous();
        let channel = match synchronous {
            true => with_channel(null_mut(), |to| event.id.migrate(to))?.0,
            false => channel,
        };
        let state = IdState { synchronous, ..IdState::default() };
        Ok(Id::new_raw(of.process, event.id.clone(), channel, context, state))
    }

    /// Returns the pointer to the C struct.
    pub(super) fn as_c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Reports whether the id has a private channel, so that calls on it wait for their events.
    pub(super) fn is_synchronous(&self) -> bool {
        self.state.lock().synchronous
    }

    /// Locks the state.
    pub(super) fn state(&self) -> MutexGuard<'_, IdState> {
        self.state.lock()
    }

    /// Updates the fields that programs read from the id, depending on the event.
    pub(super) fn apply_event(&self, event: &CmEvent) {
        use CmEventKind::{AddrResolved, ConnectRequest, Established, RouteResolved};
        if matches!(event.kind, AddrResolved | RouteResolved | ConnectRequest | Established) {
            self.refresh();
        }
        self.sync_qp_state();
    }

    /// Copies the queue pair's state, which the connection manager may have changed, to its C struct. The
    /// program may destroy the queue pair at any time.
    pub(super) fn sync_qp_state(&self) {
        // SAFETY: `as_c` points to the C struct in `self`; only `refresh` writes this field, once.
        let verbs = unsafe { (*self.as_c()).verbs };
        if let Some(qpn) = self.id.attached_qp().filter(|_| !verbs.is_null()) {
            // SAFETY: `verbs` is a context of `ProcessGlobals`, which stays open as long as the process
            // lives.
            let qps = unsafe { &Context::from_raw_ref(verbs).event_objects.qps };
            qps.look_up(qpn, |address| {
                let qp: *mut ibv_qp = object_at(address);
                // SAFETY: `look_up` keeps the queue pair alive during this call; `state` is an aligned
                // integer that only this library writes.
                unsafe { (*qp).state = QueuePair::from_raw_ref(qp).qp.state() as u32 };
            });
        }
    }

    /// Makes the attached queue pair the one in the C struct. Programs that accept a connection with the
    /// queue pair of another id, as uDAPL does, move the pointer from one struct to the other.
    pub(super) fn adopt_qp(&self) -> Result<(), c_int> {
        // SAFETY: `as_c` points to the C struct in `self`, whose fields the program does not write during a
        // call on the id.
        let qp = unsafe { (*self.as_c()).qp };
        if qp.is_null() {
            self.id.detach_qp();
            return Ok(());
        }
        // SAFETY: all queue pairs that programs have are objects of this library. That of an id is live until
        // `rdma_destroy_qp`, which clears the field, and is not destroyed during a call on the id.
        let (qpn, qp) = unsafe { (Qpn::new((*qp).qp_num), &QueuePair::from_raw_ref(qp).qp) };
        match self.id.attached_qp() == Some(qpn) {
            true => Ok(()),
            false => self.id.attach_qp(qp).map_err(errno),
        }
    }

    /// Updates the device, the addresses and the path in the C struct.
    pub(super) fn refresh(&self) {
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
            if let Some(device) = self.id.device_index().and_then(|index| self.process.devices.get(index))
                && (*c).verbs.is_null()
            {
                (*c).verbs = device.context;
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = self.process.pd(device.context);
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
}

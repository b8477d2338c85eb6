//! Ids: what they are, how they come and go, and what programs read of them.

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
use crate::cm::addrinfo;
use crate::cm::channel::{self, Channel};
use crate::cm::event::{ack_cm_event, next_cm_event, wait_for_acks};
use crate::cm::process::Process;
use crate::cm::sockaddr;
use crate::context::{Context, queue_at};
use crate::device::complain;
use crate::errno::minus_one;
use crate::object::{Object, Shown};
use crate::pair::Pair;

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

#[repr(C)]
pub struct Id {
    c: Shown<rdma_cm_id>,
    /// What `route.path_rec` is to.
    path: Shown<ibv_sa_path_rec>,
    pub id: CmId,
    pub process: &'static Process,
    kept: Mutex<Kept>,
}

// SAFETY: it is laid out so.
unsafe impl Object for Id {
    type C = rdma_cm_id;
}

/// What an id keeps for later.
#[derive(Default)]
struct Kept {
    /// Calls wait for their events, on a channel of the id's own.
    synchronous: bool,
    /// What the queue pairs of connections to this listener are made with (`rdma_create_ep`).
    requests: Option<RequestQueues>,
    /// What goes before a program's private data when it connects.
    connect_data: Vec<u8>,
    /// READs and atomics that the peer of this request takes, and that it makes.
    offered: Option<Offered>,
    /// What programs gave with each group that they joined.
    joins: HashMap<IpAddr, *mut c_void>,
}

// SAFETY: the pointers are the program's, and only handed back to it.
unsafe impl Send for Kept {}

#[derive(Clone, Copy)]
pub struct RequestQueues {
    pub pd: *mut crate::abi::ibv_pd,
    pub init: ibv_qp_init_attr,
}

/// What the peer of a request has to offer.
#[derive(Clone, Copy)]
pub struct Offered {
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

/// A result of the calls here: -1 with `errno`, or 0.
pub fn done(result: Result<(), c_int>) -> c_int {
    result.map_or_else(minus_one, |()| 0)
}

/// What goes wrong with an id, as C numbers it.
pub fn errno(e: IdError) -> c_int {
    // The number alone would not explain it.
    if let IdError::Claim { source: ClaimError::NoAccess { .. }, .. } = e {
        complain(&e.to_string());
    }
    e.errno()
}

/// The id of a program's pointer, where it is this process's.
///
/// # Safety
/// An id that was given out, or null.
pub unsafe fn own<'a>(c: *mut rdma_cm_id) -> Result<&'a Id, c_int> {
    // A stale pointer of a program that has failed already is not even aligned, often enough.
    if c.is_null() || !c.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's.
    let id = unsafe { Id::of(c) };
    if id.process.is_inherited() { Err(libc::ENODEV) } else { Ok(id) }
}

fn service(number: c_uint) -> Option<QpType> {
    Some(match number {
        addrinfo::RC => QpType::Rc,
        3 => QpType::Uc,
        addrinfo::UD => QpType::Ud,
        XRC_SEND => QpType::XrcSend,
        XRC_RECV => QpType::XrcRecv,
        _ => return None,
    })
}

fn number(service: QpType) -> c_uint {
    match service {
        QpType::Rc => addrinfo::RC,
        QpType::Uc => 3,
        QpType::Ud => addrinfo::UD,
        QpType::XrcSend => XRC_SEND,
        QpType::XrcRecv => XRC_RECV,
    }
}

/// Makes an id, on a channel of its own if it is given none.
///
/// # Safety
/// A channel that was given out, or null.
pub unsafe fn create(
    on: *mut rdma_event_channel,
    context: *mut c_void,
    space: c_uint,
    qp_type: Option<c_uint>,
) -> Result<*mut rdma_cm_id, c_int> {
    let process = Process::this()?;
    let space = u16::try_from(space).ok().and_then(PortSpace::from_code).ok_or(libc::EPROTONOSUPPORT)?;
    let service = match qp_type {
        Some(number) => Some(service(number).ok_or(libc::EOPNOTSUPP)?),
        None => None,
    };
    let synchronous = on.is_null();
    let place = if synchronous { own_channel()? } else { on };
    let made = Channel::own(place).and_then(|on| {
        let id = match service {
            Some(service) => process.manager.create_id_of(&on.channel, space, service),
            None => process.manager.create_id(&on.channel, space),
        };
        id.map_err(errno)
    });
    match made {
        Ok(id) => {
            let kept = Kept { synchronous, ..Kept::default() };
            Ok(Id::give_new(process, id, place, context, kept))
        }
        Err(e) => {
            if synchronous {
                // SAFETY: it was just made, and nobody else has it.
                unsafe { channel::destroy(place) };
            }
            Err(e)
        }
    }
}

fn own_channel() -> Result<*mut rdma_event_channel, c_int> {
    let channel = channel::create();
    if channel.is_null() { Err(libc::EMFILE) } else { Ok(channel) }
}

impl Id {
    fn give_new(
        process: &'static Process,
        id: CmId,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        kept: Kept,
    ) -> *mut rdma_cm_id {
        // SAFETY: all of both may be zeros.
        let (mut c, path): (rdma_cm_id, ibv_sa_path_rec) = unsafe { std::mem::zeroed() };
        (c.channel, c.context) = (channel, context);
        // Both are known as long as the id is there.
        c.ps = id.port_space().map_or(0, |space| space.code().into());
        c.qp_type = id.qp_type().map_or(0, number);
        let number = id.number();
        let (c, path, kept) = (Shown::new(c), Shown::new(path), Mutex::new(kept));
        let c = Id { c, path, id, process, kept }.give();
        process.ids.add(number, c);
        c
    }

    /// The new id of a connection request, on the channel of its listener, or one of its own where calls on that wait.
    ///
    /// # Safety
    /// A listener that is there.
    pub unsafe fn of_request(listener: *mut rdma_cm_id, event: &CmEvent) -> Result<*mut rdma_cm_id, c_int> {
        // SAFETY: the caller's.
        let (of, mut channel, context) =
            unsafe { (Id::of(listener), (*listener).channel, (*listener).context) };
        let synchronous = of.is_synchronous();
        if synchronous {
            channel = own_channel()?;
            let moved = Channel::own(channel).and_then(|to| event.id.migrate(&to.channel).map_err(errno));
            if let Err(e) = moved {
                // SAFETY: it was just made, and nobody else has it.
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
        let kept = Kept { synchronous, offered, ..Kept::default() };
        Ok(Id::give_new(of.process, event.id.clone(), channel, context, kept))
    }

    pub fn as_c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    pub fn is_synchronous(&self) -> bool {
        self.kept.lock().synchronous
    }

    pub fn offered(&self) -> Option<Offered> {
        self.kept.lock().offered
    }

    pub fn connect_data(&self) -> Vec<u8> {
        self.kept.lock().connect_data.clone()
    }

    pub fn set_connect_data(&self, data: &[u8]) {
        self.kept.lock().connect_data = data.to_vec();
    }

    pub fn request_queues(&self) -> Option<RequestQueues> {
        self.kept.lock().requests
    }

    pub fn set_request_queues(&self, queues: RequestQueues) {
        self.kept.lock().requests = Some(queues);
    }

    /// Joins a group, for which it keeps a context if that goes well. Whoever takes the event waits for that to be kept.
    pub fn join(
        &self,
        group: IpAddr,
        context: *mut c_void,
        join: impl FnOnce() -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let mut kept = self.kept.lock();
        join()?;
        kept.joins.insert(group, context);
        Ok(())
    }

    pub fn forget_join(&self, group: IpAddr) {
        self.kept.lock().joins.remove(&group);
    }

    pub fn join_context(&self, group: IpAddr) -> Option<*mut c_void> {
        self.kept.lock().joins.get(&group).copied()
    }

    /// What an event changes in what programs read of its id.
    pub fn heed(&self, event: &CmEvent) {
        match event.kind {
            CmEventKind::AddrResolved | CmEventKind::RouteResolved | CmEventKind::ConnectRequest => {
                self.refresh()
            }
            CmEventKind::Established => {
                self.refresh();
                self.note_state();
            }
            _ => self.note_state(),
        }
    }

    /// Writes down the state of the queue pair, which the manager has moved. The program may destroy that at any time.
    pub fn note_state(&self) {
        self.at_qp(|qp| {
            // SAFETY: it is there as long as this runs; the state is the library's part of its struct.
            unsafe { (*qp).state = Pair::of(qp).qp.state() as u32 };
        });
    }

    /// Does something with the queue pair, if that is there, which cannot go meanwhile.
    fn at_qp(&self, found: impl FnOnce(*mut ibv_qp)) {
        // SAFETY: the library's part of the struct.
        let verbs = unsafe { (*self.as_c()).verbs };
        if let Some(qpn) = self.id.attached_qp().filter(|_| !verbs.is_null()) {
            // SAFETY: the device of an id stays open.
            unsafe { Context::of(verbs) }.named.qps.look_up(qpn, |address| found(queue_at(address)));
        }
    }

    /// Writes down where the id is now: device, addresses, path.
    pub fn refresh(&self) {
        let c = self.as_c();
        let [src, dst] = [self.id.local_addr(), self.id.peer_addr()];
        // SAFETY: what is written is the library's part of the struct.
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
                    // Selectors: exactly this.
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

    /// The event that answers a call, where calls wait for that. The event stays with the id until the next call.
    ///
    /// # Errors
    /// What the event says went wrong.
    fn next_answer(&self, call: &mut Call) -> Step<Result<(), c_int>> {
        let c = self.as_c();
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: the id's own channel.
        match unsafe { next_cm_event((*c).channel, &mut event, call) } {
            Step::Wait => return Step::Wait,
            Step::Done(0) => {}
            Step::Done(_) => return Step::Done(Err(last())),
        }
        // SAFETY: the event was just given out; the place is the library's.
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

    /// Acknowledges the event of the last call that has waited.
    pub fn drop_event(&self) {
        let c = self.as_c();
        // SAFETY: the library's part of the struct.
        unsafe {
            let event = std::mem::replace(&mut (*c).event, null_mut());
            if !event.is_null() {
                ack_cm_event(event);
            }
        }
    }
}

/// The error number of the call before.
pub fn last() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Makes a call of an id that an event answers if it returns true, and waits for that event where calls are to wait.
///
/// # Safety
/// An id that was given out, or null. The caller's frame has nothing to drop ([`blocking`]).
pub unsafe fn answered(c: *mut rdma_cm_id, mut begin: impl FnMut(&Id) -> Result<bool, c_int>) -> c_int {
    blocking(|call| {
        // SAFETY: the caller's.
        let id = match unsafe { own(c) } {
            Ok(id) => id,
            Err(e) => return Step::Done(minus_one(e)),
        };
        if !call.begun {
            match begin(id) {
                Ok(true) if id.is_synchronous() => id.drop_event(),
                result => return Step::Done(done(result.map(|_| ()))),
            }
            call.begun = true;
        }
        match id.next_answer(call) {
            Step::Wait => Step::Wait,
            Step::Done(result) => Step::Done(done(result)),
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
    // SAFETY: a channel that was given out, or null; and the caller's pointer.
    done(unsafe { create(channel, context, space, None).map(|id| *out = id) })
}

pub unsafe extern "C" fn destroy_id(c: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an id that was given out, or null.
    let id = match unsafe { own(c) } {
        Ok(id) => id,
        Err(libc::ENODEV) => return 0,
        Err(e) => return minus_one(e),
    };
    let process = id.process;
    process.ids.remove(id.id.number());
    id.id.destroy();
    id.drop_event();
    wait_for_acks(process, c);
    // SAFETY: nobody finds it any more, and the program uses it no more.
    unsafe {
        let channel = (*c).channel;
        let synchronous = id.is_synchronous();
        drop(Id::take(c));
        if synchronous {
            channel::destroy(channel);
        }
    }
    0
}

unsafe fn migrate(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let id = unsafe { own(c) }?;
    let place = if to.is_null() { own_channel()? } else { to };
    if let Err(e) = Channel::own(place).and_then(|to| id.id.migrate(&to.channel).map_err(errno)) {
        if to.is_null() {
            // SAFETY: it was just made, and nobody else has it.
            unsafe { channel::destroy(place) };
        }
        return Err(e);
    }
    id.drop_event();
    let was_synchronous = std::mem::replace(&mut id.kept.lock().synchronous, to.is_null());
    // SAFETY: the library's part of the struct; a channel of the id's own is used no more.
    unsafe {
        let before = std::mem::replace(&mut (*c).channel, place);
        if was_synchronous {
            channel::destroy(before);
        }
    }
    Ok(())
}

unsafe extern "C" fn migrate_id(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: an id and a channel that were given out, or null.
    done(unsafe { migrate(c, to) })
}

/// The port of an address, in network byte order.
fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

unsafe extern "C" fn get_src_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id that was given out.
    unsafe { port(sockaddr::read((&raw const (*c).route.addr.src_storage).cast())) }
}

unsafe extern "C" fn get_dst_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id that was given out.
    unsafe { port(sockaddr::read((&raw const (*c).route.addr.dst_storage).cast())) }
}

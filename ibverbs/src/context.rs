//! Contexts (`ibv_context`): open devices, with the function tables that the inline functions of the header
//! use.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::Hash;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use urxe::verbs::{CqId, Qpn, SrqId};

use crate::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::device::{Device, warn};
use crate::import::SharedContext;
use crate::object::{FfiCell, Users};
use crate::{cq, cq_ex, dm, entry_points, errno, import, mr, parent, pd, post, qp, query, srq};

export! {
    "IBVERBS_1.1":
        ibv_open_device = open_device,
        ibv_close_device = close_device;
    "IBVERBS_1.10":
        ibv_import_device = import_device;
}

/// An open device with its C struct. It is not an [`FfiObject`](crate::object::Object), as programs hold a
/// pointer to the last field of the struct and not to the first.
#[repr(C)]
pub struct Context {
    /// The extended C struct; programs hold a pointer to its last field, `context`.
    c: FfiCell<verbs_context>,
    /// Unused: the objects made from a context are not counted.
    pub users: Users,
    shared: Arc<SharedContext>,
    /// The descriptor behind `cmd_fd`, which identifies the context to `ibv_import_device`.
    _file: OwnedFd,
}

impl Deref for Context {
    type Target = SharedContext;
    fn deref(&self) -> &SharedContext {
        &self.shared
    }
}

/// Queue pairs, completion queues and shared receive queues by the number that events carry.
#[derive(Default)]
pub struct EventObjects {
    pub qps: ObjectTable<Qpn>,
    pub cqs: ObjectTable<CqId>,
    pub srqs: ObjectTable<SrqId>,
}

/// Addresses of objects by number; [`object_at`] turns them back into pointers. A thread that destroys an
/// object removes its number first and then waits for the acknowledgement of returned events. A thread that
/// has taken an event counts it during the lookup, and thus before the number can be removed.
pub struct ObjectTable<K>(Mutex<HashMap<K, usize>>);

impl<K> Default for ObjectTable<K> {
    fn default() -> ObjectTable<K> {
        ObjectTable(Mutex::default())
    }
}

impl<K: Eq + Hash> ObjectTable<K> {
    /// Registers an object and exposes its address for [`object_at`].
    pub fn add<C>(&self, number: K, c: *mut C) {
        self.0.lock().insert(number, c.expose_provenance());
    }

    /// Removes an object, once no lookup is in progress.
    pub fn remove(&self, number: K) {
        self.0.lock().remove(&number);
    }

    /// Calls `f` with the address of each object. No number is removed, and so no object freed, meanwhile.
    pub fn for_each_address(&self, f: impl FnMut(usize)) {
        self.0.lock().values().copied().for_each(f);
    }

    /// Looks an object up and calls `f` with its address. The number is not removed, and so the object not
    /// freed, before `f` returns.
    pub fn look_up(&self, number: K, f: impl FnOnce(usize)) -> Option<usize> {
        let names = self.0.lock();
        let address = names.get(&number).copied();
        address.inspect(|address| f(*address))
    }
}

/// Number of events per queue that were returned to the program and are not acknowledged. A queue is not
/// destroyed while it has some.
#[derive(Default)]
pub struct UnackedEvents {
    counts: Mutex<HashMap<usize, u32>>,
    changed: Condvar,
}

impl UnackedEvents {
    /// Counts an event that is returned to the program.
    pub fn count(&self, queue: usize) {
        *self.counts.lock().entry(queue).or_default() += 1;
    }

    /// Counts an acknowledged event.
    pub fn ack(&self, queue: usize) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&queue);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until all events of `queue` are acknowledged.
    pub fn wait(&self, queue: usize) {
        let mut counts = self.counts.lock();
        while counts.contains_key(&queue) {
            self.changed.wait(&mut counts);
        }
    }
}

impl Context {
    /// Returns the context behind the pointer that a program holds.
    ///
    /// # Safety
    /// `c` comes from `open_device` or `import_device`, and is not closed during `'a`.
    pub unsafe fn from_raw_ref<'a>(c: *mut ibv_context) -> &'a Context {
        // SAFETY: `c` points to the field `context` of the `verbs_context` with which a boxed `Context`
        // begins, so the subtraction stays inside that allocation and yields its start. Only shared
        // references are made until `close_device`.
        unsafe { &*c.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
    }

    /// Returns the pointer that programs hold.
    pub fn as_c(&self) -> *mut ibv_context {
        // SAFETY: `self.c` is a live, initialised struct, and only the address of its field is computed.
        unsafe { &raw mut (*self.c.get()).context }
    }
}

/// Reports whether a context belongs to the parent of this process. Objects of such a context are left as
/// they are, and destroying one in the child does nothing and succeeds: a thread that does not exist in the
/// child may hold their locks for ever.
///
/// # Safety
/// `context` was opened by this process or by a parent of it, and is not closed.
pub unsafe fn is_inherited(context: *mut ibv_context) -> bool {
    // SAFETY: the caller passes an open context; after a fork, the child has a copy of its memory.
    unsafe { Context::from_raw_ref(context) }.nic.is_inherited()
}

/// Returns a function table with only the functions that this library implements.
fn table() -> verbs_context {
    // SAFETY: the struct consists of integers, raw pointers, optional function pointers and a mutex, for all
    // of which zeros are valid.
    let empty: verbs_context = unsafe { std::mem::zeroed() };
    let ops = ibv_context_ops {
        alloc_mw: Some(mr::alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(entry_points::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..empty.context.ops
    };
    verbs_context {
        query_port: Some(entry_points::query_port_with_len),
        query_device_ex: Some(entry_points::query_device_ex),
        query_rt_values: Some(query::query_rt_values),
        advise_mr: Some(entry_points::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(entry_points::free_dm),
        modify_qp_rate_limit: Some(entry_points::modify_qp_rate_limit),
        alloc_parent_domain: Some(parent::alloc_parent_domain),
        dealloc_td: Some(entry_points::dealloc_td),
        alloc_td: Some(parent::alloc_td),
        open_xrcd: Some(pd::open_xrcd),
        close_xrcd: Some(entry_points::close_xrcd),
        create_srq_ex: Some(srq::create_srq_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        create_qp_ex: Some(qp::create_qp_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context { ops, ..empty.context },
        ..empty
    }
}

pub unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_open_device` requires a device of the list; devices are never freed.
    let device = unsafe { <Device as crate::object::FfiObject>::from_raw_ref(device) };
    let nic = match device.open() {
        Ok(nic) => nic,
        Err(e) => {
            warn(&e.to_string());
            return errno::null(e.errno());
        }
    };
    match import::create(device, nic) {
        Ok((file, shared)) => new_context(file, shared),
        Err(e) => errno::null(e),
    }
}

/// Makes the `ibv_context` of an opened device and returns the pointer that the program owns until it closes
/// the device.
fn new_context(file: OwnedFd, shared: Arc<SharedContext>) -> *mut ibv_context {
    let mut c = table();
    c.context.device = shared.device.as_c();
    // Nothing reads from this descriptor: programs only print it, or pass it to `ibv_import_device`.
    c.context.cmd_fd = file.as_raw_fd();
    c.context.async_fd = shared.nic.event_fd().as_raw_fd();
    crate::channel::set_blocking(c.context.async_fd);
    c.context.num_comp_vectors = shared.nic.query_device().limits.num_comp_vectors as c_int;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context { c: FfiCell::new(c), users: Users::default(), shared, _file: file };
    let context: &Context = Box::leak(Box::new(context));
    context.as_c()
}

pub unsafe extern "C" fn close_device(c: *mut ibv_context) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `ibv_close_device` requires an open context.
    if unsafe { is_inherited(c) } {
        return 0;
    }
    // SAFETY: as above.
    let context: &Context = unsafe { Context::from_raw_ref(c) };
    context.device.record_retransmissions(&context.nic);
    let context: *const Context = context;
    // SAFETY: `new_context` leaked the box, and the program gives up its pointer with this call; the
    // reference above is not used any more. Objects that still exist hold the NIC themselves.
    drop(unsafe { Box::from_raw(context.cast_mut()) });
    0
}

/// Opens a context that shares objects with the one that the descriptor belongs to, and takes ownership of
/// the descriptor.
unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    let _uncancelled = crate::cancel::disable();
    let Some(shared) = import::find(cmd_fd) else { return errno::null(libc::EINVAL) };
    // SAFETY: `shared::of` found the descriptor open, and `ibv_import_device` transfers its ownership from
    // the program.
    new_context(unsafe { OwnedFd::from_raw_fd(cmd_fd) }, shared)
}

/// Returns the key that stands for an object in [`ObjectTable`] and [`UnackedEvents`].
pub fn address_of<C>(c: *mut C) -> usize {
    c.addr()
}

/// Returns the pointer to the object at an address from [`ObjectTable`].
pub fn object_at<C>(address: usize) -> *mut C {
    std::ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn remove_waits_for_a_running_lookup() {
        let (names, mut queue) = (ObjectTable::default(), 5);
        names.add(SrqId(3), &raw mut queue);
        let (done, rx) = mpsc::channel();
        std::thread::scope(|s| {
            let found = names.look_up(SrqId(3), |_| {
                s.spawn(|| {
                    names.remove(SrqId(3));
                    done.send(()).unwrap();
                });
                assert!(rx.recv_timeout(Duration::from_millis(100)).is_err());
            });
            assert_eq!(found, Some((&raw mut queue).addr()));
            rx.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        assert_eq!(names.look_up(SrqId(3), |_| unreachable!()), None);
    }

    #[test]
    fn wait_returns_once_all_events_of_the_queue_are_acknowledged() {
        let unacked = UnackedEvents::default();
        (0..2).for_each(|_| unacked.count(1));
        unacked.count(2);
        let (done, rx) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                unacked.wait(1);
                done.send(()).unwrap();
            });
            unacked.ack(1);
            unacked.ack(2);
            assert!(rx.recv_timeout(Duration::from_millis(100)).is_err());
            unacked.ack(1);
            rx.recv_timeout(Duration::from_secs(10)).unwrap();
        });
    }
}

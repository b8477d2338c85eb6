//! Contexts: an open device, with the tables of functions that the header's inline functions look into.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::Hash;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use urxe::verbs::{CqId, Qpn, SrqId};

use crate::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::device::{Device, complain};
use crate::object::{Shown, Users};
use crate::opening::Opening;
use crate::{dm, domain, entry, errno, opening, pair, parent, polling, port, post, queue, region, shared};

export! {
    "IBVERBS_1.1":
        ibv_open_device = open_device,
        ibv_close_device = close_device;
    "IBVERBS_1.10":
        ibv_import_device = import_device;
}

#[repr(C)]
pub struct Context {
    /// Its last field is what programs have a pointer to.
    c: Shown<verbs_context>,
    /// What was made of it.
    pub users: Users,
    opening: Arc<Opening>,
    /// What names its opening to `ibv_import_device`.
    _file: OwnedFd,
}

impl Deref for Context {
    type Target = Opening;
    fn deref(&self) -> &Opening {
        &self.opening
    }
}

/// Queues by what events call them.
#[derive(Default)]
pub struct Named {
    pub qps: Names<Qpn>,
    pub cqs: Names<CqId>,
    pub srqs: Names<SrqId>,
}

/// Addresses of queues, as only C follows them. Who destroys a queue takes its name away first and then waits for the events
/// that were given out: whoever finds the name after taking an event counts it before the name can go.
pub struct Names<K>(Mutex<HashMap<K, usize>>);

impl<K> Default for Names<K> {
    fn default() -> Names<K> {
        Names(Mutex::default())
    }
}

impl<K: Eq + Hash> Names<K> {
    pub fn add<C>(&self, name: K, c: *mut C) {
        self.0.lock().insert(name, c.expose_provenance());
    }

    pub fn remove(&self, name: K) {
        self.0.lock().remove(&name);
    }

    /// Tells the address of each, of which none can go meanwhile.
    pub fn each(&self, tell: impl FnMut(usize)) {
        self.0.lock().values().copied().for_each(tell);
    }

    /// The address of a queue, after `found` was told it, while the queue cannot go.
    pub fn look_up(&self, name: K, found: impl FnOnce(usize)) -> Option<usize> {
        let names = self.0.lock();
        let address = names.get(&name).copied();
        address.inspect(|address| found(*address))
    }
}

/// Events of each queue that were given out and not acknowledged: it is not destroyed before.
#[derive(Default)]
pub struct Unacked {
    counts: Mutex<HashMap<usize, u32>>,
    changed: Condvar,
}

impl Unacked {
    pub fn given(&self, queue: usize) {
        *self.counts.lock().entry(queue).or_default() += 1;
    }

    pub fn acknowledged(&self, queue: usize) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&queue);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until none of `queue` is left.
    pub fn wait(&self, queue: usize) {
        let mut counts = self.counts.lock();
        while counts.contains_key(&queue) {
            self.changed.wait(&mut counts);
        }
    }
}

impl Context {
    /// Its own part of a program's pointer.
    ///
    /// # Safety
    /// `c` comes from `open_device`, and was not closed.
    pub unsafe fn of<'a>(c: *mut ibv_context) -> &'a Context {
        // SAFETY: the program's pointer is to the last field of the first one.
        unsafe { &*c.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
    }

    pub fn as_c(&self) -> *mut ibv_context {
        // SAFETY: only the place of a field is computed.
        unsafe { &raw mut (*self.c.get()).context }
    }
}

/// Whether what is of this context is the process's parent's: then it stays as it is, and who destroys it in the child has
/// done so. The lock of a thread that the child does not have may be held for ever.
///
/// # Safety
/// A context that was opened, by this process or one that it is a child of.
pub unsafe fn is_inherited(context: *mut ibv_context) -> bool {
    // SAFETY: the caller's.
    unsafe { Context::of(context) }.nic.is_inherited()
}

/// A table that has nothing but what is said here.
fn table() -> verbs_context {
    // SAFETY: all of it may be zeros, which are no functions.
    let empty: verbs_context = unsafe { std::mem::zeroed() };
    let ops = ibv_context_ops {
        alloc_mw: Some(region::alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(entry::dealloc_mw),
        poll_cq: Some(queue::poll_cq),
        req_notify_cq: Some(queue::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..empty.context.ops
    };
    verbs_context {
        query_port: Some(entry::query_port_of_any_size),
        query_device_ex: Some(entry::query_device_ex),
        query_rt_values: Some(port::query_rt_values),
        advise_mr: Some(entry::advise_mr),
        alloc_null_mr: Some(region::alloc_null_mr),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(entry::free_dm),
        modify_qp_rate_limit: Some(entry::modify_qp_rate_limit),
        alloc_parent_domain: Some(parent::alloc_parent_domain),
        dealloc_td: Some(entry::dealloc_td),
        alloc_td: Some(parent::alloc_td),
        open_xrcd: Some(domain::open_xrcd),
        close_xrcd: Some(entry::close_xrcd),
        create_srq_ex: Some(shared::create_srq_ex),
        get_srq_num: Some(shared::get_srq_num),
        create_cq_ex: Some(polling::create_cq_ex),
        create_qp_ex: Some(pair::create_qp_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context { ops, ..empty.context },
        ..empty
    }
}

pub unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a device of the list.
    let device = unsafe { <Device as crate::object::Object>::of(device) };
    let nic = match device.open() {
        Ok(nic) => nic,
        Err(e) => {
            complain(&e.to_string());
            return errno::null(e.errno());
        }
    };
    match opening::create(device, nic) {
        Ok((file, opening)) => give(file, opening),
        Err(e) => errno::null(e),
    }
}

fn give(file: OwnedFd, opening: Arc<Opening>) -> *mut ibv_context {
    let mut c = table();
    c.context.device = opening.device.as_c();
    // Nothing listens there; programs only show it, or hand it to `ibv_import_device`.
    c.context.cmd_fd = file.as_raw_fd();
    c.context.async_fd = opening.nic.event_fd().as_raw_fd();
    crate::channel::block(c.context.async_fd);
    c.context.num_comp_vectors = opening.nic.query_device().limits.num_comp_vectors as c_int;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context { c: Shown::new(c), users: Users::default(), opening, _file: file };
    let context: &Context = Box::leak(Box::new(context));
    context.as_c()
}

pub unsafe extern "C" fn close_device(c: *mut ibv_context) -> c_int {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: as below.
    if unsafe { is_inherited(c) } {
        return 0;
    }
    // SAFETY: an open context.
    let context: &Context = unsafe { Context::of(c) };
    context.device.note_retransmissions(&context.nic);
    let context: *const Context = context;
    // SAFETY: made by `open_device`, and the program uses it no more. What is left of it keeps the NIC by itself.
    drop(unsafe { Box::from_raw(context.cast_mut()) });
    0
}

/// A context that shares objects with the one that the descriptor is of. The descriptor is its own from now on.
unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    let _uncancelled = crate::cancel::disable();
    let Some(opening) = opening::of(cmd_fd) else { return errno::null(libc::EINVAL) };
    // SAFETY: it is open, and the program gives it away.
    give(unsafe { OwnedFd::from_raw_fd(cmd_fd) }, opening)
}

/// Pointers that name a queue.
pub fn address_of<C>(c: *mut C) -> usize {
    c.addr()
}

/// The queue of an address.
pub fn queue_at<C>(address: usize) -> *mut C {
    std::ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_name_does_not_go_while_its_queue_is_being_told() {
        let (names, mut queue) = (Names::default(), 5);
        names.add(SrqId(3), &raw mut queue);
        let (gone, heard) = mpsc::channel();
        std::thread::scope(|s| {
            let found = names.look_up(SrqId(3), |_| {
                s.spawn(|| {
                    names.remove(SrqId(3));
                    gone.send(()).unwrap();
                });
                assert!(heard.recv_timeout(Duration::from_millis(100)).is_err());
            });
            assert_eq!(found, Some((&raw mut queue).addr()));
            heard.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        assert_eq!(names.look_up(SrqId(3), |_| unreachable!()), None);
    }

    #[test]
    fn a_queue_waits_until_all_its_events_are_acknowledged() {
        let unacked = Unacked::default();
        (0..2).for_each(|_| unacked.given(1));
        unacked.given(2);
        let (waited, heard) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                unacked.wait(1);
                waited.send(()).unwrap();
            });
            unacked.acknowledged(1);
            unacked.acknowledged(2);
            assert!(heard.recv_timeout(Duration::from_millis(100)).is_err());
            unacked.acknowledged(1);
            heard.recv_timeout(Duration::from_secs(10)).unwrap();
        });
    }
}

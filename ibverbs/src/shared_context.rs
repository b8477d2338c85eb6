//! State that a context shares with the contexts imported from it (`ibv_import_device` and related calls):
//! the NIC, the objects to which events refer, and the objects that can be imported, by handle. A copy of the
//! context's descriptor identifies the state. Like the NIC, it is never shared between processes.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;
use urxe::verbs::memory::Dm;
use urxe::verbs::{Context as Nic, Pd, Xrcd};

use crate::device::Device;
use crate::event_objects::{EventObjects, UnackedEvents};

/// State of an open device, shared by its contexts and dropped with the last of them.
pub(crate) struct SharedContext {
    pub device: &'static Device,
    pub nic: Nic,
    /// The queues to which asynchronous events and completion events refer.
    pub event_objects: EventObjects,
    /// Unacknowledged asynchronous events.
    pub unacked: UnackedEvents,
    /// Open XRC domains, by the file with which they were opened.
    pub files: Mutex<HashMap<FileId, Weak<Xrcd>>>,
    pub pds: HandleTable<Pd>,
    pub mrs: HandleTable<MrKeys>,
    pub dms: HandleTable<Dm>,
}

/// Identity of a file: device and inode number.
pub(crate) type FileId = (u64, u64);

/// Returns the identity of the file behind a descriptor, or `None` if the descriptor is not open.
pub(crate) fn file_id(fd: c_int) -> Option<FileId> {
    // SAFETY: `stat` consists of integers, for which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a writable local of the type that `fstat` fills; a bad descriptor only makes the call
    // fail.
    let status = unsafe { libc::fstat(fd, &mut stat) };
    (status == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Keys and length of a region, needed to import it.
#[derive(Clone, Copy)]
pub(crate) struct MrKeys {
    pub lkey: u32,
    pub rkey: u32,
    pub length: usize,
}

/// Objects by handle. Handles are never 0.
pub(crate) struct HandleTable<T>(Mutex<(u32, HashMap<u32, T>)>);

impl<T> Default for HandleTable<T> {
    fn default() -> HandleTable<T> {
        HandleTable(Mutex::new((0, HashMap::new())))
    }
}

impl<T: Clone> HandleTable<T> {
    /// Adds an object and returns its handle.
    pub(crate) fn add(&self, object: T) -> u32 {
        let mut all = self.0.lock();
        let (last_handle, objects) = &mut *all;
        // The counter wraps around after 2^32 objects and then skips handles in use.
        while objects.contains_key(last_handle) || *last_handle == 0 {
            *last_handle = last_handle.wrapping_add(1);
        }
        objects.insert(*last_handle, object);
        *last_handle
    }

    /// Replaces the object with the given handle.
    pub(crate) fn set(&self, handle: u32, object: T) {
        self.0.lock().1.insert(handle, object);
    }

    /// Returns a clone of the object with the given handle.
    pub(crate) fn get(&self, handle: u32) -> Option<T> {
        self.0.lock().1.get(&handle).cloned()
    }

    /// Removes the object with the given handle.
    pub(crate) fn remove(&self, handle: u32) {
        self.0.lock().1.remove(&handle);
    }
}

/// Open devices, identified by the file to which their contexts' descriptor (`cmd_fd`) refers.
static SHARED_CONTEXTS: Mutex<Vec<(FileId, Weak<SharedContext>)>> = Mutex::new(Vec::new());

/// Creates the state of an open device, and a file descriptor whose only purpose is to identify it.
pub(crate) fn create(device: &'static Device, nic: Nic) -> Result<(OwnedFd, Arc<SharedContext>), c_int> {
    let fd = memfd_create(c"urxe", MFdFlags::MFD_CLOEXEC).map_err(|error| error as c_int)?;
    let file = file_id(fd.as_raw_fd()).ok_or_else(Errno::last_raw)?;
    let shared = Arc::new(SharedContext {
        device,
        nic,
        event_objects: EventObjects::default(),
        unacked: UnackedEvents::default(),
        files: Mutex::default(),
        pds: HandleTable::default(),
        mrs: HandleTable::default(),
        dms: HandleTable::default(),
    });
    let mut contexts = SHARED_CONTEXTS.lock();
    contexts.retain(|(_, shared)| shared.strong_count() > 0);
    contexts.push((file, Arc::downgrade(&shared)));
    Ok((fd, shared))
}

/// Returns the state of the open device that a descriptor identifies.
pub(crate) fn find(fd: c_int) -> Option<Arc<SharedContext>> {
    let file = file_id(fd)?;
    let contexts = SHARED_CONTEXTS.lock();
    contexts.iter().find(|(id, _)| *id == file).and_then(|(_, shared)| shared.upgrade())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_in_use_are_not_assigned_again() {
        let all = HandleTable::default();
        let handles = [all.add('a'), all.add('b')];
        assert_ne!(handles[0], handles[1]);
        all.remove(handles[0]);
        assert_eq!((all.get(handles[0]), all.get(handles[1])), (None, Some('b')));
        assert_eq!(all.get(0), None, "handle 0 is never assigned");
    }
}

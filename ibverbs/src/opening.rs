//! State that a context shares with those imported from it (`ibv_import_device` and the related calls): the
//! NIC, the subjects of events, and objects by handle, for the holder of a copy of the context's descriptor.
//! All within one process, like the NIC.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use urxe::verbs::{Context as Nic, Dm, Pd};

use crate::context::{Named, Unacked};
use crate::device::Device;
use crate::domain::{File, Opened, file_of};

/// One opening of a device, shared by its contexts and dropped with the last of them.
pub struct Opening {
    pub device: &'static Device,
    pub nic: Nic,
    /// The queues that events can concern.
    pub named: Named,
    /// Asynchronous events that were returned to the program and are not acknowledged.
    pub unacked: Unacked,
    /// XRC domains by the file that they were opened with.
    pub files: Mutex<HashMap<File, Opened>>,
    pub pds: Numbered<Pd>,
    pub mrs: Numbered<Keys>,
    pub dms: Numbered<Dm>,
}

/// Keys and length of a region, which an importer needs.
#[derive(Clone, Copy)]
pub struct Keys {
    pub lkey: u32,
    pub rkey: u32,
    pub length: usize,
}

/// Objects by handle, which is never 0.
pub struct Numbered<T>(Mutex<(u32, HashMap<u32, T>)>);

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered(Mutex::new((0, HashMap::new())))
    }
}

impl<T: Clone> Numbered<T> {
    /// Adds an object and returns its handle.
    pub fn add(&self, object: T) -> u32 {
        let mut all = self.0.lock();
        let (last, objects) = &mut *all;
        // The counter wraps around after 2^32 objects and then skips handles in use.
        while objects.contains_key(last) || *last == 0 {
            *last = last.wrapping_add(1);
        }
        objects.insert(*last, object);
        *last
    }

    /// Stores an object under a handle, in place of the one that had it.
    pub fn set(&self, number: u32, object: T) {
        self.0.lock().1.insert(number, object);
    }

    /// Returns a copy of the object with a handle.
    pub fn get(&self, number: u32) -> Option<T> {
        self.0.lock().1.get(&number).cloned()
    }

    /// Removes the object with a handle.
    pub fn remove(&self, number: u32) {
        self.0.lock().1.remove(&number);
    }
}

/// Openings by the file behind the descriptor (`cmd_fd`) of their contexts.
static OPENINGS: Mutex<Vec<(File, Weak<Opening>)>> = Mutex::new(Vec::new());

/// Creates an opening, and a descriptor that only serves to identify it.
pub fn create(device: &'static Device, nic: Nic) -> Result<(OwnedFd, Arc<Opening>), c_int> {
    let last = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: the name is a zero-terminated literal.
    let fd = unsafe { libc::memfd_create(c"urxe".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: `memfd_create` has just returned this descriptor, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = file_of(fd.as_raw_fd()).ok_or_else(last)?;
    let opening = Arc::new(Opening {
        device,
        nic,
        named: Named::default(),
        unacked: Unacked::default(),
        files: Mutex::default(),
        pds: Numbered::default(),
        mrs: Numbered::default(),
        dms: Numbered::default(),
    });
    let mut openings = OPENINGS.lock();
    openings.retain(|(_, opening)| opening.strong_count() > 0);
    openings.push((file, Arc::downgrade(&opening)));
    Ok((fd, opening))
}

/// Returns the opening that a descriptor identifies.
pub fn of(fd: c_int) -> Option<Arc<Opening>> {
    let file = file_of(fd)?;
    let openings = OPENINGS.lock();
    openings.iter().find(|(of, _)| *of == file).and_then(|(_, opening)| opening.upgrade())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_in_use_are_not_assigned_again() {
        let all = Numbered::default();
        let numbers = [all.add('a'), all.add('b')];
        assert_ne!(numbers[0], numbers[1]);
        all.remove(numbers[0]);
        assert_eq!((all.get(numbers[0]), all.get(numbers[1])), (None, Some('b')));
        assert_eq!(all.get(0), None, "0 names nothing");
    }
}

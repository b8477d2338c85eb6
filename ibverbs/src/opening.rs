//! What a context shares with those that are imported from it (`ibv_import_device` and what follows): the NIC, what events
//! are about, and objects by number, for whoever has a copy of its descriptor. All within one process, as the NIC is.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use urxe::verbs::{Context as Nic, Dm, Pd};

use crate::context::{Named, Unacked};
use crate::device::Device;
use crate::domain::{File, Opened, file_of};

/// One opening of a device, whose contexts it lasts as long as.
pub struct Opening {
    pub device: &'static Device,
    pub nic: Nic,
    /// The objects that events are about.
    pub named: Named,
    /// Asynchronous events that were given out and not acknowledged.
    pub unacked: Unacked,
    /// XRC domains by the file that they were opened with.
    pub files: Mutex<HashMap<File, Opened>>,
    pub pds: Numbered<Pd>,
    pub mrs: Numbered<Keys>,
    pub dms: Numbered<Dm>,
}

/// What an imported region is used by.
#[derive(Clone, Copy)]
pub struct Keys {
    pub lkey: u32,
    pub rkey: u32,
    pub length: usize,
}

/// Objects by number.
pub struct Numbered<T>(Mutex<(u32, HashMap<u32, T>)>);

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered(Mutex::new((0, HashMap::new())))
    }
}

impl<T: Clone> Numbered<T> {
    /// Adds one; its number.
    pub fn add(&self, object: T) -> u32 {
        let mut all = self.0.lock();
        let (last, objects) = &mut *all;
        // After four thousand million of them numbers come again.
        while objects.contains_key(last) || *last == 0 {
            *last = last.wrapping_add(1);
        }
        objects.insert(*last, object);
        *last
    }

    pub fn set(&self, number: u32, object: T) {
        self.0.lock().1.insert(number, object);
    }

    pub fn get(&self, number: u32) -> Option<T> {
        self.0.lock().1.get(&number).cloned()
    }

    pub fn remove(&self, number: u32) {
        self.0.lock().1.remove(&number);
    }
}

/// By the file that descriptors of contexts (`cmd_fd`) are of.
static OPENINGS: Mutex<Vec<(File, Weak<Opening>)>> = Mutex::new(Vec::new());

/// A new one, and a descriptor that says whose it is and does nothing else.
pub fn create(device: &'static Device, nic: Nic) -> Result<(OwnedFd, Arc<Opening>), c_int> {
    let last = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(c"urxe".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: it was just made, for nobody else.
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

/// The one that a descriptor is of.
pub fn of(fd: c_int) -> Option<Arc<Opening>> {
    let file = file_of(fd)?;
    let openings = OPENINGS.lock();
    openings.iter().find(|(of, _)| *of == file).and_then(|(_, opening)| opening.upgrade())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_twice_at_a_time() {
        let all = Numbered::default();
        let numbers = [all.add('a'), all.add('b')];
        assert_ne!(numbers[0], numbers[1]);
        all.remove(numbers[0]);
        assert_eq!((all.get(numbers[0]), all.get(numbers[1])), (None, Some('b')));
        assert_eq!(all.get(0), None, "0 names nothing");
    }
}

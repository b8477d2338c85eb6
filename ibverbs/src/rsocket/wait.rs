//! Waiting for sockets, and for other descriptors beside them.
//!
//! A thread that waits looks at the sockets itself when one of their descriptors says so, and takes what came by it. Others who
//! wait for the same socket would miss it: so each has a descriptor of his own, by which those who look wake him.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use parking_lot::Mutex;
use urxe::verbs::signals_restart_calls;

use super::options::polling;
use super::socket::Socket;
use crate::cancel::{Call, Step};

thread_local! {
    /// Made when the thread first waits, and in which process.
    static OWN: RefCell<Option<(u32, Arc<Waker>)>> = const { RefCell::new(None) };
}

/// This thread's, if it has one, or can have one made.
fn own(make: bool) -> Option<Arc<Waker>> {
    let this = std::process::id();
    let get = |own: &RefCell<Option<(u32, Arc<Waker>)>>| {
        let mut own = own.borrow_mut();
        // A parent's is woken for its child no more than its child's for it.
        let found = own.as_ref().filter(|(of, _)| *of == this).map(|(_, waker)| waker.clone());
        if found.is_some() || !make {
            return found;
        }
        let made = Arc::new(Waker::new()?);
        *own = Some((this, made.clone()));
        Some(made)
    };
    // It is gone only while the thread ends.
    OWN.try_with(get).ok().flatten()
}

/// By which one who waits is woken.
pub struct Waker(OwnedFd);

impl Waker {
    fn new() -> Option<Waker> {
        use std::os::fd::FromRawFd;
        // SAFETY: the call takes no memory; what it returns is nobody else's.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (fd >= 0).then(|| Waker(OwnedFd::from_raw_fd(fd)))
        }
    }

    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes. If the counter is full, he is awake.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn calm(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes. Nothing is there if nobody woke him.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// Those who wait for a socket.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<Arc<Waker>>>);

impl Watchers {
    /// Something has changed: all but this thread are to look.
    pub fn wake(&self) {
        let watchers = self.0.lock();
        if !watchers.is_empty() {
            let own = own(false);
            let is_own = |waker: &Arc<Waker>| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, waker));
            watchers.iter().filter(|waker| !is_own(waker)).for_each(|waker| waker.wake());
        }
    }
}

/// Is among the watchers of sockets as long as it lives.
struct Watching {
    sockets: Vec<Socket>,
    waker: Arc<Waker>,
}

impl Watching {
    fn new(sockets: &[Socket], waker: Arc<Waker>) -> Watching {
        sockets.iter().for_each(|socket| socket.watchers().0.lock().push(waker.clone()));
        Watching { sockets: sockets.to_vec(), waker }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let mut watchers = socket.watchers().0.lock();
            if let Some(at) = watchers.iter().position(|waker| Arc::ptr_eq(waker, &self.waker)) {
                watchers.swap_remove(at);
            }
        }
    }
}

/// How a wait ended that brought nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    TimedOut,
    Interrupted,
    /// No memory, no descriptor.
    Failed(c_int),
    /// Nothing has come yet: the call is to be attempted again after the wait that it was given.
    NotYet,
}

/// The error of an attempt at a call that is to wait: it reaches nobody but [`step`]. Error numbers are positive.
pub const NOT_YET: c_int = c_int::MIN;

/// The step of a call whose attempt had this result.
pub fn step<T>(result: Result<T, c_int>) -> Step<Result<T, c_int>> {
    match result {
        Err(NOT_YET) => Step::Wait,
        result => Step::Done(result),
    }
}

/// Makes a call where the thread is not to be cancelled.
///
/// # Errors
/// As of the call.
pub fn undisturbed<T>(mut attempt: impl FnMut(&mut Call) -> Result<T, c_int>) -> Result<T, c_int> {
    let mut call = Call::new();
    loop {
        match attempt(&mut call) {
            Err(NOT_YET) => call.wait_undisturbed(),
            result => return result,
        }
    }
}

/// Whether a call on a socket goes on that a signal has interrupted: as the system's do, if it has done nothing and no time was
/// set for it.
pub fn restarts<T>(result: &Result<T, c_int>, timeout: Option<Duration>, done: usize) -> bool {
    matches!(result, Err(libc::EINTR)) && timeout.is_none() && done == 0 && signals_restart_calls()
}

/// The result of `look`. Without one yet, the call waits for a change of the sockets, or for the events that `others`
/// ask for, until the deadline, and is then attempted again.
pub fn wait<R>(
    call: &mut Call,
    sockets: &[Socket],
    others: &mut [pollfd],
    deadline: Option<Instant>,
    mut look: impl FnMut(&mut [pollfd]) -> Option<R>,
) -> Result<R, Over> {
    if !call.has_waited() {
        let until = Instant::now() + polling();
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        while Instant::now() < until {
            if let Some(found) = look(others) {
                return Ok(found);
            }
        }
    }
    let waker = own(true).ok_or(Over::Failed(libc::EMFILE))?;
    waker.calm();
    let watching = Watching::new(sockets, waker);
    let polled = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = Vec::with_capacity(others.len() + 1 + 2 * sockets.len());
    fds.extend_from_slice(others);
    fds.push(polled(watching.waker.0.as_raw_fd()));
    sockets.iter().for_each(|socket| socket.arm(|fd| fds.push(polled(fd.as_raw_fd()))));
    if let Some(found) = look(others) {
        return Ok(found);
    }
    match call.take_failure() {
        Some(libc::EINTR) => return Err(Over::Interrupted),
        Some(e) => return Err(Over::Failed(e)),
        None => {}
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Over::TimedOut);
    }
    match call.wait_for_several(&fds, left, Some(Box::new(watching))) {
        true => Err(Over::NotYet),
        false => Err(Over::Failed(libc::EMFILE)),
    }
}

/// What a call that waits may be told.
pub type Looked<T> = Option<Result<T, c_int>>;

/// Looks at a socket until there is a result, unless the call is not to wait.
///
/// # Errors
/// `EAGAIN`, `EINTR`, [`NOT_YET`]; what the call meets.
pub fn until<T>(
    call: &mut Call,
    socket: impl FnOnce() -> Socket,
    waits: bool,
    timeout: Option<Duration>,
    mut look: impl FnMut() -> Looked<T>,
) -> Result<T, c_int> {
    if let Some(result) = look() {
        return result;
    }
    if !waits {
        return Err(libc::EAGAIN);
    }
    let deadline = call.deadline(timeout);
    wait(call, &[socket()], &mut [], deadline, |_| look()).unwrap_or_else(|over| {
        Err(match over {
            Over::TimedOut => libc::EAGAIN,
            Over::Interrupted => libc::EINTR,
            Over::Failed(e) => e,
            Over::NotYet => NOT_YET,
        })
    })
}

/// The system's own, of descriptors that are no sockets; how many have something.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<c_int, c_int> {
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice is there, and as long as that.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, std::ptr::null()) };
    if found >= 0 {
        return Ok(found);
    }
    Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// A descriptor's number.
pub fn raw(fd: impl AsFd) -> c_int {
    fd.as_fd().as_raw_fd()
}

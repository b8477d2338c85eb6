//! Starting the steward from within any program.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use super::Sharing;

/// Starts a steward that outlives the process and is no child of it: a program that waits for its children, or is told
/// of their ends, sees nothing. That it has begun does not say that it succeeds.
pub(super) fn start(sharing: &Sharing, any_user: bool, address: &str) -> io::Result<()> {
    if !sharing.program.is_file() {
        let why = format!("{} is no program", sharing.program.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let program = CString::new(sharing.program.as_os_str().as_bytes())?;
    let others = any_user.then_some("--any-user");
    let arguments = ["urxe", "steward", address].into_iter().chain(others);
    let arguments: Vec<CString> = arguments.map(CString::new).collect::<Result<_, _>>()?;
    let mut arguments: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect::<Vec<_>>();
    arguments.push(ptr::null());
    let stacks = [(); 2].map(|()| vec![0u128; STACK / size_of::<u128>()]);
    let [mut first, mut second] = stacks;
    let launch = Launch {
        program: program.as_ptr(),
        arguments: arguments.as_ptr(),
        stack: second.as_mut_ptr_range().end.cast(),
    };
    let before = block_signals()?;
    // SAFETY: the child calls nothing but the system, on what was prepared before and outlives it: this thread goes on when
    // the child has ended.
    let child = unsafe { clone_silently(orphan, first.as_mut_ptr_range().end.cast(), &raw const launch) };
    let failure = io::Error::last_os_error();
    // SAFETY: the call reads the mask, which `block_signals` has filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    if child == -1 { Err(failure) } else { wait_for(child) }
}

/// Bytes of a child's stack.
const STACK: usize = 64 << 10;

/// Arguments of the child processes.
struct Launch {
    program: *const c_char,
    arguments: *const *const c_char,
    /// The end of the grandchild's stack.
    stack: *mut c_void,
}

type Child = extern "C" fn(*mut c_void) -> c_int;

/// Starts a child as vfork does, on a stack of its own. The exit signal is 0: the parent gets no SIGCHLD, and only a wait with
/// `__WALL` or `__WCLONE` returns the child. No fork handler of the C library runs. Debuggers know these flags from
/// posix_spawn; a child that shares no memory and has no exit signal is a thread to them.
///
/// # Safety
/// The child, which shares all memory, may only make system calls; `stack` is the end of memory that nobody else uses.
unsafe fn clone_silently(child: Child, stack: *mut c_void, launch: *const Launch) -> c_int {
    // SAFETY: as the caller says; the parent waits for the child, so what `launch` points to stays.
    unsafe { libc::clone(child, stack, libc::CLONE_VM | libc::CLONE_VFORK, launch.cast_mut().cast()) }
}

/// Blocks all signals of this thread, so that none runs a handler of the program in a child with the same memory; those that
/// were blocked before.
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: a set of signals is plain data, and the calls fill what they are given.
    let (before, failed) = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        (before, libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before))
    };
    if failed == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(failed)) }
}

fn wait_for(child: c_int) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: the call writes to `status`.
        match unsafe { libc::waitpid(child, &mut status, libc::__WALL) } {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
            _ if status == 0 => return Ok(()),
            _ => return Err(io::Error::other("no process could be started")),
        }
    }
}

/// The child: starts a grandchild, which nobody waits for, and ends.
extern "C" fn orphan(launch: *mut c_void) -> c_int {
    let launch: *const Launch = launch.cast();
    // SAFETY: `start` has filled it, and waits.
    let grandchild = unsafe { clone_silently(become_steward, (*launch).stack, launch) };
    c_int::from(grandchild == -1)
}

/// The grandchild: becomes the steward.
extern "C" fn become_steward(launch: *mut c_void) -> c_int {
    // SAFETY: `start` has filled it, and waits. The rest are system calls with numbers, and pointers to what ends with zeros
    // and nulls.
    unsafe {
        let Launch { program, arguments, .. } = *launch.cast::<Launch>();
        libc::setsid();
        // The program's handlers are not to run here. By the system call: this process shares the program's memory, where the
        // preloaded library's `signal` notes the program's own actions.
        let default = [0usize; 4];
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal as libc::c_long,
                default.as_ptr(),
                ptr::null_mut::<usize>(),
                size_of::<u64>(),
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        // Nothing of the program's stays open: a reader of its pipe is not to wait for the steward.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_ulong,
            libc::c_ulong::from(u32::MAX),
            0 as libc::c_ulong,
        );
        libc::chdir(c"/".as_ptr());
        // The surroundings that put a library under the program are not for the steward.
        let nothing: [*const c_char; 1] = [ptr::null()];
        libc::execve(program, arguments, nothing.as_ptr());
    }
    127
}

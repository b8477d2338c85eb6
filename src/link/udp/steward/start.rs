//! Starting the steward from within any program.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use super::Sharing;

/// Starts a steward that outlives the process and is no child of it: a program that waits for its children, or is told
/// of their ends, sees nothing. That it has begun does not say that it succeeds.
pub(super) fn start(sharing: &Sharing, address: &str) -> io::Result<()> {
    if !sharing.program.is_file() {
        let why = format!("{} is no program", sharing.program.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let program = CString::new(sharing.program.as_os_str().as_bytes())?;
    let others = sharing.any_user.then_some("--any-user");
    let arguments = ["urxe", "steward", address].into_iter().chain(others);
    let arguments: Vec<CString> = arguments.map(CString::new).collect::<Result<_, _>>()?;
    let mut arguments: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect::<Vec<_>>();
    arguments.push(ptr::null());
    // SAFETY: the child calls nothing but the system, on what was prepared before.
    let child = unsafe { fork_silently() };
    match child {
        0 => {
            // SAFETY: as above; all pointers are to what this function has, which the child has a copy of.
            unsafe { become_orphan(&program, &arguments) }
        }
        -1 => Err(io::Error::last_os_error()),
        child => wait_for(child),
    }
}

/// As fork, but the parent is sent no signal when the child ends, no handler of libc's is run, and only who asks for
/// such children hears of it.
///
/// # Safety
/// The child, which has one thread, may only make system calls.
unsafe fn fork_silently() -> c_int {
    const NONE: libc::c_ulong = 0;
    // SAFETY: no flags, no stack of its own: the child goes on with a copy of all.
    unsafe { libc::syscall(libc::SYS_clone, NONE, NONE, NONE, NONE, NONE) as c_int }
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

/// In the child: starts a grandchild, which nobody waits for, and ends.
///
/// # Safety
/// Only in a child of [`fork_silently`]; `arguments` end with a null.
unsafe fn become_orphan(program: &CString, arguments: &[*const c_char]) -> ! {
    // SAFETY: system calls with numbers, and pointers to what ends with zeros and nulls.
    unsafe {
        match fork_silently() {
            0 => {}
            -1 => libc::_exit(1),
            _ => libc::_exit(0),
        }
        libc::setsid();
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
        libc::execve(program.as_ptr(), arguments.as_ptr(), nothing.as_ptr());
        libc::_exit(127)
    }
}

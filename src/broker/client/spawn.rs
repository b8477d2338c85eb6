//! Start of the broker, and of other commands of `urxe`, as a detached process, from any program.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::broker::Sharing;

/// A broker that this process has started. It may not have bound the address yet.
pub struct StartedBroker {
    pub at: Instant,
    stderr: PipeReader,
    /// Text that the broker has written to standard error so far.
    text: Vec<u8>,
}

impl StartedBroker {
    /// Returns the message with which the broker has ended, or `None` if it has not written a whole line.
    pub fn failure(&mut self) -> Option<String> {
        // Reads all that is there; the pipe does not block.
        let _ = self.stderr.read_to_end(&mut self.text);
        let text = String::from_utf8_lossy(self.text.strip_suffix(b"\n")?);
        Some(text.strip_prefix("urxe: ").unwrap_or(&text).to_owned())
    }
}

/// Starts a broker that outlives this process and is not its child, so that a program that waits for its
/// children or handles SIGCHLD does not notice it.
pub fn spawn_broker(sharing: &Sharing, any_user: bool, address: &str) -> io::Result<StartedBroker> {
    if !sharing.program.is_file() {
        let reason = format!("{} is not a program", sharing.program.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    let option = any_user.then_some("--any-user");
    let (stderr, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let arguments = ["broker", address].into_iter().chain(option);
    start_detached(&sharing.program, arguments, [None, None, Some(writer.as_fd())])?;
    Ok(StartedBroker { at: Instant::now(), stderr, text: Vec::new() })
}

/// Starts a process of the `urxe` program that outlives this process and is not its child. It gets `arguments`, and the
/// given descriptors, or /dev/null, as standard input, output and error, but nothing else of this process.
///
/// # Errors
/// If a process cannot be created; the new process reports itself that the program cannot be executed.
pub fn start_detached<'a>(
    program: &Path,
    arguments: impl Iterator<Item = &'a str>,
    stdio: [Option<BorrowedFd<'_>>; 3],
) -> io::Result<()> {
    let program = CString::new(program.as_os_str().as_bytes())?;
    let arguments = std::iter::once("urxe").chain(arguments);
    let arguments: Vec<CString> = arguments.map(CString::new).collect::<Result<_, _>>()?;
    let mut arguments: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect::<Vec<_>>();
    arguments.push(ptr::null());
    let stacks = [(); 2].map(|()| vec![0u128; STACK / size_of::<u128>()]);
    let [mut first, mut second] = stacks;
    let launch = Launch {
        clone: system_clone(),
        program: program.as_ptr(),
        arguments: arguments.as_ptr(),
        stdio: stdio.map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd())),
        stack: second.as_mut_ptr_range().end.cast(),
    };
    // A signal handler of the program must not run in a child, which shares the memory of this process.
    let previous_mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: the child makes only system calls, with data prepared before. The data and the stacks outlive
    // it and are not used otherwise: CLONE_VFORK suspends this thread until the child has ended.
    let child = unsafe {
        clone_without_sigchld(start_grandchild, first.as_mut_ptr_range().end.cast(), &raw const launch)
    };
    let error = io::Error::last_os_error();
    previous_mask.thread_set_mask()?;
    if child == -1 {
        return Err(error);
    }
    wait_for(child)
}

/// Stack size of each child, in bytes.
const STACK: usize = 64 << 10;

/// Arguments of the child processes.
struct Launch {
    clone: Clone,
    program: *const c_char,
    arguments: *const *const c_char,
    /// Descriptors that become standard input, output and error; -1 for /dev/null.
    stdio: [c_int; 3],
    /// Upper end of the grandchild's stack, which grows downwards.
    stack: *mut c_void,
}

type Child = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Child, *mut c_void, c_int, *mut c_void, ...) -> c_int;

/// Returns the C library's own `clone`. LLVM's ThreadSanitizer interposes a function that expects a child
/// with memory of its own, and aborts the program in a child that shares it.
fn system_clone() -> Clone {
    // SAFETY: the names are NUL-terminated, and the C library's `clone` has this type. If the C library is
    // not a shared library of its own, nothing can interpose its functions.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if library.is_null() { library } else { libc::dlsym(library, c"clone".as_ptr()) };
        if found.is_null() { libc::clone } else { std::mem::transmute::<*mut c_void, Clone>(found) }
    }
}

/// Starts a child like vfork, on a separate stack. The exit signal is 0: the parent gets no SIGCHLD, and only
/// a wait with `__WALL` or `__WCLONE` returns the child. The C library's fork handlers do not run. Debuggers
/// recognise these flags from posix_spawn; they would mistake a child without shared memory and without an
/// exit signal for a thread.
///
/// # Safety
/// The child shares all memory and may only make system calls. `stack` must be the end of a block of memory
/// that nothing else uses, and `launch` must be valid.
unsafe fn clone_without_sigchld(child: Child, stack: *mut c_void, launch: *const Launch) -> c_int {
    // SAFETY: the caller guarantees what the child does and that the stack is its own. CLONE_VFORK suspends
    // the parent until the child has ended or executed a program, so `launch` stays valid.
    unsafe { ((*launch).clone)(child, stack, libc::CLONE_VM | libc::CLONE_VFORK, launch.cast_mut().cast()) }
}

fn wait_for(child: c_int) -> io::Result<()> {
    loop {
        match waitpid(Pid::from_raw(child), Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
            Ok(_) => return Err(io::Error::other("the child process could not start another")),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Runs in the child. Starts the grandchild, for which no process waits, and exits.
extern "C" fn start_grandchild(launch: *mut c_void) -> c_int {
    let launch: *const Launch = launch.cast();
    // SAFETY: `launch` points to the `Launch` of `start_detached`, whose thread is suspended until this child
    // has ended, and the grandchild has the stack at `stack` to itself.
    let grandchild = unsafe { clone_without_sigchld(exec_program, (*launch).stack, launch) };
    c_int::from(grandchild == -1)
}

/// Grandchild: executes the program.
extern "C" fn exec_program(launch: *mut c_void) -> c_int {
    // SAFETY: `launch` is valid as in `start_grandchild`. Everything else is system calls with numbers, and
    // with pointers to local data, to NUL-terminated strings and to null-terminated arrays of these.
    unsafe {
        let Launch { program, arguments, stdio, .. } = *launch.cast::<Launch>();
        libc::setsid();
        // Resets all signal handlers: those of the program must not run here. By direct system call, because
        // this process shares the program's memory, where the preloaded library's `signal` records the
        // program's own actions.
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
        // Closes all descriptors of the program: a reader of its pipe must not have to wait for this process.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        // Above 2 first, where the next one does not replace them.
        let copies = stdio.map(|fd| libc::fcntl(if fd == -1 { null } else { fd }, libc::F_DUPFD, 3));
        for (from, to) in copies.into_iter().zip(0..) {
            libc::dup2(from, to);
        }
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_ulong,
            libc::c_ulong::from(u32::MAX),
            0 as libc::c_ulong,
        );
        libc::chdir(c"/".as_ptr());
        // The process gets none of the program's variables, so that no library is preloaded into it. The
        // preloaded library's `execve` would add them to an environment without LD_PRELOAD.
        let environment: [*const c_char; 2] = [c"LD_PRELOAD=".as_ptr(), ptr::null()];
        libc::execve(program, arguments, environment.as_ptr());
        let text = c"the program cannot be executed\n".to_bytes();
        libc::write(2, text.as_ptr().cast(), text.len());
    }
    127
}

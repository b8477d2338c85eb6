//! The signal handler behind [`super::guarded`]: a fault of one of its accesses is an error of that access, and every other
//! SIGSEGV or SIGBUS is the program's.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::survive_faults;

/// Makes faults of the crate's accesses to user memory errors of the work request, with a handler of SIGSEGV and SIGBUS for
/// the process. Only for x86-64: elsewhere such a fault ends the process.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn survive_faults() {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

    use libc::{REG_RIP, SIG_DFL, SIG_IGN, SIGBUS, SIGSEGV, siginfo_t, ucontext_t};

    use crate::memory::guarded;

    /// The program's action for a signal. Each field is an atomic, as a handler may read it at any time.
    struct Action {
        signal: c_int,
        handler: AtomicUsize,
        flags: AtomicI32,
        /// The kernel's set of 64 signals.
        mask: AtomicU64,
    }

    static ACTIONS: [Action; 2] = [Action::new(SIGSEGV), Action::new(SIGBUS)];

    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

    /// The C library's `sigaction`, in front of which may be the preloaded library's.
    static SYSTEM_SIGACTION: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

    /// The process whose actions are noted. A child of fork has a copy of its own; one of vfork sees its parent's.
    static PROCESS: AtomicI32 = AtomicI32::new(0);

    extern "C" fn note_process() {
        // SAFETY: the call has no requirement.
        PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    }

    fn is_child_of_vfork() -> bool {
        // SAFETY: the call has no requirement.
        PROCESS.load(Ordering::Relaxed) != unsafe { libc::getpid() }
    }

    /// # Safety
    /// As of `sigaction`.
    unsafe fn system_sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        let found = SYSTEM_SIGACTION.load(Ordering::Acquire);
        // SAFETY: a function of this name and type; the caller's arguments.
        unsafe {
            if found.is_null() {
                libc::sigaction(signal, new, old)
            } else {
                std::mem::transmute::<*mut (), Sigaction>(found)(signal, new, old)
            }
        }
    }

    /// Installs the crate's handler with the flags that the program's action has.
    fn install(signal: c_int, program: &libc::sigaction) -> c_int {
        // The program's handler runs on the stack of this one: the alternate stack only if it was installed for that.
        let is_handler = !matches!(program.sa_sigaction, SIG_DFL | SIG_IGN);
        let stack = if is_handler { program.sa_flags & libc::SA_ONSTACK } else { libc::SA_ONSTACK };
        // SAFETY: zeros are an action; the handler is one; the struct is this function's.
        unsafe {
            let mut ours: libc::sigaction = MaybeUninit::zeroed().assume_init();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | stack | program.sa_flags & libc::SA_RESTART;
            system_sigaction(signal, &ours, ptr::null_mut())
        }
    }

    impl Action {
        const fn new(signal: c_int) -> Action {
            let (handler, flags, mask) = (AtomicUsize::new(SIG_DFL), AtomicI32::new(0), AtomicU64::new(0));
            Action { signal, handler, flags, mask }
        }

        fn set(&self, to: &libc::sigaction) {
            // SAFETY: the C library's set is longer than the kernel's, and begins with it.
            let mask = unsafe { ptr::from_ref(&to.sa_mask).cast::<u64>().read() };
            self.mask.store(mask, Ordering::Relaxed);
            self.flags.store(to.sa_flags, Ordering::Relaxed);
            self.handler.store(to.sa_sigaction, Ordering::Release);
        }

        fn get(&self) -> libc::sigaction {
            // SAFETY: zeros are an action.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = self.handler.load(Ordering::Acquire);
            action.sa_flags = self.flags.load(Ordering::Relaxed);
            action.sa_mask = set_of(self.mask.load(Ordering::Relaxed));
            action
        }

        /// Does with the signal what the program wants.
        ///
        /// # Safety
        /// In a handler of the signal, with its arguments.
        unsafe fn take(&self, info: *mut siginfo_t, context: *mut c_void) {
            let action = self.get();
            // SAFETY: a handler's argument.
            let is_of_instruction = unsafe { is_of_instruction(self.signal, &*info) };
            match action.sa_sigaction {
                SIG_IGN if !is_of_instruction => {}
                // The kernel lets nobody ignore what an instruction did.
                SIG_DFL | SIG_IGN => {
                    reset(self.signal);
                    // The instruction faults again. A signal that was sent is sent once more, and comes when the handler is left.
                    if !is_of_instruction {
                        // SAFETY: the call has no requirement.
                        unsafe { libc::raise(self.signal) };
                    }
                }
                handler => {
                    if action.sa_flags & libc::SA_RESETHAND != 0 {
                        self.handler.store(SIG_DFL, Ordering::Release);
                    }
                    // SAFETY: sets of this function's; and the program's handler, which takes one or three arguments: the
                    // calling convention allows more than it takes. Leaving the handler restores the mask.
                    unsafe {
                        libc::pthread_sigmask(libc::SIG_BLOCK, &action.sa_mask, ptr::null_mut());
                        if action.sa_flags & libc::SA_NODEFER != 0 {
                            let own = set_of(1 << (self.signal - 1));
                            libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, ptr::null_mut());
                        }
                        type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                        let handler: Handler = std::mem::transmute::<usize, Handler>(handler);
                        handler(self.signal, info, context);
                    }
                }
            }
        }
    }

    fn set_of(signals: u64) -> libc::sigset_t {
        // SAFETY: zeros are the empty set; it is longer than the kernel's, with which it begins.
        unsafe {
            let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
            (&raw mut set).cast::<u64>().write(signals);
            set
        }
    }

    /// Has the kernel end the process when the signal comes. Past the C library's function, in front of which may be the
    /// preloaded library's.
    fn reset(signal: c_int) {
        /// The kernel's `struct sigaction`: handler, flags, restorer and mask.
        const DEFAULT: [usize; 4] = [SIG_DFL, 0, 0, 0];
        // SAFETY: the kernel reads the struct.
        unsafe {
            let (action, before) = (DEFAULT.as_ptr(), ptr::null_mut::<usize>());
            libc::syscall(libc::SYS_rt_sigaction, signal, action, before, size_of::<u64>());
        }
    }

    /// Whether an instruction of this thread caused the signal. Codes of signals that a process sent are not positive, and a memory
    /// error that was found elsewhere (`BUS_MCEERR_AO`) is of no instruction.
    fn is_of_instruction(signal: c_int, info: &siginfo_t) -> bool {
        info.si_code > 0 && (signal, info.si_code) != (SIGBUS, libc::BUS_MCEERR_AO)
    }

    unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: a handler's arguments, of the thread that it interrupts.
        unsafe {
            let rip = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs[REG_RIP as usize];
            if is_of_instruction(signal, &*info)
                && let Some(fixup) = guarded::fixup_of(*rip as usize)
            {
                *rip = fixup as i64;
                return;
            }
            if let Some(action) = ACTIONS.iter().find(|a| a.signal == signal) {
                action.take(info, context);
            }
        }
    }

    /// `sigaction` for the program: it sees and sets its own action, whatever the process's is.
    unsafe extern "C" fn program_sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        let Some(action) = ACTIONS.iter().find(|a| a.signal == signal) else { return -1 };
        // SAFETY: the arguments of `sigaction`, which may be null, and may be the same.
        unsafe {
            let new = (!new.is_null()).then(|| new.read());
            if is_child_of_vfork() {
                // The kernel's action is the child's own, and the noted one its parent's.
                let mut before: libc::sigaction = MaybeUninit::zeroed().assume_init();
                let result =
                    system_sigaction(signal, new.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before);
                let is_ours = before.sa_sigaction == on_fault as *const () as usize;
                if !old.is_null() {
                    old.write(if is_ours { action.get() } else { before });
                }
                return result;
            }
            if !old.is_null() {
                old.write(action.get());
            }
            new.map_or(0, |new| {
                action.set(&new);
                install(signal, &new)
            })
        }
    }

    /// Makes faults of the crate's accesses to user memory errors of the work request, with a handler of SIGSEGV and SIGBUS
    /// for the process. The handler hands on every other fault to the handler that was there before. One that the program
    /// installs later takes the place of this, unless the library that `urxe run` preloads is there.
    pub fn survive_faults() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            note_process();
            // SAFETY: the function stays; the names end with zeros. Without the C library as a library of its own, nothing can be
            // in front of it.
            unsafe {
                libc::pthread_atfork(None, None, Some(note_process));
                let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !library.is_null() {
                    let found = libc::dlsym(library, c"sigaction".as_ptr());
                    SYSTEM_SIGACTION.store(found.cast(), Ordering::Release);
                }
            }
            for action in &ACTIONS {
                // SAFETY: the struct is this function's, and zeros are an action.
                let (result, before) = unsafe {
                    let mut before: libc::sigaction = MaybeUninit::zeroed().assume_init();
                    (system_sigaction(action.signal, ptr::null(), &mut before), before)
                };
                if result == 0 {
                    action.set(&before);
                    install(action.signal, &before);
                }
            }
            // The preloaded library's `sigaction` and `signal` hand the two signals on from now on.
            // SAFETY: the name ends with a zero; a function of this name takes such a function.
            unsafe {
                let route = libc::dlsym(libc::RTLD_DEFAULT, c"urxe_route_fault_signals".as_ptr());
                if !route.is_null() {
                    let route: extern "C" fn(Sigaction) = std::mem::transmute(route);
                    route(program_sigaction);
                }
            }
        });
    }
}

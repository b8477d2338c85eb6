//! Signal handler for [`super::guarded`]: turns faults in guarded accesses into errors, and passes every
//! other SIGSEGV or SIGBUS to the program.

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
pub use x86_64::{install_fault_handler, unblock_fault_signals};

/// Does nothing on this target: faults in the crate's accesses to user memory become work request errors on
/// x86-64 only, and terminate the process elsewhere.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, urxe_plain_access)))))]
pub fn install_fault_handler() {}

/// Does nothing on this target.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, urxe_plain_access)))))]
#[inline]
pub fn unblock_fault_signals() {}

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
mod x86_64 {
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    use libc::{REG_RIP, SIG_DFL, SIG_IGN, SIGBUS, SIGSEGV, siginfo_t, ucontext_t};

    use crate::memory::guarded;

    /// The program's action for a signal. Fields that change are atomics, because the crate's handler may
    /// read them at any time.
    struct Action {
        signal: c_int,
        handler: AtomicUsize,
        flags: AtomicI32,
        /// Signal mask as the kernel represents it: a set of 64 signals.
        mask: AtomicU64,
    }

    static ACTIONS: [Action; 2] = [Action::new(SIGSEGV), Action::new(SIGBUS)];

    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

    /// The C library's `sigaction`, which the preloaded library may interpose. Null until it is resolved.
    static SYSTEM_SIGACTION: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

    /// ID of the process whose actions are recorded. A child created by `fork` has a copy of its own; a child
    /// created by `vfork` sees its parent's.
    static PROCESS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn record_process() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
    }

    fn is_child_of_vfork() -> bool {
        PROCESS.load(Ordering::Relaxed) != std::process::id()
    }

    /// Calls the C library's `sigaction`. Returns the result of the call, and the previous action.
    ///
    /// # Safety
    /// As for `sigaction`.
    unsafe fn system_sigaction(signal: c_int, new: Option<&libc::sigaction>) -> (c_int, libc::sigaction) {
        let found = SYSTEM_SIGACTION.load(Ordering::Acquire);
        let new = new.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: an all-zero `sigaction` is valid; a pointer that is not null was resolved as the C
        // library's `sigaction`, which has this type; the caller guarantees the new action.
        unsafe {
            let mut before: libc::sigaction = MaybeUninit::zeroed().assume_init();
            let call: Sigaction = match found.is_null() {
                true => libc::sigaction,
                false => std::mem::transmute::<*mut (), Sigaction>(found),
            };
            (call(signal, new, &mut before), before)
        }
    }

    /// Installs the crate's handler, with the flags of the program's action that have to be in effect for the
    /// program's handler too.
    fn install(signal: c_int, program: &libc::sigaction) -> c_int {
        // The program's handler runs on the stack of this one: on the alternate stack only if it was
        // installed for that.
        let is_handler = !matches!(program.sa_sigaction, SIG_DFL | SIG_IGN);
        let stack = if is_handler { program.sa_flags & libc::SA_ONSTACK } else { libc::SA_ONSTACK };
        // SAFETY: an all-zero `sigaction` is valid; `on_fault` has the signature that SA_SIGINFO requires;
        // `ours` and `program` are valid for the calls.
        unsafe {
            let mut ours: libc::sigaction = MaybeUninit::zeroed().assume_init();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | stack | program.sa_flags & libc::SA_RESTART;
            system_sigaction(signal, Some(&ours)).0
        }
    }

    impl Action {
        const fn new(signal: c_int) -> Action {
            let (handler, flags, mask) = (AtomicUsize::new(SIG_DFL), AtomicI32::new(0), AtomicU64::new(0));
            Action { signal, handler, flags, mask }
        }

        fn set(&self, to: &libc::sigaction) {
            // SAFETY: the C library's signal set begins with the kernel's, and is longer and suitably
            // aligned, so the read is in bounds.
            let mask = unsafe { ptr::from_ref(&to.sa_mask).cast::<u64>().read() };
            self.mask.store(mask, Ordering::Relaxed);
            self.flags.store(to.sa_flags, Ordering::Relaxed);
            self.handler.store(to.sa_sigaction, Ordering::Release);
        }

        fn get(&self) -> libc::sigaction {
            // SAFETY: an all-zero `sigaction` is valid.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = self.handler.load(Ordering::Acquire);
            action.sa_flags = self.flags.load(Ordering::Relaxed);
            action.sa_mask = set_of(self.mask.load(Ordering::Relaxed));
            action
        }

        /// Carries out the program's own action for the signal: ignores it, restores the default action, or
        /// calls the program's handler.
        ///
        /// # Safety
        /// Only for a handler of the signal, with the arguments that the kernel passed to it.
        unsafe fn execute(&self, info: *mut siginfo_t, context: *mut c_void) {
            let action = self.get();
            // SAFETY: the caller passes the `siginfo_t` that the kernel gave to the handler.
            let is_of_instruction = unsafe { is_of_instruction(self.signal, &*info) };
            match action.sa_sigaction {
                SIG_IGN if !is_of_instruction => {}
                // The kernel does not allow a program to ignore a fault of an instruction.
                SIG_DFL | SIG_IGN => {
                    reset(self.signal);
                    // A faulting instruction faults again on return. A signal that was sent is raised once
                    // more, and is delivered when the handler returns.
                    if !is_of_instruction {
                        // SAFETY: `raise` takes a signal number and is async-signal-safe.
                        unsafe { libc::raise(self.signal) };
                    }
                }
                handler => {
                    if action.sa_flags & libc::SA_RESETHAND != 0 {
                        self.handler.store(SIG_DFL, Ordering::Release);
                    }
                    // SAFETY: the signal sets are locals. `handler` is neither SIG_DFL nor SIG_IGN, hence a
                    // function that the program installed. The calling convention of x86-64 allows calling a
                    // function of one argument with three. The return from the signal restores the mask.
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
        // SAFETY: an all-zero `sigset_t` is the empty set; it begins with the kernel's set, and is longer and
        // suitably aligned.
        unsafe {
            let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
            (&raw mut set).cast::<u64>().write(signals);
            set
        }
    }

    /// Restores the kernel's default action, which terminates the process when the signal is next delivered.
    /// Bypasses the C library's `sigaction`, which the preloaded library may interpose.
    fn reset(signal: c_int) {
        /// `struct sigaction` as the kernel defines it: handler, flags, restorer and mask.
        const DEFAULT: [usize; 4] = [SIG_DFL, 0, 0, 0];
        // SAFETY: the kernel reads the constant, which has the layout of its struct, and writes nothing, as
        // the pointer to the previous action is null.
        unsafe {
            let (action, before) = (DEFAULT.as_ptr(), ptr::null_mut::<usize>());
            libc::syscall(libc::SYS_rt_sigaction, signal, action, before, size_of::<u64>());
        }
    }

    /// Reports whether an instruction of this thread caused the signal. `si_code` is zero or negative for a
    /// signal sent by a process, and `BUS_MCEERR_AO` reports a memory error found elsewhere, which no
    /// instruction of this thread caused.
    fn is_of_instruction(signal: c_int, info: &siginfo_t) -> bool {
        info.si_code > 0 && (signal, info.si_code) != (SIGBUS, libc::BUS_MCEERR_AO)
    }

    unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO, and the context is that of
        // the thread that the handler interrupts, so nothing else accesses it. `fixup_of` returns the address
        // at which the interrupted code may resume.
        unsafe {
            let rip = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs[REG_RIP as usize];
            if is_of_instruction(signal, &*info)
                && let Some(fixup) = guarded::fixup_of(*rip as usize)
            {
                *rip = fixup as i64;
                return;
            }
            if let Some(action) = ACTIONS.iter().find(|a| a.signal == signal) {
                action.execute(info, context);
            }
        }
    }

    /// Implements `sigaction` for the program: gets and sets the program's recorded action, which leaves the
    /// crate's handler in place.
    unsafe extern "C" fn program_sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        let Some(action) = ACTIONS.iter().find(|a| a.signal == signal) else { return -1 };
        // SAFETY: the arguments are those of `sigaction`: each pointer is null or valid. Both may be the
        // same, so `new` is read before `old` is written.
        unsafe {
            let new = (!new.is_null()).then(|| new.read());
            if is_child_of_vfork() {
                // In a child of `vfork` the kernel's action is its own, while the recorded one is that of its
                // parent.
                let (result, before) = system_sigaction(signal, new.as_ref());
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

    /// Unblocks SIGSEGV and SIGBUS at the first call in a thread. The kernel kills the process at a fault in
    /// a thread that blocks the signal, and threads of servers often block all signals. Call it before an
    /// access to user memory.
    #[inline]
    pub fn unblock_fault_signals() {
        thread_local! {
            static DONE: Cell<bool> = const { Cell::new(false) };
        }
        if !DONE.get() {
            DONE.set(true);
            unblock();
        }
    }

    #[cold]
    fn unblock() {
        let signals = set_of(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
        // SAFETY: the set is a local; no set is returned.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, ptr::null_mut()) };
    }

    /// Installs a handler for SIGSEGV and SIGBUS in the process, which turns faults in the crate's accesses
    /// to user memory into work request errors. It passes all other faults to the handler that was installed
    /// before it. A handler that the program installs later replaces it, unless the library that `urxe run`
    /// preloads is present.
    pub fn install_fault_handler() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            record_process();
            // SAFETY: `record_process` stays loaded, and the names are NUL-terminated. If the C library is
            // not a shared library of its own, nothing can interpose its functions.
            unsafe {
                libc::pthread_atfork(None, None, Some(record_process));
                let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !library.is_null() {
                    let found = libc::dlsym(library, c"sigaction".as_ptr());
                    SYSTEM_SIGACTION.store(found.cast(), Ordering::Release);
                }
            }
            for action in &ACTIONS {
                // SAFETY: without a new action, the call changes nothing.
                let (result, before) = unsafe { system_sigaction(action.signal, None) };
                if result == 0 {
                    action.set(&before);
                    install(action.signal, &before);
                }
            }
            // From now on the preloaded library's `sigaction` and `signal` forward calls for the two signals.
            // SAFETY: the name is NUL-terminated, and the preloaded library defines a function of that name
            // with this signature.
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

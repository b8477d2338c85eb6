//! Interposed functions that execute programs. A program that is started with a cleaned environment (`env
//! -i`, tools that pass on a few variables only) would find the system's libibverbs; these functions restore
//! the variables of `urxe run`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::next::{Next, is_invalid, next, warn, with_saved_errno};

/// Null-terminated array of strings: arguments or an environment.
type Strings = *const *const c_char;

/// Variables that `urxe run` sets; it sets the first two always.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const TREE: &[u8] = b"URXE_SYSFS=";
const OTHERS: [&[u8]; 3] = [b"LD_LIBRARY_PATH=", b"ASAN_OPTIONS=", b"URXE_"];

/// Programs that remove LD_PRELOAD, whatever their options are.
const CLEANERS: [&[u8]; 3] = [b"sudo", b"doas", b"pkexec"];

/// Maximum number of variables of `urxe run`.
const MAX_OWN: usize = 32;
/// Maximum number of variables in an environment that counts as cleaned.
const MAX_CLEANED: usize = 224;

/// Copies of this process's variables from `urxe run`, as `NAME=value`, before the first null pointer. They
/// are never freed.
static OWN: [AtomicPtr<c_char>; MAX_OWN] = [const { AtomicPtr::new(null_mut()) }; MAX_OWN];

static EXECVE: Next = Next::new("execve\0");
static EXECVPE: Next = Next::new("execvpe\0");
static POSIX_SPAWN: Next = Next::new("posix_spawn\0");
static POSIX_SPAWNP: Next = Next::new("posix_spawnp\0");

unsafe extern "C" {
    static mut environ: Strings;
    static program_invocation_short_name: *const c_char;
}

/// Iterates over the strings in an array.
///
/// # Safety
/// The pointer is null or to a null-terminated array, whose strings are zero-terminated and live as long as
/// the iterator and its items.
unsafe fn strings<'a>(array: Strings) -> impl Iterator<Item = &'a CStr> {
    let mut at = (!is_invalid(array)).then_some(array);
    std::iter::from_fn(move || {
        let entry = at?;
        // SAFETY: `entry` is the first one or follows one that is not null, so it is in the array; its string
        // is zero-terminated.
        unsafe {
            let text = *entry;
            at = (!is_invalid(text)).then(|| entry.add(1));
            (!is_invalid(text)).then(|| CStr::from_ptr(text))
        }
    })
}

/// Copies the variables of `urxe run`, because the program may change its environment. Must be called before
/// the program runs.
pub fn resolve() {
    for next in [&EXECVE, &EXECVPE, &POSIX_SPAWN, &POSIX_SPAWNP] {
        next.get();
    }
    // SAFETY: the loader has set up the environment and the program's name, and no other thread runs yet that
    // could change them.
    unsafe {
        let is_cleaner = is_cleaner(CStr::from_ptr(program_invocation_short_name).to_bytes());
        let is_served = strings(environ).any(|text| text.to_bytes().starts_with(TREE));
        if is_cleaner || !is_served {
            return;
        }
        let names = || OTHERS.into_iter().chain([PRELOAD]);
        let own = strings(environ).filter(|text| names().any(|name| text.to_bytes().starts_with(name)));
        for (slot, text) in OWN.iter().zip(own) {
            slot.store(libc::strdup(text.as_ptr()), Ordering::Release);
        }
    }
}

fn is_cleaner(file: &[u8]) -> bool {
    CLEANERS.contains(&file)
}

/// Returns the name in `NAME=value`.
fn name_of(text: &CStr) -> &[u8] {
    text.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// Calls `execute` with the environment, to which the variables of `urxe run` are added if it has been
/// cleaned. An environment with LD_PRELOAD, even an empty one, or with other variables of `urxe run`, stays
/// as it is. Allocates no memory, because the caller may be a child between fork and exec.
///
/// # Safety
/// As for [`strings`].
unsafe fn with_variables<R>(environment: Strings, execute: impl FnOnce(Strings) -> R) -> R {
    // SAFETY: the caller's guarantee.
    let all = || unsafe { strings(environment) };
    let is_kept = |text: &CStr| [PRELOAD, TREE].iter().any(|name| text.to_bytes().starts_with(name));
    if all().any(is_kept) || all().nth(MAX_CLEANED).is_some() {
        return execute(environment);
    }
    let own =
        OWN.iter().map(|slot| slot.load(Ordering::Acquire).cast_const()).take_while(|text| !text.is_null());
    // SAFETY: the copies are zero-terminated and never freed.
    let own = own.map(|text| unsafe { CStr::from_ptr(text) });
    // A variable that the caller sets itself takes precedence.
    let own = own.filter(|own| !all().any(|text| name_of(text) == name_of(own)));
    let mut list = [null(); MAX_OWN + MAX_CLEANED + 1];
    for (entry, text) in list.iter_mut().zip(own.chain(all())) {
        *entry = text.as_ptr();
    }
    execute(list.as_ptr())
}

/// Warns of a program that removes LD_PRELOAD for the programs that it starts, given a path or a name to
/// search for in PATH. A path that does not exist causes no warning.
///
/// # Safety
/// `program` is null or zero-terminated.
unsafe fn warn_of_cleaner(program: *const c_char) {
    if is_invalid(program) || OWN[0].load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: the caller's guarantee.
    let path = unsafe { CStr::from_ptr(program) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    with_saved_errno(|| {
        // Shells try a path in every directory of PATH.
        // SAFETY: the caller's guarantee.
        if is_cleaner(file) && (file.len() == path.len() || unsafe { libc::access(program, libc::X_OK) } == 0)
        {
            warn([
                b"urxe: warning: ",
                file,
                b" removes LD_PRELOAD from the environment, so programs start without urxe: let it start urxe (sudo urxe run -- \
                  PROGRAM)\n",
            ]);
        }
    });
}

/// Calls the next `execve` or `execvpe`.
///
/// # Safety
/// As for these functions.
unsafe fn execute(next: &Next, program: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let next = next!(next => unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int);
    // SAFETY: the caller's arguments satisfy the contract of the function.
    unsafe {
        warn_of_cleaner(program);
        with_variables(environment, |environment| next(program, arguments, environment))
    }
}

/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments satisfy the contract of `execve`.
    unsafe { execute(&EXECVE, path, arguments, environment) }
}

/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's arguments satisfy the contract of `execv`, and `environ` is the environment.
    unsafe { execute(&EXECVE, path, arguments, environ) }
}

/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments satisfy the contract of `execvpe`.
    unsafe { execute(&EXECVPE, file, arguments, environment) }
}

/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's arguments satisfy the contract of `execvp`, and `environ` is the environment.
    unsafe { execute(&EXECVPE, file, arguments, environ) }
}

/// Defines `posix_spawn` and `posix_spawnp`.
macro_rules! spawn {
    ($($name:ident: $next:ident;)*) => {
        $(
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                pid: *mut libc::pid_t,
                program: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                arguments: Strings,
                environment: Strings,
            ) -> c_int {
                type Function = unsafe extern "C" fn(
                    *mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings,
                ) -> c_int;
                let next = next!($next => Function, libc::ENOSYS);
                // SAFETY: the caller's arguments satisfy the contract of the function.
                unsafe {
                    warn_of_cleaner(program);
                    with_variables(environment, |environment| {
                        next(pid, program, actions, attributes, arguments, environment)
                    })
                }
            }
        )*
    };
}

spawn! {
    posix_spawn: POSIX_SPAWN;
    posix_spawnp: POSIX_SPAWNP;
}

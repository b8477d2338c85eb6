//! Definition of the functions that programs call, by a table in each file.

use std::ffi::c_int;

/// Defines C functions, one in each row: `["NODE"] FAILURE NAME(ARGUMENTS) [on OBJECT(ARGUMENT) [unless
/// is_inherited]] [-> TYPE] = PATH;`, or `=> EXPRESSION;` instead of `= PATH;`.
///
/// The function disables cancellation, applies the faults on calls of its name (or of the name behind `as`,
/// or none with `as none`), and calls the Rust function at `PATH` with its arguments, or evaluates
/// `EXPRESSION` with them. `FAILURE` is the function of [`errno`](crate::errno) that reports an error as the
/// C interface does. With `NODE`, programs find the function by its name; without, only through the functions
/// in [`ops`](crate::ops).
///
/// The Rust function has another name than the symbol, so that a breakpoint by name has one location.
///
/// With `on`, the call fails with `ENOENT` if the object that the argument names does not exist, or the
/// program has overwritten its context or its handle. With `unless is_inherited`, a forked child leaves the
/// objects of its parent as they are.
macro_rules! entry_points {
    ($(
        $($node:literal)? $fail:ident $name:ident $(as $fault:ident)? ($($argument:ident: $kind:ty),* $(,)?)
            $(on $object:ident($checked:ident) $(unless $inherited:ident)?)? $(-> $result:ty)?
            $(= $call:path)? $(=> $value:expr)?;
    )*) => {$(
        $(export! { $node: $name = $name; })?

        pub(crate) use $name::entry as $name;

        #[allow(unused_imports, reason = "some of the functions need no names of the module")]
        mod $name {
            use super::*;

            pub(crate) unsafe extern "C" fn entry($($argument: $kind),*)
                -> entry_points!(@first $($result,)? std::ffi::c_int) {
                let _uncancelled = $crate::cancel::disable();
                entry_points!(@inject $fail $($fault)? $name);
                $(
                    if !<$object as $crate::object::FfiObject>::is_live($checked) {
                        return $crate::errno::$fail(libc::ENOENT);
                    }
                    // SAFETY: the object is live, and its context is open, or a copy of the parent's after a
                    // fork.
                    $(if unsafe { $crate::context::$inherited((*$checked).context) } {
                        return 0;
                    })?
                )?
                // SAFETY: the program meets the requirements of the C function. The requirements of the Rust
                // function are the same, and an expression dereferences only pointers that they make valid.
                #[allow(unused_unsafe, reason = "some of the functions are safe")]
                let result = unsafe { entry_points!(@value ($($argument),*) $(= $call)? $(=> $value)?) };
                result.map_or_else($crate::errno::$fail, $crate::entry_points::Value::into_c)
            }
        }
    )*};
    (@first $first:ty $(, $rest:ty)?) => { $first };
    (@inject $fail:ident none $name:ident) => {};
    (@inject $fail:ident $name:ident $($rest:ident)?) => { inject_fault!($name, $fail) };
    (@value $arguments:tt = $call:path) => { $call $arguments };
    (@value $arguments:tt => $value:expr) => { $crate::entry_points::evaluate(|| $value) };
    (@attempt ($($argument:ident),*) = $attempt:path) => { |call| $attempt(call, $($argument),*) };
    (@attempt $arguments:tt => $attempt:expr) => { $attempt };
}

/// Evaluates the expression of a row of [`entry_points!`], in which `?` ends the evaluation.
pub(crate) fn evaluate<T>(value: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
    value()
}

/// Defines C functions that wait, one in each row, like [`entry_points!`]: `"NODE" NAME(ARGUMENTS) -> TYPE =
/// PATH;`, or `=> CLOSURE;` instead of `= PATH;`. The Rust function at `PATH`, or the closure, makes one
/// attempt. The function gets the [`Call`](crate::cancel::Call) and the arguments, the closure the `Call`
/// alone. An attempt that fails with [`PENDING`](crate::cancel::PENDING) is repeated after a wait; for
/// other errors, the C function sets `errno` and returns -1. The thread can be cancelled during a wait.
macro_rules! waiting_entry_points {
    ($(
        $node:literal $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty
            $(= $attempt:path)? $(=> $closure:expr)?;
    )*) => {$(
        export! { $node: $name = $name; }

        pub(crate) use $name::entry as $name;

        mod $name {
            use super::*;

            pub(crate) unsafe extern "C-unwind" fn entry($($argument: $kind),*) -> $result {
                inject_fault!($name, minus_one);
                // SAFETY: the program meets the requirements of the C function, which are those of the Rust
                // function or of the closure. This frame holds the arguments only, with nothing to drop.
                let result = $crate::cancel::blocking(unsafe {
                    entry_points!(@attempt ($($argument),*) $(= $attempt)? $(=> $closure)?)
                });
                result.map_or_else($crate::errno::minus_one, $crate::entry_points::Value::into_c)
            }
        }
    )*};
}

/// Success of a Rust function, as a C function with the result `C` reports it.
pub(crate) trait Value<C> {
    /// Returns the result of the C function.
    fn into_c(self) -> C;
}

impl Value<c_int> for () {
    fn into_c(self) -> c_int {
        0
    }
}

impl Value<libc::ssize_t> for usize {
    fn into_c(self) -> libc::ssize_t {
        self as libc::ssize_t
    }
}

impl<C> Value<C> for C {
    fn into_c(self) -> C {
        self
    }
}

//! Makes urxe's devices visible to programs that look for RDMA devices in `/sys` and `/dev` themselves (UCX,
//! NCCL, scripts). The library interposes the C library's functions that take a file name, and redirects
//! names in `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`, and names of PCI
//! functions that do not exist, to the corresponding files in the directory tree given by `URXE_SYSFS`. Every
//! other name is passed to the C library unchanged, without an allocation, a lock or a system call, and with
//! errno preserved; only for programs that have named a directory of the tree does the library check relative
//! names of files that are created or opened for writing.
//!
//! It also keeps programs on urxe that would load another libibverbs: it replaces copies that they open
//! themselves (`dlopen`), and adds the variables of `urxe run` to a cleaned environment (`execve`). It
//! reports to urxe the ranges that programs unmap.

#![allow(unknown_lints, reason = "Rust 1.101 introduces the next one")]
#![allow(
    invalid_runtime_symbol_definitions,
    reason = "stable Rust cannot define variadic functions; both ABIs pass the mode of `open` like any third argument"
)]

mod bundled;
mod calls;
#[cfg(target_arch = "x86_64")]
mod dlopen;
mod environment;
mod limits;
mod next;
mod redirect;
mod signals;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unmapping;

/// Resolves everything before the program runs: later, the first call might come from a signal handler, or
/// from a child between fork and exec.
extern "C" fn resolve_all() {
    calls::resolve_all();
    signals::resolve();
    #[cfg(target_arch = "x86_64")]
    dlopen::resolve();
    environment::resolve();
    redirect::find_start();
}

#[used]
#[unsafe(link_section = ".init_array")]
static RESOLVE_ALL: extern "C" fn() = resolve_all;

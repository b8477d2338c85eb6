//! Programs that look for RDMA devices in `/sys` and `/dev` themselves (UCX, NCCL, scripts) find urxe's: the C library's
//! functions that take a file's name are here once more, and hand on what is asked of `/sys/class/infiniband`,
//! `/sys/class/infiniband_verbs` and `/dev/infiniband` with the name of the same file in the tree that `URXE_SYSFS` names.
//! Every other name goes to the C library as it came: no allocation, no lock, no system call, errno as it was.

mod bundled;
mod calls;
mod next;
mod redirect;
mod signals;

/// Before the program runs: afterwards a signal handler, or a child between fork and exec, may be the first to ask.
extern "C" fn prepare() {
    calls::resolve_all();
    signals::resolve();
    redirect::tree();
}

#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

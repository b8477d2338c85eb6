//! Tests of urxe and the kernel's rxe in a QEMU guest. Need QEMU, the image of the guest, and some root.

mod guest_dma_buf;
mod guest_smoke;
mod interop_backlog;
mod interop_cm;
mod interop_cm_programs;
mod interop_congestion;
mod interop_errors;
mod interop_faults;
mod interop_guest_killed;
mod interop_limits;
mod interop_memory;
mod interop_multicast;
mod interop_personality;
mod interop_pingpong;
mod interop_programs;
mod interop_rsockets;
mod interop_serve;
mod interop_services;
mod interop_tshark;
mod interop_vlan;
mod interop_vsh;

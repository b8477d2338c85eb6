//! Tests of the target and the kernel's initiator in a QEMU guest: of the group `guest`, with its
//! requirements.

mod interop_nvme;

//! Structs that rdma-core 65 has and 44 lacks. Their layouts are compared with the installed headers only if
//! those have them; their sizes are those that the C compiler computes from the headers of 65, and
//! `tests/c/release65.c` declares them again.
//!
//! [`FIELDS`] lists the fields that 65 adds at the end of structs of 44.

use std::ffi::{c_int, c_uint, c_void};

use super::ibv_context;

c_structs! {
    ibv_mr_init_attr: 72 {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut ibv_buf,
    }

    /// Handle of a buffer, which programs do not read.
    ibv_buf: 8 { addr: *mut c_void }

    ibv_dmah: 8 { context: *mut ibv_context }

    ibv_dmah_init_attr: 12 { comp_mask: u32, cpu_id: u32, ph: u8, tph_mem_type: u8 }

    ibv_comp_cntr: 16 { context: *mut ibv_context, handle: u32 }

    ibv_comp_cntr_caps: 16 { max_value: u64, max_counters: u32, supported_qp_attach_ops: u32 }

    ibv_comp_cntr_init_attr: 12 { comp_mask: u32, r#type: c_uint, flags: u32 }

    ibv_qp_attach_comp_cntr_attr: 8 { comp_mask: u32, op_mask: u32 }
}

/// Structs of other files, each with a last field that 44 lacks.
#[cfg(test)]
pub(crate) const FIELDS: &[(&str, &str)] = &[("ibv_qp_ex", "wr_flush"), ("ibv_port_attr", "active_speed_ex")];

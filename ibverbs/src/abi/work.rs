//! Work requests, completions and GIDs.

use std::ffi::{c_int, c_uint, c_void};

use super::{ibv_ah, ibv_mr, ibv_mw};

c_structs! {
    ibv_sge: 16 { addr: u64, length: u32, lkey: u32 }

    ibv_data_buf: 16 { addr: *mut c_void, length: usize }

    ibv_mw_bind_info: 32 { mr: *mut ibv_mr, addr: u64, length: u64, mw_access_flags: c_uint }

    ibv_mw_bind: 48 { wr_id: u64, send_flags: c_uint, bind_info: ibv_mw_bind_info }

    /// Send work request; `imm_data` shares a union with `invalidate_rkey`, and `bind_mw` with `tso`.
    ibv_send_wr: 128 {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: SendWrTarget,
        qp_type: u32,
        bind_mw: SendWrBind,
    }

    ibv_recv_wr: 32 { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int }

    /// Work completion; `imm_data` shares a union with `invalidated_rkey`.
    ibv_wc: 48 {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    ibv_wc_tm_info: 16 { tag: u64, r#priv: u32 }

    ibv_poll_cq_attr: 4 { comp_mask: u32 }

    ibv_grh: 40 {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }
}

/// GID. In C this is a union, whose other member holds two 64-bit integers in network byte order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ibv_gid {
    pub raw: [u8; 16],
}

/// The anonymous union `ibv_send_wr.wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union SendWrTarget {
    pub rdma: SendWrRdma,
    pub atomic: SendWrAtomic,
    pub ud: SendWrUd,
}

/// The union member `wr.rdma`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The union member `wr.atomic`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The union member `wr.ud`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWrUd {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// The union member `bind_mw`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWrBind {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// Fields inside C unions: for each field, the struct, the C field name, and the offset.
#[cfg(test)]
pub(crate) const NESTED: &[(&str, &str, usize)] = &[
    ("ibv_send_wr", "wr.rdma.remote_addr", WR + std::mem::offset_of!(SendWrRdma, remote_addr)),
    ("ibv_send_wr", "wr.rdma.rkey", WR + std::mem::offset_of!(SendWrRdma, rkey)),
    ("ibv_send_wr", "wr.atomic.remote_addr", WR + std::mem::offset_of!(SendWrAtomic, remote_addr)),
    ("ibv_send_wr", "wr.atomic.compare_add", WR + std::mem::offset_of!(SendWrAtomic, compare_add)),
    ("ibv_send_wr", "wr.atomic.swap", WR + std::mem::offset_of!(SendWrAtomic, swap)),
    ("ibv_send_wr", "wr.atomic.rkey", WR + std::mem::offset_of!(SendWrAtomic, rkey)),
    ("ibv_send_wr", "wr.ud.ah", WR + std::mem::offset_of!(SendWrUd, ah)),
    ("ibv_send_wr", "wr.ud.remote_qpn", WR + std::mem::offset_of!(SendWrUd, remote_qpn)),
    ("ibv_send_wr", "wr.ud.remote_qkey", WR + std::mem::offset_of!(SendWrUd, remote_qkey)),
    ("ibv_send_wr", "qp_type.xrc.remote_srqn", std::mem::offset_of!(ibv_send_wr, qp_type)),
    ("ibv_send_wr", "invalidate_rkey", std::mem::offset_of!(ibv_send_wr, imm_data)),
    ("ibv_send_wr", "bind_mw.mw", BIND + std::mem::offset_of!(SendWrBind, mw)),
    ("ibv_send_wr", "bind_mw.rkey", BIND + std::mem::offset_of!(SendWrBind, rkey)),
    ("ibv_send_wr", "bind_mw.bind_info", BIND + std::mem::offset_of!(SendWrBind, bind_info)),
    ("ibv_send_wr", "tso.hdr", BIND),
    ("ibv_wc", "invalidated_rkey", std::mem::offset_of!(ibv_wc, imm_data)),
];

#[cfg(test)]
const WR: usize = std::mem::offset_of!(ibv_send_wr, wr);
#[cfg(test)]
const BIND: usize = std::mem::offset_of!(ibv_send_wr, bind_mw);

//! Structs from `rdma/rdma_cma.h` and from `infiniband/sa.h`, which that header includes.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::{ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq};

c_structs! {
    ibv_sa_path_rec: 64 {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    ibv_path_record: 64 {
        service_id: u64,
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        flowlabel_hoplimit: u32,
        tclass: u8,
        reversible_numpath: u8,
        pkey: u16,
        qosclass_sl: u16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }

    ibv_path_data: 72 { flags: u32, reserved: u32, path: ibv_path_record }

    rdma_ib_addr: 40 { sgid: ibv_gid, dgid: ibv_gid, pkey: u16 }

    /// Source and destination addresses of a connection; in C, each is a union of socket address types.
    rdma_addr: 296 { src_storage: sockaddr_storage, dst_storage: sockaddr_storage, addr: rdma_ib_addr }

    rdma_route: 312 { addr: rdma_addr, path_rec: *mut ibv_sa_path_rec, num_paths: c_int }

    rdma_event_channel: 4 { fd: c_int }

    rdma_cm_id: 416 {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: c_uint,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: c_uint,
    }

    rdma_conn_param: 24 {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    rdma_ud_param: 56 {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    rdma_cm_event: 80 {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: c_uint,
        status: c_int,
        param: EventParam,
    }

    rdma_addrinfo: 96 {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    rdma_cm_join_mc_attr_ex: 16 { comp_mask: u32, join_flags: u32, addr: *mut sockaddr }
}

/// The anonymous union `rdma_cm_event.param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union EventParam {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    /// Release 65 and later.
    pub arg: u64,
}

/// Fields inside C unions: for each field, the struct, the C field name, and the offset.
#[cfg(test)]
pub(crate) const NESTED_CM: &[(&str, &str, usize)] = &[
    ("rdma_addr", "src_sin6", std::mem::offset_of!(rdma_addr, src_storage)),
    ("rdma_addr", "dst_sin", std::mem::offset_of!(rdma_addr, dst_storage)),
    ("rdma_cm_event", "param.conn.qp_num", PARAM + std::mem::offset_of!(rdma_conn_param, qp_num)),
    ("rdma_cm_event", "param.ud.ah_attr", PARAM + std::mem::offset_of!(rdma_ud_param, ah_attr)),
    ("rdma_cm_event", "param.ud.qkey", PARAM + std::mem::offset_of!(rdma_ud_param, qkey)),
];

#[cfg(test)]
const PARAM: usize = std::mem::offset_of!(rdma_cm_event, param);

//! Attribute structs: arguments to create and modify calls, and results of query calls.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{ibv_comp_channel, ibv_cq, ibv_gid, ibv_pd, ibv_srq, ibv_td, ibv_xrcd};

c_structs! {
    ibv_gid_entry: 32 { gid: ibv_gid, gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32 }

    ibv_device_attr: 232 {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    ibv_query_device_ex_input: 4 { comp_mask: u32 }

    ibv_odp_caps: 24 { general_caps: u64, per_transport_caps: [u32; 3] }

    ibv_tso_caps: 8 { max_tso: u32, supported_qpts: u32 }

    ibv_rss_caps: 32 {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    ibv_packet_pacing_caps: 12 { qp_rate_limit_min: u32, qp_rate_limit_max: u32, supported_qpts: u32 }

    ibv_tm_caps: 20 { max_rndv_hdr_size: u32, max_num_tags: u32, flags: u32, max_ops: u32, max_sge: u32 }

    ibv_cq_moderation_caps: 4 { max_cq_count: u16, max_cq_period: u16 }

    ibv_pci_atomic_caps: 6 { fetch_add: u16, swap: u16, compare_swap: u16 }

    ibv_device_attr_ex: 400 {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    ibv_port_attr: 56 {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32,
    }

    /// Asynchronous event: `element` points to the affected queue, or holds the port number in its first four
    /// bytes.
    ibv_async_event: 16 { element: *mut c_void, event_type: c_uint }

    ibv_td_init_attr: 4 { comp_mask: u32 }

    ibv_xrcd_init_attr: 12 { comp_mask: u32, fd: c_int, oflags: c_int }

    ibv_alloc_dm_attr: 16 { length: usize, log_align_req: u32, comp_mask: u32 }

    ibv_global_route: 24 {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    ibv_ah_attr: 32 {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    ibv_srq_attr: 12 { max_wr: u32, max_sge: u32, srq_limit: u32 }

    ibv_srq_init_attr: 24 { srq_context: *mut c_void, attr: ibv_srq_attr }

    ibv_tm_cap: 8 { max_num_tags: u32, max_ops: u32 }

    /// Extended attributes of a shared receive queue. The struct does not begin with a whole
    /// `ibv_srq_init_attr`: `comp_mask` lies where that struct would have padding.
    ibv_srq_init_attr_ex: 64 {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    ibv_qp_cap: 20 {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    ibv_qp_init_attr: 64 {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }

    ibv_rx_hash_conf: 24 {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// Extended attributes of a queue pair. The struct does not begin with a whole `ibv_qp_init_attr`:
    /// `comp_mask` lies where that struct would have padding.
    ibv_qp_init_attr_ex: 136 {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    ibv_qp_open_attr: 32 {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }

    ibv_qp_attr: 144 {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    ibv_qp_rate_limit_attr: 16 { rate_limit: u32, max_burst_sz: u32, typical_pkt_sz: u16, comp_mask: u32 }

    ibv_ece: 12 { vendor_id: u32, options: u32, comp_mask: u32 }

    ibv_cq_init_attr_ex: 56 {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    ibv_moderate_cq: 4 { cq_count: u16, cq_period: u16 }

    ibv_modify_cq_attr: 8 { attr_mask: u32, moderate: ibv_moderate_cq }

    ibv_parent_domain_init_attr: 48 {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
        free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
        pd_context: *mut c_void,
    }

    ibv_values_ex: 24 { comp_mask: u32, raw_clock: libc::timespec }

}

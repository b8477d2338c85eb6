//! Sizes of the C structs on x86-64, as the C compiler computes them. They are asserted at compile time,
//! because the comparison of all fields in `tests.rs` does not run on machines without the C headers.

use super::*;

macro_rules! sizes {
    ($($name:ident $size:literal),* $(,)?) => {
        $(const _: () = assert!(size_of::<$name>() == $size);)*
    };
}

sizes! {
    ibv_gid_entry 32, ibv_device_attr 232, ibv_query_device_ex_input 4, ibv_odp_caps 24, ibv_tso_caps 8,
    ibv_rss_caps 32, ibv_packet_pacing_caps 12, ibv_tm_caps 20, ibv_cq_moderation_caps 4,
    ibv_pci_atomic_caps 6, ibv_device_attr_ex 400, ibv_port_attr 56, ibv_async_event 16, ibv_td_init_attr 4,
    ibv_xrcd_init_attr 12, ibv_alloc_dm_attr 16, ibv_global_route 24, ibv_ah_attr 32, ibv_srq_attr 12,
    ibv_srq_init_attr 24, ibv_tm_cap 8, ibv_srq_init_attr_ex 64, ibv_qp_cap 20, ibv_qp_init_attr 64,
    ibv_rx_hash_conf 24, ibv_qp_init_attr_ex 136, ibv_qp_open_attr 32, ibv_qp_attr 144,
    ibv_qp_rate_limit_attr 16, ibv_ece 12, ibv_cq_init_attr_ex 56, ibv_moderate_cq 4, ibv_modify_cq_attr 8,
    ibv_parent_domain_init_attr 48, ibv_values_ex 24, ibv_sa_path_rec 64, ibv_path_record 64,
    ibv_path_data 72, rdma_ib_addr 40, rdma_addr 296, rdma_route 312, rdma_event_channel 4, rdma_cm_id 416,
    rdma_conn_param 24, rdma_ud_param 56, rdma_cm_event 80, rdma_addrinfo 96, rdma_cm_join_mc_attr_ex 16,
    ibv_device 664, ibv_context_ops 256, ibv_context 328, verbs_context 648, ibv_pd 16, ibv_td 8, ibv_xrcd 8,
    ibv_mr 48, ibv_mw 32, ibv_dm 32, ibv_ah 24, ibv_comp_channel 16, ibv_cq 128, ibv_cq_ex 288, ibv_srq 128,
    ibv_qp 160, ibv_qp_ex 360, ibv_sge 16, ibv_data_buf 16, ibv_mw_bind_info 32, ibv_mw_bind 48,
    ibv_send_wr 128, ibv_recv_wr 32, ibv_wc 48, ibv_wc_tm_info 16, ibv_poll_cq_attr 4, ibv_grh 40,
    ibv_mr_init_attr 72, ibv_dmah 8, ibv_dmah_init_attr 12, ibv_comp_cntr 16, ibv_comp_cntr_caps 16,
    ibv_comp_cntr_init_attr 12, ibv_qp_attach_comp_cntr_attr 8,
}

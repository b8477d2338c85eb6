//! Tables of the private interface between libibverbs and its vendor libraries (libmlx5, libefa), and the
//! assembly that exports it.
//!
//! A vendor library requires the node of the release it was built with, and does not load unless the node
//! exists and has every symbol that the library needs. `NAMES` combines the names of all releases: a symbol
//! that a release lacked in its node is harmless, because nothing requests it.

use std::fmt::Write as _;

/// Private symbol version nodes of libibverbs (`IBVERBS_PRIVATE_n`), oldest first. A release has a single
/// node, whose number changes with each incompatible change: 22 to 24 use 22, 25 to 32 use 25, 33 uses 33, 34
/// to 56 use 34. It is not known which of 17 to 21 releases used, so all of them exist.
pub const NODES: [u32; 13] = [17, 18, 19, 20, 21, 22, 25, 33, 34, 57, 59, 64, 65];

/// Names that every private node exports, grouped by the function to which they jump; `src/provider_stubs.rs`
/// passes these functions to the assembly.
const NAMES: [(&str, &[&str]); 7] = [
    (
        "no_op",
        &[
            "__verbs_log",
            "ibv_dmabuf_heap_destroy",
            "ibv_dmabuf_heap_free",
            "verbs_init_cq",
            "verbs_set_ops",
            "verbs_uninit_context",
        ],
    ),
    ("zero", &["__ioctl_final_num_attrs"]),
    (
        "null_enosys",
        &[
            "_verbs_init_and_alloc_context",
            "ibv_dmabuf_heap_alloc",
            "ibv_dmabuf_heap_cc_shared_init",
            "verbs_open_device",
        ],
    ),
    ("minus_enosys", &["ibv_cmd_export_dmabuf_fd", "ibv_read_ibdev_sysfs_file"]),
    ("query_gid_type", &["ibv_query_gid_type"]),
    ("wr_opcode_str", &["ibv_wr_opcode_str"]),
    (
        "enosys",
        &[
            "execute_ioctl",
            "ibv_cmd_advise_mr",
            "ibv_cmd_alloc_dm",
            "ibv_cmd_alloc_dmah",
            "ibv_cmd_alloc_mw",
            "ibv_cmd_alloc_pd",
            "ibv_cmd_attach_mcast",
            "ibv_cmd_close_xrcd",
            "ibv_cmd_create_ah",
            "ibv_cmd_create_comp_cntr",
            "ibv_cmd_create_counters",
            "ibv_cmd_create_cq",
            "ibv_cmd_create_cq_ex",
            "ibv_cmd_create_cq_ex2",
            "ibv_cmd_create_flow",
            "ibv_cmd_create_flow_action_esp",
            "ibv_cmd_create_qp",
            "ibv_cmd_create_qp_ex",
            "ibv_cmd_create_qp_ex2",
            "ibv_cmd_create_rwq_ind_table",
            "ibv_cmd_create_srq",
            "ibv_cmd_create_srq_ex",
            "ibv_cmd_create_wq",
            "ibv_cmd_dealloc_mw",
            "ibv_cmd_dealloc_pd",
            "ibv_cmd_dereg_mr",
            "ibv_cmd_destroy_ah",
            "ibv_cmd_destroy_comp_cntr",
            "ibv_cmd_destroy_counters",
            "ibv_cmd_destroy_cq",
            "ibv_cmd_destroy_flow",
            "ibv_cmd_destroy_flow_action",
            "ibv_cmd_destroy_qp",
            "ibv_cmd_destroy_rwq_ind_table",
            "ibv_cmd_destroy_srq",
            "ibv_cmd_destroy_wq",
            "ibv_cmd_detach_mcast",
            "ibv_cmd_free_dm",
            "ibv_cmd_free_dmah",
            "ibv_cmd_get_context",
            "ibv_cmd_inc_comp_cntr",
            "ibv_cmd_inc_err_comp_cntr",
            "ibv_cmd_modify_cq",
            "ibv_cmd_modify_flow_action_esp",
            "ibv_cmd_modify_qp",
            "ibv_cmd_modify_qp_ex",
            "ibv_cmd_modify_srq",
            "ibv_cmd_modify_wq",
            "ibv_cmd_open_qp",
            "ibv_cmd_open_xrcd",
            "ibv_cmd_poll_cq",
            "ibv_cmd_post_recv",
            "ibv_cmd_post_send",
            "ibv_cmd_post_srq_recv",
            "ibv_cmd_qp_attach_comp_cntr",
            "ibv_cmd_query_comp_cntr_caps",
            "ibv_cmd_query_context",
            "ibv_cmd_query_device",
            "ibv_cmd_query_device_any",
            "ibv_cmd_query_device_ex",
            "ibv_cmd_query_mr",
            "ibv_cmd_query_port",
            "ibv_cmd_query_port_speed",
            "ibv_cmd_query_qp",
            "ibv_cmd_query_srq",
            "ibv_cmd_read_comp_cntr",
            "ibv_cmd_read_counters",
            "ibv_cmd_read_err_comp_cntr",
            "ibv_cmd_reg_dm_mr",
            "ibv_cmd_reg_dmabuf_mr",
            "ibv_cmd_reg_mr",
            "ibv_cmd_reg_mr_ex",
            "ibv_cmd_req_notify_cq",
            "ibv_cmd_rereg_mr",
            "ibv_cmd_resize_cq",
            "ibv_cmd_set_comp_cntr",
            "ibv_cmd_set_err_comp_cntr",
        ],
    ),
];

/// Returns the assembly that exports the private symbols. Each name is one jump to the function in braces,
/// with one version per node; the version in the newest node is the default. `verbs_register_driver_n` exists
/// only in node `n`.
pub fn assembly(jump: &str) -> String {
    let mut text = String::from(".pushsection .text\n");
    for (function, names) in NAMES {
        for name in names {
            define(&mut text, name, jump, function);
            for (i, node) in NODES.iter().enumerate() {
                let at = if i + 1 == NODES.len() { "@@" } else { "@" };
                line(&mut text, &version(name, at, *node));
            }
        }
    }
    for node in NODES {
        let name = format!("verbs_register_driver_{node}");
        define(&mut text, &name, jump, "no_op");
        line(&mut text, &version(&name, "@@", node));
    }
    line(&mut text, ".popsection");
    // A variable that vendor libraries read.
    let flag = "verbs_allow_disassociate_destroy";
    line(&mut text, ".pushsection .data");
    line(&mut text, &format!(".globl urxe_export_{flag}\n.type urxe_export_{flag},@object"));
    line(&mut text, &format!(".size urxe_export_{flag},1\nurxe_export_{flag}: .byte 0"));
    for (i, node) in NODES.iter().enumerate() {
        let at = if i + 1 == NODES.len() { "@@" } else { "@" };
        line(&mut text, &version(flag, at, *node));
    }
    line(&mut text, ".popsection");
    text
}

/// Appends the definition of the symbol from which `version` derives the exported ones.
fn define(text: &mut String, name: &str, jump: &str, function: &str) {
    line(
        text,
        &format!(".globl urxe_export_{name}\n.type urxe_export_{name},@function\nurxe_export_{name}:"),
    );
    line(text, &format!(".cfi_startproc\n{jump} {{{function}}}\n.cfi_endproc"));
}

/// Returns the directive that exports a symbol in a node.
fn version(name: &str, at: &str, node: u32) -> String {
    format!(".symver urxe_export_{name},{name}{at}IBVERBS_PRIVATE_{node}")
}

/// Appends a line.
fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a String never fails");
}

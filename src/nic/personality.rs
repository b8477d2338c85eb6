use std::time::Duration;

use crate::transport::Habits;
use crate::wire::NakCode;

/// What a NIC has at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Inline bytes of a work request.
    pub max_inline: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one of them.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of such a receive.
    pub max_srq_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Completion vectors: threads that raise the events of completion queues.
    pub num_comp_vectors: u32,
    /// Regions and memory windows, together.
    pub max_mr: u32,
    /// Bytes of a region.
    pub max_mr_size: u64,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Partition keys of a port.
    pub max_pkeys: u16,
    /// Multicast groups that queue pairs are attached to.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one of them.
    pub max_mcast_qp_attach: u32,
    /// Attachments of queue pairs to groups, all together.
    pub max_total_mcast_qp_attach: u32,
    /// READs and atomics in flight of a queue pair, each way.
    pub max_qp_rd_atom: u32,
}

/// A class of device, as data: what it allows and how it behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Personality {
    /// Its name.
    pub name: &'static str,
    /// What it has at most.
    pub limits: Limits,
    /// The shortest retransmission timeout, whatever a QP asks for.
    pub min_timeout: Duration,
    /// How it behaves.
    pub habits: Habits,
}

impl Personality {
    /// As the specification has it, with generous limits.
    pub const STRICT: Personality = Personality {
        name: "strict",
        limits: Limits {
            max_qp: 65_536,
            max_qp_wr: 32_768,
            max_sge: 32,
            max_inline: 1024,
            max_srq: 65_536,
            max_srq_wr: 32_768,
            max_srq_sge: 32,
            max_cq: 65_536,
            max_cqe: 1 << 22,
            num_comp_vectors: 1,
            max_mr: 1 << 20,
            max_mr_size: 1 << 47,
            max_dm_size: 256 << 10,
            max_pd: 32_768,
            max_pkeys: 128,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 1024,
            max_total_mcast_qp_attach: 1 << 20,
            max_qp_rd_atom: 128,
        },
        min_timeout: Duration::ZERO,
        habits: Habits::STRICT,
    };

    /// The kernel's soft-RoCE, as Linux 6.1 has it.
    pub const RXE: Personality = Personality {
        name: "rxe",
        limits: Limits {
            max_qp: (1 << 20) - 16,
            max_qp_wr: 1 << 20,
            max_sge: 32,
            max_inline: 512,
            max_srq: 65_536,
            max_srq_wr: 32_767,
            max_srq_sge: 27,
            max_cq: 1 << 20,
            max_cqe: 32_767,
            num_comp_vectors: 1,
            max_mr: 1 << 19,
            max_mr_size: u64::MAX,
            max_dm_size: 0,
            max_pd: 1 << 20,
            max_pkeys: 1,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
            max_total_mcast_qp_attach: 8192 * 56,
            max_qp_rd_atom: 128,
        },
        min_timeout: Duration::ZERO,
        habits: Habits {
            credits: false,
            mig_req: false,
            coalesces_acks: false,
            too_long: NakCode::RemoteOperationalError,
            checks_send_length: false,
            checks_depth: false,
            flush_icrc_twice: true,
            grh_on_every_receive: true,
            reports_missed_completions: false,
        },
    };

    /// A ConnectX-5 and its successors.
    pub const MLX5: Personality = Personality {
        name: "mlx5",
        limits: Limits {
            max_qp: 1 << 17,
            max_qp_wr: 32_768,
            max_sge: 30,
            max_inline: 988,
            max_srq: 65_536,
            max_srq_wr: 32_767,
            max_srq_sge: 31,
            max_cq: 1 << 24,
            max_cqe: (1 << 22) - 1,
            num_comp_vectors: 1,
            max_mr: (1 << 24) - 1,
            max_mr_size: u64::MAX,
            max_dm_size: 128 << 10,
            max_pd: 1 << 23,
            max_pkeys: 128,
            max_mcast_grp: 1 << 21,
            max_mcast_qp_attach: 240,
            max_total_mcast_qp_attach: 240 << 21,
            max_qp_rd_atom: 16,
        },
        // Measured by others: whatever is asked for, it does not retransmit before half a second.
        min_timeout: Duration::from_millis(500),
        habits: Habits::STRICT,
    };

    /// All that there are.
    pub const ALL: [Personality; 3] = [Personality::STRICT, Personality::RXE, Personality::MLX5];

    /// The one of a name.
    pub fn named(name: &str) -> Option<Personality> {
        Personality::ALL.into_iter().find(|p| p.name == name)
    }
}

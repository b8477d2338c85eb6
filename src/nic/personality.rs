//! Personalities: limits and quirks of device classes.

use std::time::Duration;

use super::PortSpeed;
use crate::sys::setters::setters;
use crate::transport::{AckRequests, CnpScope, EarlySends, Quirks};
use crate::wire::NakCode;

setters! {
    /// Limits of a NIC.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct Limits {
        /// Maximum number of queue pairs.
        pub max_qp: u32,
        /// Maximum number of work requests per queue.
        pub max_qp_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Maximum number of inline bytes per work request.
        pub max_inline: u32,
        /// Maximum number of shared receive queues.
        pub max_srq: u32,
        /// Maximum number of receives per shared receive queue.
        pub max_srq_wr: u32,
        /// Maximum number of scatter/gather elements per receive in a shared receive queue.
        pub max_srq_sge: u32,
        /// Maximum number of completion queues.
        pub max_cq: u32,
        /// Maximum number of entries per completion queue.
        pub max_cqe: u32,
        /// Number of completion vectors: threads that deliver completion queue events.
        pub num_comp_vectors: u32,
        /// Maximum number of memory regions and windows in total.
        pub max_mr: u32,
        /// Maximum length of a memory region in bytes.
        pub max_mr_size: u64,
        /// Size of the device memory in bytes.
        pub max_dm_size: u64,
        /// Maximum number of protection domains.
        pub max_pd: u32,
        /// Maximum number of partition keys per port.
        pub max_pkeys: u16,
        /// Maximum number of multicast groups that queue pairs can be attached to at a time.
        pub max_mcast_grp: u32,
        /// Maximum number of queue pairs attached to one multicast group.
        pub max_mcast_qp_attach: u32,
        /// Maximum number of attachments of queue pairs to multicast groups, across all groups.
        pub max_total_mcast_qp_attach: u32,
        /// Maximum number of READs and atomics in flight per queue pair, in each direction.
        pub max_qp_rd_atom: u32,
    }
}

setters! {
    /// Personality of a NIC: the limits and quirks of a device class.
    ///
    /// [`DEFAULT`](Self::DEFAULT) applies unless another is chosen
    /// ([`ContextOptions`](crate::verbs::ContextOptions), `--personality`, `URXE_PERSONALITY`). The table lists
    /// all differences:
    ///
    #[doc = include_str!("personality.md")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct Personality {
        /// Name of the personality.
        pub name: &'static str,
        /// Limits of the NIC.
        pub limits: Limits,
        /// Speed that the port reports unless a fault changes it. It does not affect the rate at which packets are sent.
        pub port_speed: PortSpeed,
        /// Minimum local ACK timeout, which applies even if a queue pair is configured with a shorter one.
        pub min_timeout: Duration,
        /// Quirks of the device.
        pub quirks: Quirks,
    }
}

impl Personality {
    /// Conformance to the specification with generous limits, except that posted work requests are checked as
    /// leniently as real devices do, and that lost packets are retransmitted selectively.
    pub const DEFAULT: Personality = Personality {
        name: "default",
        quirks: Quirks {
            selective_repeat: true,
            ack_requests: AckRequests::Needed,
            tail_loss_probes: true,
            send_slots_until_polled: false,
            ..Quirks::LENIENT
        },
        ..Personality::STRICT
    };

    /// Strict conformance to the specification, with generous limits.
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
        // UCX compares the speed with the rate of its own copies, up to 12 GB/s. At 100 Gb/s Open MPI sends messages of up to
        // 300 KiB as copied SENDs of 8 KiB, at 200 Gb/s their receiver READs those of 40 KiB and more. Two ranks on two
        // cores, medians of three: 64 KiB in shared memory 59.6 Gb/s instead of 25.8, over sockets 27.1 instead of 16.0; SENDs
        // of 4 to 32 KiB over sockets are 10 % slower, because their payload is no longer copied. At 400 Gb/s UCX has two QPs for
        // each peer, with 42 instead of 53 Gb/s (best of two).
        port_speed: PortSpeed::GBPS_200,
        min_timeout: Duration::ZERO,
        quirks: Quirks::STRICT,
    };

    /// The Linux kernel's Soft-RoCE (rxe), as of Linux 6.1.
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
        port_speed: PortSpeed::GBPS_100,
        min_timeout: Duration::ZERO,
        quirks: Quirks {
            credits: false,
            mig_req: false,
            coalesces_acks: false,
            too_long: NakCode::RemoteOperationalError,
            checks_send_length: false,
            checks_depth: false,
            flush_icrc_twice: true,
            grh_on_every_receive: true,
            reports_missed_completions: false,
            empty_regions_at_page_boundaries: false,
            early_sends: EarlySends::RefusedAndHeld,
            send_queue_errors: false,
            cnp_scope: None,
            send_slots_until_polled: false,
            ..Quirks::LENIENT
        },
    };

    /// ConnectX-5 and later devices (mlx5).
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
        port_speed: PortSpeed::GBPS_100,
        // Measured by others: the device does not retransmit before half a second, whatever the configured
        // timeout.
        min_timeout: Duration::from_millis(500),
        quirks: Quirks {
            empty_regions_at_page_boundaries: false,
            early_sends: EarlySends::Held,
            early_receives: true,
            cnp_scope: Some(CnpScope::Port),
            ack_requests: AckRequests::Signaled,
            ..Quirks::LENIENT
        },
    };

    /// Like [`DEFAULT`](Self::DEFAULT), but packets of long WRITEs and READ responses have equal lengths, unlike those of
    /// any device, for throughput over sockets.
    pub const THROUGHPUT: Personality = Personality {
        name: "throughput",
        quirks: Quirks { equal_packets: true, ..Personality::DEFAULT.quirks },
        ..Personality::DEFAULT
    };

    /// All personalities.
    pub const ALL: [Personality; 5] = [
        Personality::DEFAULT,
        Personality::STRICT,
        Personality::MLX5,
        Personality::RXE,
        Personality::THROUGHPUT,
    ];

    /// Returns the personality called `name`.
    pub fn named(name: &str) -> Option<Personality> {
        Personality::ALL.into_iter().find(|p| p.name == name)
    }
}

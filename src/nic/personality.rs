//! Personalities: limits and quirks of device classes.

use std::time::Duration;

use super::PortSpeed;
use crate::sys::setters::setters;
use crate::transport::{AckRequests, CnpScope, EarlySends, Quirks};
use crate::wire::NakCode;

/// Defines the limits by a table of their values in the personalities STRICT, RXE and MLX5.
macro_rules! limits {
    ($($(#[$doc:meta])* $limit:ident: $type:ty = [$strict:expr, $rxe:expr, $mlx5:expr];)*) => {
        setters! {
            /// Limits of a NIC.
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            #[non_exhaustive]
            pub struct Limits {
                $($(#[$doc])* pub $limit: $type,)*
            }
        }

        impl Limits {
            const STRICT: Limits = Limits { $($limit: $strict),* };
            const RXE: Limits = Limits { $($limit: $rxe),* };
            const MLX5: Limits = Limits { $($limit: $mlx5),* };
        }
    };
}

limits! {
    /// Maximum number of queue pairs.
    max_qp: u32 = [65_536, (1 << 20) - 16, 1 << 17];
    /// Maximum number of work requests per queue.
    max_qp_wr: u32 = [32_768, 1 << 20, 32_768];
    /// Maximum number of scatter/gather elements per work request.
    max_sge: u32 = [32, 32, 30];
    /// Maximum number of inline bytes per work request.
    max_inline: u32 = [1024, 512, 988];
    /// Maximum number of shared receive queues.
    max_srq: u32 = [65_536, 65_536, 65_536];
    /// Maximum number of receives per shared receive queue.
    max_srq_wr: u32 = [32_768, 32_767, 32_767];
    /// Maximum number of scatter/gather elements per receive in a shared receive queue.
    max_srq_sge: u32 = [32, 27, 31];
    /// Maximum number of completion queues.
    max_cq: u32 = [65_536, 1 << 20, 1 << 24];
    /// Maximum number of entries per completion queue.
    max_cqe: u32 = [1 << 22, 32_767, (1 << 22) - 1];
    /// Number of completion vectors: threads that deliver completion queue events.
    num_comp_vectors: u32 = [1, 1, 1];
    /// Maximum number of memory regions and windows in total.
    max_mr: u32 = [1 << 20, 1 << 19, (1 << 24) - 1];
    /// Maximum length of a memory region in bytes.
    max_mr_size: u64 = [1 << 47, u64::MAX, u64::MAX];
    /// Size of the device memory in bytes.
    max_dm_size: u64 = [256 << 10, 0, 128 << 10];
    /// Maximum number of protection domains.
    max_pd: u32 = [32_768, 1 << 20, 1 << 23];
    /// Maximum number of partition keys per port.
    max_pkeys: u16 = [128, 1, 128];
    /// Maximum number of multicast groups that queue pairs can be attached to at a time.
    max_mcast_grp: u32 = [8192, 8192, 1 << 21];
    /// Maximum number of queue pairs attached to one multicast group.
    max_mcast_qp_attach: u32 = [1024, 56, 240];
    /// Maximum number of attachments of queue pairs to multicast groups, across all groups.
    max_total_mcast_qp_attach: u32 = [1 << 20, 8192 * 56, 240 << 21];
    /// Maximum number of READs and atomics in flight per queue pair, in each direction.
    max_qp_rd_atom: u32 = [128, 128, 16];
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
        limits: Limits::STRICT,
        // UCX compares the speed with the rate of its own copies, up to 12 GB/s. At 100 Gb/s Open MPI sends
        // messages of up to 300 KiB as copied SENDs of 8 KiB, at 200 Gb/s their receiver READs those
        // of 40 KiB and more. Two ranks on two cores, medians of three: 64 KiB in shared memory 59.6
        // Gb/s instead of 25.8, over sockets 27.1 instead of 16.0; SENDs of 4 to 32 KiB over sockets
        // are 10 % slower, because their payload is no longer copied. At 400 Gb/s UCX has two QPs for
        // each peer, with 42 instead of 53 Gb/s (best of two).
        port_speed: PortSpeed::GBPS_200,
        min_timeout: Duration::ZERO,
        quirks: Quirks::STRICT,
    };

    /// The Linux kernel's Soft-RoCE (rxe), as of Linux 6.1.
    pub const RXE: Personality = Personality {
        name: "rxe",
        limits: Limits::RXE,
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
        limits: Limits::MLX5,
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

    /// Like [`DEFAULT`](Self::DEFAULT), but packets of long WRITEs and READ responses have equal lengths,
    /// unlike those of any device, for throughput over sockets.
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

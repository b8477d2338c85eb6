//! Device-class quirks ([`Quirks`]): behaviour that differs between personalities.

use crate::wire::NakCode;

/// Defines the quirks by a table of their values in [`Quirks::STRICT`].
macro_rules! quirks {
    ($($(#[$doc:meta])* $quirk:ident: $type:ty = $strict:expr;)*) => {
        /// Quirks of a device class: behaviour that the specification leaves open, or in which devices deviate from
        /// it.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Quirks {
            $($(#[$doc])* pub $quirk: $type,)*
        }

        impl Quirks {
            /// Strict conformance to the specification.
            pub const STRICT: Quirks = Quirks { $($quirk: $strict),* };
        }
    };
}

quirks! {
    /// Whether end-to-end credits are used: acknowledgements advertise them, and the requester respects them
    /// (IBA 9.7.7.2).
    credits: bool = true;
    /// Whether packets carry MigReq while the path migration state is MIGRATED.
    mig_req: bool = true;
    /// Whether acknowledgements are coalesced, so that one may cover several requests that carry AckReq.
    coalesces_acks: bool = true;
    /// NAK code for a message longer than the receive that it consumes.
    too_long: NakCode = NakCode::InvalidRequest;
    /// Whether the responder checks that the First or Only packet of a SEND has the required length.
    checks_send_length: bool = true;
    /// Whether the responder rejects READs and atomics in excess of max_dest_rd_atomic.
    checks_depth: bool = true;
    /// Whether the ICRC of a FLUSH covers the transport headers twice, as in rxe from Linux 6.2 to at
    /// least 6.12. If so, FLUSHes are sent with such an ICRC, and accepted with either that or the
    /// specified one.
    flush_icrc_twice: bool = false;
    /// Whether all receive completions report a routing header (`IBV_WC_GRH`), rather than only those of
    /// datagrams.
    grh_on_every_receive: bool = false;
    /// Whether arming a completion queue immediately raises an event if a completion arrived earlier without
    /// raising one.
    reports_missed_completions: bool = true;
    /// Whether a zero-length region may begin at a page boundary. The kernel refuses to register such a
    /// region because it would pin no page (in `ib_umem_get`, hence also for rxe and mlx5), but registers a
    /// zero-length region that begins within a page.
    empty_regions_at_page_boundaries: bool = true;
    /// Whether the scatter/gather elements of an atomic may be longer than 8 bytes; the original value is
    /// stored in the first 8. rxe rejects only `length < 8`; the mlx5 provider passes a length of 8 to the
    /// device, regardless of the element's length.
    long_atomics: bool = false;
    /// Whether a work request that the service does not support, or whose address handle is from another
    /// protection domain, is queued and completes with LOC_QP_OP_ERR in its turn instead of being rejected
    /// when posted. (mlx5 cannot check the protection domain of an address handle; this is not imitated.)
    late_refusals: bool = false;
    /// Treatment of send work requests posted in RESET, INIT or RTR.
    early_sends: EarlySends = EarlySends::Refused;
    /// Whether receives may be posted in RESET; they are used from RTR on.
    early_receives: bool = false;
    /// Whether a failed UC or UD send moves only the send queue to its error state (SQE, IBA 10.3.1.7)
    /// instead of the whole QP to ERR.
    send_queue_errors: bool = true;
    /// Scope within which congestion notification packets (CNPs) keep their minimum interval; `None` if the
    /// device sends none.
    cnp_scope: Option<CnpScope> = Some(CnpScope::Qp);
    /// Whether packets of long messages have equal lengths, so that the kernel can segment and coalesce more of them: a
    /// reliable WRITE without immediate is sent as a train of WRITE Only packets, and a READ of up to 8 packets as
    /// requests of two packets each. To the responder, each is a message of its own, whose access it checks by itself.
    equal_packets: bool = false;
    /// Whether RC recovers from a loss by selective repeat: the responder keeps requests behind a gap until the missing one
    /// arrives, and the requester retransmits only the packet that a sequence error NAK reports. It goes back to everything
    /// in flight if the peer turns out to keep nothing.
    selective_repeat: bool = false;
    /// Packets of reliable services that carry AckReq.
    ack_requests: AckRequests = AckRequests::Messages;
    /// Whether the requester sends tail loss probes. Without them, a loss that no later packet reveals is repaired after the
    /// local ACK timeout.
    tail_loss_probes: bool = false;
    /// Whether a work request occupies its slot of the send queue until its completion, or that of a later one, is polled
    /// (IBA 10.7.3.1). Otherwise until it is acknowledged.
    send_slots_until_polled: bool = true;
}

/// Packets of reliable services that carry AckReq, in addition to READs, atomics and those that fill the
/// congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckRequests {
    /// Packets on whose acknowledgement something depends: a completion, room in the congestion window or in
    /// the send queue.
    Needed,
    /// The last packet of each message that is signaled or behind which none is posted, and each 256th PSN.
    /// The driver of mlx5 sets `log_ack_req_freq` to 8.
    Signaled,
    /// The last packet of each message, and each 66th packet of it, as in rxe.
    Messages,
}

/// Scope of the minimum interval between congestion notification packets (CNPs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CnpScope {
    /// Each queue pair has its own interval.
    Qp,
    /// All queue pairs with the same local and peer address share one interval.
    AddressPair,
    /// All queue pairs of the port share one interval; if the NIC has several shards, those of a shard.
    Port,
}

/// Treatment of send work requests posted in RESET, INIT or RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlySends {
    /// Rejected (C10-96).
    Refused,
    /// Queued, and sent with the first work request posted in RTS: the mlx5 provider does not check the
    /// state, and the device ignores doorbells before RTS, but the next doorbell covers these work requests
    /// too.
    Held,
    /// Rejected, but sent with the first work request posted in RTS: the rxe provider queues a work request
    /// before it calls the kernel, which returns the error.
    RefusedAndHeld,
}

impl Quirks {
    /// Conformance to the specification, except that posted work requests are checked as leniently as on
    /// devices.
    pub const LENIENT: Quirks = Quirks { long_atomics: true, late_refusals: true, ..Quirks::STRICT };
}

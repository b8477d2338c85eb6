//! Quirks of a device class ([`Quirks`]): behaviour that personalities differ in.

use crate::wire::NakCode;

/// Quirks of a device class, where the specification leaves behaviour open or devices deviate from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quirks {
    /// Whether end-to-end credits are used: acknowledgements advertise them, and the requester respects them
    /// (IBA 9.7.7.2).
    pub credits: bool,
    /// Whether packets carry MigReq while the path migration state is MIGRATED.
    pub mig_req: bool,
    /// Whether acknowledgements are coalesced, so that one may cover several requests with AckReq.
    pub coalesces_acks: bool,
    /// NAK code for a message longer than its receive.
    pub too_long: NakCode,
    /// Whether the responder checks that the First and Only packets of SENDs have the required length.
    pub checks_send_length: bool,
    /// Whether the responder rejects READs and atomics in excess of max_dest_rd_atomic.
    pub checks_depth: bool,
    /// Whether the ICRC of a FLUSH covers the transport headers twice, as in rxe from Linux 6.2 to at least
    /// 6.12. If so, FLUSHes are sent in this form, and accepted both in this form and in the specified one.
    pub flush_icrc_twice: bool,
    /// Whether every receive completion reports a routing header (`IBV_WC_GRH`), not only those of datagrams.
    pub grh_on_every_receive: bool,
    /// Whether arming a completion queue raises an event at once for a completion that arrived earlier
    /// without raising one.
    pub reports_missed_completions: bool,
    /// Whether a zero-length region may begin at a page boundary. The kernel pins no page of such a region
    /// and refuses to register it (in `ib_umem_get`, hence also for rxe and mlx5), but it registers one that
    /// begins within a page.
    pub empty_regions_at_page_boundaries: bool,
    /// Whether the scatter/gather elements of an atomic may have more than 8 bytes; the old value fills the
    /// first 8. rxe refuses only `length < 8`; the mlx5 provider passes 8 to the device whatever the length
    /// of the element.
    pub long_atomics: bool,
    /// Whether a work request that the service does not support, or whose address handle is of another
    /// protection domain, is queued and completes with LOC_QP_OP_ERR when its turn comes, instead of being
    /// rejected when posted. (mlx5 cannot check the protection domain of an address handle, which is not
    /// imitated.)
    pub late_refusals: bool,
    /// Treatment of send work requests posted in RESET, INIT or RTR.
    pub early_sends: EarlySends,
    /// Whether receives may be posted in RESET; they are used from RTR on.
    pub early_receives: bool,
    /// Whether a failed send of UC or UD moves only the send queue to SQE (IBA 10.3.1.7), not the whole QP to
    /// the error state.
    pub send_queue_errors: bool,
}

/// Treatment of send work requests posted in RESET, INIT or RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlySends {
    /// Rejected (C10-96).
    Refused,
    /// Queued, and sent with the first post in RTS: the mlx5 provider does not check the state, and the
    /// device ignores the doorbell before RTS; the next doorbell covers them.
    Held,
    /// The post returns an error, but the work requests are sent with the first post in RTS: the rxe
    /// provider queues them before it calls the kernel, which rejects them.
    RefusedAndHeld,
}

impl Quirks {
    /// Strict conformance to the specification.
    pub const STRICT: Quirks = Quirks {
        credits: true,
        mig_req: true,
        coalesces_acks: true,
        too_long: NakCode::InvalidRequest,
        checks_send_length: true,
        checks_depth: true,
        flush_icrc_twice: false,
        grh_on_every_receive: false,
        reports_missed_completions: true,
        empty_regions_at_page_boundaries: true,
        long_atomics: false,
        late_refusals: false,
        early_sends: EarlySends::Refused,
        early_receives: false,
        send_queue_errors: true,
    };

    /// Conformance to the specification, except that posting checks work requests as leniently as devices do.
    pub const LENIENT: Quirks = Quirks { long_atomics: true, late_refusals: true, ..Quirks::STRICT };
}

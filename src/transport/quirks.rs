//! Quirks of a device class ([`Quirks`]): behaviour that personalities differ in.

use crate::wire::NakCode;

/// Quirks of a device class, where the specification leaves behaviour open or devices deviate from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quirks {
    /// End-to-end credits: acknowledgements advertise them, and the requester respects them (IBA 9.7.7.2).
    pub credits: bool,
    /// Sets MigReq in packets while there is no path migration to request (state MIGRATED).
    pub mig_req: bool,
    /// Acknowledgement coalescing: one acknowledgement may cover several requests with AckReq.
    pub coalesces_acks: bool,
    /// NAK code for a message longer than its receive.
    pub too_long: NakCode,
    /// Checks that the first and only packets of SENDs have the required length.
    pub checks_send_length: bool,
    /// Checks the number of outstanding READs and atomics against the negotiated depth.
    pub checks_depth: bool,
    /// ICRC of a FLUSH covers the transport headers twice, as in rxe from Linux 6.2 to at least 6.12. Such a
    /// FLUSH is sent; both that form and the specified one are accepted.
    pub flush_icrc_twice: bool,
    /// Every receive completion reports a routing header (`IBV_WC_GRH`), not only those of datagrams.
    pub grh_on_every_receive: bool,
    /// Arming a completion queue raises an event at once for a completion that arrived before without an
    /// event.
    pub reports_missed_completions: bool,
    /// A zero-length region may begin at a page boundary. The kernel pins no page of such a region and
    /// refuses to register it (`ib_umem_get`, so rxe and mlx5), but it registers one that begins within a
    /// page.
    pub empty_regions_at_page_boundaries: bool,
    /// Atomics may have more than 8 bytes of scatter elements; the old value fills the first 8. rxe refuses
    /// only `length < 8`; the mlx5 provider writes 8 into the element whatever its length.
    pub long_atomics: bool,
    /// A work request that the service does not support, or whose address handle is of another protection
    /// domain, is queued and completes with LOC_QP_OP_ERR in its turn, instead of being rejected when posted.
    /// (mlx5 has no domain of the handle to check: not imitated.)
    pub late_refusals: bool,
    /// Treatment of send work requests posted in RESET, INIT or RTR.
    pub early_sends: EarlySends,
    /// Receives may be posted in RESET; they are used from RTR on.
    pub early_receives: bool,
    /// A failed send of UC or UD moves only the send queue to SQE (IBA 10.3.1.7), not the whole QP to the
    /// error state.
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

    /// Conformance to the specification, but as lenient as devices are with posted work requests.
    pub const LENIENT: Quirks = Quirks { long_atomics: true, late_refusals: true, ..Quirks::STRICT };
}

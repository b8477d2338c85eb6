use crate::wire::NakCode;

/// What a class of device does where the specification leaves it open, or is not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Acknowledgements carry end-to-end credits, and a requester keeps to them (IBA 9.7.7.2).
    pub credits: bool,
    /// Packets say that they do not ask for path migration (MigReq), as there is nothing to migrate.
    pub mig_req: bool,
    /// One acknowledgement may stand for several requests that asked for one.
    pub coalesces_acks: bool,
    /// What a message longer than its receive is refused with.
    pub too_long: NakCode,
    /// The first and only packets of SENDs are as long as they must be.
    pub checks_send_length: bool,
    /// No more READs and atomics at once are answered than were agreed.
    pub checks_depth: bool,
    /// The ICRC of a FLUSH covers its transport headers twice, as rxe has it from Linux 6.2 to 6.12 at least. Such a
    /// FLUSH is sent; that and one by the specification are taken.
    pub flush_icrc_twice: bool,
    /// Every receive completion says that a routing header came (`IBV_WC_GRH`), not only those of datagrams.
    pub grh_on_every_receive: bool,
    /// Arming a completion queue raises the event at once for a completion that came, unreported, before.
    pub reports_missed_completions: bool,
    /// A region without bytes may begin at a page boundary. The kernel pins no page of such a region and refuses to register it
    /// (`ib_umem_get`, so rxe and mlx5), but it registers one that begins within a page.
    pub empty_regions_at_page_boundaries: bool,
    /// An atomic may have more than 8 bytes of scatter elements; the old value fills the first 8. rxe: `length < 8` alone is
    /// refused. mlx5: the provider writes 8 into the element whatever its length.
    pub long_atomics: bool,
    /// A work request that the service does not have, or whose address handle is of another protection domain, is posted and
    /// completes with LOC_QP_OP_ERR in its turn, instead of being refused when it is posted. (mlx5 has no domain of the handle
    /// to check: not imitated.)
    pub late_refusals: bool,
    /// Treatment of send work requests that are posted in RESET, INIT or RTR.
    pub early_sends: EarlySends,
    /// Receives may be posted in RESET; they are used from RTR on.
    pub early_receives: bool,
    /// A failed send of UC or UD stops the send queue (SQE, IBA 10.3.1.7), not the whole queue pair.
    pub send_queue_errors: bool,
}

/// Treatment of send work requests that are posted in RESET, INIT or RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlySends {
    /// Refused (C10-96).
    Refused,
    /// Taken. They leave with the first post in RTS: the provider of mlx5 does not look at the state, and the device
    /// ignores the doorbell before RTS; the next one covers them.
    Held,
    /// The post returns an error, but they leave with the first post in RTS all the same: the provider of rxe puts them
    /// into the queue before it asks the kernel, which refuses.
    RefusedAndHeld,
}

impl Habits {
    /// By the letter of the specification.
    pub const STRICT: Habits = Habits {
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

    /// By the specification, but as lenient as devices are with what is posted.
    pub const LENIENT: Habits = Habits { long_atomics: true, late_refusals: true, ..Habits::STRICT };
}

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
}

impl Habits {
    /// As the specification has it.
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
    };
}

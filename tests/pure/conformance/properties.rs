//! Rows of the table of personalities.

use urxe::nic::Personality;
use urxe::transport::{AckRequests, CnpScope, EarlySends};
use urxe::wire::NakCode;

/// Returns the names and values of all limits and quirks of a personality, which are the rows of the table in
/// the documentation of [`Personality`].
pub fn properties(p: &Personality) -> Vec<(&'static str, String)> {
    fn of<T: ToString>(name: &'static str, value: T) -> (&'static str, String) {
        (name, value.to_string())
    }
    let words = |name, is: bool, yes: &str, no: &str| of(name, if is { yes } else { no });
    let (l, h) = (&p.limits, &p.quirks);
    vec![
        of("QPs", l.max_qp),
        of("work requests of a queue", l.max_qp_wr),
        of("SGEs of a work request", l.max_sge),
        of("inline bytes", l.max_inline),
        of("SRQs", l.max_srq),
        of("receives of an SRQ", l.max_srq_wr),
        of("SGEs of such a receive", l.max_srq_sge),
        of("CQs", l.max_cq),
        of("entries of a CQ", l.max_cqe),
        of("completion vectors", l.num_comp_vectors),
        of("regions and windows", l.max_mr),
        of("bytes of a region", if l.max_mr_size == u64::MAX { "2^64 - 1" } else { "2^47" }),
        of("bytes of device memory", l.max_dm_size),
        of("PDs", l.max_pd),
        of("P_Keys", l.max_pkeys),
        of("multicast groups", l.max_mcast_grp),
        of("QPs of a group", l.max_mcast_qp_attach),
        of("attachments to groups", l.max_total_mcast_qp_attach),
        of("READs and atomics in flight", l.max_qp_rd_atom),
        of("speed of the port", p.port_speed),
        of("least ACK timeout", format!("{} ms", p.min_timeout.as_millis())),
        words("end-to-end credits", h.credits, "used", "not used"),
        words("MigReq in packets", h.mig_req, "1", "0"),
        words("ACK for several requests", h.coalesces_acks, "yes", "no"),
        of(
            "NAK of a message longer than its receive",
            match h.too_long {
                NakCode::InvalidRequest => "invalid request",
                _ => "remote operational error",
            },
        ),
        words("SEND with a packet of the wrong length", h.checks_send_length, "refused", "accepted"),
        words("READs beyond max_dest_rd_atomic", h.checks_depth, "refused", "answered"),
        words("ICRC of a FLUSH covers its headers", h.flush_icrc_twice, "twice", "once"),
        words("IBV_WC_GRH", h.grh_on_every_receive, "every receive", "UD"),
        words("ibv_req_notify_cq behind a completion", h.reports_missed_completions, "event", "no event"),
        words(
            "region of length 0 at a page boundary",
            h.empty_regions_at_page_boundaries,
            "registered",
            "EINVAL",
        ),
        words("atomic with more than 8 bytes of SGEs", h.long_atomics, "8 are used", "EINVAL"),
        words(
            "operation that the service lacks (READ on UD, ...), AH of another PD",
            h.late_refusals,
            "LOC_QP_OP_ERR",
            "EINVAL",
        ),
        of(
            "send posted in RESET, INIT, RTR",
            match h.early_sends {
                EarlySends::Refused => "EINVAL",
                EarlySends::Held => "leaves with the next post in RTS",
                EarlySends::RefusedAndHeld => "EINVAL, yet leaves with the next post in RTS",
            },
        ),
        words("receive posted in RESET", h.early_receives, "used from RTR on", "EINVAL"),
        words("failed send of UC or UD: state", h.send_queue_errors, "SQE", "ERR"),
        words("packets of a long WRITE", h.equal_packets, "WRITE Only each", "First, Middle, Last"),
        words("requests of a READ of 8 packets", h.equal_packets, "one for two packets", "one"),
        words("requests behind a lost one", h.selective_repeat, "kept", "dropped"),
        words(
            "last packet is lost: sent again after",
            h.tail_loss_probes,
            "a tail loss probe",
            "the ACK timeout",
        ),
        of(
            "AckReq at the end of a message",
            match h.ack_requests {
                AckRequests::Needed => "if signaled, or the queue fills up",
                AckRequests::Signaled => "if signaled, or nothing is posted behind",
                AckRequests::Messages => "always",
            },
        ),
        of(
            "AckReq within a message",
            match h.ack_requests {
                AckRequests::Needed => "each 64 packets",
                AckRequests::Signaled => "each 256 packets",
                AckRequests::Messages => "each 66 packets",
            },
        ),
        words(
            "slot of an unsignaled work request is free",
            h.send_slots_until_polled,
            "when a later one is polled",
            "when it is acknowledged",
        ),
        of(
            "least time between CNPs applies to",
            match h.cnp_scope {
                Some(CnpScope::Qp) => "each QP",
                Some(CnpScope::AddressPair) => "each pair of addresses",
                Some(CnpScope::Port) => "the port",
                None => "no CNPs are sent",
            },
        ),
    ]
}

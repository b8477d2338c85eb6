//! Events of queue pairs in the terms of the log.

use std::time::Duration;

use crate::qlog::{
    Check, Congestion, EventData, Gap, GapOf, Memory, Nak, QpStateChange, Resend, RnrNak, Side, Timer,
    WorkRequest, millis, nak_name,
};
use crate::transport::{EventKind, ObservedQp, QpEvent, WcOpcode, WcStatus};
use crate::wire::{NakCode, Psn, Syndrome};

fn millis_of(duration: Duration) -> f64 {
    millis(duration.as_nanos() as u64)
}

/// Returns the events that the log contains for an event of a queue pair.
pub(super) fn of(qp: &ObservedQp, event: &QpEvent<'_>) -> [Option<EventData>; 2] {
    let one = |data| [Some(data), None];
    match *event {
        QpEvent::Slow(psn, kind) => slow(qp, psn, kind),
        QpEvent::NakReceived(psn, Syndrome::Nak(code)) => {
            one(EventData::NakReceived(Nak { psn: psn.get(), code: nak_name(code) }))
        }
        QpEvent::NakReceived(psn, Syndrome::RnrNak(timer)) => {
            one(EventData::RnrNakReceived(RnrNak { psn: psn.get(), wait: millis_of(timer.duration()) }))
        }
        QpEvent::NakReceived(..) => [None, None],
        QpEvent::Gap(psn, count) => {
            one(EventData::Gap(Gap { of: GapOf::Requests, psn: psn.get(), count: Some(count) }))
        }
        QpEvent::MemoryAccess { psn, operation, va, rkey, len } => {
            one(EventData::MemoryAccess(Memory::new(Some(psn.get()), operation, va, rkey.0, len)))
        }
        QpEvent::CheckFailed { psn, code, access } => one(EventData::CheckFailed(Check {
            psn: psn.get(),
            trigger: code.map_or("local".into(), nak_name),
            details: access.map(|error| error.to_string()),
        })),
        QpEvent::Congestion(state) => one(EventData::CongestionUpdated(Congestion {
            rate: state.rate,
            alpha: state.alpha,
            window: state.window,
        })),
        QpEvent::Posted { is_recv, signaled, wr_id, opcode, len } => {
            one(EventData::WorkRequestPosted(WorkRequest {
                queue: if is_recv { Side::Receive } else { Side::Send },
                opcode: opcode.to_string().into(),
                wr_id: Some(wr_id),
                length: Some(len),
                signaled: (!is_recv).then_some(signaled),
                status: None,
                psn: None,
            }))
        }
        QpEvent::Completed(completion) => {
            let is_recv = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
            // The completion of a failed work request has no valid length.
            let is_success = completion.status == WcStatus::Success;
            one(EventData::WorkRequestCompleted(WorkRequest {
                queue: if is_recv { Side::Receive } else { Side::Send },
                opcode: completion.opcode.to_string().into(),
                wr_id: Some(completion.wr_id),
                length: is_success.then_some(completion.byte_len.into()),
                signaled: None,
                status: Some(completion.status.to_string().into()),
                psn: None,
            }))
        }
    }
}

fn slow(qp: &ObservedQp, psn: Psn, kind: EventKind) -> [Option<EventData>; 2] {
    let number = psn.get();
    let nak = |code: NakCode| Nak { psn: number, code: nak_name(code) };
    let resend =
        |trigger: &'static str| EventData::Retransmission(Resend { psn: number, trigger: trigger.into() });
    let first = match kind {
        EventKind::StateChange { from, to, cause } => EventData::QpStateUpdated(QpStateChange {
            old: from.to_string().into(),
            new: to.to_string().into(),
            trigger: cause.into(),
            peer: qp.flow.map(|flow| flow.dst),
            peer_qp: qp.flow.map(|_| qp.dest_qpn.get()),
        }),
        EventKind::AckTimeout { after } => {
            EventData::Timeout(Timer { psn: number, after: Some(millis_of(after)) })
        }
        EventKind::Probe => {
            return [Some(EventData::Probe(Timer { psn: number, after: None })), Some(resend("probe"))];
        }
        // Logged as they arrive.
        EventKind::SequenceNak | EventKind::Nak(_) | EventKind::RnrNak { .. } => return [None, None],
        EventKind::MissingResponse => EventData::Gap(Gap { of: GapOf::Responses, psn: number, count: None }),
        // All in flight is sent again in place of one packet.
        EventKind::Resent { cause: "probe timeout", .. } => {
            return [Some(EventData::Probe(Timer { psn: number, after: None })), Some(resend("probe"))];
        }
        EventKind::Resent { cause, .. } => resend(match cause {
            "sequence error NAK" => "nak",
            "RNR NAK" => "rnr_nak",
            "missing response" => "missing_response",
            "new path" => "new_path",
            _ => "timeout",
        }),
        EventKind::NakSent(code) => EventData::NakSent(nak(code)),
        EventKind::RnrNakSent(timer) => {
            EventData::RnrNakSent(RnrNak { psn: number, wait: millis_of(timer.duration()) })
        }
    };
    [Some(first), None]
}

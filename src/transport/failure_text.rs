//! Text of a [`Failure`]: several lines, which begin with the work request and its status.

use std::fmt;
use std::time::Duration;

use super::failure::{
    FailedRequest, Failure, FailureCause, LocalCheck, PastEvent, PathSizes, Refusal, RetryLimits,
    Transmission, TransmissionEnd,
};
use super::slow_event::EventKind;
use crate::wire::{Counted, NakCode};

/// Largest payload that any path carries, in bytes: packets with an IPv6 header then fit into 1280 bytes.
const SMALL: u32 = 1024;

/// Failure as text, with the failure of the peer if it is known.
pub(crate) struct JoinedFailure<'a> {
    pub failure: &'a Failure,
    pub peer: Option<&'a Failure>,
    /// Whole lines about the path to the peer.
    pub surroundings: Option<&'a dyn fmt::Display>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        JoinedFailure { failure: self, peer: None, surroundings: None }.fmt(f)
    }
}

impl fmt::Display for JoinedFailure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JoinedFailure { failure: this, peer, surroundings } = *self;
        let qpn = this.qpn;
        match &this.request {
            Some(request) => {
                writeln!(f, "{} of QP {qpn} failed: {}", request.opcode, request.status)?;
                writeln!(f, "  work request: {request}")?;
            }
            None => match this.cause {
                FailureCause::Refused(_) => {
                    writeln!(f, "QP {qpn} refused a request of its peer, and has entered ERR")?
                }
                _ => writeln!(f, "QP {qpn} failed")?,
            },
        }
        if let Some((address, peer)) = this.peer {
            let place = if self.peer.is_some() { ", in this process" } else { "" };
            writeln!(f, "  peer: QP {peer} at {address}{place}")?;
        }
        writeln!(f, "  cause: {}", this.cause)?;
        if let Some(path) = this.path {
            writeln!(f, "  path MTU: {path}")?;
        }
        surroundings.map_or(Ok(()), |lines| lines.fmt(f))?;
        if let Some(peer) = self.peer {
            writeln!(f, "  cause at the peer: {}", peer.cause)?;
        }
        writeln!(f, "  times: relative to the failure")?;
        for (index, transmission) in this.transmissions.iter().enumerate() {
            writeln!(f, "  transmission {}: {transmission}", index + 1)?;
        }
        if this.request.is_some() && this.qp_type.is_reliable() {
            match this.last_ack {
                Some(last) => writeln!(f, "  last ACK: PSN {} {}", last.psn, Ago(last.ago))?,
                None => writeln!(f, "  last ACK: none since RTS")?,
            }
            if let Some(silence) = this.silence {
                writeln!(f, "  silence: neither an ACK nor a NAK for {}", Span(silence))?;
            }
            writeln!(f, "  retries: {}", this.retries)?;
        }
        // Other events are part of the text of a transmission.
        let is_separate = |kind| {
            matches!(kind, EventKind::StateChange { .. } | EventKind::NakSent(_) | EventKind::RnrNakSent(_))
        };
        for event in this.events.iter().filter(|e| is_separate(e.kind)) {
            writeln!(f, "  event: {event}")?;
        }
        let refused = peer.filter(|peer| matches!(peer.cause, FailureCause::Refused(_)));
        let remedy = match this.path {
            Some(path) if path.is_black_hole() => {
                "lower the path MTU of both QPs, or raise the MTU of the interfaces and switches on the path"
            }
            _ => remedy(&refused.unwrap_or(this).cause),
        };
        write!(f, "  remedy: {remedy}")
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wr_id {:#x}, {}", self.wr_id, Counted(self.len, "byte"))?;
        if let Some((va, rkey)) = self.remote {
            write!(f, " at {va:#x} with rkey {rkey}")?;
        }
        match self.psns {
            Some((first, last)) => {
                write!(f, ", PSN {first}")?;
                if first != last {
                    write!(f, " to {last}")?;
                }
                write!(f, ", {} of {} acknowledged", self.acknowledged, Counted(self.packets, "packet"))
            }
            None => f.write_str(", no packets"),
        }
    }
}

impl fmt::Display for PathSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = |bytes| Counted(bytes, "byte");
        write!(f, "{}; the lost packet has {} of payload, ", payload(self.mtu), payload(self.lost))?;
        match self.acknowledged {
            None if self.lost > SMALL => f.write_str(
                "and no packet was ever acknowledged: if smaller messages arrive, the path drops large packets (MTU \
                 black hole)",
            ),
            None => f.write_str("and no packet was ever acknowledged"),
            Some(largest) if self.is_black_hole() => write!(
                f,
                "of which size none was ever acknowledged, but smaller ones up to {} were: the path may drop large \
                 packets (MTU black hole)",
                payload(largest)
            ),
            Some(_) => f.write_str("of which size others were acknowledged"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with PSN {}", self.opcode, self.psn)?;
        if let Some((va, len, rkey)) = self.range {
            write!(f, ", {} at {va:#x} with rkey {rkey}", Counted(len, "byte"))?;
        }
        f.write_str(", refused")?;
        if let Some(code) = self.code {
            write!(f, " with NAK {code}")?;
        }
        match (self.access, self.invalid) {
            (Some(error), _) => write!(f, ": {error}")?,
            (None, Some(check)) => write!(f, ": {check}")?,
            (None, None) => write!(f, ": {}", self.receive_status)?,
        }
        self.nearest.map_or(Ok(()), |nearest| write!(f, "; {nearest}"))
    }
}

impl fmt::Display for Transmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sent {
            Some(sent) => write!(f, "sent {}", Ago(sent))?,
            None => f.write_str("sent")?,
        }
        if self.probes > 0 {
            write!(f, ", {}", Counted(self.probes, "probe"))?;
        }
        if let Some((ago, end)) = self.end {
            write!(f, "; {end} {}", Ago(ago))?;
        }
        if self.times > 1 {
            write!(f, ", the last of {} such", self.times)?;
        }
        Ok(())
    }
}

impl fmt::Display for TransmissionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransmissionEnd::AckTimeout(after) => write!(f, "ACK timeout of {}", Span(*after)),
            TransmissionEnd::SequenceNak => f.write_str("sequence error NAK"),
            TransmissionEnd::MissingResponse => f.write_str("a response was missing"),
            TransmissionEnd::RnrNak(wait) => write!(f, "RNR NAK with a wait of {}", Span(*wait)),
            TransmissionEnd::Nak(code) => write!(f, "NAK {code}"),
        }
    }
}

impl fmt::Display for RetryLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetryLimits { ack_timeout, retry_cnt, retries_used, rnr_retry, rnr_retries_used } = *self;
        write!(f, "{retries_used} of {retry_cnt} (retry_cnt) used, ")?;
        match rnr_retry {
            7 => write!(f, "RNR retries unlimited (rnr_retry 7), ")?,
            limit => write!(f, "{rnr_retries_used} of {limit} (rnr_retry) used, ")?,
        }
        match ack_timeout {
            Some(timeout) => write!(f, "ACK timeout {}", Span(timeout)),
            None => f.write_str("ACK timeout infinite"),
        }
    }
}

impl fmt::Display for PastEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PastEvent { ago, psn, times, kind, .. } = *self;
        match kind {
            EventKind::StateChange { from, to, cause } => write!(f, "{from} to {to} ({cause})")?,
            EventKind::AckTimeout { after } => write!(f, "ACK timeout of {} for PSN {psn}", Span(after))?,
            EventKind::Probe => write!(f, "probe for PSN {psn}")?,
            EventKind::SequenceNak => write!(f, "sequence error NAK for PSN {psn}")?,
            EventKind::MissingResponse => write!(f, "response with PSN {psn} missing")?,
            EventKind::RnrNak { wait, .. } => {
                write!(f, "RNR NAK for PSN {psn} with a wait of {}", Span(wait))?
            }
            EventKind::Nak(code) => write!(f, "NAK {code} for PSN {psn}")?,
            EventKind::Resent { cause, end, left } => {
                write!(f, "PSN {psn}")?;
                if end.prev() != psn {
                    write!(f, " to {}", end.prev())?;
                }
                let left = match left {
                    1 => "1 retry".into(),
                    left => format!("{left} retries"),
                };
                write!(f, " sent again ({cause}), {left} left")?
            }
            EventKind::NakSent(code) => write!(f, "NAK {code} sent for PSN {psn}")?,
            EventKind::RnrNakSent(timer) => {
                write!(f, "RNR NAK sent for PSN {psn} with a wait of {}", Span(timer.duration()))?
            }
        }
        write!(f, " {}", Ago(ago))?;
        if times > 1 { write!(f, ", the last of {times} such") } else { Ok(()) }
    }
}

/// Returns advice on a cause.
fn remedy(cause: &FailureCause) -> &'static str {
    match cause {
        FailureCause::NoResponse => {
            "check that the peer's process runs, that its QP is in RTR or RTS with this QP's number and \
             starting PSN, and that the path passes UDP port 4791; a slow peer needs a longer timeout, and a peer \
             that is stopped (by a debugger or SIGSTOP) needs `urxe run --patient` or min_ack_timeout at both ends"
        }
        FailureCause::SequenceNaks | FailureCause::MissingResponses => {
            "the path loses packets: reduce the load, or raise retry_cnt"
        }
        FailureCause::ReceiverNotReady => {
            "the peer must post receives before messages arrive; rnr_retry 7 retries without a limit"
        }
        FailureCause::Nak(NakCode::RemoteAccessError) => {
            "compare address, length and rkey with the peer's region and its access flags; the peer's report \
             names the check"
        }
        FailureCause::Nak(NakCode::InvalidRequest) => {
            "check the access flags of the peer's QP, the lengths of its receives and its max_dest_rd_atomic"
        }
        FailureCause::Nak(_) => "the peer's report, or its asynchronous event, names the reason",
        FailureCause::Local(LocalCheck::TooLong { .. }) => "split the message, or use a connected service",
        FailureCause::Local(LocalCheck::Faulted) => "keep the memory mapped until the work request completes",
        FailureCause::Local(_) => "register the memory in the QP's protection domain, with the needed access",
        FailureCause::BadResponse => "capture the packets: the peer violates the protocol",
        FailureCause::Unsupported => "check the service and the protection domain of the address handle",
        FailureCause::Refused(_) => "correct the peer's request, or the region or receive that it needs",
        FailureCause::Modified => "none needed if this was intended, as at a disconnection",
        FailureCause::CqOverflow => "make the completion queue as large as all queues that complete to it",
        FailureCause::Injected => "none needed, if the program is to be tested with this error",
        FailureCause::DeviceFatal => "open the device again",
        FailureCause::Other(_) => "none known",
    }
}

/// Duration as text, in a unit of its size.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_nanos() {
            nanos @ ..1_000 => write!(f, "{nanos} ns"),
            nanos @ ..1_000_000 => write!(f, "{:.3} µs", nanos as f64 / 1e3),
            nanos @ ..10_000_000_000 => write!(f, "{:.3} ms", nanos as f64 / 1e6),
            nanos => write!(f, "{:.3} s", nanos as f64 / 1e9),
        }
    }
}

/// Time before the failure as text.
pub(crate) struct Ago(pub Duration);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::ZERO => f.write_str("at the failure"),
            before => write!(f, "at -{}", Span(before)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_a_failure_has_a_unit_of_its_size() {
        let text = |nanos| Ago(Duration::from_nanos(nanos)).to_string();
        assert_eq!(
            [0, 20, 20_040, 999_999, 67_108_864, 10_000_000_000].map(text),
            [
                "at the failure",
                "at -20 ns",
                "at -20.040 µs",
                "at -999.999 µs",
                "at -67.109 ms",
                "at -10.000 s"
            ]
        );
    }
}

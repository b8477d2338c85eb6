//! First reading of a capture: the senders of streams, gaps and retransmissions.

use std::collections::HashMap;

use urxe::qlog::{EventData, Gap, GapOf, Resend, Timer, millis};
use urxe::wire::{AckTimeout, Qpn};

use super::faults::lossy_fault;
use crate::capture::{Capture, CaptureError, Frame};
use crate::track::Tracker;
use crate::track::facts::{Cause, Resend as Resent};
use crate::track::stream::{Key, Stream};

/// Gaps and retransmissions of a stream that stay with the tracker: it completes the newest ones.
const KEPT: usize = 32;

/// An event that concerns one end of a stream.
#[derive(Debug)]
pub struct Loss {
    /// Stream of the requests.
    pub key: Key,
    /// Whether the event is one of the requester.
    pub is_of_requester: bool,
    /// The event.
    pub data: EventData,
}

/// Result of the first reading.
#[derive(Debug, Default)]
pub struct Losses {
    /// Queue pairs that send the packets of streams.
    pub senders: HashMap<Key, Qpn>,
    /// Events, by the numbers of the packets that show them.
    pub events: HashMap<u64, Vec<Loss>>,
}

/// Returns the number of the NIC that a packet was captured at: its interface, if that tells the packet's direction;
/// a host's interfaces may share the packets of a stream.
pub fn nic_of(frame: &Frame<'_>) -> u32 {
    frame.is_outbound.map_or(0, |_| frame.interface)
}

/// Reads a capture to its end. Returns the losses by the numbers of NICs.
///
/// # Errors
/// [`CaptureError`] if the capture cannot be read to its end.
pub fn read(mut capture: Capture) -> Result<HashMap<u32, Losses>, CaptureError> {
    let mut nics: HashMap<u32, (Tracker, Losses)> = HashMap::new();
    while let Some(frame) = capture.next_frame() {
        let frame = frame?;
        // It never reached the NIC.
        if frame.is_outbound == Some(false) && lossy_fault(&frame).is_some() {
            continue;
        }
        let (tracker, losses) = nics.entry(nic_of(&frame)).or_default();
        tracker.frame(&frame);
        let touched: Vec<usize> = tracker.touched().collect();
        for id in touched {
            losses.take(tracker, id, KEPT);
        }
    }
    Ok(nics.into_iter().map(|(nic, (tracker, losses))| (nic, losses.completed(tracker))).collect())
}

impl Losses {
    /// Takes what is left in the tracker at the end of the capture.
    fn completed(mut self, mut tracker: Tracker) -> Losses {
        for id in 0..tracker.streams.len() {
            self.take(&mut tracker, id, 0);
        }
        for stream in &tracker.streams {
            let peer = stream.peer.map(|peer| tracker.streams[peer].key.qpn);
            let known = peer.or_else(|| tracker.management.connection_to(stream.key).map(|c| c.2.qpn));
            if let Some(sender) = known {
                self.senders.insert(stream.key, sender);
            }
        }
        self
    }

    /// Takes the losses of a stream from the tracker, except for the newest `keep` of each kind.
    fn take(&mut self, tracker: &mut Tracker, id: usize, keep: usize) {
        let timeout = ack_timeout(tracker, id);
        let Stream { key, requests, .. } = &mut tracker.streams[id];
        let (key, facts) = (*key, &mut requests.facts);
        if [facts.gaps.first.len(), facts.resends.first.len()].iter().all(|len| *len <= keep) {
            return;
        }
        let mut add = |packet, is_of_requester, data| {
            self.events.entry(packet).or_default().push(Loss { key, is_of_requester, data });
        };
        for gap in facts.gaps.take_oldest(keep) {
            let missing = Gap { of: GapOf::Requests, psn: gap.psn.get(), count: Some(gap.len) };
            add(gap.at.packet, false, EventData::Gap(missing));
        }
        for resent in facts.resends.take_oldest(keep) {
            let psn = resent.psn.get();
            let (timer, trigger) = match resent.cause {
                Cause::SequenceNak(_) => (None, "nak"),
                Cause::ReceiverNotReady(_) => (None, "rnr_nak"),
                Cause::ResponseGap(_) => (None, "missing_response"),
                Cause::Timeout(waited) => {
                    let timer = Timer { psn, after: Some(millis(waited)) };
                    match is_probe(&resent, waited, timeout) {
                        true => (Some(EventData::Probe(timer)), "probe"),
                        false => (Some(EventData::Timeout(timer)), "timeout"),
                    }
                }
            };
            for data in
                timer.into_iter().chain([EventData::Retransmission(Resend { psn, trigger: trigger.into() })])
            {
                add(resent.at.packet, true, data);
            }
        }
    }
}

/// Returns the local ACK timeout of a stream's requester in nanoseconds, if the connection manager told it.
fn ack_timeout(tracker: &Tracker, id: usize) -> Option<u64> {
    let (connection, ..) = tracker.management.connection_to(tracker.streams[id].key)?;
    let timeout: AckTimeout = connection.retry.0;
    Some(timeout.duration()?.as_nanos() as u64)
}

/// Tells a probe from a retransmission after a timeout: it is not all that was in flight or, if that was one
/// packet only, came before the local ACK timeout.
fn is_probe(resent: &Resent, waited: u64, timeout: Option<u64>) -> bool {
    match resent.next.since(resent.psn) as u64 {
        1 => timeout.is_some_and(|timeout| waited < timeout),
        in_flight => resent.packets < in_flight,
    }
}

//! Findings of several captures of one run: what two captures say about the same request is one finding.

use crate::finding::{Diagnosis, Finding};

/// Diagnoses of one event, as it looks from different places: the one that tells most comes first. The capture at
/// the requester sees a request and no acknowledgement, the one at the responder which of them was lost.
const SAME_EVENT: [Diagnosis; 9] = [
    Diagnosis::MtuBlackHole,
    Diagnosis::UnknownQp,
    Diagnosis::RetryExceeded,
    Diagnosis::Reordered,
    Diagnosis::UnnecessaryRetransmission,
    Diagnosis::AckLost,
    Diagnosis::ReadResponseLost,
    Diagnosis::RequestLost,
    Diagnosis::TailLost,
];

/// Returns the place of a diagnosis in [`SAME_EVENT`].
fn place(finding: &Finding) -> Option<usize> {
    SAME_EVENT.iter().position(|diagnosis| *diagnosis == finding.diagnosis)
}

/// Reports whether findings of two captures are about the same event.
fn is_same_event(a: &Finding, b: &Finding) -> bool {
    let is_same_request = a.psn.is_some() && a.psn == b.psn && a.stream.is_some() && a.stream == b.stream;
    if place(a).is_some() && place(b).is_some() && a.diagnosis != b.diagnosis {
        return is_same_request;
    }
    let is_same_subject = if a.stream.is_some() { a.stream == b.stream } else { a.subject == b.subject };
    a.diagnosis == b.diagnosis && a.psn == b.psn && is_same_subject
}

/// Merges findings of different captures about the same event: the sentence that tells most stays, and the packets
/// of both are listed.
pub(crate) fn merge(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let file = finding.packets.first().map(|p| p.file);
        let of_others = |known: &&mut Finding| known.packets.iter().all(|p| Some(p.file) != file);
        let mut others = merged.iter_mut().filter(of_others);
        match others.find(|known| is_same_event(known, &finding)) {
            None => merged.push(finding),
            Some(known) => {
                // A sender's name is known only where both directions are.
                let tells_more = place(&finding) < place(known)
                    || place(&finding) == place(known) && finding.subject.len() > known.subject.len();
                let other = match tells_more {
                    true => std::mem::replace(known, finding),
                    false => finding,
                };
                known.packets.extend(other.packets);
                known.comments.extend(other.comments);
                known.count = known.count.max(other.count);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{PacketRef, Severity};
    use crate::track::stream::Key;
    use urxe::wire::{Psn, Qpn};

    fn finding(diagnosis: Diagnosis, psn: u32, file: usize) -> Finding {
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let stream = Key { src, dst, qpn: Qpn::new(0x11), vni: None };
        let packets = vec![PacketRef { file, packet: 1 }];
        Finding {
            psn: Some(Psn::new(psn)),
            stream: Some(stream),
            packets,
            ..Finding::new(diagnosis, Severity::Problem, String::new())
        }
    }

    #[test]
    fn captures_of_both_ends_make_one_finding_of_what_the_responder_shows() {
        let merged = merge(vec![
            finding(Diagnosis::TailLost, 7, 0),
            finding(Diagnosis::RequestLost, 9, 0),
            finding(Diagnosis::RequestLost, 9, 1),
            finding(Diagnosis::AckLost, 7, 1),
            finding(Diagnosis::AckLost, 8, 1),
        ]);
        let found: Vec<_> =
            merged.iter().map(|f| (f.diagnosis, f.psn.unwrap().get(), f.packets.len())).collect();
        assert_eq!(
            found,
            [(Diagnosis::AckLost, 7, 2), (Diagnosis::RequestLost, 9, 2), (Diagnosis::AckLost, 8, 1)]
        );
    }

    #[test]
    fn findings_of_one_capture_stay_separate() {
        let all = vec![finding(Diagnosis::RequestLost, 9, 0), finding(Diagnosis::RequestLost, 9, 0)];
        assert_eq!(merge(all).len(), 2);
    }
}

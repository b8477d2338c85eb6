//! Rules: from the facts of a capture to findings.

mod congestion;
mod context;
mod datagram;
mod integrity;
mod loss;
mod management;
mod refusal;
mod silence;

use urxe::wire::Transport;

use crate::finding::Finding;
pub(crate) use context::Capture;

/// Comments that a finding shows.
const MAX_COMMENTS: usize = 4;

/// Returns the findings of a capture, the gravest first, then by time.
pub(crate) fn findings(capture: &Capture<'_>) -> Vec<Finding> {
    let mut findings = integrity::findings(capture);
    findings.extend(silence::unresolved(capture));
    findings.extend(management::findings(capture));
    findings.extend(congestion::findings(capture));
    for stream in &capture.tracker.streams {
        match stream.transport {
            Transport::Rc | Transport::Xrc => {
                findings.extend(silence::findings(capture, stream));
                findings.extend(refusal::findings(capture, stream));
                findings.extend(loss::findings(capture, stream));
            }
            Transport::Uc => findings.extend(loss::unreliable(capture, stream)),
            Transport::Ud => findings.extend(datagram::findings(capture, stream)),
            _ => {}
        }
    }
    for finding in &mut findings {
        let comments =
            finding.packets.iter().filter_map(|p| Some((p.packet, capture.tracker.comments.get(&p.packet)?)));
        finding.comments = comments.map(|(packet, text)| format!("packet {packet}: {text}")).collect();
        finding.comments.dedup();
        finding.comments.truncate(MAX_COMMENTS);
    }
    findings.sort_by_key(|finding| (finding.severity, finding.time));
    findings
}

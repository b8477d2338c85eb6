//! Analysis of a capture that is still being written.

use crate::capture::{Capture, CaptureError};
use crate::finding::{Diagnosis, Finding};
use crate::report::Report;
use crate::track::Tracker;

/// Fields by which a finding is recognised after more packets.
type Identity = (Diagnosis, String, Option<u32>);

fn identity(finding: &Finding) -> Identity {
    (finding.diagnosis, finding.subject.clone(), finding.psn.map(|psn| psn.get()))
}

/// A capture that grows, and what is known of it so far.
#[derive(Debug)]
pub struct Live {
    capture: Capture,
    tracker: Tracker,
    /// Findings that were returned.
    returned: Vec<Identity>,
    /// Findings of the last call that were new in it.
    candidates: Vec<Identity>,
}

impl Live {
    /// Starts the analysis of a capture. Its reader returns 0 bytes where there are none yet.
    pub fn new(capture: Capture) -> Live {
        Live { capture, tracker: Tracker::default(), returned: Vec::new(), candidates: Vec::new() }
    }

    /// Takes the packets that have been written since the last call, and returns their number.
    ///
    /// # Errors
    /// [`CaptureError`] if the file cannot be read or is damaged: there will be no more packets.
    pub fn advance(&mut self) -> Result<u64, CaptureError> {
        let before = self.capture.packets();
        loop {
            match self.capture.next_frame() {
                Some(Ok(frame)) => self.tracker.frame(&frame),
                None | Some(Err(CaptureError::Truncated { .. })) => break,
                Some(Err(e)) => return Err(e),
            }
        }
        Ok(self.capture.packets() - before)
    }

    /// Returns the findings that were not returned before. A finding is returned by the second call in a row that
    /// has it: the packets that refute it may follow at once.
    pub fn new_findings(&mut self) -> Vec<Finding> {
        let mut findings = self.report().findings;
        findings.retain(|finding| !self.returned.contains(&identity(finding)));
        let candidates: Vec<Identity> = findings.iter().map(identity).collect();
        findings.retain(|finding| self.candidates.contains(&identity(finding)));
        self.returned.extend(findings.iter().map(identity));
        self.candidates = candidates;
        findings
    }

    /// Returns what is known so far.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        report.add_tracked(0, self.capture.name().to_owned(), &self.tracker, None);
        report.finish();
        report
    }
}

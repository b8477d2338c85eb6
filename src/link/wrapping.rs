//! What is put around a link: a capture of every packet, and faults by rule.

use super::Link;
use super::capture::{CaptureFile, CaptureHandle};
use super::faults::{FaultCounters, Faults, Rule};

/// A capture and faults for the links of NICs.
#[derive(Clone, Default)]
pub struct Wrapping {
    /// Where every packet of both directions goes.
    pub capture: Option<CaptureFile>,
    /// What disturbs packets.
    pub faults: Vec<Rule>,
    /// Draws the accidents.
    pub seed: u64,
}

impl Wrapping {
    /// Capture at the wire, faults between it and the NIC, each fault a comment in the capture. All are links of one NIC,
    /// which has this name in the capture. And what the faults count.
    pub fn around(&self, links: Vec<Box<dyn Link>>, name: &str) -> (Vec<Box<dyn Link>>, Vec<FaultCounters>) {
        let (mut interface, mut counters) = (None, Vec::new());
        let links =
            links.into_iter().map(|link| self.wrap(link, name, &mut interface, &mut counters)).collect();
        (links, counters)
    }

    fn wrap(
        &self,
        link: Box<dyn Link>,
        name: &str,
        interface: &mut Option<CaptureHandle>,
        counters: &mut Vec<FaultCounters>,
    ) -> Box<dyn Link> {
        let mut capture = |file: &CaptureFile, link| {
            let link = match interface {
                Some(interface) => interface.capture(link),
                None => file.clone().capture(link, name),
            };
            interface.get_or_insert_with(|| link.handle());
            link
        };
        let rules = self.faults.clone();
        match (&self.capture, rules.is_empty()) {
            (None, true) => link,
            (Some(file), true) => Box::new(capture(file, link)),
            (None, false) => {
                let link = Faults::new(link, rules, self.seed);
                counters.push(link.fault_counters());
                Box::new(link)
            }
            (Some(file), false) => {
                let link = capture(file, link);
                let notes = link.handle();
                let link = Faults::new(link, rules, self.seed).observed(move |e| notes.comment(e));
                counters.push(link.fault_counters());
                Box::new(link)
            }
        }
    }
}

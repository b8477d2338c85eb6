//! Middleware around a link: packet capture, fault injection by rule, and traces of packets.
#![forbid(unsafe_code)]

pub mod capture;
pub mod faults;
pub mod trace;

use crate::link::Link;
use capture::{CaptureFile, CaptureHandle};
use faults::{FaultCounters, FaultSeeds, Faults, Rule};

/// Capture and fault injection for the links of NICs.
#[derive(Clone, Default)]
pub struct Middleware {
    /// Capture file for packets in both directions; `None` to capture nothing.
    pub capture: Option<CaptureFile>,
    /// Rules that define the faults to inject.
    pub faults: Vec<Rule>,
    /// Seeds of the rules that apply with a probability.
    pub seeds: FaultSeeds,
}

impl Middleware {
    /// Wraps the links of one NIC, which the capture file records as the interface `name`. Packets are
    /// captured at the wire; faults are injected between the capture and the NIC, and each is noted as a
    /// comment in the capture. Returns the wrapped links and the fault counters.
    pub fn wrap(&self, links: Vec<Box<dyn Link>>, name: &str) -> (Vec<Box<dyn Link>>, Vec<FaultCounters>) {
        let (mut interface, mut counters) = (None, Vec::new());
        let links =
            links.into_iter().map(|link| self.wrap_one(link, name, &mut interface, &mut counters)).collect();
        (links, counters)
    }

    fn wrap_one(
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
                let link = Faults::new(link, rules, self.seeds.next());
                counters.push(link.fault_counters());
                Box::new(link)
            }
            (Some(file), false) => {
                let link = capture(file, link);
                let handle = link.handle();
                let link =
                    Faults::new(link, rules, self.seeds.next()).with_observer(move |e| handle.comment(e));
                counters.push(link.fault_counters());
                Box::new(link)
            }
        }
    }
}

//! Middleware around a link: packet capture, fault injection by rule, and traces of packets.
#![forbid(unsafe_code)]

pub mod capture;
pub mod faults;
mod packets;
pub mod trace;

use crate::link::Link;
use capture::CaptureFile;
use faults::{FaultCounters, FaultSeeds, Faults, Rule};

/// Capture and fault injection for the links of NICs.
#[derive(Clone, Default)]
pub struct Middleware {
    /// Capture file for packets in both directions; `None` to capture nothing.
    pub capture: Option<CaptureFile>,
    /// Whether packets are captured between the NIC and fault injection, as the NIC sends and receives them;
    /// otherwise between fault injection and the wire.
    pub captures_at_nic: bool,
    /// Rules that define the faults to inject.
    pub faults: Vec<Rule>,
    /// Seeds of the rules that apply with a probability.
    pub seeds: FaultSeeds,
}

impl Middleware {
    /// Wraps the links of one NIC, which the capture file records as the interface `name`. Each injected
    /// fault is noted as a comment in the capture. Returns the wrapped links and the fault counters.
    pub fn wrap(&self, links: Vec<Box<dyn Link>>, name: &str) -> (Vec<Box<dyn Link>>, Vec<FaultCounters>) {
        let interface = self.capture.as_ref().zip(links.first());
        let interface = interface.map(|(file, link)| file.interface(name, &link.info().name));
        let capture = |link: Box<dyn Link>| -> Box<dyn Link> {
            match &interface {
                Some(interface) => Box::new(interface.capture(link)),
                None => link,
            }
        };
        let mut counters = Vec::new();
        let mut inject = |link: Box<dyn Link>| -> Box<dyn Link> {
            if self.faults.is_empty() {
                return link;
            }
            let mut link = Faults::new(link, self.faults.clone(), self.seeds.next());
            counters.push(link.fault_counters());
            if let Some(interface) = interface.clone() {
                link = link.with_observer(move |event| interface.comment(event));
            }
            Box::new(link)
        };
        let wrap = |link| if self.captures_at_nic { capture(inject(link)) } else { inject(capture(link)) };
        let links = links.into_iter().map(wrap).collect();
        (links, counters)
    }
}

//! Middleware around a link: packet capture, event logs, fault injection by rule, and traces of packets.
#![forbid(unsafe_code)]

pub mod capture;
pub mod faults;
mod output;
mod packets;
#[cfg(feature = "qlog")]
pub mod qlog;
mod rotation;
pub mod trace;

#[cfg(feature = "qlog")]
use std::sync::Arc;

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
    /// Event log of the NIC, which contains its packets as it sends and receives them.
    #[cfg(feature = "qlog")]
    pub qlog: Option<qlog::QlogFile>,
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
        #[cfg(feature = "qlog")]
        let recorder = self
            .qlog
            .as_ref()
            .zip(links.first())
            .map(|(file, link)| Arc::new(qlog::QlogRecorder::new(file, name, link.info())));
        let mut counters = Vec::new();
        let mut inject = |link: Box<dyn Link>| -> Box<dyn Link> {
            if self.faults.is_empty() {
                return link;
            }
            let mut link = Faults::new(link, self.faults.clone(), self.seeds.next());
            counters.push(link.fault_counters());
            let interface = interface.clone();
            #[cfg(feature = "qlog")]
            let recorder = recorder.clone();
            link = link.with_observer(move |event| {
                if let Some(interface) = &interface {
                    interface.comment(event);
                }
                #[cfg(feature = "qlog")]
                if let Some(recorder) = &recorder {
                    recorder.fault(event);
                }
            });
            Box::new(link)
        };
        let wrap = |link| {
            let link = if self.captures_at_nic { capture(inject(link)) } else { inject(capture(link)) };
            #[cfg(feature = "qlog")]
            let link = log(link, recorder.as_ref());
            link
        };
        let links = links.into_iter().map(wrap).collect();
        (links, counters)
    }
}

/// Wraps a link so that its packets are logged, if there is a log.
#[cfg(feature = "qlog")]
fn log(link: Box<dyn Link>, recorder: Option<&Arc<qlog::QlogRecorder>>) -> Box<dyn Link> {
    match recorder {
        Some(recorder) => Box::new(qlog::Qlog::new(link, recorder.clone())),
        None => link,
    }
}

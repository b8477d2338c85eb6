//! Event logs of NICs: qlog files ([`crate::qlog`]), written as the NICs run.
//!
//! A [`QlogFile`] is buffered, and several NICs of a process can share one. A [`Qlog`] around the links of a NIC
//! logs packets as the NIC sends and receives them, and makes the NIC report the events of its queue pairs.

mod events;
mod file;
mod recorder;

use std::io;
use std::sync::Arc;

pub use file::{QlogError, QlogFile};
pub use recorder::QlogRecorder;

use super::faults::Direction;
use super::packets::{as_received, packets_of};
use crate::burst::{RxBurst, TxQueue};
use crate::fault_rules::{AppliedRule, FailedPackets};
use crate::link::{HostMemory, Link, NicEvent, NicObserver, delegate_link_methods, own_capabilities};
use crate::transport::{Instant, QpObserver};

/// A link whose packets are logged. It is the outermost one, directly below the NIC.
pub struct Qlog<L> {
    inner: L,
    recorder: Arc<QlogRecorder>,
}

impl<L: Link> Qlog<L> {
    /// Wraps a link of the recorder's NIC.
    pub fn new(inner: L, recorder: Arc<QlogRecorder>) -> Qlog<L> {
        Qlog { inner, recorder }
    }
}

impl<L: Link> Link for Qlog<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        // Before the link drops or answers some of them.
        for burst in queue.bursts() {
            for packet in packets_of(&as_received(&burst)) {
                self.recorder.packet(now, Direction::Tx, &packet.flow, packet.data);
            }
        }
        self.inner.transmit(now, queue)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let Qlog { inner, recorder } = self;
        inner.receive(now, &mut |burst| {
            for packet in packets_of(&burst) {
                recorder.packet(now, Direction::Rx, &packet.flow, packet.data);
            }
            sink(burst);
        })
    }

    delegate_link_methods!(self => self.inner, HostMemory::with_icrcs);

    own_capabilities!(nic_observer: NicObserver);

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
}

impl<L: Link> NicObserver for Qlog<L> {
    fn on_nic_event(&mut self, now: Instant, event: &NicEvent) {
        if let Some(inner) = self.inner.nic_observer() {
            inner.on_nic_event(now, event);
        }
    }

    fn applied_rules(&mut self, failed: &FailedPackets) -> Vec<AppliedRule> {
        self.inner.nic_observer().map(|inner| inner.applied_rules(failed)).unwrap_or_default()
    }

    fn qp_observer(&mut self) -> Option<Arc<dyn QpObserver>> {
        Some(self.recorder.clone())
    }
}

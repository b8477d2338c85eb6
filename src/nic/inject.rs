//! Injection of asynchronous events for tests, each with its effect on the NIC.

use super::{CqHandle, Nic};
use crate::burst::TxQueue;
use crate::memory::Table;
use crate::transport::{AsyncEvent, FailureCause, Instant, QpState};
use crate::wire::Qpn;

impl Nic {
    /// Raises an event as if its cause had occurred. An error event for a queue pair also moves the queue
    /// pair to ERR; `QpFatal` does so at the next [`transmit_within`](Self::transmit_within). Returns false,
    /// and raises nothing, if the NIC has no object with the event's number.
    ///
    /// `DeviceFatal` and the events of the port concern the link too, so they are not injected here: see
    /// [`fail`](Self::fail) and [`set_port_up`](Self::set_port_up). `CqError` is the driver's event: see
    /// [`inject_cq_error`](Self::inject_cq_error).
    pub fn inject_event(
        &mut self,
        now: Instant,
        event: AsyncEvent,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> bool {
        match event {
            AsyncEvent::DeviceFatal
            | AsyncEvent::PortActive
            | AsyncEvent::PortError
            | AsyncEvent::CqError(_) => return false,
            AsyncEvent::QpFatal(qpn) => return self.inject_qp_fatal(now, qpn),
            AsyncEvent::SrqError(id) | AsyncEvent::SrqLimit(id) if self.srq(id).is_none() => return false,
            _ => {}
        }
        if let Some(qpn) = event.qpn() {
            let Some(state) = self.qp_state(qpn) else { return false };
            let is_error = matches!(event, AsyncEvent::QpRequestError(_) | AsyncEvent::QpAccessError(_));
            if is_error && state != QpState::Reset {
                self.move_to_err(now, qpn, FailureCause::Injected, memory, tx);
            }
        }
        self.outputs.raise(event);
        true
    }

    fn inject_qp_fatal(&mut self, now: Instant, qpn: Qpn) -> bool {
        let Some(entry) = self.table.get_mut(qpn) else { return false };
        match entry.qp.state() {
            QpState::Reset | QpState::Err => self.outputs.raise(AsyncEvent::QpFatal(qpn)),
            // The queue pair raises the event as it fails.
            _ => {
                entry.qp.record_injected_failure(FailureCause::Injected, now);
                entry.must_enter_error = true;
                self.schedule.enqueue(entry);
            }
        }
        true
    }

    /// Makes all queue pairs that use the completion queue `cq` enter ERR at the next
    /// [`transmit_within`](Self::transmit_within), as a CQ error does, and returns them. The driver raises
    /// the event itself.
    pub fn inject_cq_error(&mut self, cq: CqHandle) -> Vec<Qpn> {
        let mut qpns = Vec::new();
        for entry in self.table.iter_mut().filter(|e| e.send_cq == cq || e.recv_cq == cq) {
            qpns.push(entry.qp.qpn());
            entry.must_enter_error = true;
            self.schedule.enqueue(entry);
        }
        qpns
    }
}

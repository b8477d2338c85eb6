//! Application of faults on objects in a shard's turns, so that in virtual time they happen at the same
//! instant in every run.

use std::io;
use std::sync::Arc;

use super::Shard;
use super::object_faults::{ActiveObjectFault, Changed, Due, ObjectChange, Trigger, packets};
use super::shard::ShardState;
use crate::fault_rules::{AppliedRule, FailedPackets};
use crate::transport::{AsyncEvent, Failure, Instant, QpState};
use crate::wire::Qpn;

impl ShardState {
    /// Sets the port's state to that of the link, unless a fault has taken the port down.
    pub(super) fn update_port(&mut self, link_is_up: bool) {
        let up = link_is_up && !self.faults.port_is_down;
        self.nic.set_port_up(up);
    }
}

impl Shard {
    /// Adds a fault on an object, whose time begins now.
    pub fn add_object_fault(&self, fault: Arc<ActiveObjectFault>) {
        self.with_state(|state, now| {
            let due = match fault.fault.trigger() {
                Trigger::After(time) => Due::At(now + time),
                Trigger::Packets(count) => Due::Packets(packets(state.nic.counters()) + count),
            };
            state.faults.pending.push((due, fault));
        });
    }

    /// Returns the record of a queue pair's failure.
    pub fn failure(&self, qpn: Qpn) -> Option<Failure> {
        self.with_nic(|nic| nic.qp(qpn)?.failure())
    }

    /// Returns the packet rules that may explain the failure of a queue pair of this shard.
    pub fn rules_behind(&self, failure: &Failure) -> Vec<AppliedRule> {
        let Some(packets) = FailedPackets::of(failure) else { return Vec::new() };
        self.with_state(|state, _| {
            let observer = state.link().and_then(|link| link.nic_observer());
            observer.map(|observer| observer.applied_rules(&packets)).unwrap_or_default()
        })
    }

    /// Applies the faults on objects that are due.
    #[cold]
    pub(super) fn apply_object_faults(&self, state: &mut ShardState, now: Instant) {
        while let Some((index, at)) = state.faults.next(now, state.nic.counters())
            && at <= now
        {
            let (_, fault) = state.faults.pending.remove(index);
            self.apply_object_fault(state, now, &fault);
            state.deliver(now);
        }
    }

    fn apply_object_fault(&self, state: &mut ShardState, now: Instant, fault: &ActiveObjectFault) {
        // Every shard has its own queue pairs and its own view of the port; the first one counts for all
        // where the shards share what changes.
        let is_first = self.mailbox.id().is_first();
        let count_once = |is_changed| {
            if is_first {
                fault.count(is_changed);
            }
        };
        match fault.fault.change() {
            ObjectChange::QpError(qpn) => {
                let chosen = |found: &Qpn| qpn.map_or(*found != Qpn::GSI, |qpn| qpn == *found);
                let mut qpns: Vec<Qpn> = state.nic.qpns().filter(chosen).collect();
                qpns.retain(|qpn| {
                    let was_in_err = state.nic.qp_state(*qpn) == Some(QpState::Err);
                    let event = state.inject_event(now, AsyncEvent::QpFatal(*qpn));
                    let is_changed = event.is_some() && !was_in_err;
                    fault.count(is_changed);
                    is_changed
                });
                fault.record(now, Changed::Qps(qpns));
            }
            ObjectChange::CqOverrun(id) => {
                for cq in state.outputs.queues.matching(id) {
                    let (is_changed, qpns) = state.overrun_cq(&cq);
                    fault.count(is_changed);
                    fault.record(now, Changed::Cq(qpns));
                }
            }
            ObjectChange::Port { up } => {
                let was_up = state.nic.port_is_up();
                state.faults.port_is_down = !up;
                let link_is_up = state.link_is_up().unwrap_or(false);
                state.update_port(link_is_up);
                let is_changed = state.nic.port_is_up() != was_up;
                count_once(is_changed);
                if is_first && is_changed {
                    fault.record(now, Changed::Port);
                }
            }
            ObjectChange::Gid { index, gid } => {
                state.nic.set_gid(index, gid.unwrap_or_default()).into_iter().for_each(count_once);
            }
            ObjectChange::Speed(speed) => count_once(state.nic.set_port_speed(speed)),
            ObjectChange::DeviceFatal | ObjectChange::RevokeMr(_) if !is_first => {}
            ObjectChange::DeviceFatal => {
                let is_changed = state.link.is_ok();
                fault.count(is_changed);
                if is_changed {
                    fault.record(now, Changed::Device);
                    self.lose_link(state, io::Error::other(format!("fault rule '{}'", fault.fault)), now);
                }
            }
            ObjectChange::RevokeMr(rkey) => {
                let mut regions = state.memory.revoke_access(rkey);
                regions.iter().for_each(|(_, is_changed)| fault.count(*is_changed));
                regions.retain(|(_, is_changed)| *is_changed);
                fault.record(now, Changed::Regions(regions.into_iter().map(|(key, _)| key).collect()));
            }
            ObjectChange::Event(event) => {
                let is_of_port = event.qpn().is_none() && event.cq().is_none() && event.srq().is_none();
                if (is_first || !is_of_port)
                    && let Some(changed) = state.inject_event(now, event)
                {
                    fault.count(true);
                    fault.record(now, changed);
                }
            }
        }
    }
}

//! Faults of an open device.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{AppliedFault, FaultCount, Injector};
use crate::driver::{ActiveObjectFault, ObjectFault, Shards, faults_behind};
use crate::middleware::faults::FaultCounters;
use crate::transport::Failure;

/// The faults of a device, with their counters.
pub struct DeviceFaults {
    pub(in crate::verbs) calls: Injector,
    /// Counters of the packet rules, one for each shard.
    packets: Vec<FaultCounters>,
    objects: Mutex<Vec<Arc<ActiveObjectFault>>>,
}

impl DeviceFaults {
    pub(in crate::verbs) fn new(calls: Injector, packets: Vec<FaultCounters>) -> DeviceFaults {
        DeviceFaults { calls, packets, objects: Mutex::default() }
    }

    /// Adds a fault on an object to all shards.
    pub(in crate::verbs) fn add(&self, fault: ObjectFault, shards: &Shards) {
        let fault = Arc::new(ActiveObjectFault::new(fault));
        self.objects.lock().push(fault.clone());
        shards.add_object_fault(&fault);
    }

    /// Returns the faults on objects that may explain a failure.
    pub(in crate::verbs) fn behind(&self, failure: &Failure) -> Vec<AppliedFault> {
        let faults = faults_behind(failure, &self.objects.lock());
        faults.iter().map(|(fault, at)| AppliedFault::of_object(fault, *at, failure)).collect()
    }

    /// Returns the counters: of packet rules, faults on calls and faults on objects, in this order.
    pub fn counts(&self) -> Vec<FaultCount> {
        let packets = FaultCounters::sum(&self.packets).into_iter();
        let objects = self.objects.lock();
        let objects = objects.iter().map(|active| {
            let (matched, struck) = active.counts();
            FaultCount { rule: active.fault.to_string(), matched, struck, kind: "object" }
        });
        packets.chain(self.calls.counts()).chain(objects).collect()
    }
}

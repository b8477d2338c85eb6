//! Congestion control of a device: selection and parameters.

use std::time::Duration;

use super::{Context, WeakContext};
use crate::transport::Congestion;

impl Context {
    /// Returns the device's congestion control and its parameters.
    pub fn congestion(&self) -> Congestion {
        self.0.shards.with_nic(|nic| nic.config().tuning.congestion.control)
    }

    /// Replaces the device's congestion control. Changed parameters take effect at once, for all queue pairs;
    /// another algorithm takes effect for queue pairs that enter RTR later.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// let fabric = Fabric::new();
    /// let context = fabric.open(&ContextOptions::default().congestion(Congestion::DCQCN_CONNECTX))?;
    /// context.set_congestion(context.congestion().with(CongestionParameter::RpgAiRate, 50)?);
    /// assert_eq!(context.congestion().to_string(), "dcqcn:connectx,rpg_ai_rate=50");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_congestion(&self, congestion: Congestion) {
        self.0.shards.with_all_nics(|nics| nics.iter_mut().for_each(|nic| nic.set_congestion(congestion)));
    }
}

impl WeakContext {
    /// Replaces the device's congestion control, like [`Context::set_congestion`]. Returns false if the
    /// device is no longer open or a shard's lock is held for longer than `timeout`; other shards may
    /// have been changed.
    #[doc(hidden)]
    pub fn set_congestion_within(&self, congestion: Congestion, timeout: Duration) -> bool {
        self.0.upgrade().is_some_and(|device| device.shards.set_congestion_within(congestion, timeout))
    }
}

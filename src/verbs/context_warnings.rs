//! Warnings of a context.

use std::sync::Arc;

use super::context::Inner;
use super::{Context, Warning, WarningKind, WeakContext};

impl Inner {
    /// Warns if a message has arrived at a queue pair to which no receive has ever been posted.
    fn check_receives(&self) {
        if self.warnings.has_raised(WarningKind::ReceiveQueueEmpty) {
            return;
        }
        let found = self.shards.with_all_nics(|nics| nics.iter().find_map(|nic| nic.qp_without_receives()));
        if let Some(qp) = found {
            let detail = || format!("a message has arrived at QP {qp}, to which no receive has been posted");
            self.warnings.raise(WarningKind::ReceiveQueueEmpty, detail);
        }
    }

    /// Warns if packets were dropped because a ring in shared memory is required.
    fn check_rings(&self) {
        let dropped = self.shards.link_state().0.tx_no_ring;
        let detail = || {
            format!(
                "{dropped} packets to another process of this host were dropped, as there is no ring to it"
            )
        };
        if dropped > 0 {
            self.warnings.raise(WarningKind::RingMissing, detail);
        }
    }
}

impl WeakContext {
    /// Raises the warnings that no call of the application causes, if the device is open.
    #[doc(hidden)]
    pub fn update_warnings(&self) {
        if let Some(device) = self.0.upgrade() {
            device.check_receives();
            device.check_rings();
        }
    }
}

impl Context {
    /// Returns the warnings that the use of the device has caused so far: at most one of each kind, for the
    /// first object that it concerns.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// let options = ConnectOptions::default().retry_cnt(0);
    /// let (a, _b) = Fabric::new().pair_builder().connect(options).build()?;
    /// assert_eq!(a.context.warnings()[0].kind, WarningKind::RetryCntZero);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn warnings(&self) -> Vec<Warning> {
        self.0.check_receives();
        self.0.check_rings();
        self.0.warnings.all()
    }

    /// Calls `callback` for each warning: at once for those already raised, and from then on for each new
    /// one, on the thread whose call causes it. [`WarningKind::ReceiveQueueEmpty`] and
    /// [`WarningKind::RingMissing`] are raised by [`warnings`](Self::warnings).
    pub fn on_warning(&self, callback: impl Fn(&Warning) + Send + Sync + 'static) {
        self.0.warnings.add_callback(Arc::new(callback));
    }
}

//! State of a queue pair whose work requests are built by one call per part (`ibv_wr_start`).

use std::ffi::c_int;

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use urxe::verbs::WrSession;

use crate::abi::ibv_mw;
use crate::object::FfiCell;

/// The session in progress. From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`, the thread that holds
/// `lock` has sole access to the cells below and to the C struct of the queue pair.
pub(crate) struct WrSessionState {
    pub lock: RawMutex,
    /// The session, which borrows from the [`Qp`](urxe::verbs::Qp) in the same
    /// [`QueuePair`](crate::qp::QueuePair).
    pub active: FfiCell<Option<WrSession<'static>>>,
    /// The error of a call that returns nothing, reported by `ibv_wr_complete`.
    pub error: FfiCell<Option<c_int>>,
    /// Memory windows that the session binds, with their new rkeys.
    pub bound_windows: FfiCell<Vec<(*mut ibv_mw, u32)>>,
}

impl Default for WrSessionState {
    fn default() -> WrSessionState {
        WrSessionState {
            lock: RawMutex::INIT,
            active: FfiCell::new(None),
            error: FfiCell::new(None),
            bound_windows: FfiCell::new(Vec::new()),
        }
    }
}

//! Parameters for creating a queue pair.

use super::{QpType, Quirks, SrqId, XrcdId};
use crate::memory::PdId;
use crate::wire::Mtu;

/// Limits of a send queue, fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendCaps {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements per work request.
    pub max_sge: u32,
    /// Maximum number of inline bytes per work request.
    pub max_inline: u32,
}

/// Limits of a receive queue, fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvCaps {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements per work request.
    pub max_sge: u32,
}

/// Parameters for creating a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Service type.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Limits of the send queue.
    pub send: SendCaps,
    /// Limits of the receive queue; ignored if the queue pair uses a shared receive queue.
    pub recv: RecvCaps,
    /// Whether every send generates a completion (`sq_sig_all`).
    pub signal_all: bool,
    /// Shared receive queue from which the queue pair takes receives. [`Env::srq`](super::Env::srq) must be
    /// this queue in every step.
    pub srq: Option<SrqId>,
    /// XRC domain of an XRC target QP, which uses it instead of a protection domain.
    pub domain: Option<XrcdId>,
    /// Port MTU, which limits the size of datagrams.
    pub port_mtu: Mtu,
    /// Quirks of the device.
    pub quirks: Quirks,
}

#[cfg(test)]
impl QpInit {
    /// Returns parameters for an RC queue pair, for unit tests.
    pub fn rc() -> QpInit {
        QpInit {
            qp_type: QpType::Rc,
            pd: PdId(1),
            send: SendCaps { max_wr: 16, max_sge: 4, max_inline: 64 },
            recv: RecvCaps::default(),
            signal_all: false,
            srq: None,
            domain: None,
            port_mtu: Mtu::Mtu1024,
            quirks: Quirks::STRICT,
        }
    }
}

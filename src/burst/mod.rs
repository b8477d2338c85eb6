//! Bursts of packets: framing that no queue pair owns.
//!
//! A NIC queues the packets of a turn in a [`TxQueue`], which a link gets as bursts ([`TxBurst`]); a link
//! passes received packets to the NIC as an [`RxBurst`]. A burst is a gather list of bytes and of payloads in
//! user memory (`Piece`). These can stay where they are until the receiver copies them to their destination
//! ([`GatheredPackets`]).
#![forbid(unsafe_code)]

/// Defines a method that is public only for the tests and benchmarks of the workspace, because its types are
/// private.
macro_rules! internal {
    ($(#[$attribute:meta])* fn $($rest:tt)*) => {
        #[cfg(feature = "unstable-internals")]
        $(#[$attribute])*
        pub fn $($rest)*
        #[cfg(not(feature = "unstable-internals"))]
        $(#[$attribute])*
        pub(crate) fn $($rest)*
    };
}

mod copier;
mod gathered;
mod received;
mod rx_burst;
mod tx_burst;
mod tx_queue;

#[cfg(feature = "unstable-internals")]
pub use copier::Copier;
pub use gathered::GatheredPackets;
pub(crate) use received::ReceivedPayload;
pub use received::{PayloadRun, PayloadSource, SenderPayloads};
pub use rx_burst::RxBurst;
pub(crate) use tx_burst::Piece;
pub use tx_burst::{BurstLimits, PeerPath, TxBurst};
pub use tx_queue::TxQueue;

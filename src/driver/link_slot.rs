//! A shard's link, and its state after the link was lost.

use std::io;
use std::sync::Arc;

use crate::link::{Link, LinkCounters};
use crate::transport::Instant;

/// A shard's link or, once the link is lost, the reason and the link's final counters.
pub(super) enum LinkSlot {
    Attached(Box<dyn Link>),
    Lost { reason: Arc<io::Error>, counters: Box<LinkCounters> },
}

impl LinkSlot {
    pub fn get(&mut self) -> Option<&mut dyn Link> {
        match self {
            LinkSlot::Attached(link) => Some(&mut **link),
            LinkSlot::Lost { .. } => None,
        }
    }

    pub fn is_attached(&self) -> bool {
        matches!(self, LinkSlot::Attached(_))
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            LinkSlot::Attached(link) => link.next_deadline(),
            LinkSlot::Lost { .. } => None,
        }
    }

    /// Reports whether packets have taken rings in shared memory.
    pub fn has_used_rings(&self) -> bool {
        matches!(self, LinkSlot::Attached(link) if link.has_used_rings())
    }

    pub fn link_status(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        match self {
            LinkSlot::Attached(link) => (link.counters(), None),
            LinkSlot::Lost { reason, counters } => (**counters, Some(reason.clone())),
        }
    }
}

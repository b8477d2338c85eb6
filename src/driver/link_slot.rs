//! A shard's link, and its state after the link was lost.

use std::io;
use std::sync::Arc;

use crate::link::{HostMemory, Link, LinkCounters};
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

    pub fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        self.get()?.host_memory()
    }

    /// Reports whether the port carries packets; `None` once the link is lost.
    pub fn is_up(&mut self) -> Option<bool> {
        self.get().map(|link| link.port_state().is_none_or(|port| port.is_up()))
    }

    pub fn link_status(&mut self) -> (LinkCounters, Option<Arc<io::Error>>) {
        match self {
            LinkSlot::Attached(link) => {
                (link.port_state().map_or_else(LinkCounters::default, |port| port.counters()), None)
            }
            LinkSlot::Lost { reason, counters } => (**counters, Some(reason.clone())),
        }
    }
}

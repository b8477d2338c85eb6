//! Polls of links: which sockets poll the link before their completions are processed.

use urxe::verbs::Cq;

/// Links that are polled when sockets are processed.
///
/// A poll of the link makes system calls and delivers the completions of all sockets on it. So `rpoll` of
/// many sockets polls it once instead of once for each, and calls on a socket look first for completions that
/// have arrived: 50 connections of redis-benchmark reached 72,000 requests/s with a poll of the link for each
/// look, and 115,000 without.
pub(crate) enum LinkPolls {
    /// None.
    None,
    /// That of each socket.
    All,
    /// None now; those of these queues by [`poll`](Self::poll), among them the links of all sockets.
    Later(Vec<Cq>),
}

impl LinkPolls {
    /// Reports whether to poll the link of a socket's queue.
    pub(crate) fn take(&mut self, cq: &Cq) -> bool {
        let LinkPolls::Later(queues) = self else { return matches!(self, LinkPolls::All) };
        // A queue with a requested event is for a program that waits; a poll of another one shows that this
        // one polls.
        match queues.iter_mut().find(|queue| queue.polls_links_of(cq)) {
            Some(queue) if queue.is_armed() && !cq.is_armed() && cq.polls_links_of(queue) => {
                *queue = cq.clone()
            }
            Some(_) => {}
            None => queues.push(cq.clone()),
        }
        false
    }

    /// Polls the links that were left for later. Returns false if there are none.
    pub(crate) fn poll(self) -> bool {
        let LinkPolls::Later(queues) = self else { return false };
        queues.iter().for_each(Cq::poll_link);
        !queues.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use urxe::verbs::{Fabric, Notify};

    use super::*;

    #[test]
    fn links_polled_later_are_polled_once_each_and_by_a_queue_without_a_requested_event() {
        let (a, b) = Fabric::new().pair().unwrap();
        let armed = a.context.create_cq(1).unwrap();
        armed.req_notify(Notify::Any);
        let mut link_polls = LinkPolls::Later(Vec::new());
        for cq in [&armed, &a.cq, &b.cq, &armed] {
            assert!(!link_polls.take(cq));
        }
        assert!(matches!(&link_polls, LinkPolls::Later(queues) if queues[..] == [a.cq, b.cq]));
        assert!(link_polls.poll());
        assert!(!LinkPolls::Later(Vec::new()).poll());
    }

    #[test]
    fn links_are_polled_at_once_or_never_without_a_list() {
        let (a, _b) = Fabric::new().pair().unwrap();
        assert!(LinkPolls::All.take(&a.cq) && !LinkPolls::None.take(&a.cq));
        assert!(!LinkPolls::All.poll() && !LinkPolls::None.poll());
    }
}

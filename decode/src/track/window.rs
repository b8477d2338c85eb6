//! Requests of a stream that are not acknowledged yet, in order of their PSNs.

use std::collections::VecDeque;

use urxe::wire::{Opcode, Psn, RKey};

/// A request as its first transmission showed it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// First PSN.
    pub psn: Psn,
    /// Number of PSNs: the number of response packets for a READ, otherwise 1.
    pub span: u32,
    /// Number of the packet in its file.
    pub packet: u64,
    /// Time of the last transmission.
    pub time: u64,
    /// Time of the first transmission.
    pub first_time: u64,
    /// Number of transmissions.
    pub sends: u32,
    /// Opcode.
    pub opcode: Opcode,
    /// Payload in bytes.
    pub payload: u32,
    /// IPv4 identification.
    pub ident: Option<u16>,
    /// Address, key and length of the RETH or AtomicETH.
    pub target: Option<Target>,
    /// Whether the requester asked for an acknowledgement.
    pub ack_req: bool,
    /// READs and atomics in flight when it was sent, with itself.
    pub reads: u64,
    /// PSN of the next response packet, for a READ.
    pub next_response: Psn,
    /// PSN of the next response packet to the transmission before the last one, which may still be on its way.
    pub next_of_earlier: Psn,
}

/// Memory that a request refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: RKey,
    /// Length in bytes.
    pub len: u64,
}

/// Requests that the window holds at most. The oldest leave it first: nothing acknowledges the requests of
/// UC, and a capture may lack one direction.
const MAX_REQUESTS: usize = 1 << 16;

/// Requests that are not acknowledged yet.
#[derive(Clone, Debug, Default)]
pub struct Window {
    requests: VecDeque<Request>,
}

impl Window {
    /// Appends a request, whose PSN is behind those of all others.
    pub fn push(&mut self, request: Request) {
        if self.requests.len() == MAX_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
    }

    /// Returns the oldest request.
    pub fn oldest(&self) -> Option<&Request> {
        self.requests.front()
    }

    /// Returns the newest request.
    pub fn newest(&mut self) -> Option<&mut Request> {
        self.requests.back_mut()
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Reports whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Iterates over the requests, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Request> {
        self.requests.iter()
    }

    /// Returns the position of the request that `psn` belongs to, or would be inserted at.
    fn position(&self, psn: Psn) -> Result<usize, usize> {
        let behind = self.requests.partition_point(|r| !r.psn.is_after(psn));
        match behind.checked_sub(1) {
            Some(at) if (psn.since(self.requests[at].psn) as u32) < self.requests[at].span => Ok(at),
            _ => Err(behind),
        }
    }

    /// Returns the request that `psn` belongs to.
    pub fn find(&mut self, psn: Psn) -> Option<&mut Request> {
        self.position(psn).ok().map(|at| &mut self.requests[at])
    }

    /// Inserts a request that arrived out of order, unless its PSN is present.
    pub fn insert(&mut self, request: Request) {
        if let Err(at) = self.position(request.psn) {
            self.requests.insert(at, request);
        }
    }

    /// Removes the requests before `psn`, and those that end there, and passes each to `f`.
    pub fn acknowledge(&mut self, psn: Psn, mut f: impl FnMut(&Request)) {
        while let Some(request) = self.requests.front() {
            let last = request.psn + (request.span - 1);
            if last.is_after(psn) {
                break;
            }
            f(request);
            self.requests.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(psn: u32, span: u32) -> Request {
        let psn = Psn::new(psn);
        Request {
            psn,
            span,
            packet: psn.get().into(),
            time: 0,
            first_time: 0,
            sends: 1,
            opcode: Opcode(4),
            payload: 0,
            ident: None,
            target: None,
            ack_req: false,
            reads: 0,
            next_response: psn,
            next_of_earlier: psn,
        }
    }

    #[test]
    fn psn_finds_its_request_across_the_wrap_and_within_reads() {
        let mut window = Window::default();
        for (psn, span) in [(0xff_fffe, 1), (0xff_ffff, 3), (2, 1), (5, 1)] {
            window.push(request(psn, span));
        }
        let mut found = |psn| window.find(Psn::new(psn)).map(|r| r.psn.get());
        assert_eq!(found(0xff_fffd), None);
        assert_eq!(found(0), Some(0xff_ffff));
        assert_eq!(found(1), Some(0xff_ffff));
        assert_eq!(found(2), Some(2));
        assert_eq!(found(3), None);
        assert_eq!(found(5), Some(5));
        window.insert(request(4, 1));
        window.insert(request(1, 1));
        assert_eq!(window.iter().map(|r| r.psn.get()).collect::<Vec<_>>(), [0xff_fffe, 0xff_ffff, 2, 4, 5]);
    }

    #[test]
    fn acknowledgement_removes_what_ends_at_its_psn_or_before() {
        let mut window = Window::default();
        for (psn, span) in [(7, 1), (8, 4), (12, 1)] {
            window.push(request(psn, span));
        }
        let mut acknowledged = Vec::new();
        window.acknowledge(Psn::new(10), |r| acknowledged.push(r.psn.get()));
        assert_eq!(acknowledged, [7]);
        window.acknowledge(Psn::new(11), |r| acknowledged.push(r.psn.get()));
        assert_eq!((acknowledged, window.len()), (vec![7, 8], 1));
    }
}

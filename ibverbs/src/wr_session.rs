//! State of a queue pair whose work requests are built with one call per part (`ibv_wr_start`).

use std::ffi::c_int;
use std::ops::Range;

use urxe::verbs::{Destination, SendFlags, SendWr, Sge, WrData, WrOp};

use crate::abi::ibv_mw;

/// Work requests of a session, which lasts from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`. The
/// buffers are kept for the next session, so that only the first sessions allocate.
#[derive(Default)]
pub(crate) struct Requests {
    /// Whether a session is in progress.
    pub is_open: bool,
    list: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Error in a call that has no return value; `ibv_wr_complete` reports it.
    pub error: Option<c_int>,
    /// Memory windows bound in the session, with their new rkeys.
    pub bound_windows: Vec<(*mut ibv_mw, u32)>,
}

struct Request {
    wr_id: u64,
    op: WrOp,
    flags: SendFlags,
    to: Option<Destination>,
    data: Data,
}

/// Range of `sges` or `inline` that holds the data of a work request.
#[derive(Clone)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Requests {
    /// Opens a session without work requests.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
        self.error = None;
        self.list.clear();
        self.sges.clear();
        self.inline.clear();
        self.bound_windows.clear();
    }

    /// Begins a work request without data.
    pub(crate) fn begin(&mut self, wr_id: u64, op: WrOp, flags: SendFlags) {
        let at = self.sges.len();
        self.list.push(Request { wr_id, op, flags, to: None, data: Data::Sges(at..at) });
    }

    /// Sets the data of the current work request to a copy of `sges`.
    pub(crate) fn set_sges(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        if let Some(request) = self.list.last_mut() {
            request.data = Data::Sges(start..self.sges.len());
        }
    }

    /// Sets the data of the current work request to a copy of `pieces`, concatenated.
    pub(crate) fn set_inline<'p>(&mut self, pieces: impl Iterator<Item = &'p [u8]>) {
        let start = self.inline.len();
        pieces.for_each(|piece| self.inline.extend_from_slice(piece));
        if let Some(request) = self.list.last_mut() {
            request.data = Data::Inline(start..self.inline.len());
        }
    }

    /// Sets the destination of the current work request.
    pub(crate) fn set_destination(&mut self, to: Destination) {
        if let Some(request) = self.list.last_mut() {
            request.to = Some(to);
        }
    }

    /// Returns the work requests in the form that the NIC accepts.
    pub(crate) fn send_wrs(&self) -> impl Iterator<Item = SendWr<'_>> {
        self.list.iter().map(|request| {
            let mut wr = SendWr::new(request.wr_id, request.op, &[]).flags(request.flags);
            wr.to = request.to;
            wr.data = match &request.data {
                Data::Sges(range) => WrData::Sges(&self.sges[range.clone()]),
                Data::Inline(range) => WrData::Inline(&self.inline[range.clone()]),
            };
            wr
        })
    }
}

#[cfg(test)]
mod tests {
    use urxe::verbs::{LKey, SrqId};

    use super::*;

    fn sge(addr: u64) -> Sge {
        Sge { addr, length: 1, lkey: LKey(1) }
    }

    fn data(requests: &Requests) -> Vec<WrData<'_>> {
        requests.send_wrs().map(|wr| wr.data).collect()
    }

    #[test]
    fn setting_data_again_replaces_the_data_of_a_work_request() {
        let mut requests = Requests::default();
        requests.open();
        for _ in 0..3 {
            requests.begin(1, WrOp::Send, SendFlags::default());
            requests.set_inline([b"first".as_slice()].into_iter());
            requests.set_sges(&[sge(1), sge(2)]);
        }
        requests.set_inline([b"of".as_slice(), b" ", b"", b"parts"].into_iter());
        requests.begin(2, WrOp::Send, SendFlags::default());
        requests.set_sges(&[sge(3)]);
        let pair = [sge(1), sge(2)];
        assert_eq!(
            data(&requests),
            [WrData::Sges(&pair), WrData::Sges(&pair), WrData::Inline(b"of parts"), WrData::Sges(&[sge(3)])]
        );
    }

    #[test]
    fn session_begins_without_the_work_requests_of_an_earlier_one() {
        let mut requests = Requests::default();
        requests.open();
        requests.begin(1, WrOp::Send, SendFlags::SIGNALED);
        requests.set_inline([b"earlier".as_slice()].into_iter());
        requests.error = Some(libc::EINVAL);
        requests.open();
        assert_eq!((requests.send_wrs().count(), requests.error), (0, None));
        // Data without a work request have no effect.
        requests.set_sges(&[sge(1)]);
        requests.set_destination(Destination::Srq(SrqId(1)));
        requests.begin(2, WrOp::Send, SendFlags::SIGNALED);
        let expected = SendWr::send(2, &[]);
        assert_eq!(requests.send_wrs().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn later_sessions_reuse_the_buffers_of_earlier_ones() {
        let mut requests = Requests::default();
        let mut fill = || {
            requests.open();
            for n in 0..8 {
                requests.begin(n, WrOp::Send, SendFlags::SIGNALED);
                requests.set_sges(&[sge(n); 4]);
                requests.set_inline([[7; 100].as_slice()].into_iter());
            }
            (requests.list.as_ptr().addr(), requests.sges.as_ptr().addr(), requests.inline.as_ptr().addr())
        };
        let first = fill();
        assert_eq!([(); 3].map(|()| fill()), [first; 3]);
    }
}

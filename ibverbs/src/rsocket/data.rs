//! Sending and receiving on stream sockets.

use std::ffi::c_int;
use std::sync::Arc;

use super::buffers::{Sink, Source};
use super::connection::Connection;
use super::stream::{Phase, State, Stream};
use super::wait::{PollOutcome, restarts};
use crate::cancel::{Call, PENDING};

/// Returns the connection. If the socket has none, returns the outcome of the call as the error: to wait
/// while the socket is connecting, and to fail otherwise.
fn conn<T>(state: &mut State) -> Result<&mut Connection, PollOutcome<T>> {
    match &mut state.phase {
        Phase::Connected(conn) => Ok(conn),
        Phase::Connecting(_) => Err(None),
        Phase::Closed => Err(Some(Err(libc::EBADF))),
        Phase::Failed => Err(Some(Err(state.error.take().unwrap_or(libc::ENOTCONN)))),
        _ => Err(Some(Err(libc::ENOTCONN))),
    }
}

impl Stream {
    /// Receives data and returns the number of bytes, which is 0 only at the end of the stream or if the
    /// buffer is empty.
    pub(super) fn receive(
        self: &Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let (may_block, timeout) =
            self.options(|options| (options.may_block(flags), options.receive_timeout));
        loop {
            let result = self.until(call, may_block, timeout, |state| {
                let conn = match conn(state) {
                    Ok(conn) => conn,
                    Err(outcome) => return outcome,
                };
                conn.receive_to(sink, peek);
                match sink.position() {
                    _ if sink.remaining() == 0 => Some(Ok(())),
                    taken if taken > 0 && !all => Some(Ok(())),
                    _ if conn.unread() > 0 || conn.can_read => None,
                    taken => match conn.error.take_if(|_| taken == 0) {
                        Some(errno) => Some(Err(errno)),
                        None => Some(Ok(())),
                    },
                }
            });
            if !restarts(&result, timeout, sink.position()) {
                return partial(sink.position(), result);
            }
        }
    }

    /// Sends data and returns the number of bytes. This is less than requested only if the call may not
    /// block, or fails after sending some.
    pub(super) fn send(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.send_with(call, source, flags, |conn, source| {
            conn.send_from(source);
            Ok(())
        })
    }

    /// Writes to the memory that the peer has mapped to `offset`. Returns the number of bytes like
    /// [`send`](Self::send).
    pub(super) fn write_at(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        offset: u64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.send_with(call, source, flags, |conn, source| conn.write_from(source, offset))
    }

    /// Calls `post`, which posts as much data as can currently be sent, until the entire source is posted.
    fn send_with(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        flags: c_int,
        post: impl Fn(&mut Connection, &mut Source<'_>) -> Result<(), c_int>,
    ) -> Result<usize, c_int> {
        let (may_block, timeout) = self.options(|options| (options.may_block(flags), options.send_timeout));
        loop {
            let result = self.until(call, may_block, timeout, |state| {
                let conn = match conn(state) {
                    Ok(conn) => conn,
                    Err(outcome) => return outcome,
                };
                if let Err(e) = post(conn, source) {
                    return Some(Err(e));
                }
                match source.remaining() {
                    0 if conn.can_write || source.position() > 0 => Some(Ok(())),
                    _ if !conn.can_write => Some(Err(conn.error.take().unwrap_or(libc::EPIPE))),
                    _ => None,
                }
            });
            if !restarts(&result, timeout, source.position()) {
                return partial(source.position(), result);
            }
        }
    }
}

/// Returns the result of a call. If the call failed after it transferred some bytes, it succeeds with their
/// number, and the next call reports the error.
fn partial(done: usize, result: Result<(), c_int>) -> Result<usize, c_int> {
    match result {
        Err(e) if done == 0 || e == PENDING => Err(e),
        _ => Ok(done),
    }
}

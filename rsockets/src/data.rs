//! Sending and receiving on stream sockets.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::buffers::{Sink, Source};
use crate::call::{Call, PENDING};
use crate::connection::Connection;
use crate::socket::Socket;
use crate::stream::{Phase, State, Stream};
use crate::wait::PollOutcome;

/// Calls `f` with the connection. If the socket has none, the call waits while the socket is connecting, and
/// fails otherwise.
fn with_connection<T>(
    state: &mut State,
    f: impl FnOnce(&mut Connection) -> PollOutcome<T>,
) -> PollOutcome<T> {
    match &mut state.phase {
        Phase::Connected(conn) => f(conn),
        Phase::Connecting(_) => None,
        Phase::Closed => Some(Err(libc::EBADF)),
        Phase::Failed => Some(Err(state.error.take().unwrap_or(libc::ENOTCONN))),
        _ => Some(Err(libc::ENOTCONN)),
    }
}

impl Stream {
    /// Receives data and returns the number of bytes, which is 0 only at the end of the stream or if the
    /// buffer is empty.
    pub(crate) fn receive_bytes(
        self: &Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let (wait, done) = (self.options().receive_wait(flags), Cell::new(sink.position()));
        let mut receive = |conn: &mut Connection| {
            conn.receive_to(sink, peek);
            done.set(sink.position());
            match sink.position() {
                _ if sink.remaining() == 0 => Some(Ok(())),
                taken if taken > 0 && !all => Some(Ok(())),
                _ if conn.inc.unread > 0 || conn.can_read => None,
                taken => match conn.error.take_if(|_| taken == 0) {
                    Some(errno) => Some(Err(errno)),
                    None => Some(Ok(())),
                },
            }
        };
        let result = self.until(call, wait, &done, |state| with_connection(state, &mut receive));
        partial(done.get(), result)
    }

    /// Makes one attempt to write to the memory that the peer has mapped to `offset`. Returns the number of
    /// bytes like [`Socket::send`].
    ///
    /// # Errors
    /// An error number, or [`PENDING`].
    pub fn write_at(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        offset: u64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.send_with(call, source, flags, |conn, source| conn.write_from(source, offset))
    }

    /// Calls `post`, which posts as much data as can currently be sent, until the entire source is posted.
    /// Returns the number of bytes. This is less than requested only if the call may not block, or fails
    /// after sending some.
    pub(crate) fn send_with(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        flags: c_int,
        post: impl Fn(&mut Connection, &mut Source<'_>) -> Result<(), c_int>,
    ) -> Result<usize, c_int> {
        let (wait, done) = (self.options().send_wait(flags), Cell::new(source.position()));
        let mut send = |conn: &mut Connection| {
            let posted = post(conn, source);
            done.set(source.position());
            if let Err(e) = posted {
                return Some(Err(e));
            }
            match source.remaining() {
                0 if conn.can_write || source.position() > 0 => Some(Ok(())),
                _ if !conn.can_write => Some(Err(conn.error.take().unwrap_or(libc::EPIPE))),
                _ => None,
            }
        };
        let result = self.until(call, wait, &done, |state| with_connection(state, &mut send));
        partial(done.get(), result)
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

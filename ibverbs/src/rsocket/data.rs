//! Sending and receiving on stream sockets.

use std::ffi::c_int;
use std::sync::Arc;

use super::buffers::{Sink, Source};
use super::link::Link;
use super::stream::{Phase, State, Stream};
use super::wait::{Looked, NOT_YET, restarts};
use crate::cancel::Call;

/// Returns the connection, or the outcome of a call on a socket without one: a call waits while the socket
/// connects, and fails otherwise.
fn link<T>(state: &mut State) -> Result<&mut Link, Looked<T>> {
    match &mut state.phase {
        Phase::Connected(link) => Ok(link),
        Phase::Connecting(_) => Err(None),
        Phase::Closed => Err(Some(Err(libc::EBADF))),
        Phase::Failed => Err(Some(Err(state.error.take().unwrap_or(libc::ENOTCONN)))),
        _ => Err(Some(Err(libc::ENOTCONN))),
    }
}

impl Stream {
    /// Reports whether a call with these flags may block.
    fn waits(&self, flags: c_int) -> bool {
        self.look(|state| state.options.waits(flags))
    }

    /// Receives data and returns the number of bytes: at least one, except at the end of the stream or with
    /// an empty buffer.
    pub fn receive(
        self: &Arc<Self>,
        call: &mut Call,
        sink: &mut Sink<'_>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let (waits, timeout) = (self.waits(flags), self.look(|state| state.options.receive_timeout));
        loop {
            let result = self.until(call, waits, timeout, |state| {
                let link = match link(state) {
                    Ok(link) => link,
                    Err(looked) => return looked,
                };
                link.receive_to(sink, peek);
                match sink.taken() {
                    _ if sink.left() == 0 => Some(Ok(())),
                    taken if taken > 0 && !all => Some(Ok(())),
                    _ if link.unread() > 0 || link.can_read => None,
                    taken => match link.error.take_if(|_| taken == 0) {
                        Some(why) => Some(Err(why)),
                        None => Some(Ok(())),
                    },
                }
            });
            if !restarts(&result, timeout, sink.taken()) {
                return partly(sink.taken(), result);
            }
        }
    }

    /// Sends data and returns the number of bytes: all of them, unless the call may not block or fails
    /// meanwhile.
    pub fn send(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        self.put(call, source, flags, |link, source| {
            link.send_from(source);
            Ok(())
        })
    }

    /// Writes to the memory that the peer has mapped to `offset`, and returns the number of bytes as for
    /// [`send`](Self::send).
    pub fn write_at(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        offset: u64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.put(call, source, flags, |link, source| link.write_from(source, offset))
    }

    /// Repeats `go`, which posts what can be sent now, until all of the source is posted.
    fn put(
        self: &Arc<Self>,
        call: &mut Call,
        source: &mut Source<'_>,
        flags: c_int,
        go: impl Fn(&mut Link, &mut Source<'_>) -> Result<(), c_int>,
    ) -> Result<usize, c_int> {
        let (waits, timeout) = (self.waits(flags), self.look(|state| state.options.send_timeout));
        loop {
            let result = self.until(call, waits, timeout, |state| {
                let link = match link(state) {
                    Ok(link) => link,
                    Err(looked) => return looked,
                };
                if let Err(e) = go(link, source) {
                    return Some(Err(e));
                }
                match source.left() {
                    0 if link.can_write || source.taken() > 0 => Some(Ok(())),
                    _ if !link.can_write => Some(Err(link.error.take().unwrap_or(libc::EPIPE))),
                    _ => None,
                }
            });
            if !restarts(&result, timeout, source.taken()) {
                return partly(source.taken(), result);
            }
        }
    }
}

/// Returns the number of bytes of a partly completed call: its error is reported by the next call.
fn partly(done: usize, result: Result<(), c_int>) -> Result<usize, c_int> {
    match result {
        Err(e) if done == 0 || e == NOT_YET => Err(e),
        _ => Ok(done),
    }
}

//! A byte stream over an RC connection of the connection manager.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Wake, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use urxe::Error;
use urxe::verbs::cm::{ConnParam, ConnectionManager, IdError, Incoming};
use urxe::verbs::errors::{CreateError, WaitError};
use urxe::verbs::{Access, Completion, Context, CqOptions, Mr, Qp, QpOptions, Rc, RecvWr, SendWr, WcStatus};

use crate::waiter::first_of;
use crate::{AsyncCq, AsyncSession};

/// Number of receives, and of sends in flight; less than the default depth of the queues.
const BUFFERS: usize = 32;
/// Length of each buffer in bytes.
const BUFFER_LEN: usize = 8192;
/// Private data of both sides: name and version of the protocol.
const NAME: &[u8] = b"urxe byte stream 1";
/// Bits of the immediate data that count credits.
const CREDITS: u32 = 0xffff;
/// Bit of the immediate data that ends the stream.
const END: u32 = 1 << 31;

/// A byte stream to a peer's `RdmaStream`: [`AsyncRead`] and [`AsyncWrite`] over an RC connection.
///
/// Data are copied through registered buffers, of 256 KiB in each direction. A write ends when up to 8 KiB of
/// its data have been posted; it waits while the peer's buffers are full, so small writes should be collected
/// (`tokio::io::BufWriter`). `flush` waits until the peer's NIC has acknowledged all data. `shutdown` ends
/// this side's data, which the peer reads as the end of the stream, and waits likewise; the peer can still
/// send. Dropping the stream disconnects, and loses data that `flush` or `shutdown` have not waited for.
///
/// All calls are cancel-safe: a dropped read has taken no data, and a dropped write has sent none. A reader
/// and a writer may be different tasks (`tokio::io::split`).
///
/// **Messages.** Both sides post 32 receives of 8 KiB before the connection is established, and name the
/// protocol, `urxe byte stream 1`, in the private data of the request and of the response. Every message is a
/// SEND with immediate data, and consumes one receive:
///
/// | part | field |
/// | --- | --- |
/// | immediate data, bits 0..16 | credits: receives that the sender has posted again and not announced yet |
/// | immediate data, bit 31 | end of the stream: no message with data follows |
/// | payload | bytes of the stream, at most 8 KiB; may be empty |
///
/// A side has as many credits as the peer has free receives, and a message takes one, so the receive queue is
/// never empty. The last credit is reserved for messages that only announce credits, because the peer posts
/// their receives again at once, even if its program does not read. Such a message is sent once half of the
/// receives are to be announced.
///
/// # Errors
/// An [`io::Error`] that contains the error of the verbs API: [`WaitError::Failed`] with the completion of
/// the first request that failed, of kind `TimedOut` if the peer does not respond, else `ConnectionReset`.
/// Without another error in it: `ConnectionReset` if the peer disconnects before the end of its stream,
/// `BrokenPipe` for a write after that end, or after `shutdown`, and `InvalidData` if the peer violates the
/// protocol. Data that arrived before are read first. A peer that disappears without a disconnect is noticed
/// by writes only, as with TCP. [`WaitError::Idle`] in virtual time does not end the stream.
pub struct RdmaStream {
    /// Wait for the next event, shared by reads and writes. Holds the session, which is dropped before the
    /// buffers.
    next: Pin<Box<dyn Future<Output = Next> + Send + Sync>>,
    wakers: Arc<Wakers>,
    qp: Qp<Rc>,
    /// Buffers of the receives, and after them those of the sends.
    buffers: Mr,
    /// Free receives of the peer.
    credits: usize,
    /// Receives posted again and not announced yet.
    unannounced: usize,
    sent: usize,
    in_flight: usize,
    /// Buffer and unread range of each message received.
    inbox: VecDeque<(usize, Range<usize>)>,
    has_ended: bool,
    has_peer_ended: bool,
    /// Reason why the connection has ended.
    failure: Option<(ErrorKind, Option<WaitError>)>,
}

/// Next completion, or `None` for a disconnect by the peer, with the sources of the events after it.
type Next = (AsyncCq, AsyncSession, io::Result<Option<Completion>>);

async fn next(mut cq: AsyncCq, mut session: AsyncSession) -> Next {
    let completion = async { cq.wait_any().await.map(Some).map_err(io::Error::other) };
    let disconnect = async { session.wait_for_disconnect().await.map(|()| None).map_err(io::Error::other) };
    let event = first_of(completion, disconnect).await;
    (cq, session, event)
}

/// Tasks that wait for an event, one that reads and one that writes. An event wakes both, because the one
/// that waited last may have given up.
#[derive(Default)]
struct Wakers(Mutex<[Option<Waker>; 2]>);

const READER: usize = 0;
const WRITER: usize = 1;

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl RdmaStream {
    /// Connects to a listener at the address `to`, whose program calls [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`Error::Session`] as for [`AsyncSession::connect`]; [`Error::Connect`] or [`Error::Io`] if the
    /// receives cannot be posted; [`Error::Io`] of kind `InvalidData` if the peer is not an `RdmaStream`.
    pub async fn connect(manager: &ConnectionManager, to: SocketAddr) -> Result<RdmaStream, Error> {
        let mut prepared = None;
        let qp = |context: &Context| {
            let (cq, mut stream) = RdmaStream::new(context)?;
            let qp = stream.qp.untyped();
            prepared = Some(stream.post_receives().map(|()| (cq, stream)));
            Ok(qp)
        };
        let session = AsyncSession::connect(manager, to, qp, &ConnParam::with_data(NAME)).await?;
        let (cq, stream) = prepared.expect("a session has a queue pair")?;
        stream.connected(cq, session)
    }

    /// Accepts the connection of a [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Error::Create`]; otherwise as for [`connect`](Self::connect) and [`AsyncSession::accept`].
    pub async fn accept(incoming: Incoming) -> Result<RdmaStream, Error> {
        let (cq, mut stream) = RdmaStream::new(&incoming.context().ok_or(IdError::Ended)?)?;
        stream.post_receives()?;
        let qp = stream.qp.untyped();
        stream.connected(cq, AsyncSession::accept(incoming, qp, &ConnParam::with_data(NAME)).await?)
    }

    /// Returns the queue pair, for queries.
    pub fn qp(&self) -> &Qp<Rc> {
        &self.qp
    }

    /// Creates a stream that is not connected yet, and its completion queue.
    fn new(context: &Context) -> Result<(AsyncCq, RdmaStream), CreateError> {
        let (cq, pd) = (AsyncCq::new(context, CqOptions::default())?, context.alloc_pd()?);
        let stream = RdmaStream {
            next: Box::pin(pending()),
            wakers: Arc::default(),
            qp: pd.create_typed_qp(cq.cq(), cq.cq(), &QpOptions::default())?,
            buffers: pd.reg_mr(2 * BUFFERS * BUFFER_LEN, Access::LOCAL_WRITE)?,
            credits: BUFFERS,
            unannounced: 0,
            sent: 0,
            in_flight: 0,
            inbox: VecDeque::new(),
            has_ended: false,
            has_peer_ended: false,
            failure: None,
        };
        Ok((cq, stream))
    }

    /// Posts the receives that the peer knows of, before it can send.
    fn post_receives(&mut self) -> Result<(), Error> {
        self.qp.enter_init(Access::default())?;
        (0..BUFFERS).try_for_each(|buffer| self.post_receive(buffer))?;
        self.unannounced = 0;
        Ok(())
    }

    fn connected(mut self, cq: AsyncCq, session: AsyncSession) -> Result<RdmaStream, Error> {
        if !session.private_data().starts_with(NAME) {
            let reason = "the peer's private data are not those of an RdmaStream";
            return Err(io::Error::new(ErrorKind::InvalidData, reason).into());
        }
        self.next = Box::pin(next(cq, session));
        Ok(self)
    }

    fn post_receive(&mut self, buffer: usize) -> io::Result<()> {
        let start = buffer * BUFFER_LEN;
        let sges = [self.buffers.sge(start..start + BUFFER_LEN)];
        self.qp.post_recv(&RecvWr::new(buffer as u64, &sges)).map_err(io::Error::other)?;
        self.unannounced += 1;
        Ok(())
    }

    /// Waits for an event and handles it. `side` is the task's place among the wakers.
    fn poll_event(&mut self, side: usize, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if let Some((kind, cause)) = self.failure.clone() {
            return Poll::Ready(Err(cause.map_or(kind.into(), |cause| io::Error::new(kind, cause))));
        }
        self.wakers.0.lock()[side] = Some(task.waker().clone());
        let both = Waker::from(self.wakers.clone());
        let (cq, session, event) = ready!(self.next.as_mut().poll(&mut Task::from_waker(&both)));
        self.next = Box::pin(next(cq, session));
        let other = self.wakers.0.lock()[1 - side].take();
        other.into_iter().for_each(Waker::wake);
        if let Some(completion) = event? {
            return Poll::Ready(self.on_completion(completion));
        }
        // The peer's messages arrived before its disconnect.
        let cq = self.qp.send_cq().clone();
        cq.drain().map_while(Result::ok).try_for_each(|completion| self.on_completion(completion))?;
        self.fail(if self.has_peer_ended { ErrorKind::BrokenPipe } else { ErrorKind::ConnectionReset }, None);
        Poll::Ready(Ok(()))
    }

    /// Records the failure that ends the connection, if it is the first: later requests are only flushed.
    fn fail(&mut self, kind: ErrorKind, cause: Option<WaitError>) {
        self.failure.get_or_insert((kind, cause));
    }

    fn on_completion(&mut self, completion: Completion) -> io::Result<()> {
        let (buffer, len) = (completion.wr_id as usize, completion.byte_len as usize);
        match completion.status {
            WcStatus::Success if completion.opcode.is_receive() => {
                // A message without immediate data exceeds the credits, like one with too many.
                let imm = completion.imm.unwrap_or(CREDITS);
                self.credits += (imm & CREDITS) as usize;
                if self.credits > BUFFERS || (self.has_peer_ended && len > 0) {
                    self.fail(ErrorKind::InvalidData, None);
                } else if len > 0 {
                    self.inbox.push_back((buffer, 0..len));
                } else {
                    self.post_receive(buffer)?;
                }
                self.has_peer_ended |= imm & END != 0;
            }
            WcStatus::Success => self.in_flight -= 1,
            WcStatus::RetryExcErr => self.fail(ErrorKind::TimedOut, Some(WaitError::Failed(completion))),
            _ => self.fail(ErrorKind::ConnectionReset, Some(WaitError::Failed(completion))),
        }
        self.announce()
    }

    /// Announces receives if they are many.
    fn announce(&mut self) -> io::Result<()> {
        match self.unannounced >= BUFFERS / 2 && self.has_room(1) {
            true => self.post(&[], 0),
            false => Ok(()),
        }
    }

    /// Reports whether a message can be sent that requires the given number of credits.
    fn has_room(&self, credits: usize) -> bool {
        self.failure.is_none() && self.credits >= credits && self.in_flight < BUFFERS
    }

    /// Sends a message, for which there is room.
    fn post(&mut self, data: &[u8], flags: u32) -> io::Result<()> {
        // Sends complete in order, so the oldest buffer is free.
        let start = (BUFFERS + self.sent % BUFFERS) * BUFFER_LEN;
        self.buffers.write(start, data).map_err(io::Error::other)?;
        let sges = [self.buffers.sge(start..start + data.len())];
        let wr = SendWr::send_imm(0, &sges, flags | self.unannounced as u32);
        self.qp.post_send(&wr).map_err(io::Error::other)?;
        self.sent += 1;
        self.in_flight += 1;
        self.credits -= 1;
        self.unannounced = 0;
        Ok(())
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.inbox.is_empty() && !self.has_peer_ended {
            ready!(self.poll_event(READER, task))?;
        }
        let Some((buffer, mut unread)) = self.inbox.pop_front() else { return Poll::Ready(Ok(())) };
        let target = out.initialize_unfilled_to(unread.len().min(out.remaining()));
        self.buffers.read(buffer * BUFFER_LEN + unread.start, target).map_err(io::Error::other)?;
        unread.start += target.len();
        let len = target.len();
        out.advance(len);
        if !unread.is_empty() {
            self.inbox.push_front((buffer, unread));
        } else if self.failure.is_none() {
            self.post_receive(buffer)?;
            self.announce()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Task<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        while !self.has_room(2) {
            ready!(self.poll_event(WRITER, task))?;
        }
        let len = data.len().min(BUFFER_LEN);
        Poll::Ready(self.post(&data[..len], 0).map(|()| len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        // If the peer ended its stream and disconnected, it had read the end of this one, even if its
        // acknowledgement was lost.
        while self.in_flight > 0 && !(self.has_ended && self.failure == Some((ErrorKind::BrokenPipe, None))) {
            ready!(self.poll_event(WRITER, task))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        while !self.has_ended {
            if self.has_room(2) {
                self.post(&[], END)?;
                self.has_ended = true;
            } else {
                ready!(self.poll_event(WRITER, task))?;
            }
        }
        self.poll_flush(task)
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaStream({:?}, {} credits)", self.qp, self.credits)
    }
}

//! A queue over RDMA: capsules by SEND, data by READ and WRITE.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use urxe::verbs::cm::{ConnParam, Incoming, Session, SessionError};
use urxe::verbs::*;

use super::capsule::{COMMAND_LEN, Command, DataPointer, Failure, Keyed, Status};
use super::queue::{End, Queue};
use super::request::{Request, Transfer};
use super::{IN_CAPSULE, private_data::ConnectRequest};

/// Commands that move data at a time: as many buffers there are at most.
const JOBS: u32 = 16;
/// How often a queue on which nothing happens looks whether it is over.
const TICK: Duration = Duration::from_millis(50);
/// How long a host may take to answer the connection manager.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of a receive.
const SLOT: usize = COMMAND_LEN + IN_CAPSULE;
/// The `wr_id` of sends that are of no job.
const NO_JOB: u64 = u64::MAX;

/// Why a connection ended, but for the host's wish.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// It did not come about, or could not be ended in order.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// An object of the NIC was refused.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The queue pair could not be prepared.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Completions were lost.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Outside a region.
    #[error(transparent)]
    Memory(#[from] MemoryAccessError),
    /// A message that is too short for a command.
    #[error("a capsule of {0} bytes, which is too short for a command")]
    Capsule(u32),
    /// Whoever asked for a connection has gone, device and all.
    #[error("there is no device for the connection")]
    NoDevice,
    /// The host is to go.
    #[error(transparent)]
    End(#[from] End),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    pd: Pd,
    cq: Cq,
    receives: Mr,
    queue: Queue,
    jobs: Vec<Job>,
    /// Those of `jobs` that have nothing to do.
    free: Vec<usize>,
    /// Receives whose commands wait for a job. They are not posted again before, so there are no more than the queue is deep.
    waiting: VecDeque<(usize, usize)>,
}

/// A command that moves data of the host's memory, and its buffer.
#[derive(Debug, Default)]
struct Job {
    buffer: Option<Mr>,
    /// While data comes.
    coming: Option<(u16, Request, Keyed)>,
}

impl Connection {
    /// Accepts one that asks as `asked` says.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept(
        incoming: Incoming,
        asked: &ConnectRequest,
        queue: Queue,
    ) -> Result<Connection, ConnectionError> {
        let context = incoming.context().ok_or(ConnectionError::NoDevice)?;
        let depth = u32::from(asked.commands);
        // A job has a READ and then a WRITE and a SEND; each command a SEND.
        let sends = 2 * JOBS + 2 * depth;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq((depth + sends) as usize)?;
        let usual = QpOptions::default();
        let options = QpOptions {
            send: SendCaps { max_wr: sends, ..usual.send },
            recv: RecvCaps { max_wr: depth, max_sge: 1 },
            ..usual
        };
        let qp = pd.create_qp(&cq, &cq, &options)?;
        let receives = pd.reg_mr(depth as usize * SLOT, Access::LOCAL_WRITE)?;
        // From INIT on it takes receives, and the first command may come before all is said.
        qp.to_init(Access::default())?;
        for slot in 0..depth as usize {
            post_receive(&qp, &receives, slot)?;
        }
        let session = incoming.accept(qp, &ConnParam::with_data(&asked.accepted()), HANDSHAKE)?;
        let jobs = (0..JOBS).map(|_| Job::default()).collect();
        Ok(Connection {
            session,
            pd,
            cq,
            receives,
            queue,
            jobs,
            free: (0..JOBS as usize).collect(),
            waiting: VecDeque::new(),
        })
    }

    /// Executes commands until the host disconnects, or `stop` says so. `told` gets the queue once it is connected.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn run(mut self, stop: &dyn Fn() -> bool, told: &dyn Fn(&Queue)) -> Result<(), ConnectionError> {
        let mut is_known = false;
        while !stop() {
            match self.cq.wait_any(TICK) {
                Ok(completion) if completion.status == WcStatus::Success => {
                    self.queue.check_standing(Instant::now())?;
                    self.complete(&completion)?;
                }
                // The host is gone, or had a key that is none.
                Ok(completion) => return Err(WaitError::Failed(completion).into()),
                Err(WaitError::TimedOut(_) | WaitError::Interrupted) => {
                    if self.session.wait_for_end(Duration::ZERO).is_ok() {
                        break;
                    }
                    self.queue.check(Instant::now())?;
                }
                Err(e) => return Err(e.into()),
            }
            if !is_known && self.queue.controller().is_some() {
                is_known = true;
                told(&self.queue);
            }
        }
        // The controller is to be gone by the time that the host hears of it.
        drop(self.queue);
        Ok(self.session.disconnect(HANDSHAKE)?)
    }

    fn complete(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        let number = completion.wr_id as usize;
        match completion.opcode {
            WcOpcode::Recv if (completion.byte_len as usize) < COMMAND_LEN => {
                return Err(ConnectionError::Capsule(completion.byte_len));
            }
            WcOpcode::Recv => self.waiting.push_back((number, completion.byte_len as usize)),
            WcOpcode::RdmaRead => self.data_came(number)?,
            WcOpcode::Send if completion.wr_id != NO_JOB => self.free.push(number),
            _ => {}
        }
        while !self.free.is_empty()
            && let Some((slot, len)) = self.waiting.pop_front()
        {
            self.begin(slot, len)?;
        }
        Ok(())
    }

    /// Begins with a command.
    fn begin(&mut self, slot: usize, len: usize) -> Result<(), ConnectionError> {
        let mut capsule = vec![0; len];
        self.receives.read(slot * SLOT, &mut capsule)?;
        // Before the response, after which the host may send another.
        post_receive(self.session.qp(), &self.receives, slot)?;
        let command = Command::of(&capsule).ok_or(ConnectionError::Capsule(len as u32))?;
        match self.start(&command, &mut capsule[COMMAND_LEN..]) {
            Ok(Some(Next::Respond(result))) => self.respond(command.id(), Ok(result), None),
            Ok(Some(Next::Read(request, from, len))) => self.read(command.id(), request, from, len),
            Ok(Some(Next::Write(data, to))) => self.write(command.id(), &data, to),
            Ok(None) => Ok(()),
            Err(failure) => self.respond(command.id(), Err(failure), None),
        }
    }

    /// Executes a command, unless its data is still with the host.
    fn start(&mut self, command: &Command, in_capsule: &mut [u8]) -> Result<Option<Next>, Failure> {
        let now = Instant::now();
        let request = self.queue.take(command, now)?;
        match request.transfer(self.queue.block_len()) {
            Transfer::None => Ok(self.queue.execute(&request, &mut [], now)?.map(Next::Respond)),
            Transfer::FromHost(len) => match command.data_pointer()? {
                DataPointer::InCapsule { len: room, .. } | DataPointer::Keyed(Keyed { len: room, .. })
                    if room < len =>
                {
                    Err(Status::SglLength.into())
                }
                DataPointer::InCapsule { offset, .. } => {
                    let data =
                        usize::try_from(offset).ok().and_then(|at| in_capsule.get_mut(at..)?.get_mut(..len));
                    let data = data.ok_or(Status::SglOffset)?;
                    Ok(self.queue.execute(&request, data, now)?.map(Next::Respond))
                }
                DataPointer::Keyed(from) => Ok(Some(Next::Read(request, from, len))),
            },
            Transfer::ToHost(len) => match command.data_pointer()? {
                DataPointer::Keyed(to) if to.len < len => Err(Status::SglLength.into()),
                DataPointer::Keyed(to) => {
                    let mut data = vec![0; len];
                    self.queue.execute(&request, &mut data, now)?;
                    Ok(Some(Next::Write(data, to)))
                }
                DataPointer::InCapsule { .. } => Err(Status::SglType.into()),
            },
        }
    }

    /// Fetches a command's data.
    fn read(&mut self, id: u16, request: Request, from: Keyed, len: usize) -> Result<(), ConnectionError> {
        let job = self.take_job(len)?;
        let buffer = self.buffer(job);
        let sge = [buffer.sge(0..len)];
        let wr = SendWr::read(job as u64, &sge, from.remote());
        self.session.qp().post_send(&wr)?;
        self.jobs[job].coming = Some((id, request, from));
        Ok(())
    }

    /// A command's data is there.
    fn data_came(&mut self, job: usize) -> Result<(), ConnectionError> {
        let Some((id, request, from)) = self.jobs[job].coming.take() else { return Ok(()) };
        let Transfer::FromHost(len) = request.transfer(self.queue.block_len()) else { return Ok(()) };
        let mut data = vec![0; len];
        self.buffer(job).read(0, &mut data)?;
        let outcome = self.queue.execute(&request, &mut data, Instant::now());
        self.respond(id, outcome.map(Option::unwrap_or_default), Some((job, from)))
    }

    /// Brings a command's answer to the host.
    fn write(&mut self, id: u16, data: &[u8], to: Keyed) -> Result<(), ConnectionError> {
        let job = self.take_job(data.len())?;
        let buffer = self.buffer(job);
        buffer.write(0, data)?;
        let sge = [buffer.sge(0..data.len())];
        let wr = SendWr::write(NO_JOB, &sge, to.remote());
        self.session.qp().post_send(&SendWr { flags: SendFlags::default(), ..wr })?;
        self.respond(id, Ok(0), Some((job, to)))
    }

    /// Sends a response; of a job, which ends with it, so that it closes the host's key if that is wanted.
    fn respond(
        &mut self,
        id: u16,
        outcome: Result<u64, Failure>,
        job: Option<(usize, Keyed)>,
    ) -> Result<(), ConnectionError> {
        let bytes = self.queue.response(id, outcome).bytes();
        let op = match job {
            Some((_, Keyed { invalidate: true, rkey, .. })) => WrOp::SendWithInv(RKey(rkey)),
            _ => WrOp::Send,
        };
        let wr_id = job.map_or(NO_JOB, |(job, _)| job as u64);
        let data = WrData::Inline(&bytes);
        let wr = SendWr { wr_id, op, data, flags: SendFlags::SIGNALED, to: None };
        Ok(self.session.qp().post_send(&wr)?)
    }

    /// A job with room for so many bytes. There is a free one: `complete` has looked.
    fn take_job(&mut self, len: usize) -> Result<usize, ConnectionError> {
        let job = self.free.pop().expect("commands begin where there is one");
        let buffer = &mut self.jobs[job].buffer;
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
            *buffer = Some(self.pd.reg_mr(len.next_power_of_two(), Access::LOCAL_WRITE)?);
        }
        Ok(job)
    }

    fn buffer(&self, job: usize) -> &Mr {
        self.jobs[job].buffer.as_ref().expect("`take_job` has made one")
    }
}

/// What is to be done for a command.
enum Next {
    /// It is done.
    Respond(u64),
    /// So many bytes are to come before it is executed.
    Read(Request, Keyed, usize),
    /// It is done but for its answer.
    Write(Vec<u8>, Keyed),
}

impl Keyed {
    fn remote(&self) -> RemoteAddr {
        RemoteAddr { va: self.addr, rkey: RKey(self.rkey) }
    }
}

fn post_receive(qp: &Qp, receives: &Mr, slot: usize) -> Result<(), PostError> {
    let sges = [receives.sge(slot * SLOT..(slot + 1) * SLOT)];
    qp.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges })
}

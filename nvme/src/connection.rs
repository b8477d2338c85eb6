//! NVMe queue over RDMA: capsules are transferred by SEND, data by RDMA READ and WRITE.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use urxe::verbs::cm::{ConnParam, Incoming, Session, SessionError};
use urxe::verbs::errors::{ConnectError, CreateError, MemoryAccessError, PostError, WaitError};
use urxe::verbs::*;

use super::capsule::{COMMAND_LEN, Command, DataPointer, Failure, Keyed, Status};
use super::queue::{DisconnectReason, Queue};
use super::request::{Request, Transfer};
use super::{IN_CAPSULE, private_data::ConnectRequest};

/// Maximum number of concurrent data transfers; each uses its own buffer.
const JOBS: u32 = 16;
/// Interval at which an idle queue checks whether it has to disconnect the host.
const TICK: Duration = Duration::from_millis(50);
/// Timeout for the host's connection manager messages.
const CM_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a receive buffer in bytes: a command and the maximum in-capsule data.
const SLOT: usize = COMMAND_LEN + IN_CAPSULE;
/// The `wr_id` of sends that no job waits for.
const NO_JOB: u64 = u64::MAX;

/// Reason for the end of a connection, other than a disconnect by the host.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection could not be established or disconnected.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The queue pair could not be moved to INIT.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A work request was rejected.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The completion queue failed, or a completion has an error status.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A memory access lay outside the region.
    #[error(transparent)]
    Memory(#[from] MemoryAccessError),
    /// A capsule is shorter than a command.
    #[error("a capsule has {0} bytes, but a command needs {len}", len = COMMAND_LEN)]
    Capsule(u32),
    /// The device that received the connection request has been removed.
    #[error("the RDMA device of the connection has been removed")]
    NoDevice,
    /// The host had to be disconnected.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

/// Connection of one queue.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    pd: Pd,
    cq: Cq,
    receives: Mr,
    queue: Queue,
    jobs: Vec<Job>,
    /// Indices of the idle entries of `jobs`.
    free: Vec<usize>,
    /// Received capsules whose commands wait for a free job: receive slot and capsule length. A receive is
    /// reposted only when its command starts, so the queue depth bounds the length of this list.
    waiting: VecDeque<(usize, usize)>,
}

/// A command's data transfer from or to host memory, and the buffer for it.
#[derive(Debug, Default)]
struct Job {
    buffer: Option<Mr>,
    /// The command, while its data is being read.
    pending_read: Option<(u16, Request, Keyed)>,
}

impl Connection {
    /// Accepts a connection with the queue parameters from the host's connection request.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept(
        incoming: Incoming,
        params: &ConnectRequest,
        queue: Queue,
    ) -> Result<Connection, ConnectionError> {
        let context = incoming.context().ok_or(ConnectionError::NoDevice)?;
        let depth = u32::from(params.commands);
        // A job posts a READ and then a WRITE and a SEND; each command posts a SEND.
        let sends = 2 * JOBS + 2 * depth;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq((depth + sends) as usize)?;
        let defaults = QpOptions::default();
        let options = defaults
            .clone()
            .send(SendCaps { max_wr: sends, ..defaults.send })
            .recv(RecvCaps { max_wr: depth, max_sge: 1 });
        let qp = pd.create_qp(&cq, &cq, &options)?;
        let receives = pd.reg_mr(depth as usize * SLOT, Access::LOCAL_WRITE)?;
        // A queue pair accepts receives from INIT on, and the first command may arrive before the connection
        // is fully established.
        qp.enter_init(Access::default())?;
        for slot in 0..depth as usize {
            post_receive(&qp, &receives, slot)?;
        }
        let session = incoming.accept(qp, &ConnParam::with_data(&params.accepted()), CM_TIMEOUT)?;
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

    /// Executes commands until the host disconnects or `stop` returns true. Calls `on_connect` once, after
    /// the queue has executed the Connect command.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn run(
        mut self,
        stop: &dyn Fn() -> bool,
        on_connect: &dyn Fn(&Queue),
    ) -> Result<(), ConnectionError> {
        let mut is_announced = false;
        while !stop() {
            match self.cq.wait_any(TICK) {
                Ok(completion) if completion.status == WcStatus::Success => {
                    self.queue.check_controller(Instant::now())?;
                    self.complete(&completion)?;
                }
                // The connection is lost, or the host's R_Key is invalid.
                Ok(completion) => return Err(WaitError::Failed(completion).into()),
                Err(WaitError::TimedOut(_) | WaitError::Interrupted) => {
                    if self.session.wait_for_disconnect(Duration::ZERO).is_ok() {
                        break;
                    }
                    self.queue.check(Instant::now())?;
                }
                Err(e) => return Err(e.into()),
            }
            if !is_announced && self.queue.controller().is_some() {
                is_announced = true;
                on_connect(&self.queue);
            }
        }
        // The controller is removed before the host is notified of the disconnect.
        drop(self.queue);
        Ok(self.session.disconnect(CM_TIMEOUT)?)
    }

    fn complete(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        let number = completion.wr_id as usize;
        match completion.opcode {
            WcOpcode::Recv if (completion.byte_len as usize) < COMMAND_LEN => {
                return Err(ConnectionError::Capsule(completion.byte_len));
            }
            WcOpcode::Recv => self.waiting.push_back((number, completion.byte_len as usize)),
            WcOpcode::RdmaRead => self.on_data_arrived(number)?,
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

    /// Reposts the receive that held the command, then executes the command or starts its data transfer.
    fn begin(&mut self, slot: usize, len: usize) -> Result<(), ConnectionError> {
        let mut capsule = vec![0; len];
        self.receives.read(slot * SLOT, &mut capsule)?;
        // The receive is posted before the response is sent, because the host may then send another command.
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

    /// Validates a command, and executes it unless its data must first be read from the host. Returns the
    /// next step, or `None` if there is no response yet.
    fn start(&mut self, command: &Command, in_capsule: &mut [u8]) -> Result<Option<Next>, Failure> {
        let now = Instant::now();
        let request = self.queue.accept(command, now)?;
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

    /// Starts the RDMA READ of a command's data from host memory.
    fn read(&mut self, id: u16, request: Request, from: Keyed, len: usize) -> Result<(), ConnectionError> {
        let job = self.allocate_job(len)?;
        let buffer = self.buffer(job);
        let sge = [buffer.sge(0..len)];
        let wr = SendWr::read(job as u64, &sge, from.remote());
        self.session.qp().post_send(&wr)?;
        self.jobs[job].pending_read = Some((id, request, from));
        Ok(())
    }

    /// Executes a command whose data has been read from the host, and sends the response.
    fn on_data_arrived(&mut self, job: usize) -> Result<(), ConnectionError> {
        let Some((id, request, from)) = self.jobs[job].pending_read.take() else { return Ok(()) };
        let Transfer::FromHost(len) = request.transfer(self.queue.block_len()) else { return Ok(()) };
        let mut data = vec![0; len];
        self.buffer(job).read(0, &mut data)?;
        let outcome = self.queue.execute(&request, &mut data, Instant::now());
        self.respond(id, outcome.map(Option::unwrap_or_default), Some((job, from)))
    }

    /// Writes the result data of a command to the host by RDMA WRITE, and sends the response.
    fn write(&mut self, id: u16, data: &[u8], to: Keyed) -> Result<(), ConnectionError> {
        let job = self.allocate_job(data.len())?;
        let buffer = self.buffer(job);
        buffer.write(0, data)?;
        let sge = [buffer.sge(0..data.len())];
        let wr = SendWr::write(NO_JOB, &sge, to.remote());
        self.session.qp().post_send(&wr.signaled(false))?;
        self.respond(id, Ok(0), Some((job, to)))
    }

    /// Sends a response. If the command used a job, the response's completion frees the job, and the response
    /// invalidates the host's R_Key if the host requested this.
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
        let wr = SendWr::new(wr_id, op, &[]).data(data);
        Ok(self.session.qp().post_send(&wr)?)
    }

    /// Allocates a free job with a buffer of at least `len` bytes. `complete` has checked that there is a
    /// free job.
    fn allocate_job(&mut self, len: usize) -> Result<usize, ConnectionError> {
        let job = self.free.pop().expect("`complete` begins a command only if a job is free");
        let buffer = &mut self.jobs[job].buffer;
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
            *buffer = Some(self.pd.reg_mr(len.next_power_of_two(), Access::LOCAL_WRITE)?);
        }
        Ok(job)
    }

    fn buffer(&self, job: usize) -> &Mr {
        self.jobs[job].buffer.as_ref().expect("`allocate_job` registers a buffer")
    }
}

/// Next step in handling a command.
enum Next {
    /// The command has been executed: send a response with this result.
    Respond(u64),
    /// The command needs data from the host: read the given number of bytes, then execute the command.
    Read(Request, Keyed, usize),
    /// The command has been executed: write its data to the host, then send the response.
    Write(Vec<u8>, Keyed),
}

impl Keyed {
    fn remote(&self) -> RemoteAddr {
        RemoteAddr { va: self.addr, rkey: RKey(self.rkey) }
    }
}

fn post_receive(qp: &Qp, receives: &Mr, slot: usize) -> Result<(), PostError> {
    let sges = [receives.sge(slot * SLOT..(slot + 1) * SLOT)];
    qp.post_recv(&RecvWr::new(slot as u64, &sges))
}

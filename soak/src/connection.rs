//! One connection of a worker, from either end: posts the messages of its plan, and verifies all of them.

use std::time::{Duration, Instant};

use urxe::verbs::errors::CreateError;
use urxe::verbs::{
    Access, Completion, Cq, Mr, Pd, Qp, QpAttr, QpOptions, QpState, RKey, RecvCaps, RecvWr, RemoteAddr,
    SendCaps, SendWr, WcOpcode, WcStatus,
};

use super::Plant;
use super::exchange::Offer;
use super::plan::{self, MAX_LEN, Message, Op, Plan};
use super::report::Incarnation;

/// Number of messages in flight, each of which has a slot in every buffer.
const WINDOW: usize = 8;

/// Offset of the 8 bytes for atomic operations in the target's window.
const COUNTER: usize = WINDOW * MAX_LEN;
/// Offset of the read area in the target's window.
const READ_AREA: usize = COUNTER + 8;

/// Number of posted receives: a message completes one, and the initiator may have posted the next window when
/// it gets credit for the last message of this one.
const RECEIVES: usize = 2 * WINDOW;

/// Length of a credit, the number of the message that the target has verified.
const CREDIT_LEN: usize = 8;

/// Bit of `wr_id` that marks a receive.
const RECV: u64 = 1 << 63;
/// Bit of `wr_id` that marks a probe.
const PROBE: u64 = 1 << 62;

/// Time without a message after which an end probes whether the other one still exists.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// One end of a connection.
pub struct Connection {
    pub number: u64,
    plan: Plan,
    pub qp: Qp,
    /// Data sent, and the target's window.
    pub local: Mr,
    /// Receive buffers.
    received: Mr,
    /// Number of work requests without a completion.
    pub outstanding: u32,
    pub role: Role,
    /// Time of the last successful completion of a message or credit, or of the start or the creation if
    /// there is none yet.
    pub active: Instant,
    /// Whether a probe has no completion yet.
    is_probing: bool,
    /// Time at which the queue pair was moved to the error state: the connection is done or has failed.
    pub closed: Option<Instant>,
    /// Status or reason of the failure, if the connection has failed.
    pub failure: Option<String>,
    /// Bytes and messages verified since they were last taken.
    pub verified: (u64, u64),
    plant: Option<Plant>,
}

/// Task of an end, with its progress.
pub enum Role {
    Initiator(Initiator),
    Target(Target),
}

/// Progress of the initiator.
#[derive(Default)]
pub struct Initiator {
    /// Process of the target.
    peer: usize,
    /// Whether the connection replaces one that failed.
    pub is_reconnect: bool,
    /// The target and its window, once the target has accepted.
    pub target: Option<(Incarnation, RemoteAddr)>,
    /// Number of the next message to post.
    next: u64,
    /// Number of events that each slot awaits: completions, and a credit.
    pending: [u8; WINDOW],
    /// `wr_id` of the last completion; work requests complete in order.
    last_wr_id: Option<u64>,
    /// Expected value of the target's counter.
    counter: u64,
    /// Value that the atomic operation of each slot must return.
    originals: [u64; WINDOW],
    /// Number of the next message for which a credit is due.
    next_credit: u64,
    /// Number of posted messages that complete a receive, and of those with a successful completion.
    pub posted: u64,
    pub completed: u64,
}

impl Initiator {
    pub fn new(peer: usize, is_reconnect: bool) -> Initiator {
        Initiator { peer, is_reconnect, ..Initiator::default() }
    }
}

/// Progress of the target.
#[derive(Default)]
pub struct Target {
    /// Number of the next message; those that complete no receive are passed over.
    next: u64,
    /// Number of messages received and verified.
    pub received: u64,
}

/// Reason why a result is not allowed.
pub type Violation = String;

impl Connection {
    /// Creates the queue pair and buffers of one end. Receives are posted by
    /// [`post_receives`](Self::post_receives) once the queue pair is in INIT.
    pub fn new(
        (pd, cq): (&Pd, &Cq),
        number: u64,
        plan: Plan,
        role: Role,
        plant: Option<Plant>,
    ) -> Result<Connection, CreateError> {
        let is_target = matches!(role, Role::Target(_));
        let options = QpOptions::default()
            .send(SendCaps { max_wr: 4 * WINDOW as u32, max_sge: 1, max_inline: CREDIT_LEN as u32 })
            .recv(RecvCaps { max_wr: RECEIVES as u32, max_sge: 1 });
        let qp = pd.create_qp(cq, cq, &options)?;
        let access = if is_target {
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
        } else {
            Access::LOCAL_WRITE
        };
        // The initiator has as much: source slots, and slots that READs and atomics write.
        let local = pd.reg_mr(if is_target { READ_AREA + MAX_LEN } else { 2 * WINDOW * MAX_LEN }, access)?;
        let recv_len = if is_target { MAX_LEN } else { CREDIT_LEN };
        let received = pd.reg_mr(RECEIVES * recv_len, Access::LOCAL_WRITE)?;
        Ok(Connection {
            number,
            plan,
            qp,
            local,
            received,
            outstanding: 0,
            role,
            active: Instant::now(),
            is_probing: false,
            closed: None,
            failure: None,
            verified: (0, 0),
            plant,
        })
    }

    /// Posts the receives and, at the target, writes the read area.
    ///
    /// # Errors
    /// A violation.
    pub fn post_receives(&mut self) -> Result<(), Violation> {
        if matches!(self.role, Role::Target(_)) {
            let mut bytes = vec![0; MAX_LEN];
            self.plan.fill(plan::READ_AREA, &mut bytes);
            self.local.write(READ_AREA, &bytes).map_err(|e| e.to_string())?;
        }
        (0..RECEIVES).try_for_each(|slot| self.post_receive(slot))
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), Violation> {
        let len = self.received.len() / RECEIVES;
        let sges = [self.received.sge(slot * len..(slot + 1) * len)];
        self.qp.post_recv(&RecvWr::new(RECV | slot as u64, &sges)).map_err(|e| self.rejected(&e))?;
        self.outstanding += 1;
        Ok(())
    }

    fn rejected(&self, error: &dyn std::error::Error) -> Violation {
        format!("connection {:#x}: a work request was rejected: {error}", self.number)
    }

    /// Starts to post messages to the target's window. Called by the initiator once it is connected.
    ///
    /// # Errors
    /// A violation.
    pub fn start(&mut self, offer: &Offer) -> Result<(), Violation> {
        if let Role::Initiator(initiator) = &mut self.role {
            let window = RemoteAddr { va: offer.va, rkey: RKey(offer.rkey) };
            initiator.target = Some(((initiator.peer, offer.incarnation), window));
            self.active = Instant::now();
        }
        self.post_messages()
    }

    /// Lets the initiator end once the posted messages are done.
    ///
    /// # Errors
    /// A violation.
    pub fn drain(&mut self) -> Result<(), Violation> {
        if let Role::Initiator(initiator) = &self.role {
            self.plan.count = initiator.next;
        }
        self.post_messages()
    }

    /// Posts messages as long as their slots are free.
    fn post_messages(&mut self) -> Result<(), Violation> {
        let mut bytes = vec![0; MAX_LEN];
        while let Role::Initiator(initiator) = &mut self.role
            && let Some((_, window)) = initiator.target
            && self.closed.is_none()
        {
            let number = initiator.next;
            if number == self.plan.count {
                if initiator.pending == [0; WINDOW] {
                    self.close(None);
                }
                break;
            }
            if initiator.pending[number as usize % WINDOW] > 0 {
                break;
            }
            initiator.next += 1;
            self.post_message(number, window, &mut bytes)?;
        }
        Ok(())
    }

    fn post_message(&mut self, number: u64, target: RemoteAddr, bytes: &mut [u8]) -> Result<(), Violation> {
        let Role::Initiator(initiator) = &mut self.role else { return Ok(()) };
        let (slot, Message { op, len, operand }) = (number as usize % WINDOW, self.plan.message(number));
        let at = |offset: usize| RemoteAddr { va: target.va + offset as u64, ..target };
        let source = [self.local.sge(slot * MAX_LEN..slot * MAX_LEN + len)];
        let result = (WINDOW + slot) * MAX_LEN;
        let result = [self.local.sge(result..result + len)];
        let (imm, wr_id, window) = (number as u32, number << 1, at(slot * MAX_LEN));
        if matches!(op, Op::Send | Op::SendImm | Op::WriteImm | Op::WriteRead) {
            self.plan.fill(number, &mut bytes[..len]);
            if self.plant == Some(Plant::Corrupt) && number % 16 == 15 {
                bytes[len / 2] ^= 1;
            }
            self.local.write(slot * MAX_LEN, &bytes[..len]).map_err(|e| e.to_string())?;
        }
        let old = initiator.counter;
        let mut wrs = vec![match op {
            Op::Send => SendWr::send(wr_id, &source),
            Op::SendImm => SendWr::send_imm(wr_id, &source, imm),
            Op::WriteImm => SendWr::write_imm(wr_id, &source, window, imm),
            Op::WriteRead => SendWr::write(wr_id, &source, window),
            Op::Read => SendWr::read(wr_id, &result, at(READ_AREA)),
            Op::FetchAdd => SendWr::fetch_add(wr_id, &result, at(COUNTER), operand),
            Op::CompSwap => SendWr::compare_swap(wr_id, &result, at(COUNTER), old, operand),
        }];
        if op == Op::WriteRead {
            wrs.push(SendWr::read(wr_id | 1, &result, window));
        }
        initiator.originals[slot] = old;
        match op {
            Op::FetchAdd => initiator.counter = initiator.counter.wrapping_add(operand),
            Op::CompSwap => initiator.counter = operand,
            _ => {}
        }
        initiator.posted += u64::from(op.consumes_receive());
        initiator.pending[slot] = u8::from(op.consumes_receive());
        for wr in wrs {
            // Counted first: a queue pair in the error state may complete the request at once.
            initiator.pending[slot] += 1;
            self.outstanding += 1;
            if let Err(e) = self.qp.post_send(&wr) {
                return Err(format!("connection {:#x}: message {number} was rejected: {e}", self.number));
            }
        }
        Ok(())
    }

    /// Posts a WRITE of no bytes if nothing has completed for some time. Without work requests in flight,
    /// neither end notices that the other was killed.
    ///
    /// # Errors
    /// A violation.
    pub fn probe(&mut self) -> Result<(), Violation> {
        if self.is_probing || self.active.elapsed() < PROBE_INTERVAL {
            return Ok(());
        }
        self.is_probing = true;
        self.outstanding += 1;
        let probe = SendWr::write(PROBE, &[], RemoteAddr::default());
        self.qp.post_send(&probe).map_err(|e| self.rejected(&e))
    }

    /// Handles a completion of this connection's queue pair.
    ///
    /// # Errors
    /// A violation.
    pub fn complete(&mut self, wc: &Completion) -> Result<(), Violation> {
        self.outstanding = self.outstanding.checked_sub(1).ok_or_else(|| {
            format!("connection {:#x}: {wc:?} completes no outstanding work request", self.number)
        })?;
        match wc.status {
            _ if self.is_out_of_order(wc) => {
                Err(format!("connection {:#x}: {wc:?} completes out of order", self.number))
            }
            WcStatus::Success if wc.wr_id & PROBE != 0 => {
                self.is_probing = false;
                Ok(())
            }
            WcStatus::Success => {
                self.active = Instant::now();
                let checked = if wc.wr_id & RECV != 0 { self.on_receive(wc) } else { self.on_send(wc) };
                checked.map_err(|reason| format!("connection {:#x}: {reason}", self.number))?;
                self.post_messages()
            }
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr | WcStatus::WrFlushErr => {
                self.close(Some(&wc.status.to_string()));
                Ok(())
            }
            status => Err(format!("connection {:#x}: {status} for {wc:?}", self.number)),
        }
    }

    /// Reports whether an earlier completion of the initiator's send queue belongs after this one.
    fn is_out_of_order(&mut self, wc: &Completion) -> bool {
        match &mut self.role {
            Role::Initiator(initiator) if wc.wr_id & (RECV | PROBE) == 0 => {
                initiator.last_wr_id.replace(wc.wr_id).is_some_and(|last| last >= wc.wr_id)
            }
            _ => false,
        }
    }

    /// Handles a successful send, READ or atomic operation.
    fn on_send(&mut self, wc: &Completion) -> Result<(), String> {
        // A credit needs no more than its completion.
        let Role::Initiator(initiator) = &mut self.role else { return Ok(()) };
        let (number, is_read_back) = (wc.wr_id >> 1, wc.wr_id & 1 != 0);
        let (slot, Message { op, len, .. }) = (number as usize % WINDOW, self.plan.message(number));
        initiator.pending[slot] = initiator.pending[slot]
            .checked_sub(1)
            .ok_or_else(|| format!("message {number} completes again"))?;
        initiator.completed += u64::from(op.consumes_receive());
        let mut bytes = [0; MAX_LEN];
        let found = &mut bytes[..len];
        self.local.read((WINDOW + slot) * MAX_LEN, found).map_err(|e| e.to_string())?;
        let checked = match op {
            Op::WriteRead if is_read_back => self.plan.check(number, found),
            Op::Read => self.plan.check(plan::READ_AREA, found),
            Op::FetchAdd | Op::CompSwap => {
                let (original, expected) =
                    (u64::from_ne_bytes(found[..8].try_into().expect("8 bytes")), initiator.originals[slot]);
                if original == expected {
                    Ok(())
                } else {
                    Err(format!("the counter was {original:#x}, expected {expected:#x}"))
                }
            }
            _ => return Ok(()),
        };
        checked.map_err(|reason| format!("{op:?} {number}: {reason}"))?;
        self.count(len);
        Ok(())
    }

    /// Handles a message at the target, or a credit at the initiator.
    fn on_receive(&mut self, wc: &Completion) -> Result<(), String> {
        let slot = (wc.wr_id & !RECV) as usize;
        match &mut self.role {
            Role::Initiator(initiator) => {
                let mut bytes = [0; CREDIT_LEN];
                self.received.read(slot * CREDIT_LEN, &mut bytes).map_err(|e| e.to_string())?;
                let (number, due) =
                    (u64::from_le_bytes(bytes), self.plan.next_received(initiator.next_credit));
                if due.is_none_or(|(due, _)| due != number || due >= initiator.next) {
                    return Err(format!(
                        "a credit for message {number}, expected {:?}",
                        due.map(|(due, _)| due)
                    ));
                }
                initiator.next_credit = number + 1;
                let pending = &mut initiator.pending[number as usize % WINDOW];
                *pending =
                    pending.checked_sub(1).ok_or_else(|| format!("a second credit for message {number}"))?;
            }
            Role::Target(target) => {
                let (number, message) =
                    self.plan.next_received(target.next).ok_or("a message after the last")?;
                let Message { op, len, .. } = message;
                let imm = (op != Op::Send).then_some(number as u32);
                let opcode = if op == Op::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
                let expected = (opcode, len, imm);
                let found = (wc.opcode, wc.byte_len as usize, wc.imm);
                if found != expected {
                    return Err(format!("message {number} is {found:?}, expected {expected:?}"));
                }
                let mut bytes = [0; MAX_LEN];
                let bytes = &mut bytes[..len];
                let read = match op {
                    Op::WriteImm => self.local.read(number as usize % WINDOW * MAX_LEN, bytes),
                    _ => self.received.read(slot * MAX_LEN, bytes),
                };
                read.map_err(|e| e.to_string())?;
                self.plan.check(number, bytes).map_err(|reason| format!("{op:?} {number}: {reason}"))?;
                (target.next, target.received) = (number + 1, target.received + 1);
                self.count(len);
                self.post_receive(slot)?;
                self.outstanding += 1;
                let credit = number.to_le_bytes();
                let sent = self.qp.post_send(&SendWr::send(number, &[]).inline(&credit));
                return sent.map_err(|e| self.rejected(&e));
            }
        }
        self.post_receive(slot)
    }

    fn count(&mut self, len: usize) {
        self.verified = (self.verified.0 + len as u64, self.verified.1 + 1);
    }

    /// Ends the connection, unless it has ended already; `failure` is the reason if it has failed. Moves the
    /// queue pair to the error state, in which all its work requests complete.
    pub fn close(&mut self, failure: Option<&str>) {
        if self.closed.is_none() {
            (self.closed, self.failure) = (Some(Instant::now()), failure.map(str::to_owned));
            // A queue pair can enter the error state from every other.
            let _ = self.qp.modify(&QpAttr::new(QpState::Err));
        }
    }

    /// Reports whether the connection has ended and every work request has completed.
    pub fn is_over(&self) -> bool {
        self.closed.is_some() && self.outstanding == 0
    }
}

//! A worker process of the soak test: one NIC that connects to the other workers and accepts their
//! connections, and exchanges and verifies messages with all of them in one thread.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getppid, read};
use serde::{Deserialize, Serialize};

use super::Plant;
use super::connection::{Connection, Initiator, Role, Target, Violation};
use super::exchange::{Exchange, Offer, Progress, message};
use super::plan::{Plan, Rng, connection_number};
use super::report::{FaultTotals, Initiated, Report, Totals};
use super::schedule::fault_rules;
use urxe::broker::SharedMemory;
use urxe::link::LinkSpec;
use urxe::middleware::faults::{Action, Rule};
use urxe::verbs::cm::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, IdError, PortSpace,
};
use urxe::verbs::errors::WaitError;
use urxe::verbs::{
    Access, AckTimeout, CompletionChannel, ConnectOptions, Context, ContextOptions, Cq, CqOptions, Endpoint,
    Notify, Pd, RKey, RemoteAddr,
};
use urxe_cli::CliError;
use urxe_cli::broker::sharing;

/// Number of connections that a worker keeps to others.
const CONNECTIONS: usize = 3;
/// Capacity of the completion queue, for the connections of both roles.
const CQ_CAPACITY: usize = 16_384;
/// First TCP port of the direct exchange, and first port of the connection manager; each worker has its own.
const EXCHANGE_PORT: u16 = 20_000;
const CM_PORT: u16 = 7471;

/// Local ACK timeout: 268 ms, so that a peer that is gone is noticed in about two seconds.
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(16);
/// Time after which a connection that is not established is given up.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without progress of a connection that counts as a hang. Longer than any stall and all retries.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which all work requests complete in the error state.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between looks at connections without completions, and maximum sleep.
const TICK: Duration = Duration::from_millis(20);
/// Interval between the reports of totals.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Configuration of a worker, which the supervisor passes as JSON.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Config {
    /// Process ID of the supervisor.
    pub supervisor: i32,
    pub seed: u64,
    pub process: usize,
    pub incarnation: u32,
    /// Address of each worker. Workers with equal addresses share it through the broker.
    pub addresses: Vec<IpAddr>,
    pub plant: Option<Plant>,
}

/// Commands of the supervisor, one byte each.
pub const DRAIN: u8 = b'd';
pub const EXIT: u8 = b'x';

/// Means by which the ends of a connection know each other.
enum Channel {
    Cm(CmId),
    Exchange(Exchange),
}

struct Entry {
    connection: Connection,
    channel: Channel,
}

struct Worker {
    config: Config,
    context: Context,
    pd: Pd,
    cq: Cq,
    completions: CompletionChannel,
    events: EventChannel,
    manager: ConnectionManager,
    _listener: CmId,
    tcp: TcpListener,
    /// Connections by queue pair number.
    entries: HashMap<u32, Entry>,
    /// TCP connections that still wait for the initiator's message.
    arriving: Vec<(Exchange, Instant)>,
    /// Times at which connections are to be made, and whether they replace one that failed.
    planned: Vec<(Instant, bool)>,
    rng: Rng,
    sequence: u32,
    is_draining: bool,
    is_exiting: bool,
    totals: Totals,
}

/// Runs a worker until the supervisor ends it.
pub fn run(config: Config) -> Result<(), CliError> {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(CliError::io("cannot set the signal for the supervisor's death"))?;
    if getppid().as_raw() != config.supervisor {
        return Ok(());
    }
    let mut worker = Worker::open(config)?;
    report(&Report::Ready)?;
    let mut reported = Instant::now();
    let mut ticked = Instant::now();
    loop {
        let mut result = worker.turn();
        if result.is_ok() && ticked.elapsed() >= TICK {
            ticked = Instant::now();
            result = worker.tick().map(|()| false);
        }
        if reported.elapsed() >= REPORT_INTERVAL {
            reported = Instant::now();
            worker.report_totals()?;
        }
        match result {
            Ok(is_busy) => {
                let has_ended = worker.is_exiting && worker.entries.is_empty();
                if worker.wait(if is_busy { Duration::ZERO } else { TICK })? || has_ended {
                    return worker.report_totals();
                }
            }
            Err(violation) => return report(&Report::Violation(violation)),
        }
    }
}

fn report(report: &Report) -> Result<(), CliError> {
    let line = serde_json::to_string(report).map_err(io::Error::from)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns whether processes that share an address exchange packets through rings in shared memory.
fn shared_memory(seed: u64) -> SharedMemory {
    if seed.is_multiple_of(2) { SharedMemory::Off } else { SharedMemory::Auto }
}

fn system(e: impl std::error::Error) -> Violation {
    e.to_string()
}

impl Worker {
    fn open(config: Config) -> Result<Worker, CliError> {
        let Config { seed, process, incarnation, ref addresses, .. } = config;
        let ip = addresses[process];
        let spec = LinkSpec::Udp(Some(ip));
        let is_shared = addresses.iter().filter(|other| **other == ip).count() > 1;
        let links = match is_shared {
            true => sharing(shared_memory(seed), false)?.bind(&spec, 1, true)?,
            false => spec.bind_with(1, true)?,
        };
        let mut rng = Rng::new(seed, &[1, process as u64, incarnation.into()]);
        let faults = fault_rules(seed, process, incarnation);
        let faults = faults.iter().map(|rule| rule.parse()).collect::<Result<Vec<Rule>, _>>()?;
        let options = ContextOptions::default().seed(rng.next()).faults(faults);
        let context = Context::open_shards(links, &options)?;
        let pd = context.alloc_pd()?;
        let completions = context.create_channel()?;
        let cq = context.create_cq(CqOptions::new(CQ_CAPACITY).channel(&completions))?;
        let failed = |e: IdError| CliError::Failed(format!("the connection manager failed: {e}"));
        let manager = ConnectionManager::new(vec![context.clone()]).map_err(failed)?;
        let events = EventChannel::new().map_err(|e| failed(e.into()))?;
        let listener = manager.create_id(&events, PortSpace::Tcp).map_err(failed)?;
        listener.bind_addr((ip, CM_PORT + process as u16).into()).map_err(failed)?;
        listener.listen(0).map_err(failed)?;
        let tcp = TcpListener::bind((ip, EXCHANGE_PORT + process as u16))
            .and_then(|tcp| tcp.set_nonblocking(true).map(|()| tcp))
            .map_err(CliError::io(format!("cannot listen on {ip}")))?;
        Ok(Worker {
            context,
            pd,
            cq,
            completions,
            events,
            manager,
            _listener: listener,
            tcp,
            entries: HashMap::new(),
            arriving: Vec::new(),
            planned: vec![(Instant::now(), false); CONNECTIONS],
            rng,
            sequence: 0,
            is_draining: false,
            is_exiting: false,
            totals: Totals::default(),
            config,
        })
    }

    /// Handles completions and events. Returns whether there were any.
    fn turn(&mut self) -> Result<bool, Violation> {
        let mut new = Vec::with_capacity(64);
        self.cq.poll(64, &mut new).map_err(|e| WaitError::from(e).to_string())?;
        for wc in &new {
            let qpn = wc.qpn.get();
            let entry = self.entries.get_mut(&qpn);
            let entry = entry.ok_or_else(|| format!("{wc:?} is of no queue pair that exists"))?;
            entry.connection.complete(wc)?;
            self.remove_if_over(qpn)?;
        }
        let mut is_busy = !new.is_empty();
        while let Some(event) = self.events.try_event() {
            is_busy = true;
            self.on_event(event)?;
        }
        Ok(is_busy)
    }

    /// Makes the connections that are due, reads TCP connections, and checks timeouts.
    fn tick(&mut self) -> Result<(), Violation> {
        if let (_, Some(cause)) = self.context.link_state() {
            return Err(format!("the link was lost: {cause}"));
        }
        if self.config.plant == Some(Plant::Leak) {
            std::mem::forget(TcpListener::bind((self.config.addresses[self.config.process], 0)));
        }
        while !self.is_exiting
            && let Ok((stream, _)) = self.tcp.accept()
        {
            self.arriving.push((Exchange::new(stream).map_err(system)?, Instant::now()));
        }
        for (mut exchange, since) in std::mem::take(&mut self.arriving) {
            match exchange.read() {
                Progress::Waiting if since.elapsed() < SETUP_TIMEOUT => self.arriving.push((exchange, since)),
                Progress::Waiting | Progress::Closed => {}
                Progress::Received(offer, endpoint) => self.accept_exchange(exchange, &offer, &endpoint)?,
            }
        }
        let qpns: Vec<u32> = self.entries.keys().copied().collect();
        for qpn in qpns {
            self.look_at(qpn)?;
            self.remove_if_over(qpn)?;
        }
        let now = Instant::now();
        let due: Vec<_> = self.planned.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, is_reconnect) in due {
            if !self.is_draining {
                self.connect(is_reconnect)?;
            }
        }
        let has_own = self.entries.values().any(|e| matches!(e.connection.role, Role::Initiator(_)));
        if self.is_draining && !has_own { report(&Report::Drained).map_err(system) } else { Ok(()) }
    }

    /// Checks one connection for the end of its TCP connection and for timeouts.
    fn look_at(&mut self, qpn: u32) -> Result<(), Violation> {
        let Some(entry) = self.entries.get_mut(&qpn) else { return Ok(()) };
        let connection = &mut entry.connection;
        let is_target = matches!(connection.role, Role::Target(_));
        if let Channel::Exchange(exchange) = &mut entry.channel {
            match exchange.read() {
                Progress::Waiting => {}
                Progress::Received(offer, endpoint) => {
                    enter_rts(connection, &endpoint)?;
                    self.totals.connections_by_exchange += 1;
                    established(connection, &mut self.totals, &offer)?;
                }
                Progress::Closed => {
                    connection.close((!is_target).then_some("the peer has closed its connection"));
                }
            }
        }
        let is_pending = matches!(connection.role, Role::Initiator(Initiator { target: None, .. }));
        let Connection { number, outstanding, closed, active, .. } = *connection;
        match closed {
            Some(closed) if closed.elapsed() > FLUSH_TIMEOUT => Err(format!(
                "connection {number:#x}: {outstanding} work requests have not completed in the error state"
            )),
            None if is_pending && active.elapsed() > SETUP_TIMEOUT => {
                connection.close(Some("not established in time"));
                Ok(())
            }
            None if !is_target && active.elapsed() > HANG_TIMEOUT => {
                Err(format!("connection {number:#x}: no progress in {HANG_TIMEOUT:?}"))
            }
            None if !is_pending => connection.probe(),
            _ => Ok(()),
        }
    }

    /// Removes a connection once all its work requests have completed, and reports its end.
    fn remove_if_over(&mut self, qpn: u32) -> Result<(), Violation> {
        let Some(entry) = self.entries.get_mut(&qpn) else { return Ok(()) };
        let (bytes, messages) = std::mem::take(&mut entry.connection.verified);
        self.totals.bytes += bytes;
        self.totals.messages += messages;
        if !entry.connection.is_over() {
            return Ok(());
        }
        let Some(entry) = self.entries.remove(&qpn) else { return Ok(()) };
        if let Channel::Cm(id) = &entry.channel {
            // The id is not connected any more if the peer was the first to disconnect.
            let _ = id.disconnect();
        }
        let Connection { number: connection, role, failure, .. } = entry.connection;
        let line = match role {
            Role::Initiator(Initiator { posted, completed, target, .. }) => {
                let target = target.map(|(target, _)| target);
                let is_loss_planted = self.config.plant == Some(Plant::Lose) && completed > 0;
                let completed = completed + u64::from(is_loss_planted);
                let posted = posted.max(completed);
                self.plan_connection(failure.is_some());
                Report::Initiated(Initiated { connection, target, posted, completed })
            }
            Role::Target(Target { received, .. }) => Report::Accepted { connection, received },
        };
        if let Some(reason) = failure {
            *self.totals.errors.entry(reason).or_default() += 1;
        }
        report(&line).map_err(system)
    }

    fn plan_connection(&mut self, is_reconnect: bool) {
        let delay = Duration::from_millis(if is_reconnect { self.rng.range(50, 300) } else { 0 });
        self.planned.push((Instant::now() + delay, is_reconnect));
    }

    /// Makes a connection to a random worker.
    fn connect(&mut self, is_reconnect: bool) -> Result<(), Violation> {
        let Config { process, incarnation, .. } = self.config;
        let peers = self.config.addresses.len();
        let peer = (process + self.rng.range(1, peers as u64) as usize) % peers;
        let number = connection_number(process, incarnation, self.sequence);
        self.sequence += 1;
        let role = Role::Initiator(Initiator::new(peer, is_reconnect));
        let mut connection = self.new_connection(number, role)?;
        let opened = match self.rng.percent(50) {
            true => self.request(&mut connection, peer),
            false => self.begin_exchange(&mut connection, peer),
        };
        match opened {
            Ok(channel) => self.insert(connection, channel),
            Err(reason) => {
                *self.totals.errors.entry(reason).or_default() += 1;
                self.plan_connection(true);
            }
        }
        Ok(())
    }

    fn new_connection(&self, number: u64, role: Role) -> Result<Connection, Violation> {
        let plan = Plan::new(self.config.seed, number);
        Connection::new((&self.pd, &self.cq), number, plan, role, self.config.plant).map_err(system)
    }

    fn insert(&mut self, connection: Connection, channel: Channel) {
        self.entries.insert(connection.qp.qpn().get(), Entry { connection, channel });
    }

    /// Requests a connection from the connection manager of a worker.
    fn request(&mut self, connection: &mut Connection, peer: usize) -> Result<Channel, String> {
        let to = SocketAddr::from((self.config.addresses[peer], CM_PORT + peer as u16));
        let call = || -> Result<CmId, IdError> {
            // Resolution is local: its events are reported before the calls return.
            let id = self.manager.create_id(&self.events, PortSpace::Tcp)?;
            id.resolve_addr(None, to, Duration::ZERO)?;
            id.resolve_route(Duration::ZERO)?;
            id.set_ack_timeout(ACK_TIMEOUT.code())?;
            id.attach_qp(&connection.qp)?;
            Ok(id)
        };
        let id = call().map_err(|e| e.to_string())?;
        connection.post_receives()?;
        id.connect(&ConnParam::with_data(&self.offer(connection).bytes())).map_err(|e| e.to_string())?;
        Ok(Channel::Cm(id))
    }

    /// Sends the endpoint of the queue pair to a worker.
    fn begin_exchange(&mut self, connection: &mut Connection, peer: usize) -> Result<Channel, String> {
        let to = SocketAddr::from((self.config.addresses[peer], EXCHANGE_PORT + peer as u16));
        connection.qp.enter_init(exchange_options().access).map_err(system)?;
        connection.post_receives()?;
        let failed = |e: io::Error| format!("exchange of endpoints failed: {}", e.kind());
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(1)).map_err(failed)?;
        let message = message(&self.offer(connection), &connection.qp.endpoint());
        stream.write_all(&message).map_err(failed)?;
        Ok(Channel::Exchange(Exchange::new(stream).map_err(failed)?))
    }

    /// Creates the target's end of a connection, and connects it to the initiator's.
    fn accept_exchange(
        &mut self,
        mut exchange: Exchange,
        offer: &Offer,
        endpoint: &Endpoint,
    ) -> Result<(), Violation> {
        let mut connection = self.new_connection(offer.connection, Role::Target(Target::default()))?;
        connection.qp.enter_init(exchange_options().access).map_err(system)?;
        connection.post_receives()?;
        enter_rts(&connection, endpoint)?;
        let reply = message(&self.offer(&connection), &connection.qp.endpoint());
        // If the write fails, the initiator has ended and has posted nothing.
        if exchange.stream.write_all(&reply).is_ok() {
            self.insert(connection, Channel::Exchange(exchange));
        }
        Ok(())
    }

    fn offer(&self, connection: &Connection) -> Offer {
        let RemoteAddr { va, rkey: RKey(rkey) } = connection.local.remote(0);
        Offer { connection: connection.number, incarnation: self.config.incarnation, va, rkey }
    }

    fn on_event(&mut self, event: CmEvent) -> Result<(), Violation> {
        if event.kind == CmEventKind::ConnectRequest && !self.is_exiting {
            return self.accept_request(&event);
        }
        let is_of = |entry: &Entry| matches!(&entry.channel, Channel::Cm(id) if *id == event.id);
        let Some((qpn, entry)) = self.entries.iter_mut().find(|(_, entry)| is_of(entry)) else {
            return match event.kind {
                CmEventKind::DeviceRemoval => Err("the device has failed".into()),
                _ => Ok(()),
            };
        };
        let (qpn, is_target) = (*qpn, matches!(entry.connection.role, Role::Target(_)));
        match event.kind {
            CmEventKind::Established if !is_target => {
                let offer = Offer::parse(event.private_data()).ok_or("an acceptance without an offer")?;
                self.totals.connections_by_cm += 1;
                established(&mut entry.connection, &mut self.totals, &offer)?;
            }
            CmEventKind::Disconnected => {
                entry.connection.close((!is_target).then_some("the peer has disconnected"));
            }
            CmEventKind::Rejected | CmEventKind::Unreachable | CmEventKind::ConnectError => {
                entry.connection.close(Some(&format!("{} ({})", event.kind.name(), event.status)));
            }
            _ => {}
        }
        self.remove_if_over(qpn)
    }

    fn accept_request(&mut self, event: &CmEvent) -> Result<(), Violation> {
        let offer = Offer::parse(event.private_data()).ok_or("a request without an offer")?;
        let mut connection = self.new_connection(offer.connection, Role::Target(Target::default()))?;
        event.id.attach_qp(&connection.qp).map_err(system)?;
        connection.post_receives()?;
        let reply = ConnParam::with_data(&self.offer(&connection).bytes());
        let accepted = event.id.set_ack_timeout(ACK_TIMEOUT.code()).and_then(|()| event.id.accept(&reply));
        match accepted {
            Ok(()) => self.insert(connection, Channel::Cm(event.id.clone())),
            // The initiator has given up.
            Err(e) => {
                *self.totals.errors.entry(format!("accepting failed: {e}")).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Sleeps until there is something to do, and reads the supervisor's commands. Returns whether to exit.
    fn wait(&mut self, mut timeout: Duration) -> Result<bool, CliError> {
        if !timeout.is_zero() {
            while self.completions.next_event().is_some() {}
            self.cq.req_notify_with_missed(Notify::Any);
        }
        if self.planned.iter().any(|(at, _)| *at <= Instant::now()) && !self.is_draining {
            timeout = Duration::from_millis(1);
        }
        let stdin = io::stdin();
        let mut fds = [stdin.as_fd(), self.completions.as_fd(), self.events.as_fd(), self.tcp.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(CliError::io("cannot poll for events")(e)),
        }
        if fds[0].revents().is_none_or(|events| events.is_empty()) {
            return Ok(false);
        }
        let mut command = [0];
        match read(&stdin, &mut command) {
            Ok(1) if command[0] == DRAIN => {
                self.is_draining = true;
                let drain = |entry: &mut Entry| entry.connection.drain();
                self.entries.values_mut().try_for_each(drain).map_err(CliError::Failed)?;
            }
            Ok(1) if command[0] == EXIT => {
                self.is_exiting = true;
                self.entries.values_mut().for_each(|entry| entry.connection.close(None));
            }
            Err(nix::Error::EINTR) => {}
            // The supervisor has ended.
            _ => return Ok(true),
        }
        Ok(false)
    }

    fn report_totals(&mut self) -> Result<(), CliError> {
        let faults = &mut self.totals.faults;
        *faults = FaultTotals::default();
        for count in self.context.fault_counts() {
            *match count.rule.parse::<Rule>()?.action {
                Action::Drop => &mut faults.dropped,
                Action::Duplicate => &mut faults.duplicated,
                Action::Reorder => &mut faults.reordered,
                Action::Corrupt => &mut faults.corrupted,
                _ => &mut faults.delayed,
            } += count.struck;
        }
        report(&Report::Totals(self.totals.clone()))
    }
}

/// Starts the messages of a connection that the target has accepted.
fn established(connection: &mut Connection, totals: &mut Totals, offer: &Offer) -> Result<(), Violation> {
    if let Role::Initiator(Initiator { is_reconnect, .. }) = connection.role {
        totals.reconnects += u64::from(is_reconnect);
    }
    connection.start(offer)
}

/// Connects the queue pair to that of the peer, after an exchange over TCP.
fn enter_rts(connection: &Connection, peer: &Endpoint) -> Result<(), Violation> {
    let options = exchange_options();
    connection.qp.enter_rtr(peer, &options).map_err(system)?;
    connection.qp.enter_rts(&options).map_err(system)
}

fn exchange_options() -> ConnectOptions {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    ConnectOptions::default().access(access).timeout(ACK_TIMEOUT)
}

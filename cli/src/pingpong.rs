//! `urxe pingpong`: exchanges SENDs, in turns, with one of rdma-core's ping-pong programs or with another
//! `urxe pingpong`.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::interrupt::Interrupt;
use super::link::{LinkArgs, TrafficReport};
use super::oob::OobArgs;
use super::oob_handshake::SRQ_ADDRESSES;
use super::{CliError, json};
use urxe::verbs::errors::WaitError;
use urxe::verbs::{
    Access, Completion, Context, Cq, Destination, Mr, Mtu, Notify, Pd, QKey, Qp, QpOptions, QpType, RecvCaps,
    RecvWr, SendCaps, SendWr, Srq, WcOpcode, WcStatus, grh,
};

mod handshake;

/// Byte with which the stock program fills its buffer.
const FILL: u8 = 0x7b;
/// Page size: with `-c` the stock program zeroes the first byte of each page.
const PAGE_SIZE: usize = 4096;
/// Time to keep the queue pairs alive after the last message, so that its acknowledgement can be repeated if
/// it was lost.
const LINGER: Duration = Duration::from_millis(250);
/// Time to poll for a message before the thread sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Maximum total size, in bytes, of a shared receive queue's receive buffers with `--check`.
const MAX_CHECKED_BYTES: u64 = 4 << 30;

/// Q_Key of the stock `ibv_ud_pingpong`.
const QKEY: QKey = QKey(0x1111_1111);

/// Transport service of the queue pairs.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Service {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
    /// Reliable connections that share a receive queue
    Srq,
}

impl Service {
    /// Returns the name of rdma-core's program for the service, such as `ibv_rc_pingpong`.
    fn stock_program(self) -> String {
        let value = self.to_possible_value().expect("no variant is skipped");
        format!("ibv_{}_pingpong", value.get_name())
    }

    fn qp_type(self) -> QpType {
        match self {
            Service::Rc | Service::Srq => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        }
    }

    /// Returns the number of bytes that precede the data in a receive buffer: a GRH for datagrams, otherwise
    /// none.
    fn header(self) -> usize {
        if self == Service::Ud { grh::LEN } else { 0 }
    }
}

const EXAMPLES: &str = "\
Examples:
  urxe pingpong --link udp:10.0.0.1                       a server
      then, on a machine with an RDMA device:  ibv_rc_pingpong -g 1 10.0.0.1
  urxe pingpong --link udp:10.0.0.1 10.0.0.2              a client of ibv_rc_pingpong on 10.0.0.2
  urxe pingpong --service ud -s 1024 -c --link udp:10.0.0.1
      datagrams, with every received byte checked";

/// Exchange SENDs with a peer, which may be `ibv_rc_pingpong` or a similar program
///
/// Sends one message at a time in each direction of each queue pair. The peer may be `ibv_rc_pingpong`,
/// `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong` or `urxe pingpong`.
///
/// Size, iterations, path MTU and the number of queue pairs are not exchanged: use the same values on both
/// sides.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct PingpongArgs {
    #[command(flatten)]
    oob: OobArgs,
    /// Transport service
    #[arg(long, value_enum, default_value_t = Service::Rc)]
    service: Service,
    /// Message size in bytes
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// Number of queue pairs, with --service srq [default: 16]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=SRQ_ADDRESSES as i64))]
    qps: Option<u32>,
    /// Number of messages in each direction
    ///
    /// Over all queue pairs together.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Number of posted receives
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=32_768))]
    rx_depth: u32,
    /// Check every received byte
    #[arg(short, long)]
    check: bool,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs one side of a ping-pong.
pub fn run(args: &PingpongArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    args.link.nic.address.check_network()?;
    args.link.conclude(args.json, args.run(interrupt))
}

/// One side of a ping-pong.
struct Pingpong<'a> {
    args: &'a PingpongArgs,
    interrupt: &'a Interrupt,
    context: Context,
    cq: Cq,
    qps: Vec<PingpongQp>,
    srq: Option<Srq>,
    /// Destination for datagrams; `None` for connected services.
    destination: Option<Destination>,
    /// Send buffer.
    send_buffer: Mr,
    /// Receive buffer, divided into `slots` slots: receive n uses slot n modulo `slots`.
    recv_buffer: Mr,
    slots: u64,
    mtu: Mtu,
    sent: u32,
    send_done: u32,
    received: u32,
    /// `wr_id`s (0 to `depth` - 1) of the receives not currently posted.
    unposted: Vec<u64>,
    depth: u32,
    /// First byte of the first received message. With a shared receive queue, all bytes of all messages must
    /// have this value.
    first_byte: Option<u8>,
    /// Buffer for the received data being checked, reused for every message.
    scratch: Vec<u8>,
}

/// One queue pair of the ping-pong.
struct PingpongQp {
    qp: Qp,
    /// Whether the last send has completed. `received` records whether a message has arrived since that
    /// send; the queue pair may send again once both are set.
    send_done: bool,
    received: bool,
}

/// `wr_id` of all sends. Receives are numbered from 0.
const SEND: u64 = u64::MAX;

impl PingpongArgs {
    fn run(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        let context = self.link.open()?;
        let mut next = Some(Pingpong::new(self, &context, interrupt)?);
        let peer_program = format!("{} or urxe pingpong", self.service.stock_program());
        let connected = self.oob.open(&peer_program, interrupt, |stream| {
            // The queue pairs of a client that has failed may be connected.
            let mut pingpong = next.take().map_or_else(|| Pingpong::new(self, &context, interrupt), Ok)?;
            match self.oob.is_client() {
                true => pingpong.connect_to_server(stream)?,
                false => pingpong.connect_to_client(stream)?,
            }
            Ok(pingpong)
        });
        connected?.run()
    }

    /// Returns the data of the first message, the same bytes as the stock program sends.
    fn first_message(&self) -> Vec<u8> {
        let mut data = vec![FILL; self.size as usize];
        if self.check && self.oob.is_client() && self.service != Service::Srq {
            data.iter_mut().step_by(PAGE_SIZE).for_each(|b| *b = 0);
        }
        data
    }

    fn create_qp(&self, pd: &Pd, cq: &Cq, srq: Option<&Srq>, recv: RecvCaps) -> Result<PingpongQp, CliError> {
        let mut options = QpOptions::default()
            .qp_type(self.service.qp_type())
            .send(SendCaps { max_wr: 16, max_sge: 1, max_inline: 0 })
            .recv(recv);
        options.srq = srq.cloned();
        Ok(PingpongQp { qp: pd.create_qp(cq, cq, &options)?, send_done: true, received: false })
    }

    /// Returns the number of queue pairs and the depth of the receive queue.
    fn queue_sizes(&self) -> Result<(u32, u32), CliError> {
        if self.service != Service::Srq {
            return match self.qps {
                None | Some(1) => Ok((1, self.rx_depth)),
                Some(n) => Err(CliError::Usage(format!("{n} queue pairs require --service srq"))),
            };
        }
        let qps = self.qps.unwrap_or(16);
        if self.rx_depth <= qps {
            return Err(CliError::Usage(format!(
                "{} receives are too few for {qps} queue pairs: use a larger --rx-depth or a smaller --qps",
                self.rx_depth
            )));
        }
        if !self.check {
            return Ok((qps, self.rx_depth));
        }
        // A message must not be overwritten until it is checked, so each receive has a slot of its own.
        let depth = self.rx_depth.min(4 * qps);
        if u64::from(depth) * u64::from(self.size) > MAX_CHECKED_BYTES {
            return Err(CliError::Usage(format!(
                "{depth} receives of {} bytes exceed the limit of --check, 4 GiB: use a smaller --size or \
                 --qps, or omit --check",
                self.size
            )));
        }
        Ok((qps, depth))
    }
}

impl<'a> Pingpong<'a> {
    /// Creates the queue pairs, and posts their receives.
    fn new(
        args: &'a PingpongArgs,
        context: &Context,
        interrupt: &'a Interrupt,
    ) -> Result<Pingpong<'a>, CliError> {
        let pd = context.alloc_pd()?;
        let (qps, depth) = args.queue_sizes()?;
        let cq = context.create_cq((depth + qps) as usize + 16)?;
        let size = args.size as usize;
        let active = context.query_port().active_mtu;
        if args.service == Service::Ud && size > active.bytes() {
            return Err(CliError::Failed(format!(
                "message size {size} exceeds the path MTU of this link, {} bytes: use a smaller --size",
                active.bytes()
            )));
        }
        let has_srq = args.service == Service::Srq;
        let slots = if has_srq && args.check { depth as usize } else { 1 };
        let send_buffer = pd.reg_mr(size, Access::LOCAL_READ)?;
        send_buffer.write(0, &args.first_message())?;
        let recv_access = Access::LOCAL_WRITE | Access::LOCAL_READ;
        let recv_buffer = pd.reg_mr(slots * (args.service.header() + size), recv_access)?;
        let recv = RecvCaps { max_wr: depth, max_sge: 1 };
        let srq = if has_srq { Some(pd.create_srq(recv)?) } else { None };
        let qps = (0..qps).map(|_| args.create_qp(&pd, &cq, srq.as_ref(), recv)).collect::<Result<_, _>>()?;
        let mut pingpong = Pingpong {
            args,
            interrupt,
            context: context.clone(),
            cq,
            qps,
            srq,
            destination: None,
            send_buffer,
            recv_buffer,
            slots: slots as u64,
            // Default path MTU of the stock program, if the link carries it.
            mtu: args.link.mtu.unwrap_or(Mtu::Mtu1024.min(active)),
            sent: 0,
            send_done: 0,
            received: 0,
            unposted: (0..depth.into()).collect(),
            depth,
            first_byte: args.oob.is_client().then_some(FILL),
            scratch: vec![0; if args.check { size } else { 0 }],
        };
        for entry in &pingpong.qps {
            match args.service {
                Service::Ud => entry.qp.activate(QKEY)?,
                _ => entry.qp.enter_init(Access::LOCAL_WRITE)?,
            }
        }
        pingpong.post_receives()?;
        Ok(pingpong)
    }

    /// Exchanges the messages with the peer, to which the queue pairs are connected.
    fn run(mut self) -> Result<(), CliError> {
        let begin = Instant::now();
        if self.args.oob.is_client() {
            (0..self.qps.len()).try_for_each(|index| self.send(index))?;
        }
        let result = self.exchange_messages();
        if result.is_ok() || self.interrupt.is_set() {
            self.report(begin.elapsed())?;
        }
        result?;
        self.cq.req_notify(Notify::Any);
        std::thread::sleep(LINGER);
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), CliError> {
        while let Some(wr_id) = self.unposted.pop() {
            let start = self.slot_offset(wr_id);
            let len = self.recv_buffer.len() / self.slots as usize;
            let sges = [self.recv_buffer.sge(start..start + len)];
            let wr = RecvWr::new(wr_id, &sges);
            match &self.srq {
                Some(srq) => srq.post_recv(&wr)?,
                None => self.qps[0].qp.post_recv(&wr)?,
            }
        }
        Ok(())
    }

    /// Returns the offset of a receive's slot in the receive buffer.
    fn slot_offset(&self, receive: u64) -> usize {
        (receive % self.slots) as usize * (self.recv_buffer.len() / self.slots as usize)
    }

    fn send(&mut self, index: usize) -> Result<(), CliError> {
        let sges = [self.send_buffer.sge(0..self.send_buffer.len())];
        let entry = &mut self.qps[index];
        entry.qp.post_send(&SendWr::send(SEND, &sges).to(self.destination))?;
        (entry.send_done, entry.received) = (false, false);
        self.sent += 1;
        Ok(())
    }

    /// Runs until all messages have been sent and received. A queue pair sends when its last send has
    /// completed and a message has arrived. As in the stock program, several queue pairs together may send a
    /// few more messages than requested.
    fn exchange_messages(&mut self) -> Result<(), CliError> {
        let n = self.args.iters;
        let mut new = Vec::with_capacity(16);
        while self.send_done < n || self.received < n {
            self.wait(&mut new)?;
            for wc in &new {
                let index = self.complete(wc)?;
                let PingpongQp { send_done, received, .. } = self.qps[index];
                if send_done && received && self.send_done < n {
                    self.send(index)?;
                }
            }
        }
        Ok(())
    }

    /// Updates the state after a completion, and returns the index of the completion's queue pair.
    fn complete(&mut self, wc: &Completion) -> Result<usize, CliError> {
        if wc.status != WcStatus::Success {
            self.args.link.nic.explain(&self.cq, wc);
            let what = if wc.wr_id == SEND { "send" } else { "receive" };
            let number = 1 + if wc.wr_id == SEND { self.send_done } else { self.received };
            let mut text = format!("{what} number {number} failed: {}", wc.status);
            if matches!(wc.status, WcStatus::RemInvReqErr | WcStatus::LocLenErr | WcStatus::WrFlushErr) {
                let mtu = self.mtu.bytes();
                text.push_str(&format!(
                    "; use the same --size and --mtu on both sides (path MTU here: {mtu})"
                ));
            }
            return Err(CliError::Failed(text));
        }
        let index = self.qps.iter().position(|entry| entry.qp.qpn() == wc.qpn);
        let index = index.ok_or_else(|| CliError::Failed(format!("completion for unknown QP {}", wc.qpn)))?;
        if wc.opcode != WcOpcode::Recv {
            self.qps[index].send_done = true;
            self.send_done += 1;
            return Ok(index);
        }
        self.qps[index].received = true;
        self.received += 1;
        self.unposted.push(wc.wr_id);
        let len = wc.byte_len as usize - self.args.service.header().min(wc.byte_len as usize);
        if len != self.args.size as usize {
            return Err(CliError::Failed(format!(
                "message {} has {} bytes, expected {}: use the same --size on both sides",
                self.received, len, self.args.size
            )));
        }
        if self.args.check {
            self.check(wc.wr_id)?;
        }
        if self.depth as usize - self.unposted.len() <= self.qps.len() {
            self.post_receives()?;
        }
        Ok(index)
    }

    /// Checks that a received message has the contents that the stock program sends. On the server, also
    /// copies the first message to the send buffer, because the server sends it back.
    fn check(&mut self, receive: u64) -> Result<(), CliError> {
        let start = self.slot_offset(receive) + self.args.service.header();
        self.recv_buffer.read(start, &mut self.scratch)?;
        // The programs with one queue pair mark the pages. `ibv_srq_pingpong` sends from the buffer into
        // which it receives, so all bytes are equal.
        let (first, page) = match self.args.service {
            Service::Srq => (*self.first_byte.get_or_insert(self.scratch[0]), 1),
            _ => (self.scratch[0], PAGE_SIZE),
        };
        let expected = |i: usize| if i.is_multiple_of(page) { first } else { FILL };
        let is_valid = first == FILL || first == 0;
        if let Some((i, b)) = self.scratch.iter().enumerate().find(|(i, b)| **b != expected(*i) || !is_valid)
        {
            return Err(CliError::Failed(format!(
                "message {} is corrupt: byte {i} is {b:#04x}, expected {:#04x}",
                self.received,
                if is_valid { expected(i) } else { FILL }
            )));
        }
        if !self.args.oob.is_client() && self.received == 1 {
            self.send_buffer.write(0, &self.scratch)?;
        }
        // Overwrites the slot, so that a message that is not written into it is detected.
        self.scratch.fill(0xa5);
        Ok(self.recv_buffer.write(start, &self.scratch)?)
    }

    /// Polls briefly, then sleeps until a completion arrives or the peer timeout expires.
    fn wait(&self, new: &mut Vec<Completion>) -> Result<(), CliError> {
        new.clear();
        let progress = || {
            format!(
                "{} of {} messages sent ({} acknowledged), {} received",
                self.sent, self.args.iters, self.send_done, self.received
            )
        };
        let check_interrupt = || match self.interrupt.is_set() {
            true => Err(CliError::Failed(format!("interrupted: {}", progress()))),
            false => Ok(()),
        };
        // Check here too: a peer that always responds within the spin time never lets this function sleep.
        check_interrupt()?;
        let begin = Instant::now();
        while begin.elapsed() < SPIN_TIME {
            if self.cq.poll(16, new)? > 0 {
                return Ok(());
            }
        }
        loop {
            match self.cq.wait_any(Duration::from_millis(100)) {
                Ok(wc) => {
                    new.push(wc);
                    return Ok(());
                }
                Err(WaitError::TimedOut(_)) => {}
                Err(e) => return Err(e.into()),
            }
            check_interrupt()?;
            if begin.elapsed() > self.args.oob.peer_timeout() {
                return Err(CliError::Failed(format!(
                    "no message from the peer for {:?}: {}; check that the size and the iterations of both \
                     sides are the same",
                    self.args.oob.peer_timeout(),
                    progress()
                )));
            }
        }
    }

    fn report(&self, elapsed: Duration) -> Result<(), CliError> {
        let seconds = elapsed.as_secs_f64();
        let iters = self.args.iters.min(self.send_done).min(self.received);
        let bytes = u64::from(self.args.size) * u64::from(iters) * 2;
        let mbit_s = bytes as f64 * 8.0 / 1e6 / seconds;
        let us_per_iter = seconds * 1e6 / f64::from(iters.max(1));
        let link = self.args.link.report(&self.context);
        if self.args.json {
            return json::print(&Report {
                service: self.args.service,
                size: self.args.size,
                path_mtu: self.mtu.bytes(),
                iterations: iters,
                bytes,
                seconds,
                mbit_s,
                us_per_iteration: us_per_iter,
                checked_messages: self.args.check.then_some(self.received),
                link,
            });
        }
        writeln!(stdout(), "{bytes} bytes in {seconds:.2} seconds = {mbit_s:.2} Mbit/sec")?;
        writeln!(stdout(), "{iters} iters in {seconds:.2} seconds = {us_per_iter:.2} usec/iter")?;
        if self.args.check {
            writeln!(stdout(), "all {} received messages are correct", self.received)?;
        }
        if let Some(line) = link.rings_line() {
            writeln!(stdout(), "{line}")?;
        }
        Ok(())
    }
}

/// JSON document of `urxe pingpong --json`.
#[derive(Serialize)]
struct Report {
    service: Service,
    /// Bytes per message.
    size: u32,
    /// Path MTU in bytes.
    path_mtu: usize,
    /// Number of messages sent and received.
    iterations: u32,
    /// Payload of both directions in bytes.
    bytes: u64,
    seconds: f64,
    /// Throughput of both directions together, in 10^6 bits of payload per second.
    mbit_s: f64,
    us_per_iteration: f64,
    /// Number of received messages whose bytes are all correct, with `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked_messages: Option<u32>,
    #[serde(flatten)]
    link: TrafficReport,
}

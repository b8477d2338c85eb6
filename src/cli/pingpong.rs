//! `urxe pingpong`: SENDs back and forth, with one of rdma-core's ping-pong programs or another `urxe pingpong` at
//! the other end.
#![forbid(unsafe_code)]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use clap::Args;

use super::CliError;
use super::exchange::pingpong;
use super::interrupt::Interrupt;
use super::link::LinkArgs;
use super::oob::{OobArgs, silent};
use crate::verbs::{
    Access, AckTimeout, AddressVector, Completion, ConnectOptions, Context, Cq, Destination, Endpoint, Gid,
    Mr, Mtu, Notify, Psn, QKey, Qp, QpOptions, QpType, Qpn, RecvCaps, RecvWr, SendCaps, SendWr, WaitError,
    WcOpcode, WcStatus, grh,
};

/// What the stock program fills its buffer with.
const FILL: u8 = 0x7b;
/// With `-c` it zeroes the first byte of each of these.
const PAGE: usize = 4096;
/// Our QP stays this long after the last message: the peer may not have got our last acknowledgement.
const LINGER: Duration = Duration::from_millis(250);
/// A message that is quicker than this is waited for by polling.
const SPIN: Duration = Duration::from_micros(100);

/// The queue key of the stock `ibv_ud_pingpong`.
const QKEY: QKey = QKey(0x1111_1111);

/// The service of the queue pairs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

impl Service {
    fn stock(self) -> &'static str {
        match self {
            Service::Rc => "ibv_rc_pingpong",
            Service::Uc => "ibv_uc_pingpong",
            Service::Ud => "ibv_ud_pingpong",
        }
    }

    fn qp_type(self) -> QpType {
        match self {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        }
    }

    /// Bytes before the data of a receive.
    fn header(self) -> usize {
        if self == Service::Ud { grh::LEN } else { 0 }
    }
}

/// Exchange SENDs with a peer, one at a time each way; the peer may be `ibv_rc_pingpong`, `ibv_uc_pingpong` or
/// `ibv_ud_pingpong`.
///
/// Size, iterations and path MTU are not exchanged: give both sides the same.
#[derive(Args, Clone)]
pub struct PingpongArgs {
    #[command(flatten)]
    oob: OobArgs,
    /// Service of the queue pairs
    #[arg(long, value_enum, default_value_t = Service::Rc)]
    service: Service,
    /// Bytes of a message
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// Messages each way
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Receives kept posted
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=32_768))]
    rx_depth: u32,
    /// Local ACK timeout: 4.096 us x 2^N
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: u8,
    /// Check every byte that arrives
    #[arg(short, long)]
    check: bool,
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs it.
///
/// # Errors
/// [`CliError`].
pub fn run(args: &PingpongArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    let result = args.link.open().and_then(|context| Side::new(args, &context, interrupt)?.run());
    args.link.finish().and(result)
}

/// One end of the game.
struct Side<'a> {
    args: &'a PingpongArgs,
    interrupt: &'a Interrupt,
    context: Context,
    cq: Cq,
    qp: Qp,
    /// The peer's queue pair, for datagrams.
    to: Option<Destination>,
    /// What is sent.
    out: Mr,
    /// What arrives, all of it at the same place.
    inn: Mr,
    mtu: Mtu,
    sent: u32,
    send_done: u32,
    received: u32,
    posted: u32,
    /// Room to look at what arrived.
    seen: Vec<u8>,
}

impl<'a> Side<'a> {
    fn new(
        args: &'a PingpongArgs,
        context: &Context,
        interrupt: &'a Interrupt,
    ) -> Result<Side<'a>, CliError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(args.rx_depth as usize + 16)?;
        let size = args.size as usize;
        let active = context.query_port().active_mtu;
        if args.service == Service::Ud && size > active.bytes() {
            return Err(CliError::Failed(format!(
                "a datagram holds {} bytes on this link, not {size}: give a smaller --size",
                active.bytes()
            )));
        }
        let (out, inn) = (
            pd.reg_mr(size, Access::LOCAL_READ)?,
            pd.reg_mr(args.service.header() + size, Access::LOCAL_WRITE | Access::LOCAL_READ)?,
        );
        let mut fill = vec![FILL; size];
        if args.check && args.oob.host.is_some() {
            fill.iter_mut().step_by(PAGE).for_each(|b| *b = 0);
        }
        out.write(0, &fill)?;
        let qp = pd.create_qp(
            &cq,
            &cq,
            &QpOptions {
                qp_type: args.service.qp_type(),
                send: SendCaps { max_wr: 16, max_sge: 1, max_inline: 0 },
                recv: RecvCaps { max_wr: args.rx_depth, max_sge: 1 },
                ..QpOptions::default()
            },
        )?;
        // As the stock program has it, if the link carries it.
        let mtu = args.link.mtu.unwrap_or(Mtu::Mtu1024.min(active));
        let (sent, send_done, received, posted) = (0, 0, 0, 0);
        Ok(Side {
            args,
            interrupt,
            context: context.clone(),
            cq,
            qp,
            to: None,
            out,
            inn,
            mtu,
            sent,
            send_done,
            received,
            posted,
            seen: vec![0; if args.check { size } else { 0 }],
        })
    }

    fn run(mut self) -> Result<(), CliError> {
        match self.args.service {
            Service::Ud => self.qp.activate(QKEY)?,
            _ => self.qp.to_init(Access::LOCAL_WRITE)?,
        }
        self.post_receives()?;
        let whom = format!("{} or urxe pingpong", self.args.service.stock());
        let stream = self.args.oob.open(&whom, self.interrupt)?;
        match self.args.oob.host {
            Some(_) => self.client_handshake(stream)?,
            None => self.server_handshake(stream)?,
        }
        let begin = Instant::now();
        if self.args.oob.host.is_some() {
            self.send()?;
        }
        self.play()?;
        self.report(begin.elapsed());
        self.cq.req_notify(Notify::Any);
        std::thread::sleep(LINGER);
        Ok(())
    }

    fn local(&self, peer: Option<Gid>) -> Result<(u8, pingpong::Destination), CliError> {
        let (index, gid) = self.args.link.gid_for(&self.context, peer.map(Gid::ip))?;
        let own = self.qp.endpoint();
        let local = pingpong::Destination { lid: 0, qpn: own.qpn.get(), psn: own.psn.get(), gid: gid.0 };
        println!("  local address:  {}", line(&local));
        Ok((index, local))
    }

    fn connect(&mut self, sgid_index: u8, remote: &pingpong::Destination) -> Result<(), CliError> {
        println!("  remote address: {}", line(remote));
        if Gid(remote.gid).is_unset() {
            return Err(CliError::Failed(format!(
                "the peer announced no GID: start {} with -g and the index of its GID",
                self.args.service.stock()
            )));
        }
        if self.args.service == Service::Ud {
            let av = AddressVector { sgid_index, ..AddressVector::to(Gid(remote.gid)) };
            let handle = self.qp.pd().create_ah(&av)?;
            self.to = Some(handle.to(Qpn::new(remote.qpn), QKEY));
            return Ok(());
        }
        let peer = Endpoint { gid: Gid(remote.gid), qpn: Qpn::new(remote.qpn), psn: Psn::new(remote.psn) };
        let options = ConnectOptions {
            sgid_index: Some(sgid_index),
            mtu: Some(self.mtu),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            timeout: AckTimeout::new(self.args.ack_timeout),
            ..self.args.link.connect_options()
        };
        self.qp.to_rtr(&peer, &options)?;
        Ok(self.qp.to_rts(&options)?)
    }

    fn client_handshake(&mut self, mut stream: TcpStream) -> Result<(), CliError> {
        let (index, local) = self.local(None)?;
        let sent = format!("our address ({})", line(&local));
        let remote = pingpong::client(&mut stream, &local).map_err(|e| silent(&sent, e))?;
        self.same_family(&local, &remote)?;
        self.connect(index, &remote)
    }

    fn server_handshake(&mut self, stream: TcpStream) -> Result<(), CliError> {
        let server = pingpong::Server::accept(stream).map_err(|e| silent("nothing", e))?;
        let remote = *server.remote();
        let (index, local) = self.local(Some(Gid(remote.gid)))?;
        self.connect(index, &remote)?;
        let sent = format!("our address ({})", line(&local));
        server.reply(&local).map_err(|e| silent(&sent, e))?;
        Ok(())
    }

    fn same_family(
        &self,
        local: &pingpong::Destination,
        remote: &pingpong::Destination,
    ) -> Result<(), CliError> {
        let (ours, theirs) = (Gid(local.gid).ip(), Gid(remote.gid).ip());
        if ours.is_ipv4() == theirs.is_ipv4() {
            return Ok(());
        }
        Err(CliError::Failed(format!(
            "our GID is {ours} and the peer's is {theirs}: both have to be of one IP version; choose with --gid here \
             or -g there"
        )))
    }

    fn post_receives(&mut self) -> Result<(), CliError> {
        let whole = [self.inn.sge(0..self.inn.len())];
        while self.posted < self.args.rx_depth {
            self.qp.post_recv(&RecvWr { wr_id: 1, sges: &whole })?;
            self.posted += 1;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), CliError> {
        let all = [self.out.sge(0..self.out.len())];
        self.qp.post_send(&SendWr { to: self.to, ..SendWr::send(2, &all) })?;
        self.sent += 1;
        Ok(())
    }

    /// Until all have been sent and received. A message leaves when the last one is through and one has come.
    fn play(&mut self) -> Result<(), CliError> {
        let n = self.args.iters;
        let mut new = Vec::with_capacity(16);
        while self.send_done < n || self.received < n {
            self.wait(&mut new)?;
            for wc in &new {
                self.complete(wc)?;
            }
            let answers = if self.args.oob.host.is_some() { self.received + 1 } else { self.received };
            if self.sent < n && self.send_done == self.sent && self.sent < answers {
                self.send()?;
            }
        }
        Ok(())
    }

    fn complete(&mut self, wc: &Completion) -> Result<(), CliError> {
        if wc.status != WcStatus::Success {
            let what = if wc.wr_id == 2 { "send" } else { "receive" };
            let number = 1 + if wc.wr_id == 2 { self.send_done } else { self.received };
            return Err(CliError::Failed(format!("{what} number {number} failed: {}", wc.status)));
        }
        if wc.opcode != WcOpcode::Recv {
            self.send_done += 1;
            return Ok(());
        }
        self.received += 1;
        self.posted -= 1;
        let len = wc.byte_len as usize - self.args.service.header().min(wc.byte_len as usize);
        if len != self.args.size as usize {
            return Err(CliError::Failed(format!(
                "message {} has {} bytes, not {}: give both sides the same size",
                self.received, len, self.args.size
            )));
        }
        if self.args.check {
            self.check()?;
        }
        if self.posted <= 1 {
            self.post_receives()?;
        }
        Ok(())
    }

    /// What arrived is what the stock program sends; the server sends the same back from now on.
    fn check(&mut self) -> Result<(), CliError> {
        let start = self.args.service.header();
        self.inn.read(start, &mut self.seen)?;
        let first = self.seen[0];
        let bad =
            self.seen.iter().enumerate().find(|(i, b)| {
                **b != if i % PAGE == 0 { first } else { FILL } || first != FILL && first != 0
            });
        if let Some((i, b)) = bad {
            let want = if i % PAGE == 0 { first } else { FILL };
            return Err(CliError::Failed(format!(
                "message {} is wrong: byte {i} is {b:#04x}, it should be {want:#04x}",
                self.received
            )));
        }
        if self.args.oob.host.is_none() && self.received == 1 {
            self.out.write(0, &self.seen)?;
        }
        // What does not arrive must not look as if it had.
        self.seen.fill(0xa5);
        Ok(self.inn.write(start, &self.seen)?)
    }

    /// Polls for a moment, and then sleeps until something comes.
    fn wait(&self, new: &mut Vec<Completion>) -> Result<(), CliError> {
        new.clear();
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            if self.cq.poll(16, new).map_err(WaitError::from)? > 0 {
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
            let so_far = || {
                format!(
                    "{} of {} messages sent ({} acknowledged), {} received",
                    self.sent, self.args.iters, self.send_done, self.received
                )
            };
            if self.interrupt.is_set() {
                return Err(CliError::Failed(format!("interrupted: {}", so_far())));
            }
            if begin.elapsed() > self.args.oob.patience() {
                return Err(CliError::Failed(format!(
                    "nothing from the peer for {:?}: {}; does it run with the same size and iterations?",
                    self.args.oob.patience(),
                    so_far()
                )));
            }
        }
    }

    fn report(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bytes = u64::from(self.args.size) * u64::from(self.args.iters) * 2;
        println!(
            "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec",
            bytes as f64 * 8.0 / 1e6 / seconds
        );
        println!(
            "{} iters in {seconds:.2} seconds = {:.2} usec/iter",
            self.args.iters,
            seconds * 1e6 / f64::from(self.args.iters)
        );
        if self.args.check {
            println!("all {} messages received are as they should be", self.received);
        }
    }
}

fn line(d: &pingpong::Destination) -> String {
    let gid = std::net::Ipv6Addr::from(d.gid);
    format!("LID 0x{:04x}, QPN 0x{:06x}, PSN 0x{:06x}, GID {gid}", d.lid, d.qpn, d.psn)
}

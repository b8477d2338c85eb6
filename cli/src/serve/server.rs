//! Server for `urxe serve`: performs handshakes, handles completions, and prints the summary.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write, stderr, stdout};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use serde::Serialize;

use super::Serve;
use super::peer::{Peer, SLOTS, Totals};
use crate::interrupt::Interrupt;
use crate::link::TrafficReport;
use crate::{CliError, json, oob_handshake};
use urxe::host::primary_address;
use urxe::middleware::faults::Direction;
use urxe::verbs::{
    Access, CompletionChannel, ConnectOptions, Context, Cq, CqOptions, Endpoint, Mr, Mtu, Notify, Pd, Qpn,
    WcStatus,
};

/// Maximum sleep of the main loop, which limits the delay in noticing Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time without packets after which the peer counts as done, with `--one-shot`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    peers: HashMap<Qpn, Peer>,
    connected: usize,
    totals: Totals,
    /// Error message for the most recent failed handshake or lost peer.
    failure: Option<String>,
}

/// A running endpoint of `urxe serve`, which the handshake threads and the main loop share.
pub struct Server {
    context: Context,
    pd: Pd,
    cq: Cq,
    args: Serve,
    /// Connection options common to all peers.
    connect: ConnectOptions,
    state: Mutex<State>,
    channel: CompletionChannel,
    /// Memory region that peers access. The field only keeps it registered.
    _region: Mr,
    listener: TcpListener,
}

impl Server {
    /// Opens the NIC, listens for handshakes, connects the peers given by `--peer`, and prints the parameters
    /// that other peers need to connect.
    pub fn start(args: Serve) -> Result<Arc<Server>, CliError> {
        let json = args.json;
        let print = |line: &str| print_line(json, line);
        let listener = listen(args.port)?;
        let context = args.link.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let cq = context.create_cq(CqOptions::new(args.qps as usize * SLOTS * 2).channel(&channel))?;
        let region = pd.reg_mr(args.size, Access::ALL)?;
        let mut connect = args.link.connect_options();
        // The handshake does not carry the path MTU; 1024 is the default of ibv_rc_pingpong and similar
        // programs.
        let active = context.query_port().active_mtu;
        let mtu = connect.mtu.unwrap_or(Mtu::Mtu1024.min(active));
        connect.mtu = Some(mtu);
        let info = context.link_info();
        print(&format!("serving on {}, path MTU {}", info.name, mtu.bytes()))?;
        let gids = context.gids().into_iter().enumerate();
        for (i, gid) in gids.filter(|(i, _)| connect.sgid_index.is_none_or(|g| g as usize == *i)) {
            print(&format!("GID {i}    {gid}"))?;
        }
        let (va, rkey, len) = (region.addr(), region.rkey(), region.len());
        print(&format!("region   va {va:#x} rkey {rkey} length {len}, for READ, WRITE and atomics"))?;
        let port = listener.local_addr().map_or(args.port, |a| a.port());
        let at = if port == oob_handshake::PORT { String::new() } else { format!(" -p {port}") };
        // A link with a host stack of its own has addresses without TCP; the handshake uses those of the
        // machine.
        let (host, owner) = match args.link.link().has_host_stack() {
            true => (" HOST".into(), " of this machine (HOST), as TCP does not use the link's addresses"),
            false => (primary_address(&info.addresses).map_or(String::new(), |ip| format!(" {ip}")), ""),
        };
        print(&format!(
            "TCP      port {port}{owner}, for a client such as: ibv_rc_pingpong -g GID_INDEX{at}{host}"
        ))?;
        let (state, _region) = (Mutex::default(), region);
        let server = Server { context, pd, cq, args, connect, state, channel, _region, listener };
        for peer in &server.args.peers {
            server.connect(*peer, "--peer")?;
        }
        print("waiting for peers; Ctrl-C stops the server")?;
        Ok(Arc::new(server))
    }

    /// Serves until Ctrl-C; with `--one-shot`, only until the first peer is done.
    pub fn run(self: &Arc<Self>, interrupt: &Interrupt) -> Result<(), CliError> {
        let mut idle_timer = IdleTimer::new(self.packets());
        while !interrupt.is_set() {
            self.cq.req_notify(Notify::Any);
            self.handle_completions()?;
            self.sleep()?;
            while self.channel.next_event().is_some() {}
            self.handle_completions()?;
            self.accept();
            if let (_, Some(cause)) = self.context.link_state() {
                return Err(CliError::Failed(format!("the link was lost: {cause}")));
            }
            if self.args.one_shot && self.is_done(&mut idle_timer)? {
                break;
            }
        }
        Ok(())
    }

    fn sleep(&self) -> Result<(), CliError> {
        let fds = [self.channel.as_fd(), self.listener.as_fd()];
        let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::try_from(POLL_INTERVAL).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(CliError::io("cannot poll for events")(e)),
        }
    }

    /// Accepts pending TCP connections. Each handshake runs on its own thread, so that a slow peer does not
    /// delay the others.
    fn accept(self: &Arc<Self>) {
        while let Ok((stream, from)) = self.listener.accept() {
            let server = self.clone();
            let handshake = move || {
                if let Err(e) = server.handshake(stream, from) {
                    server.fail(format!("handshake with {from} failed: {e}"));
                }
            };
            if let Err(e) = std::thread::Builder::new().name("handshake".into()).spawn(handshake) {
                self.fail(format!("cannot start a thread for the handshake with {from}: {e}"));
            }
        }
    }

    fn packets(&self) -> u64 {
        self.context.counters().rcvd_pkts
    }

    /// Reports whether the single peer permitted by `--one-shot` is done.
    fn is_done(&self, idle_timer: &mut IdleTimer) -> Result<bool, CliError> {
        let state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(CliError::Failed(failure.clone()));
        }
        let Some(peer) = state.peers.values().next() else { return Ok(false) };
        let (remote, unacked) = (peer.remote, peer.unacked);
        drop(state);
        let elapsed = idle_timer.update(self.packets());
        if idle_timer.has_received {
            // SENDs to the peer that are not acknowledged yet either complete or end in an error completion
            // once the retries are exhausted.
            return Ok(elapsed > IDLE_TIMEOUT && unacked == 0);
        }
        if elapsed > self.args.timeout {
            let (timeout, name) = (self.args.timeout, &self.context.link_info().name);
            return Err(CliError::Failed(format!(
                "no packet from {} QP {} within {timeout:?}: {name} has sent nothing, as the peer sends \
                 first; check the address, QPN and PSN of the peer, and that no firewall blocks UDP port \
                 4791",
                remote.gid.ip(),
                remote.qpn
            )));
        }
        Ok(false)
    }

    /// Prints the totals, the NIC's counters and the fault rules' counters.
    pub fn summary(&self) -> Result<(), CliError> {
        let context = &self.context;
        let State { connected, totals, .. } = *self.state.lock();
        let (nic, (link, _)) = (context.counters(), context.link_state());
        let counters = nic.iter().chain(link.iter()).filter(|(_, value)| *value > 0);
        let link = self.args.link.report(context);
        if let Some(faults) = &link.faults {
            faults.warn();
        }
        if self.args.json {
            return json::print(&Summary { peers: connected, totals, counters: counters.collect(), link });
        }
        let print = |line: &str| print_line(false, line);
        let Totals { echoed_sends: echoes, echoed_bytes: bytes, writes_with_immediate: writes } = totals;
        print(&format!(
            "{connected} peers; {echoes} SENDs echoed, {bytes} bytes; {writes} WRITEs with immediate"
        ))?;
        link.rings_line().map_or(Ok(()), print)?;
        for (name, value) in counters {
            print(&format!("  {name:<24} {value}"))?;
        }
        if let Some(faults) = &link.faults {
            faults.lines().try_for_each(|line| print(&format!("  {line}")))?;
        }
        for direction in [Direction::Tx, Direction::Rx] {
            let f = self.args.link.fault_counts(direction);
            if f != Default::default() {
                print(&format!("  faults {direction}: {f}"))?;
            }
        }
        Ok(())
    }

    /// Performs the server side of the handshake.
    fn handshake(&self, mut stream: TcpStream, from: SocketAddr) -> Result<(), CliError> {
        let timeout = Some(self.args.timeout);
        let set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(timeout));
        set.and_then(|()| stream.set_write_timeout(timeout))
            .map_err(CliError::io("cannot set the timeouts of the TCP connection"))?;
        let remote = oob_handshake::recv_addresses(&mut stream, 1)?[0];
        if remote.gid.is_unset() {
            let reason = "the peer sent no GID: on RoCE, ibv_rc_pingpong requires -g INDEX";
            return Err(CliError::Failed(reason.into()));
        }
        let local = self.connect(remote, &from.to_string())?;
        if let Err(e) = oob_handshake::reply(&mut stream, &[local], 1) {
            // The handshake did not complete, so the client cannot use the queue pair.
            let _ = self.state.lock().peers.remove(&local.qpn);
            return Err(e.into());
        }
        Ok(())
    }

    /// Connects a queue pair to a peer and returns the local endpoint. If `--qps` peers are already
    /// connected, disconnects the one that has been idle longest.
    fn connect(&self, remote: Endpoint, from: &str) -> Result<Endpoint, CliError> {
        let (index, _) = self.args.link.gid_for(&self.context, Some(remote.gid.ip()))?;
        let options = self.connect.sgid_index(index);
        let mut state = self.state.lock();
        let number = state.connected + 1;
        let peer = Peer::connect((&self.pd, &self.cq), number, remote, self.args.message, &options)?;
        let local = peer.local(index);
        state.connected = number;
        if state.peers.len() >= self.args.qps as usize
            && let Some(qpn) = state.peers.iter().min_by_key(|(_, p)| p.last_active).map(|(qpn, _)| *qpn)
            && let Some(oldest) = state.peers.remove(&qpn)
        {
            print_line(self.args.json, &format!("peer {} evicted by a new peer", oldest.number))?;
        }
        state.peers.insert(local.qpn, peer);
        drop(state);
        let [peer, own] =
            [remote, local].map(|e| format!("{} qp {} psn {:#08x}", e.gid.ip(), e.qpn, e.psn.get()));
        print_line(self.args.json, &format!("peer {number}   {peer}, via {from}; local: {own}"))?;
        Ok(local)
    }

    fn handle_completions(&self) -> Result<(), CliError> {
        let mut out = Vec::with_capacity(SLOTS);
        while self.cq.poll(SLOTS, &mut out)? > 0 {
            let mut state = self.state.lock();
            for wc in out.drain(..) {
                // Completions of a peer that was removed already are ignored.
                let State { peers, totals, .. } = &mut *state;
                let Some(peer) = peers.get_mut(&wc.qpn) else { continue };
                if let Err(reason) = peer.complete(&wc, totals)
                    && let Some(peer) = peers.remove(&wc.qpn)
                {
                    self.args.link.nic.explain(&self.cq, &wc);
                    let mut failure = format!("peer {} disconnected: {reason}", peer.number);
                    if wc.status == WcStatus::WrFlushErr
                        && let Some(mtu) = self.connect.mtu
                    {
                        failure.push_str(&format!(
                            "; if a request was rejected (resp_invalid_request below), use the same path MTU \
                             on both sides (here --mtu {})",
                            mtu.bytes()
                        ));
                    }
                    report_error(&failure);
                    state.failure = Some(failure);
                }
            }
        }
        Ok(())
    }

    fn fail(&self, failure: String) {
        report_error(&failure);
        self.state.lock().failure = Some(failure);
    }
}

/// JSON document of `urxe serve --json`, printed at the end.
#[derive(Serialize)]
struct Summary {
    /// Number of peers that have connected.
    peers: usize,
    #[serde(flatten)]
    totals: Totals,
    /// Nonzero counters of the NIC and its link.
    counters: BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    link: TrafficReport,
}

/// Timer that measures the time since a packet was last received.
struct IdleTimer {
    packets: u64,
    since: Instant,
    has_received: bool,
}

impl IdleTimer {
    fn new(packets: u64) -> IdleTimer {
        IdleTimer { packets, since: Instant::now(), has_received: false }
    }

    fn update(&mut self, packets: u64) -> Duration {
        if packets != self.packets {
            *self = IdleTimer { packets, since: Instant::now(), has_received: true };
        }
        self.since.elapsed()
    }
}

/// Prints a line without interleaving the lines of different threads: to standard output, or with `--json` to
/// standard error.
fn print_line(json: bool, line: &str) -> Result<(), CliError> {
    match json {
        true => Ok(writeln!(stderr(), "{line}")?),
        false => Ok(writeln!(stdout(), "{line}")?),
    }
}

/// Prints a line to standard error. Ignores write errors, because standard error may be closed.
fn report_error(error: &str) {
    let _ = writeln!(stderr(), "urxe: {error}");
}

/// Listens on IPv6 and IPv4, or on IPv4 alone if IPv6 is not available.
fn listen(port: u16) -> Result<TcpListener, CliError> {
    let bound = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let bound = bound.or_else(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Err(e),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    });
    let listener = bound.and_then(|l| l.set_nonblocking(true).map(|()| l));
    listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => CliError::Usage(format!(
            "TCP port {port} is already in use: choose another with --port, or 0 for any free port"
        )),
        _ => CliError::Io { what: format!("cannot listen on TCP port {port}"), source },
    })
}

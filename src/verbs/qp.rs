//! Queue pairs: creation, state transitions, connection, posting, and multicast attachment.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;

use super::context::Inner;
use super::cq::CqUse;
use super::faults::{Call, Injector};
use super::{AttachError, ConnectError, Cq, CreateError, Pd, Srq, WeakContext, Xrcd};
use crate::driver::{EventSubject, Shard};
use crate::memory::Access;
use crate::nic::{CqHandle, MulticastError, Nic};
use crate::sys::options::options;
use crate::sys::setters::setters;
use crate::transport::service::{Connected, Datagrams, Untyped};
use crate::transport::state::accepted_attrs;
use crate::transport::{
    AddressVector, AttachCounterError, CompCounter, CountedOps, ModifyError, PostError, PostListError,
    QpAttr, QpInit, QpState, QpType, RecvCaps, RecvWr, SendCaps, SendWr, XrcdId,
};
use crate::wire::{AckTimeout, Gid, Mtu, Psn, QKey, Qpn, RnrTimer};

/// Attributes for creating a queue pair with [`Pd::create_qp`] (`ibv_qp_init_attr`).
///
/// ```
/// # use urxe::verbs::*;
/// let options = QpOptions::default().qp_type(QpType::Ud).signal_all(true);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpOptions {
    /// Transport service.
    pub qp_type: QpType,
    /// Limits of the send queue.
    pub send: SendCaps,
    /// Limits of the receive queue; ignored with a shared receive queue and for XRC.
    pub recv: RecvCaps,
    /// Whether every send work request generates a completion, whatever its flags (`sq_sig_all`).
    pub signal_all: bool,
    /// Shared receive queue from which to take receives; `None` for a separate receive queue.
    pub srq: Option<Srq>,
}

setters!(QpOptions { qp_type: QpType, send: SendCaps, recv: RecvCaps, signal_all: bool });

impl QpOptions {
    /// Sets the shared receive queue from which to take receives; [`recv`](#structfield.recv) is then
    /// ignored.
    #[must_use]
    pub fn srq(mut self, srq: &Srq) -> QpOptions {
        self.srq = Some(srq.clone());
        self
    }
}

impl Default for QpOptions {
    /// Returns options for an RC queue pair with queues of 128 work requests, up to 4 scatter/gather elements
    /// per work request, and up to 256 bytes of inline data.
    fn default() -> Self {
        QpOptions {
            qp_type: QpType::Rc,
            send: SendCaps { max_wr: 128, max_sge: 4, max_inline: 256 },
            recv: RecvCaps { max_wr: 128, max_sge: 4 },
            signal_all: false,
            srq: None,
        }
    }
}

/// Address of a queue pair, which its peer needs in order to connect. The application may exchange endpoints
/// by any means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// GID of the port.
    pub gid: Gid,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Starting PSN of the queue pair's send queue.
    pub psn: Psn,
}

options! {
    /// Attributes for connecting a queue pair to a peer ([`Qp::connect`]). Both sides should use the same `mtu`,
    /// and neither side's `max_rd_atomic` may exceed the other's `max_dest_rd_atomic`.
    ///
    /// The defaults permit every kind of local and remote access, with a 67 ms ACK timeout, 7 retries, unlimited RNR retries, a
    /// 0.64 ms RNR timer, and up to 16 READs and atomics in flight in either direction.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// let options = ConnectOptions::default().mtu(Mtu::Mtu1024).access(Access::REMOTE_READ);
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ConnectOptions {
        /// Operations that the peer may perform on local memory, provided that the memory region permits them
        /// too.
        pub access: Access = Access::ALL,
        /// Traffic class (ToS).
        pub traffic_class: u8 = 0,
        /// Local ACK timeout.
        pub timeout: AckTimeout = AckTimeout::new(14),
        /// Number of retries after an ACK timeout, 0..=7.
        pub retry_cnt: u8 = 7,
        /// Number of retries after an RNR NAK, 0..=7, where 7 means no limit.
        pub rnr_retry: u8 = 7,
        /// Minimum time that the peer waits before it retries after an RNR NAK from this queue pair.
        pub min_rnr_timer: RnrTimer = RnrTimer::new(12),
        /// Maximum number of RDMA READs and atomics in flight to the peer.
        pub max_rd_atomic: u8 = 16,
        /// Maximum number of RDMA READs and atomics in flight from the peer.
        pub max_dest_rd_atomic: u8 = 16,
        optional
        /// Path MTU: payload bytes per packet. `None` stands for the port's active MTU.
        pub mtu: Option<Mtu>,
        /// Index of the local GID. `None` selects the one that [best suits the
        /// peer](super::Context::gid_towards).
        pub sgid_index: Option<u8>,
    }
}

/// Policy for a list of work requests of which the queue pair rejects one ([`Qp::post_send_list`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListPolicy {
    /// The work requests before the first that is rejected (`ibv_post_send`).
    UntilRejected,
    /// Nothing (`ibv_wr_complete`).
    AllOrNone,
}

/// A queue pair. Cheap to clone; usable from any thread. Dropping the last handle destroys the queue pair;
/// outstanding work requests then end without completions.
///
/// `S` is the [service](super::service). `Qp` alone is a queue pair of any service, whose calls fail if the
/// service does not have them; calls of a `Qp<Rc>`, `Qp<Uc>` or `Qp<Ud>` ([`Pd::create_typed_qp`]) then do
/// not compile.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # let fabric = Fabric::new();
/// # let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
/// let new_qp = |context: &Context| {
///     let cq = context.create_cq(16)?;
///     context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
/// };
/// let (a, b) = (new_qp(&local)?, new_qp(&remote)?);
/// a.connect(&b.endpoint(), &ConnectOptions::default())?;
/// b.connect(&a.endpoint(), &ConnectOptions::default())?;
/// a.post_send(&SendWr::write(1, &[], RemoteAddr::default()))?;
/// a.send_cq().wait(Duration::from_secs(5))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Qp<S = Untyped>(pub(super) Arc<QpInner>, pub(super) PhantomData<S>);

pub(super) struct QpInner {
    qpn: Qpn,
    psn: Psn,
    pub qp_type: QpType,
    pd: Pd,
    shard: Arc<Shard>,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    /// Uses of `send_cq` and `recv_cq`.
    cq_uses: [CqUse; 2],
    /// Whether the queue pair still exists. Once it has been destroyed, its number may be reused.
    is_alive: Arc<Mutex<bool>>,
    calls: Injector,
}

/// Handle that can change the state of a queue pair but does not keep it alive.
#[derive(Clone)]
pub(super) struct QpRemote {
    pub qpn: Qpn,
    /// Starting PSN of the queue pair's send queue.
    pub psn: Psn,
    pub qp_type: QpType,
    /// Whether the queue pair takes receives from a shared receive queue.
    pub has_srq: bool,
    context: WeakContext,
    shard: Arc<Shard>,
    is_alive: Arc<Mutex<bool>>,
}

impl QpRemote {
    /// Modifies attributes and state like [`Qp::modify`], but leaves earlier completions in the completion
    /// queues. Returns `None` if the queue pair has been destroyed.
    pub fn modify(&self, attr: &QpAttr) -> Option<Result<(), ModifyError>> {
        let is_alive = self.is_alive.lock();
        let modify = || self.shard.with_state_and_send(|state, now| state.modify_qp(now, self.qpn, attr));
        is_alive.then(modify)?.ok()
    }

    /// Returns the current attributes, or `None` if the queue pair has been destroyed.
    pub fn query(&self) -> Option<QpAttr> {
        let is_alive = self.is_alive.lock();
        is_alive.then(|| self.shard.with_nic(|nic| nic.query_qp(self.qpn).map(|(attr, _)| attr)))?.ok()
    }

    /// Attaches the queue pair to a multicast group. Returns `None` if the queue pair has been destroyed.
    pub fn attach_mcast(&self, gid: Gid) -> Option<Result<(), AttachError>> {
        let is_alive = self.is_alive.lock();
        let device = self.context.0.upgrade().filter(|_| *is_alive)?;
        Some(device.shards.attach_mcast(&self.shard, self.qpn, gid, &device.limits))
    }

    /// Detaches the queue pair from a multicast group. Returns `None` if the queue pair has been destroyed.
    pub fn detach_mcast(&self, gid: Gid) -> Option<Result<(), MulticastError>> {
        let is_alive = self.is_alive.lock();
        let device = self.context.0.upgrade().filter(|_| *is_alive)?;
        Some(device.shards.detach_mcast(&self.shard, self.qpn, gid))
    }
}

impl Pd {
    /// Creates a queue pair in the RESET state. Its sends and receives complete to `send_cq` and `recv_cq`,
    /// respectively.
    ///
    /// # Errors
    /// [`CreateError::Value`] for a limit above the device's; [`CreateError::OtherContext`];
    /// [`CreateError::NoReceives`]; [`CreateError::XrcTarget`]; [`CreateError::Exhausted`];
    /// [`CreateError::DeviceFatal`].
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, options: &QpOptions) -> Result<Qp, CreateError> {
        self.context().inject(Call::ibv_create_qp)?;
        Qp::new(self, send_cq, recv_cq, None, options)
    }
}

impl Xrcd {
    /// Creates the receiving end of an XRC connection. No work requests are posted to it: an arriving message
    /// consumes a receive from the shared receive queue that its packets specify, and uses that queue's
    /// protection domain.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if all queue pairs of the device are in use; [`CreateError::DeviceFatal`].
    pub fn create_target_qp(&self) -> Result<Qp, CreateError> {
        let (pd, cq) = (&self.0.pd, &self.0.cq);
        let options = QpOptions { qp_type: QpType::XrcRecv, ..QpOptions::default() };
        Qp::new(pd, cq, cq, Some(self.id()), &options)
    }
}

impl Qp {
    pub(super) fn new(
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        domain: Option<XrcdId>,
        options: &QpOptions,
    ) -> Result<Qp, CreateError> {
        let (context, srq) = (pd.context(), options.srq.as_ref());
        if (options.qp_type == QpType::XrcRecv) != domain.is_some() {
            return Err(CreateError::XrcTarget);
        }
        if options.qp_type == QpType::XrcSend && srq.is_some() {
            return Err(CreateError::NoReceives(options.qp_type));
        }
        if !send_cq.context().is(context) || !recv_cq.context().is(context) {
            return Err(CreateError::OtherContext("completion queue"));
        }
        if srq.is_some_and(|s| !s.pd().context().is(context)) {
            return Err(CreateError::OtherContext("shared receive queue"));
        }
        let shard = match (srq, options.qp_type) {
            (Some(srq), _) => srq.shard(),
            // An XRC domain spans queue pairs, so one shard holds all of them.
            (None, QpType::XrcSend | QpType::XrcRecv) => context.0.shards.first(),
            (None, _) => context.0.shards.next_for_qp(&send_cq.0.users),
        };
        Qp::make(pd, shard, (send_cq, recv_cq), domain, options, |nic, init, send, recv| {
            let max = nic.max_qp();
            nic.create_qp(init, send, recv).ok_or(CreateError::Exhausted { kind: "QPs", max })
        })
    }

    /// Creates QP1, the general services queue pair that carries management datagrams; a device has only one.
    pub(super) fn new_gsi(pd: &Pd, cq: &Cq, options: &QpOptions) -> Result<Qp, CreateError> {
        let shard = pd.context().0.shards.of(Qpn::GSI);
        Qp::make(pd, shard, (cq, cq), None, options, |nic, init, send, recv| {
            let in_use = CreateError::Exhausted { kind: "general services QPs (QP1)", max: 1 };
            nic.create_gsi(init, send, recv).ok_or(in_use)
        })
    }

    /// Checks the options against the device's limits, and creates a queue pair in `shard` by calling
    /// `create`.
    fn make(
        pd: &Pd,
        shard: &Arc<Shard>,
        (send_cq, recv_cq): (&Cq, &Cq),
        domain: Option<XrcdId>,
        options: &QpOptions,
        create: impl FnOnce(&mut Nic, &QpInit, CqHandle, CqHandle) -> Result<Qpn, CreateError>,
    ) -> Result<Qp, CreateError> {
        let context = pd.context();
        context.check_device()?;
        let QpOptions { qp_type, send, recv, signal_all, ref srq } = *options;
        let srq = srq.as_ref();
        // Without a receive queue of its own, its capacity is ignored (man page of ibv_create_qp).
        let has_no_receive_queue = srq.is_some() || matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
        let recv = if has_no_receive_queue { RecvCaps::default() } else { recv };
        let l = context.0.limits;
        let sizes = [
            ("send.max_wr", send.max_wr, l.max_qp_wr),
            ("recv.max_wr", recv.max_wr, l.max_qp_wr),
            ("send.max_sge", send.max_sge, l.max_sge),
            ("recv.max_sge", recv.max_sge, l.max_sge),
            ("send.max_inline", send.max_inline, l.max_inline),
        ];
        for (name, value, max) in sizes {
            if value > max {
                return Err(CreateError::Value { name, value: value as u64, min: 0, max: max as u64 });
            }
        }
        let (pd_id, srq_id, port_mtu) = (pd.id(), srq.map(Srq::id), context.0.mtu);
        let init = QpInit {
            qp_type,
            pd: pd_id,
            send,
            recv,
            signal_all,
            srq: srq_id,
            domain,
            port_mtu,
            quirks: context.0.quirks,
        };
        context.0.qps.acquire(1)?;
        let created = shard.with_state(|state, _| {
            let create = |nic: &mut Nic, send, recv| create(nic, &init, send, recv);
            let created = state.create_qp(&send_cq.0.queue, &recv_cq.0.queue, create);
            created.inspect(|qpn| context.0.asynchronous.own(EventSubject::Qp(*qpn), context.0.reader))
        });
        let qpn = created.inspect_err(|_| context.0.qps.release(1))?;
        let psn = Psn::new(context.next_random() as u32);
        let cq_uses = [if signal_all { send.max_wr } else { 0 }, recv.max_wr].map(CqUse::of);
        [send_cq, recv_cq].into_iter().for_each(|cq| cq.0.users.add(shard));
        let calls = context.0.calls.clone();
        let (pd, shard, srq) = (pd.clone(), shard.clone(), srq.cloned());
        let (send_cq, recv_cq, is_alive) = (send_cq.clone(), recv_cq.clone(), Arc::new(Mutex::new(true)));
        let inner = QpInner { qpn, psn, qp_type, pd, shard, send_cq, recv_cq, srq, cq_uses, is_alive, calls };
        Ok(Qp(Arc::new(inner), PhantomData))
    }
}

impl<S> Qp<S> {
    /// Returns a handle that can change the queue pair's state but does not keep it alive.
    pub(super) fn remote(&self) -> QpRemote {
        QpRemote {
            qpn: self.0.qpn,
            psn: self.0.psn,
            qp_type: self.0.qp_type,
            has_srq: self.0.srq.is_some(),
            context: self.0.pd.context().downgrade(),
            shard: self.0.shard.clone(),
            is_alive: self.0.is_alive.clone(),
        }
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Returns the completion queue for send work requests.
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }

    /// Returns the shared receive queue, or `None` if the queue pair has its own receive queue.
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// Returns the completion queue for receive work requests.
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }

    /// Returns the endpoint that a peer needs in order to connect, with the GID at `index`, or `None` if
    /// there is no such GID.
    pub fn endpoint_at(&self, index: usize) -> Option<Endpoint> {
        let gid = self.0.pd.context().query_gid(index)?;
        Some(Endpoint { gid, qpn: self.0.qpn, psn: self.0.psn })
    }

    /// Returns the endpoint that a peer needs in order to connect, with the [main
    /// GID](super::Context::main_gid).
    pub fn endpoint(&self) -> Endpoint {
        // A context cannot be opened without an address; only a later change can remove all of them.
        let gid = self.0.pd.context().main_gid().and_then(|i| self.0.pd.context().query_gid(i.into()));
        Endpoint { gid: gid.unwrap_or_default(), qpn: self.0.qpn, psn: self.0.psn }
    }

    /// Modifies attributes and state (`ibv_modify_qp`). A transition to RESET also removes this queue pair's
    /// completions from its completion queues.
    ///
    /// # Errors
    /// [`ModifyError`] if the transition or an attribute is not allowed; then nothing has changed.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.0.modify(attr)
    }

    /// Returns the current attributes (`ibv_query_qp`).
    pub fn query(&self) -> QpAttr {
        self.0.query()
    }

    /// Returns the current state.
    pub fn state(&self) -> QpState {
        self.query().state.unwrap_or_default()
    }

    /// Attaches a completion counter (`ibv_qp_attach_comp_cntr`) in RESET or INIT. It counts the operations
    /// `ops` of this queue pair, and stays attached until the queue pair is dropped.
    ///
    /// # Errors
    /// [`AttachCounterError`]; then the counter is not attached.
    pub fn attach_counter(&self, counter: &CompCounter, ops: CountedOps) -> Result<(), AttachCounterError> {
        let result = self.0.shard.with_state(|state, _| state.nic.attach_counter(self.0.qpn, counter, ops));
        result.expect("the NIC has the queue pair as long as its handle")
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`PostError`]; then the work request was not posted.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.0.post_recv(wr)
    }
}

/// Connection to one peer.
impl<S: Connected> Qp<S> {
    /// Moves the queue pair from RESET through INIT and RTR to RTS, connected to `peer`.
    ///
    /// # Errors
    /// The errors of [`enter_init`](Self::enter_init), [`enter_rtr`](Self::enter_rtr) and
    /// [`enter_rts`](Self::enter_rts); transitions made before the failure remain.
    pub fn connect(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        self.enter_init(options.access)?;
        self.enter_rtr(peer, options)?;
        self.enter_rts(options)
    }

    /// Moves the queue pair from RESET to INIT.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] unless the queue pair is in RESET and `access` is valid.
    pub fn enter_init(&self, access: Access) -> Result<(), ConnectError> {
        Ok(self.modify(&QpAttr::new(QpState::Init).pkey_index(0).port(1).access(access))?)
    }

    /// Moves the queue pair from INIT to RTR, in which it responds to the peer.
    ///
    /// # Errors
    /// [`ConnectError::Mtu`] for a path MTU above the port's; [`ConnectError::NoGid`] if the port has no GID
    /// of the IP version of the peer; [`ConnectError::Modify`] unless the queue pair is in INIT and the port
    /// can carry the other options.
    pub fn enter_rtr(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        let context = self.0.pd.context();
        let active = context.0.mtu;
        let mtu = options.mtu.unwrap_or(active);
        if mtu > active {
            return Err(ConnectError::Mtu { requested: mtu, active });
        }
        let sgid_index = match options.sgid_index {
            Some(index) => index,
            None => context.gid_towards(peer.gid).ok_or(ConnectError::NoGid { peer: peer.gid })?,
        };
        let av =
            AddressVector { sgid_index, traffic_class: options.traffic_class, ..AddressVector::to(peer.gid) };
        let attr = QpAttr::new(QpState::Rtr)
            .av(av)
            .path_mtu(mtu)
            .dest_qpn(peer.qpn)
            .rq_psn(peer.psn)
            .max_dest_rd_atomic(options.max_dest_rd_atomic)
            .min_rnr_timer(options.min_rnr_timer);
        Ok(self.modify(&attr.only(accepted_attrs(self.0.qp_type, QpState::Init, QpState::Rtr)))?)
    }

    /// Moves the queue pair from RTR to RTS, in which it can also send requests.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] unless the queue pair is in RTR and the device supports the options.
    pub fn enter_rts(&self, options: &ConnectOptions) -> Result<(), ConnectError> {
        let attr = QpAttr::new(QpState::Rts)
            .sq_psn(self.0.psn)
            .timeout(options.timeout)
            .retry_cnt(options.retry_cnt)
            .rnr_retry(options.rnr_retry)
            .max_rd_atomic(options.max_rd_atomic);
        Ok(self.modify(&attr.only(accepted_attrs(self.0.qp_type, QpState::Rtr, QpState::Rts)))?)
    }
}

/// Datagrams.
impl<S: Datagrams> Qp<S> {
    /// Moves a datagram queue pair from RESET to RTS. It then receives datagrams whose Q_Key is `qkey`.
    ///
    /// # Errors
    /// [`ConnectError`], also if the queue pair is of a connected service.
    pub fn activate(&self, qkey: QKey) -> Result<(), ConnectError> {
        self.modify(&QpAttr::new(QpState::Init).pkey_index(0).port(1).qkey(qkey))?;
        self.modify(&QpAttr::new(QpState::Rtr))?;
        Ok(self.modify(&QpAttr::new(QpState::Rts).sq_psn(self.0.psn))?)
    }

    /// Attaches a UD queue pair to a multicast group (`ibv_attach_mcast`): either an IPv6 group in
    /// `ff00::/8`, or an IPv4 group as an IPv4-mapped GID (`::ffff:a.b.c.d`). While in a state that can
    /// receive, the queue pair then gets the datagrams sent to [`Qpn::MULTICAST`] at the group's GID with the
    /// queue pair's own Q_Key. The link joins the group (using IGMP or MLD on a real interface) when the
    /// NIC's first queue pair is attached, and leaves it when the last is detached.
    ///
    /// Attaching twice has no further effect: there is still one copy of each message. A queue pair receives
    /// its own messages to the group too, as on hardware by default; [`Qp::block_multicast_loopback`]
    /// disables that. Dropping the queue pair detaches it.
    ///
    /// # Errors
    /// [`AttachError`]; then the queue pair is not attached.
    pub fn attach_mcast(&self, gid: Gid) -> Result<(), AttachError> {
        let Inner { shards, limits, .. } = &**self.0.pd.context().0;
        shards.attach_mcast(&self.0.shard, self.0.qpn, gid, limits)
    }

    /// Stops this queue pair from receiving the messages that it sends to multicast groups it is attached to
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`). The NIC's other queue pairs still receive them.
    pub fn block_multicast_loopback(&self) {
        self.0.shard.with_state(|state, _| state.nic.block_multicast_loopback(self.0.qpn));
    }

    /// Detaches the queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`] if the queue pair is not attached to the group.
    pub fn detach_mcast(&self, gid: Gid) -> Result<(), MulticastError> {
        self.0.pd.context().0.shards.detach_mcast(&self.0.shard, self.0.qpn, gid)
    }
}

/// Posting to a queue pair of any service.
impl Qp {
    /// Posts a send work request, and transmits as much as the congestion window allows. If many packets are
    /// in flight, transmission may be deferred and batched with later work requests. Never waits for the
    /// peer.
    ///
    /// # Errors
    /// [`PostError`]; then the work request was not posted.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.0.post_send(wr)
    }

    /// Posts send work requests in order. If the queue pair rejects one, `policy` says whether those before
    /// it are posted.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// # use urxe::verbs::errors::PostError;
    /// # let (a, b) = Fabric::new().pair()?;
    /// let requests = [SendWr::send(1, &[]), SendWr::send(2, &[]).to(Destination::Srq(SrqId(0)))];
    /// let rejected = a.qp.post_send_list(&requests, ListPolicy::AllOrNone).unwrap_err();
    /// assert_eq!((rejected.index, rejected.error), (1, PostError::Destination));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostListError`] with the index of the first work request that was rejected; neither it nor those
    /// after it were posted.
    #[inline]
    pub fn post_send_list(&self, wrs: &[SendWr<'_>], policy: ListPolicy) -> Result<(), PostListError> {
        match policy {
            ListPolicy::UntilRejected => self.0.post_until_rejected(wrs),
            ListPolicy::AllOrNone => self.0.post_all_or_none(wrs.iter().copied()),
        }
    }

    /// Posts send work requests with [`ListPolicy::AllOrNone`]. The C library converts its work requests in
    /// the iterator, without a list of them. The NIC is locked while the iterator runs, so the iterator must
    /// not call the NIC.
    #[doc(hidden)]
    pub fn post_all_or_none<'w>(&self, wrs: impl Iterator<Item = SendWr<'w>>) -> Result<(), PostListError> {
        self.0.post_all_or_none(wrs)
    }
}

impl QpInner {
    fn modify(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.calls.inject(Call::ibv_modify_qp).map_err(ModifyError::Injected)?;
        self.shard.with_state_and_send(|state, now| {
            let result = state.modify_qp(now, self.qpn, attr);
            result.expect("the NIC has the queue pair as long as its handle")
        })?;
        match attr.state {
            Some(QpState::Reset) => self.purge(),
            // Warns of attributes that will cause trouble.
            Some(QpState::Rtr | QpState::Rts) => {
                self.pd.context().0.warnings.check_qp(self.qp_type, &self.query(), self.qpn);
            }
            _ => {}
        }
        Ok(())
    }

    fn query(&self) -> QpAttr {
        let found = self.shard.with_nic(|nic| nic.query_qp(self.qpn).map(|(attr, _)| attr));
        found.expect("the NIC has the queue pair as long as its handle")
    }

    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_until_rejected(std::slice::from_ref(wr)).map_err(|e| e.error)
    }

    /// Posts send work requests with [`ListPolicy::UntilRejected`].
    pub fn post_until_rejected(&self, wrs: &[SendWr<'_>]) -> Result<(), PostListError> {
        self.post_each(wrs)
    }

    /// Posts a list or the items of an iterator. Private, so that no other crate contains a copy of the code
    /// below.
    fn post_each<'w>(
        &self,
        wrs: impl IntoIterator<Item = impl Borrow<SendWr<'w>>>,
    ) -> Result<(), PostListError> {
        self.inject_on_post(Call::ibv_post_send)?;
        self.check_post(self.shard.post(self.qpn, |nic| {
            nic.post_send_list(self.qpn, wrs).expect("the NIC has the queue pair as long as its handle")
        }))
    }

    /// Posts send work requests with [`ListPolicy::AllOrNone`].
    pub fn post_all_or_none<'w>(&self, wrs: impl Iterator<Item = SendWr<'w>>) -> Result<(), PostListError> {
        self.inject_on_post(Call::ibv_wr_complete)?;
        self.check_post(self.shard.post(self.qpn, |nic| {
            nic.post_send_all(self.qpn, wrs).expect("the NIC has the queue pair as long as its handle")
        }))
    }

    /// Posts send work requests of an iterator, which must not call the NIC.
    pub fn post_iterator(
        &self,
        wrs: &mut dyn Iterator<Item = SendWr<'_>>,
        policy: ListPolicy,
    ) -> Result<(), PostListError> {
        match policy {
            ListPolicy::UntilRejected => self.post_each(wrs),
            ListPolicy::AllOrNone => self.post_all_or_none(wrs),
        }
    }

    /// Applies the faults on a call that posts work requests.
    #[inline]
    fn inject_on_post(&self, call: Call) -> Result<(), PostListError> {
        self.cq_uses[0].on_post(&self.send_cq);
        let injected = self.calls.inject(call);
        injected.map_err(|error| PostListError { index: 0, error: PostError::Injected(error) })
    }

    /// Warns of a work request that exceeds a limit.
    fn check_post(&self, posted: Result<(), PostListError>) -> Result<(), PostListError> {
        posted.inspect_err(|e| self.pd.context().0.warnings.check_post(&e.error, self.qpn))
    }

    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.cq_uses[1].on_post(&self.recv_cq);
        self.calls.inject(Call::ibv_post_recv).map_err(PostError::Injected)?;
        let posted = self.shard.with_nic(|nic| nic.post_recv(self.qpn, wr));
        posted.expect("the NIC has the queue pair as long as its handle")
    }

    /// Removes this queue pair's completions from its completion queues.
    fn purge(&self) {
        let (send, recv) = (&self.send_cq.0.queue, &self.recv_cq.0.queue);
        if send.is_empty() && recv.is_empty() {
            return;
        }
        self.pd.context().0.shards.without_completions(|| {
            send.purge(self.qpn);
            if !Arc::ptr_eq(send, recv) {
                recv.purge(self.qpn);
            }
        });
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // Sends what is due to the peer first, because acknowledgements may still be delayed.
        self.shard.with_state_and_send(|_, _| ());
        let context = self.pd.context();
        let mut is_alive = self.is_alive.lock();
        context.0.shards.destroy_qp(&self.shard, self.qpn);
        *is_alive = false;
        drop(is_alive);
        context.0.qps.release(1);
        self.purge();
        for (cq, cq_use) in [&self.send_cq, &self.recv_cq].into_iter().zip(&self.cq_uses) {
            cq.0.users.remove(&self.shard);
            cq_use.end(cq);
        }
    }
}

impl<S> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({})", self.0.qpn)
    }
}

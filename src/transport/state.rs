//! Queue pair states, and the table of transitions that `modify` permits.

use std::fmt;

use bitflags::bitflags;

use super::InjectedError;
use super::codes::codes;
use crate::memory::Access;
use crate::sys::setters::setters;
use crate::wire::{AckTimeout, Gid, Mtu, Psn, QKey, Qpn, RnrTimer};

/// Service type of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Initiator (sending end) of an extended reliable connection.
    XrcSend,
    /// Target (receiving end) of an extended reliable connection, whose messages consume receives from the
    /// shared receive queues of its XRC domain.
    XrcRecv,
}

impl QpType {
    /// Reports whether the service has exactly one peer.
    pub const fn is_connected(self) -> bool {
        !matches!(self, QpType::Ud)
    }

    /// Reports whether the service acknowledges packets.
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Reports whether the service accepts requests (if `requests` is true) or responses (otherwise).
    pub const fn takes(self, requests: bool) -> bool {
        match self {
            QpType::Rc | QpType::Uc | QpType::Ud => true,
            QpType::XrcSend => !requests,
            QpType::XrcRecv => requests,
        }
    }
}

codes! {
    /// Queue pair state, with the values of `enum ibv_qp_state`.
    #[derive(Default)]
    QpState {
        /// Initial state, without a connection or work requests.
        #[default]
        Reset = 0, "RESET";
        /// Initialized: receives can be posted, but packets are dropped.
        Init = 1, "INIT";
        /// Ready to receive: the responder is active.
        Rtr = 2, "RTR";
        /// Ready to send: the requester and the responder are active.
        Rts = 3, "RTS";
        /// Send queue drain: no new work requests are started.
        Sqd = 4, "SQD";
        /// Send queue error (not for RC): sends are flushed, but receiving continues.
        Sqe = 5, "SQE";
        /// Error: all work requests are flushed.
        Err = 6, "ERR";
    }
}

setters! {
    /// Address of a peer, and the path of packets to it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub struct AddressVector {
        /// GID of the peer.
        pub dgid: Gid,
        /// Index of the local GID used as the source address.
        pub sgid_index: u8,
        /// Hop limit (TTL); 0 means 64.
        pub hop_limit: u8,
        /// Traffic class (ToS).
        pub traffic_class: u8,
        /// Flow label (20 bits). Unless it is 0, it also determines the UDP source port.
        pub flow_label: u32,
    }
}

impl AddressVector {
    /// Returns the address vector for packets to `dgid` from the local GID with index 0, with default values
    /// in all other fields.
    pub fn to(dgid: Gid) -> AddressVector {
        AddressVector { dgid, sgid_index: 0, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// Alternate path to the peer, for automatic path migration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AlternatePath {
    /// Address vector of the alternate path.
    pub av: AddressVector,
    /// Index into the partition key table.
    pub pkey_index: u16,
    /// Local ACK timeout on the path.
    pub timeout: AckTimeout,
}

/// Path migration state (IBA 17.2.8), with the values of `enum ibv_mig_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MigrationState {
    /// No alternate path is loaded, or the QP has migrated to it.
    #[default]
    Migrated = 0,
    /// An alternate path is loaded, but the peer has not yet signaled that it has loaded one too.
    Rearm = 1,
    /// Both ends have loaded an alternate path and may migrate to it.
    Armed = 2,
}

/// Defines the attributes by a table of their fields, flags and names. A queue pair keeps some as they are
/// given, with an initial value.
macro_rules! attributes {
    ($(
        $(#[$doc:meta])*
        $field:ident: $ty:ty, $flag:ident = $bit:expr, $name:literal $(, kept as $kept:ident = $initial:expr)?;
    )*) => {
        /// Attributes of a queue pair. [`modify`](crate::verbs::Qp::modify) sets those that are not `None`;
        /// [`query`](crate::verbs::Qp::query) returns all of them.
        ///
        /// ```
        /// # use urxe::verbs::*;
        /// # let context = Context::on_fabric(&Fabric::new())?;
        /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
        /// # let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        /// qp.modify(&QpAttr::new(QpState::Init).port(1).pkey_index(0).access(Access::REMOTE_WRITE))?;
        /// assert_eq!(qp.query().port, Some(1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Debug, Default)]
        #[non_exhaustive]
        pub struct QpAttr {
            $($(#[$doc])* pub $field: Option<$ty>,)*
        }

        setters!(QpAttr {} optional { $($field: $ty),* });

        impl QpAttr {
            /// Returns attributes that contain only the new state.
            pub fn new(state: QpState) -> QpAttr {
                QpAttr { state: Some(state), ..QpAttr::default() }
            }

            /// Returns the set of attributes that are not `None`.
            pub fn mask(&self) -> AttrMask {
                let mut mask = AttrMask::empty();
                $(if self.$field.is_some() { mask |= AttrMask::$flag; })*
                mask
            }

            /// Returns the state and the attributes in `of`; all others become `None`.
            pub fn only(self, of: AttrMask) -> QpAttr {
                let of = of | AttrMask::STATE;
                QpAttr { $($field: self.$field.filter(|_| of.contains(AttrMask::$flag)),)* }
            }
        }

        /// Attributes that a queue pair keeps as they are given.
        #[derive(Debug)]
        pub(super) struct KeptAttrs {
            $($(pub $kept: $ty,)?)*
        }

        impl Default for KeptAttrs {
            /// Returns the attributes in RESET.
            fn default() -> KeptAttrs {
                KeptAttrs { $($($kept: $initial,)?)* }
            }
        }

        impl KeptAttrs {
            /// Replaces the attributes that are not `None` in `attr`.
            pub fn update(&mut self, attr: &QpAttr) {
                $($(self.$kept = attr.$field.unwrap_or(self.$kept);)?)*
            }

            /// Returns the kept attributes.
            pub fn query(&self) -> QpAttr {
                QpAttr { $($($field: Some(self.$kept),)?)* ..QpAttr::default() }
            }
        }

        bitflags! {
            /// Set of attributes, with the bit values of `enum ibv_qp_attr_mask`.
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub struct AttrMask: u32 {
                $(#[doc = concat!("`", $name, "`")] const $flag = 1 << $bit;)*
            }
        }

        impl AttrMask {
            const NAMES: &'static [(AttrMask, &'static str)] = &[$((AttrMask::$flag, $name)),*];
        }
    };
}

attributes! {
    /// State to change to.
    state: QpState, STATE = 0, "state";
    /// Current state, as assumed by the caller; `modify` fails if the QP is in another one.
    cur_state: QpState, CUR_STATE = 1, "cur_state";
    /// Whether [`crate::transport::AsyncEvent::SqDrained`] is raised once the send queue has drained.
    sqd_notify: bool, EN_SQD_ASYNC_NOTIFY = 2, "en_sqd_async_notify";
    /// Operations permitted to peers: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC.
    access: Access, ACCESS_FLAGS = 3, "access", kept as access = Access::LOCAL_READ;
    /// Index into the partition key table.
    pkey_index: u16, PKEY_INDEX = 4, "pkey_index", kept as pkey_index = 0;
    /// Port number, always 1.
    port: u8, PORT = 5, "port", kept as port = 1;
    /// Queue key that datagrams to this QP must carry.
    qkey: QKey, QKEY = 6, "qkey", kept as qkey = QKey::default();
    /// Path of the packets.
    av: AddressVector, AV = 7, "av";
    /// Path MTU: the maximum payload of a packet.
    path_mtu: Mtu, PATH_MTU = 8, "path_mtu", kept as mtu = Mtu::Mtu1024;
    /// Local ACK timeout.
    timeout: AckTimeout, TIMEOUT = 9, "timeout", kept as timeout = AckTimeout::default();
    /// Number of retries after a timeout or a sequence error, 0..=7.
    retry_cnt: u8, RETRY_CNT = 10, "retry_cnt", kept as retry_cnt = 0;
    /// Number of retries after an RNR NAK, 0..=7; 7 means unlimited.
    rnr_retry: u8, RNR_RETRY = 11, "rnr_retry", kept as rnr_retry = 0;
    /// First PSN that the peer sends.
    rq_psn: Psn, RQ_PSN = 12, "rq_psn", kept as rq_psn = Psn::default();
    /// Maximum number of this QP's READs and atomics in flight.
    max_rd_atomic: u8, MAX_RD_ATOMIC = 13, "max_rd_atomic", kept as max_rd_atomic = 0;
    /// Alternate path, used after migration.
    alt_path: AlternatePath, ALT_PATH = 14, "alt_path";
    /// RNR timer: the time that the peer waits after an RNR NAK from this QP.
    min_rnr_timer: RnrTimer, MIN_RNR_TIMER = 15, "min_rnr_timer", kept as min_rnr_timer = RnrTimer::default();
    /// First PSN that this QP sends.
    sq_psn: Psn, SQ_PSN = 16, "sq_psn", kept as sq_psn = Psn::default();
    /// Maximum number of the peer's READs and atomics in flight.
    max_dest_rd_atomic: u8, MAX_DEST_RD_ATOMIC = 17, "max_dest_rd_atomic", kept as max_dest_rd_atomic = 0;
    /// Path migration state: REARM arms the alternate path, MIGRATED migrates to it immediately.
    path_mig_state: MigrationState, PATH_MIG_STATE = 18, "path_mig_state";
    /// QP number of the peer.
    dest_qpn: Qpn, DEST_QPN = 20, "dest_qpn", kept as dest_qpn = Qpn::default();
    /// Rate limit for requests in kbit/s, headers included; 0 for no limit.
    rate_limit: u32, RATE_LIMIT = 25, "rate_limit";
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.iter().filter(|(m, _)| self.contains(*m)).map(|(_, n)| *n);
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|n| write!(f, ", {n}"))
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttrMask({self})")
    }
}

/// A permitted state transition.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// Service type to which the transition applies.
    pub qp_type: QpType,
    /// State before the transition.
    pub from: QpState,
    /// State after the transition.
    pub to: QpState,
    /// Attributes that the transition requires.
    pub required: AttrMask,
    /// Attributes that the transition accepts in addition.
    pub optional: AttrMask,
}

/// Returns the union of attributes.
macro_rules! mask {
    ([$($flag:ident)*]) => { AttrMask::empty()$(.union(AttrMask::$flag))* };
}

/// Attributes that occur together.
impl AttrMask {
    const FIRST: AttrMask = mask!([PKEY_INDEX PORT]);
    const PATH: AttrMask = mask!([AV PATH_MTU DEST_QPN RQ_PSN]);
    const FIRST_SEND: AttrMask = mask!([SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC]);
    const UC_RUNNING: AttrMask = mask!([CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT]);
    const RC_RUNNING: AttrMask = mask!([UC_RUNNING MIN_RNR_TIMER]);
    const UD_RUNNING: AttrMask = mask!([CUR_STATE QKEY RATE_LIMIT]);
}

macro_rules! transitions {
    ($($from:ident to $to:ident: { $([$($qp_type:ident)*] requires $required:tt accepts $optional:tt;)* })*) => {
        &[$($($(Transition {
            qp_type: QpType::$qp_type,
            from: QpState::$from,
            to: QpState::$to,
            required: mask!($required),
            optional: mask!($optional),
        },)*)*)*]
    };
}

/// All transitions except those to RESET and ERR, which are permitted from every state (IBA 10.3.1, table
/// 96).
pub const TRANSITIONS: &[Transition] = transitions! {
    Reset to Init: {
        [Rc Uc XrcSend XrcRecv] requires [FIRST ACCESS_FLAGS] accepts [];
        [Ud] requires [FIRST QKEY] accepts [];
    }
    Init to Init: {
        [Rc Uc XrcSend XrcRecv] requires [] accepts [FIRST ACCESS_FLAGS];
        [Ud] requires [] accepts [FIRST QKEY];
    }
    Init to Rtr: {
        [Rc XrcRecv] requires [PATH MAX_DEST_RD_ATOMIC MIN_RNR_TIMER] accepts [PKEY_INDEX ACCESS_FLAGS ALT_PATH];
        [Uc XrcSend] requires [PATH] accepts [PKEY_INDEX ACCESS_FLAGS ALT_PATH];
        [Ud] requires [] accepts [PKEY_INDEX QKEY];
    }
    Rtr to Rts: {
        [Rc] requires [FIRST_SEND] accepts [RC_RUNNING];
        [Uc] requires [SQ_PSN] accepts [UC_RUNNING];
        [XrcSend] requires [FIRST_SEND] accepts [UC_RUNNING];
        [XrcRecv] requires [SQ_PSN TIMEOUT] accepts [RC_RUNNING];
        [Ud] requires [SQ_PSN] accepts [UD_RUNNING];
    }
    Rts to Rts: {
        [Rc XrcRecv] requires [] accepts [RC_RUNNING];
        [Uc XrcSend] requires [] accepts [UC_RUNNING];
        [Ud] requires [] accepts [UD_RUNNING];
    }
    Rts to Sqd: {
        [Rc Uc XrcSend XrcRecv Ud] requires [] accepts [CUR_STATE EN_SQD_ASYNC_NOTIFY];
    }
    Sqd to Rts: {
        [Rc XrcRecv] requires [] accepts [RC_RUNNING];
        [Uc XrcSend] requires [] accepts [UC_RUNNING];
        [Ud] requires [] accepts [UD_RUNNING];
    }
    Sqd to Sqd: {
        [Rc] requires [] accepts [
            RC_RUNNING PKEY_INDEX AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC MAX_DEST_RD_ATOMIC
        ];
        [Uc] requires [] accepts [UC_RUNNING PKEY_INDEX AV];
        [XrcSend] requires [] accepts [UC_RUNNING PKEY_INDEX AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC];
        [XrcRecv] requires [] accepts [RC_RUNNING PKEY_INDEX AV TIMEOUT MAX_DEST_RD_ATOMIC];
        [Ud] requires [] accepts [PKEY_INDEX QKEY];
    }
    Sqe to Rts: {
        [Uc] requires [] accepts [UC_RUNNING];
        [Ud] requires [] accepts [UD_RUNNING];
    }
};

/// Reason why `modify` failed, in which case nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The device has failed ([`AsyncEvent::DeviceFatal`](super::AsyncEvent::DeviceFatal)).
    #[error("the device has failed, so queue pairs cannot be modified: close the context and open another")]
    DeviceFatal,
    /// A fault on the call, which was not executed.
    #[error(transparent)]
    Injected(InjectedError),
    /// The transition table does not contain the requested transition.
    #[error("a {qp_type:?} QP has no transition from {from} to {to}")]
    Transition {
        /// Service type of the QP.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// `cur_state` is not the current state.
    #[error("cur_state is {claimed}, but the QP is in {actual}")]
    CurState {
        /// State given as `cur_state`.
        claimed: QpState,
        /// Current state.
        actual: QpState,
    },
    /// Attributes that the transition requires are missing.
    #[error("the transition from {from} to {to} requires {missing}")]
    Missing {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Missing attributes.
        missing: AttrMask,
    },
    /// Attributes were given that the transition does not accept.
    #[error("the transition from {from} to {to} does not accept {excess}")]
    NotAllowed {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Excess attributes.
        excess: AttrMask,
    },
    /// A value is out of range.
    #[error("{name} is {value}: it must be from {min} to {max}")]
    Value {
        /// Name of the attribute.
        name: &'static str,
        /// Given value.
        value: u32,
        /// Smallest permitted value.
        min: u32,
        /// Largest permitted value.
        max: u32,
    },
    /// The port cannot use the address vector.
    #[error("no path to the destination: {0}")]
    Address(AddressError),
    /// The path migration state cannot be set: REARM requires an alternate path, and ARMED is set only by
    /// packets from the peer.
    #[error("the path migration state cannot change from {from:?} to {to:?}{reason}")]
    Migration {
        /// Current migration state.
        from: MigrationState,
        /// Requested migration state.
        to: MigrationState,
        /// Reason, appended to the error message.
        reason: &'static str,
    },
}

/// Reason why an address vector cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The port has no GID at this index.
    #[error("GID index {index} is out of range: the port has {count} GIDs")]
    GidIndex {
        /// Requested index.
        index: u8,
        /// Number of GIDs on the port.
        count: usize,
    },
    /// The local and the remote GID have different IP versions.
    #[error("GID {index} of the port is {ours}, the GID of the peer is {peer}: the IP versions differ")]
    Family {
        /// Index of the local GID.
        index: u8,
        /// Local GID.
        ours: Gid,
        /// GID of the peer.
        peer: Gid,
    },
}

/// Returns the required and the optional attributes of a transition; `None` if there is no such transition.
fn attrs_of(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((AttrMask::empty(), AttrMask::empty()));
    }
    let edge = TRANSITIONS.iter().find(|t| (t.qp_type, t.from, t.to) == (qp_type, from, to));
    edge.map(|t| (t.required, t.optional))
}

/// Returns all attributes that a transition accepts, required or optional.
pub fn accepted_attrs(qp_type: QpType, from: QpState, to: QpState) -> AttrMask {
    attrs_of(qp_type, from, to).map_or(AttrMask::empty(), |(required, optional)| required | optional)
}

/// Checks that each value, unless it is `None`, lies between the minimum and the maximum that follow it.
///
/// # Errors
/// [`ModifyError::Value`] for the first value out of range.
pub fn check_ranges<const N: usize>(
    values: [(&'static str, Option<u32>, u32, u32); N],
) -> Result<(), ModifyError> {
    for (name, value, min, max) in values {
        if let Some(value) = value.filter(|v| !(min..=max).contains(v)) {
            return Err(ModifyError::Value { name, value, min, max });
        }
    }
    Ok(())
}

/// Checks a `modify` against the transition table, and returns the new state.
///
/// # Errors
/// [`ModifyError`] for the first violated rule.
pub fn check(qp_type: QpType, from: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
    let to = attr.state.unwrap_or(from);
    if let Some(claimed) = attr.cur_state
        && claimed != from
    {
        return Err(ModifyError::CurState { claimed, actual: from });
    }
    let given = attr.mask().difference(AttrMask::STATE);
    let (required, optional) =
        attrs_of(qp_type, from, to).ok_or(ModifyError::Transition { qp_type, from, to })?;
    let missing = required.difference(given);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { from, to, missing });
    }
    let excess = given.difference(required).difference(optional);
    if !excess.is_empty() {
        return Err(ModifyError::NotAllowed { from, to, excess });
    }
    check_ranges([
        ("retry_cnt", attr.retry_cnt.map(u32::from), 0, 7),
        ("rnr_retry", attr.rnr_retry.map(u32::from), 0, 7),
        // The only port.
        ("port", attr.port.map(u32::from), 1, 1),
    ])?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(state: QpState) -> QpAttr {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }

    #[test]
    fn modify_permits_exactly_the_transitions_of_the_table() {
        use QpState::*;
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        for (qp_type, from) in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv]
            .into_iter()
            .flat_map(|t| all.map(|s| (t, s)))
        {
            for target in all {
                let edge =
                    TRANSITIONS.iter().find(|t| t.qp_type == qp_type && t.from == from && t.to == target);
                let result = check(qp_type, from, &to(target));
                match (edge, target) {
                    (_, Reset | Err) => assert_eq!(result, Ok(target)),
                    (Some(t), _) if t.required.is_empty() => assert_eq!(result, Ok(target)),
                    (Some(t), _) => {
                        assert_eq!(
                            result,
                            Result::Err(ModifyError::Missing { from, to: target, missing: t.required })
                        )
                    }
                    (None, _) => {
                        assert_eq!(
                            result,
                            Result::Err(ModifyError::Transition { qp_type, from, to: target })
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn modify_errors_name_missing_and_excess_attributes() {
        let attr = QpAttr { pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
        let err = check(QpType::Rc, QpState::Reset, &attr).unwrap_err();
        assert_eq!(err.to_string(), "the transition from RESET to INIT requires access");
        let attr = QpAttr { access: Some(Access::ALL), timeout: Some(AckTimeout::new(14)), ..attr };
        let err = check(QpType::Rc, QpState::Reset, &attr).unwrap_err();
        assert_eq!(err.to_string(), "the transition from RESET to INIT does not accept timeout");
        let attr = QpAttr { timeout: None, port: Some(2), ..attr };
        let err = check(QpType::Rc, QpState::Reset, &attr).unwrap_err();
        assert_eq!(err.to_string(), "port is 2: it must be from 1 to 1");
        let attr = QpAttr { cur_state: Some(QpState::Rtr), ..to(QpState::Rts) };
        let err = check(QpType::Rc, QpState::Rts, &attr).unwrap_err();
        assert_eq!(err.to_string(), "cur_state is RTR, but the QP is in RTS");
    }
}

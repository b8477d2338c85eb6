//! Connection states, and the table that maps a state and a message to the step to take (IBA 12.9.7).

use std::fmt;

use crate::wire::mad::MessageKind;

/// State of a connection (IBA 12.9.7) or of a service ID resolution (12.11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Client: REQ sent.
    ReqSent,
    /// Client: REQ sent, and the server has requested more time (MRA).
    ReqDelayed,
    /// Server: REQ received and reported to the program.
    ReqRcvd,
    /// Server: REQ received, and more time requested from the client (MRA).
    DelayingReq,
    /// Server: REP sent.
    RepSent,
    /// Server: REP sent, and the client has requested more time (MRA).
    RepDelayed,
    /// Client: REP received and reported to the program.
    RepRcvd,
    /// Client: REP received, and more time requested from the server (MRA).
    DelayingRep,
    /// The connection is established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received and reported to the program.
    DreqRcvd,
    /// The connection has ended, but its packets may still be in flight.
    TimeWait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received and reported to the program.
    SidrReqRcvd,
}

impl State {
    /// Reports whether this is the state of a client that awaits the REP.
    pub(super) const fn awaits_rep(self) -> bool {
        matches!(self, State::ReqSent | State::ReqDelayed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::ReqSent => "REQ sent",
            State::ReqDelayed => "REQ sent, MRA received",
            State::ReqRcvd => "REQ received",
            State::DelayingReq => "REQ received, MRA sent",
            State::RepSent => "REP sent",
            State::RepDelayed => "REP sent, MRA received",
            State::RepRcvd => "REP received",
            State::DelayingRep => "REP received, MRA sent",
            State::Established => "established",
            State::DreqSent => "DREQ sent",
            State::DreqRcvd => "DREQ received",
            State::TimeWait => "time-wait",
            State::SidrReqSent => "SIDR_REQ sent",
            State::SidrReqRcvd => "SIDR_REQ received",
        })
    }
}

/// Action to take on a message from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The message is a retransmission: our response is replayed, or more time is requested (MRA).
    Duplicate,
    /// The server accepts (REP).
    RecvRep,
    /// The client is ready (RTU).
    RecvRtu,
    /// The peer requests more time to respond to our request or reply (MRA).
    RecvMra,
    /// The peer has rejected the connection or given up before any data could flow: the connection ends
    /// without time-wait.
    End,
    /// The peer has ended a connection that may have carried data: the connection enters time-wait.
    EnterTimeWait,
    /// The peer requests a disconnect (DREQ).
    RecvDreq,
    /// An unsolicited DREP: if it answers a [probe](super::Cm::probe), the peer no longer knows the
    /// connection, and time-wait begins.
    EnterTimeWaitIfProbed,
    /// The DREQs of both ends have crossed: the connection enters time-wait.
    SimultaneousDreq,
    /// The peer offers an alternate path (LAP).
    RecvLap,
    /// The peer requests more time (MRA) to respond to the alternate path that we offered.
    RecvMraOfLap,
    /// The peer responds (APR) to the alternate path that we offered.
    RecvApr,
    /// The peer responds to our service ID resolution (SIDR_REP).
    RecvSidrRep,
}

/// Returns the step to take when `message` arrives in `state`, or `None` if the message is late or unexpected
/// and is ignored.
pub(super) const fn step(state: State, message: MessageKind) -> Option<Step> {
    use MessageKind as M;
    use State as S;
    Some(match (state, message) {
        (S::ReqSent | S::ReqDelayed, M::Rep) => Step::RecvRep,
        // Only one MRA counts; otherwise a peer could extend the wait forever.
        (S::ReqSent | S::RepSent, M::Mra) => Step::RecvMra,
        (S::ReqSent | S::ReqDelayed | S::ReqRcvd | S::DelayingReq, M::Rej) => Step::End,
        (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep, M::Rej) => Step::End,

        (S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::Established | S::TimeWait, M::Req) => {
            Step::Duplicate
        }
        (S::RepSent | S::RepDelayed, M::Rtu) => Step::RecvRtu,
        (S::RepRcvd | S::DelayingRep | S::Established | S::TimeWait, M::Rep) => Step::Duplicate,

        // Also before the RTU, which may be lost: a client that disconnects was ready.
        (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep | S::Established, M::Dreq) => {
            Step::RecvDreq
        }
        (S::DreqSent, M::Dreq) => Step::SimultaneousDreq,
        (S::DreqSent, M::Drep) => Step::EnterTimeWait,
        (S::Established, M::Drep) => Step::EnterTimeWaitIfProbed,
        (S::Established | S::DreqSent, M::Rej) => Step::EnterTimeWait,
        (S::TimeWait, M::Dreq) => Step::Duplicate,

        (S::Established, M::Lap) => Step::RecvLap,
        (S::Established, M::Mra) => Step::RecvMraOfLap,
        (S::Established, M::Apr) => Step::RecvApr,

        (S::SidrReqSent, M::SidrRep) => Step::RecvSidrRep,
        (S::SidrReqRcvd | S::TimeWait, M::SidrReq) => Step::Duplicate,
        _ => return None,
    })
}

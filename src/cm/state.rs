//! The states of a connection, and the table of the step that a message causes in each (IBA 12.9.7).

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
    /// The connection has ended, but packets of it may still be in flight.
    TimeWait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received and reported to the program.
    SidrReqRcvd,
}

impl State {
    /// All states.
    pub const ALL: [State; 14] = [
        State::ReqSent,
        State::ReqDelayed,
        State::ReqRcvd,
        State::DelayingReq,
        State::RepSent,
        State::RepDelayed,
        State::RepRcvd,
        State::DelayingRep,
        State::Established,
        State::DreqSent,
        State::DreqRcvd,
        State::TimeWait,
        State::SidrReqSent,
        State::SidrReqRcvd,
    ];

    /// Reports whether this is a client whose request is not answered yet.
    pub(super) const fn is_asking(self) -> bool {
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

/// Action that a message from the peer causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The message is a duplicate: replays the response or requests more time (MRA).
    AnswerAgain,
    /// The server accepts (REP).
    TakeReply,
    /// The client is ready (RTU).
    Establish,
    /// The peer requests more time (MRA).
    Wait,
    /// The peer rejects or has given up before any data could flow: the connection ends without time-wait.
    End,
    /// The peer has ended a connection on which data may have flowed: the connection enters time-wait.
    Leave,
    /// The peer disconnects (DREQ): reported to the program.
    AskToLeave,
    /// The peer does not know the connection, if the DREP answers a [probe](super::Cm::probe).
    LeaveIfProbed,
    /// Both ends disconnect at the same time.
    LeaveBoth,
    /// The peer offers an alternate path (LAP).
    Offer,
    /// The peer requests more time for the alternate path that we offered (MRA).
    WaitForOffer,
    /// The peer answers the alternate path that we offered (APR).
    AnswerOffer,
    /// The peer answers a service ID resolution (SIDR_REP).
    Resolve,
}

/// Returns the step that a message causes in a state, or `None` if it is late or makes no sense and is
/// ignored.
pub(super) const fn step(state: State, message: MessageKind) -> Option<Step> {
    use MessageKind as M;
    use State as S;
    Some(match (state, message) {
        (S::ReqSent | S::ReqDelayed, M::Rep) => Step::TakeReply,
        // Only one MRA counts; otherwise a peer could extend the wait for ever.
        (S::ReqSent | S::RepSent, M::Mra) => Step::Wait,
        (S::ReqSent | S::ReqDelayed | S::ReqRcvd | S::DelayingReq, M::Rej) => Step::End,
        (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep, M::Rej) => Step::End,

        (S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::Established | S::TimeWait, M::Req) => {
            Step::AnswerAgain
        }
        (S::RepSent | S::RepDelayed, M::Rtu) => Step::Establish,
        (S::RepRcvd | S::DelayingRep | S::Established | S::TimeWait, M::Rep) => Step::AnswerAgain,

        // Also before the RTU, which may be lost: a client that disconnects was ready.
        (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep | S::Established, M::Dreq) => {
            Step::AskToLeave
        }
        (S::DreqSent, M::Dreq) => Step::LeaveBoth,
        (S::DreqSent, M::Drep) => Step::Leave,
        (S::Established, M::Drep) => Step::LeaveIfProbed,
        (S::Established | S::DreqSent, M::Rej) => Step::Leave,
        (S::TimeWait, M::Dreq) => Step::AnswerAgain,

        (S::Established, M::Lap) => Step::Offer,
        (S::Established, M::Mra) => Step::WaitForOffer,
        (S::Established, M::Apr) => Step::AnswerOffer,

        (S::SidrReqSent, M::SidrRep) => Step::Resolve,
        (S::SidrReqRcvd | S::TimeWait, M::SidrReq) => Step::AnswerAgain,
        _ => return None,
    })
}

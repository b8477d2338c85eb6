//! The states of a connection, and the table of what a message does in each (IBA 12.9.7).

use std::fmt;

use crate::wire::mad::MessageKind;

/// Where a connection is (IBA 12.9.7), or a service ID resolution (12.11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Client: the request is sent.
    ReqSent,
    /// Client: the server has the request and asks for patience.
    ReqDelayed,
    /// Server: a request is there for the program.
    ReqRcvd,
    /// Server: it was told that the answer may take.
    DelayingReq,
    /// Server: the reply is sent.
    RepSent,
    /// Server: the client has the reply and asks for patience.
    RepDelayed,
    /// Client: the reply is there for the program.
    RepRcvd,
    /// Client: the server was told that it may take.
    DelayingRep,
    /// Data flows.
    Established,
    /// We want to disconnect.
    DreqSent,
    /// The peer wants to disconnect.
    DreqRcvd,
    /// Packets of the old connection may still be on their way.
    TimeWait,
    /// The question is sent.
    SidrReqSent,
    /// A question is there for the program.
    SidrReqRcvd,
}

impl State {
    /// Every state.
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

    /// A client whose request is not answered yet.
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

/// What a message of the peer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It came before: what was answered is said again, or that the answer takes its time (MRA).
    AnswerAgain,
    /// The server accepts.
    TakeReply,
    /// The client is ready.
    Establish,
    /// The peer asks for patience.
    Wait,
    /// The peer refuses or has given up, and data has never flowed.
    End,
    /// Data may have flowed, and now the peer is gone: time-wait.
    Leave,
    /// The peer wants to disconnect.
    AskToLeave,
    /// The peer does not know the connection, if that is the answer to a [probe](super::Cm::probe).
    LeaveIfProbed,
    /// Both want to disconnect.
    LeaveBoth,
    /// The peer offers another path.
    Offer,
    /// The peer asks for patience with the path that we offered.
    WaitForOffer,
    /// The peer answers the path that we offered.
    AnswerOffer,
    /// The queue pair of a datagram service.
    Resolve,
}

/// What a message does in a state. `None`: nothing, it is late or makes no sense.
pub(super) const fn step(state: State, message: MessageKind) -> Option<Step> {
    use MessageKind as M;
    use State as S;
    Some(match (state, message) {
        (S::ReqSent | S::ReqDelayed, M::Rep) => Step::TakeReply,
        // Once is enough: a peer could have us wait for ever.
        (S::ReqSent | S::RepSent, M::Mra) => Step::Wait,
        (S::ReqSent | S::ReqDelayed | S::ReqRcvd | S::DelayingReq, M::Rej) => Step::End,
        (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep, M::Rej) => Step::End,

        (S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::Established | S::TimeWait, M::Req) => {
            Step::AnswerAgain
        }
        (S::RepSent | S::RepDelayed, M::Rtu) => Step::Establish,
        (S::RepRcvd | S::DelayingRep | S::Established | S::TimeWait, M::Rep) => Step::AnswerAgain,

        // Before the RTU too, which may be lost: who disconnects was ready.
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

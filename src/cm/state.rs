//! Connection states.

use std::fmt;

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

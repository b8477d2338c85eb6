//! Connection states.

use std::fmt;

use crate::sys::named::named;

named! {
    /// State of a connection (IBA 12.9.7) or of a service ID resolution (12.11).
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum State {
        /// Client: REQ sent.
        ReqSent, "REQ sent";
        /// Client: REQ sent, and the server has requested more time (MRA).
        ReqDelayed, "REQ sent, MRA received";
        /// Server: REQ received and reported to the program.
        ReqRcvd, "REQ received";
        /// Server: REQ received, and more time requested from the client (MRA).
        DelayingReq, "REQ received, MRA sent";
        /// Server: REP sent.
        RepSent, "REP sent";
        /// Server: REP sent, and the client has requested more time (MRA).
        RepDelayed, "REP sent, MRA received";
        /// Client: REP received and reported to the program.
        RepRcvd, "REP received";
        /// Client: REP received, and more time requested from the server (MRA).
        DelayingRep, "REP received, MRA sent";
        /// The connection is established.
        Established, "established";
        /// DREQ sent.
        DreqSent, "DREQ sent";
        /// DREQ received and reported to the program.
        DreqRcvd, "DREQ received";
        /// The connection has ended, but its packets may still be in flight.
        TimeWait, "time-wait";
        /// SIDR_REQ sent.
        SidrReqSent, "SIDR_REQ sent";
        /// SIDR_REQ received and reported to the program.
        SidrReqRcvd, "SIDR_REQ received";
    }
}

impl State {
    /// Reports whether this is the state of a client that awaits the REP.
    pub(super) const fn awaits_rep(self) -> bool {
        matches!(self, State::ReqSent | State::ReqDelayed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

//! What a port says to who wants what nobody has there: a service that no program serves, or a connection that is gone. Also
//! said where no one connection manager is to say it.

use crate::wire::mad::{Drep, Message, Rej, RejReason, Rejected, SidrRep, SidrStatus};

/// The answer to a message that is for nobody; `None` if it gets none, and whoever repeats it gives up.
pub(crate) fn answer(message: &Message) -> Option<Message> {
    Some(match message {
        Message::Req(req) => {
            let reason = RejReason::InvalidServiceId;
            Rej { remote: req.local, message: Rejected::Req, reason, ..Rej::default() }.into()
        }
        Message::SidrReq(req) => {
            let status = SidrStatus::Unsupported;
            SidrRep { request: req.request, service: req.service, status, ..SidrRep::default() }.into()
        }
        Message::Rep(rep) => {
            let reason = RejReason::InvalidCommId;
            let message = Rejected::Rep;
            Rej { local: rep.remote, remote: rep.local, message, reason, ..Rej::default() }.into()
        }
        // Gone is what the peer wants it to be.
        Message::Dreq(dreq) => Drep { local: dreq.remote, remote: dreq.local, ..Drep::default() }.into(),
        _ => return None,
    })
}

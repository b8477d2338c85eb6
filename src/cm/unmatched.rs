//! Responses to messages for a service without a listener or for a connection that no longer exists. The
//! broker also uses them, on addresses that several processes share.

use crate::wire::mad::{Drep, Message, Rej, RejReason, Rejected, SidrRep, SidrStatus};

/// Returns the response to an unmatched message, or `None` if the message requires none or its sender should
/// time out.
pub(crate) fn response(message: &Message) -> Option<Message> {
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
        // The connection no longer exists, as the peer requests.
        Message::Dreq(dreq) => Drep { local: dreq.remote, remote: dreq.local, ..Drep::default() }.into(),
        _ => return None,
    })
}

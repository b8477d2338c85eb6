//! The rules, in our own words, with the part of IBA volume 1 that they are from.

pub struct Rule {
    pub id: &'static str,
    pub section: &'static str,
    pub says: &'static str,
}

/// A case, and the rule that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub rule: &'static str,
}

/// Makes a test of every `name => "rule" { body }`, and the list `CASES` of them.
macro_rules! cases {
    ($($name:ident => $rule:literal $body:block)*) => {
        $(#[test] fn $name() $body)*
        pub const CASES: &[$crate::rules::Case] =
            &[$($crate::rules::Case { name: stringify!($name), rule: $rule }),*];
    };
}

macro_rules! rules {
    ($($id:literal $section:literal $says:literal)*) => {
        pub const RULES: &[Rule] = &[$(Rule { id: $id, section: $section, says: $says }),*];
    };
}

rules! {
    "resp.psn.expected" "9.7.4" "a request with the expected PSN is executed, once"
    "resp.psn.ahead" "9.7.4, 9.7.5" "a request ahead of it is not; one sequence NAK for the gap, then silence until it is filled"
    "resp.psn.halves" "9.7.2" "half of the PSN space is ahead, half behind"
    "resp.psn.wrap" "9.7.2" "PSNs wrap at 24 bits everywhere"
    "resp.msn" "9.7.7" "the MSN counts executed messages"
    "resp.sequence" "9.7.4" "FIRST or ONLY where no message is open, MIDDLE or LAST of the same kind where one is"
    "resp.opcode" "9.7.4" "requests that the responder does not support are invalid"
    "resp.length.mtu" "9.7.4" "FIRST and MIDDLE carry the path MTU, LAST 1 to it, ONLY 0 to it, the others nothing"
    "resp.length.reth" "9.7.4" "a WRITE brings as many bytes as its RETH says"
    "resp.length.max" "9.4.1" "no message is longer than 2^31 bytes"
    "resp.precedence" "9.7.4" "PSN, sequence, opcode, resources, length, key and range: the first that is wrong decides"
    "resp.access.qp" "9.7.4, 10.2" "the QP must allow WRITEs, READs, atomics"
    "resp.access.region" "9.7.4, 10.6" "so must the region"
    "resp.access.key" "9.7.4, 10.6" "the rkey is of a region that is there now, of the QP's protection domain"
    "resp.access.range" "9.7.4, 10.6" "all bytes of the request are inside the region, before any is touched"
    "resp.access.later" "9.7.4, 10.6" "a region may go between the packets of a message"
    "resp.zero_length" "9.7.4" "zero bytes need no key"
    "resp.receive.too_short" "9.7.4, 9.9.3" "a message longer than the receive: invalid request, length error, ERR"
    "resp.receive.protection" "9.9.3" "a receive whose memory is not accessible: remote operational error, protection error, ERR"
    "resp.atomic" "9.4.5" "fetch-and-add and compare-and-swap on 64 bits, the old value comes back"
    "resp.atomic.aligned" "9.4.5, 9.7.4" "an atomic's address is a multiple of 8"
    "resp.send" "9.4.1" "a SEND fills the oldest receive, element after element"
    "resp.write" "9.4.3" "a WRITE lands where its RETH says and nowhere else"
    "resp.immediate" "9.4.1, 9.4.3" "immediate data completes a receive, with length and flag"
    "resp.solicited" "9.2.3" "the solicited bit of the last packet reaches the completion"
    "resp.read" "9.4.4" "a READ is answered in packets of the path MTU, whose PSNs it takes"
    "resp.order" "9.5, 9.7.5" "answers leave in the order of the requests"
    "resp.ack.ackreq" "9.7.5" "AckReq on any packet is answered; without it nothing is due"
    "resp.ack.coalesced" "9.7.5" "one acknowledgement may stand for all before it"
    "resp.ack.credits" "9.7.7" "without end-to-end credits the field is 31"
    "resp.ack.header" "9.2" "answers carry the QP's partition and the peer's QP"
    "resp.dup.send" "9.7.5" "a duplicate SEND or WRITE is acknowledged again and not executed"
    "resp.dup.read" "9.7.5" "a duplicate READ is answered again, whole or in part"
    "resp.dup.read.other" "9.7.5" "what only looks like a duplicate READ is dropped"
    "resp.dup.read.queued" "9.7.5" "a duplicate READ whose answer is still due is answered once"
    "resp.dup.read.gone" "9.7.5" "a replay checks the region again"
    "resp.dup.atomic" "9.7.5" "a duplicate atomic is answered from the saved result"
    "resp.dup.forgotten" "9.7.5" "as many READs and atomics are remembered as were agreed; older ones are dropped"
    "resp.dup.go_back" "9.7.5" "answers that the requester has gone back behind are not sent twice"
    "resp.depth" "9.7.4" "more READs and atomics at once than agreed are invalid; replays do not count"
    "resp.rnr" "9.7.5" "no receive: an RNR NAK with the QP's timer, then silence until the packet comes again"
    "resp.fatal" "9.9.3" "after a fatal NAK the QP is in ERR: what was due leaves, nothing else"
    "req.segments" "9.4, 9.6" "messages are cut at the path MTU, RETH first, immediate last, AckReq last"
    "req.psn" "9.7.2" "PSNs go on over messages; a READ takes those of its answer"
    "req.atomic" "9.4.5" "an atomic's old value lands in its elements"
    "req.sges" "10.8" "elements are gathered in order"
    "req.inline" "10.8" "inline data is copied when posted"
    "req.solicited" "9.2.3" "solicited is set on the last packet of SENDs and immediates only"
    "req.unsignaled" "10.8" "unsignaled requests make no completion when they succeed"
    "req.fence" "10.8.3" "a fence waits for earlier READs and atomics"
    "req.depth" "9.7.6" "no more READs and atomics are in flight than agreed"
    "req.chunks" "9.7.3" "a long READ may be several requests; what is asked for again lies in one of them"
    "req.post" "10.8" "work requests beyond the limits are refused, without a trace"
    "req.ack.cumulative" "9.7.6" "an acknowledgement completes all up to its PSN, in order"
    "req.ack.partial" "9.7.6" "one inside a message moves the oldest unacknowledged PSN"
    "req.ack.fields" "9.7.7" "credits and MSN decide nothing"
    "req.ack.ghost" "9.7.6" "answers to PSNs never sent, or done with, are dropped"
    "req.ack.reserved" "9.7.6" "reserved syndromes are dropped"
    "req.ack.kind" "9.7.6" "a SEND is not completed by a READ's or atomic's answer"
    "req.ack.overtakes" "9.7.6" "acknowledgements of the first sending count while sending again"
    "req.ackreq" "9.7.3" "AckReq is set often enough that the window never closes, at fixed places"
    "req.ackreq.unsignaled" "9.7.3" "what nobody waits for does not ask, but for parts of the queue and when sent again"
    "req.ackreq.probe" "9.7.3" "what was not asked for is soon: by the next packet, or by the last one once more"
    "req.window" "9.7.6" "bytes in flight are limited; acknowledgements make room"
    "req.window.loss" "9.7.6" "a loss narrows what may be in flight, down to two packets; what arrives widens it again"
    "req.timeout" "9.7.6" "the oldest packet unacknowledged for the timeout (then twice, four times it): all again"
    "req.retry.exceeded" "9.7.6" "after the last retry the oldest request fails"
    "req.retry.reset" "9.7.6" "progress gives all retries back"
    "req.nak.sequence" "9.7.6" "a sequence NAK: all from its PSN again, a retry less"
    "req.nak.copies" "9.7.6" "NAKs for what is already being sent again change nothing"
    "req.nak.fatal" "9.9.2" "every other NAK fails its request with its own status"
    "req.nak.behind_read" "9.7.6" "a NAK behind an unanswered READ says first that the answer is lost"
    "req.rnr" "9.7.6" "an RNR NAK: wait for its time, then all from its PSN again"
    "req.rnr.exceeded" "9.7.6" "after the last RNR retry the request fails"
    "req.rnr.forever" "9.7.6" "RNR retry 7 has no last"
    "req.rnr.retries" "9.7.6" "an RNR NAK shows that the peer is there, and gives the retries for losses back"
    "req.rnr.reset" "9.7.6" "progress gives all RNR retries back"
    "req.read" "9.4.4" "a READ's answers land in its elements, in order"
    "req.read.acks" "9.7.6" "an answer also acknowledges all before it"
    "req.read.gap" "9.7.6" "a missing answer is asked for again as soon as a later one comes, once"
    "req.read.passed" "9.7.6" "what acknowledges behind a READ or atomic says that its answer is lost"
    "req.read.remainder" "9.7.6" "only the remainder is asked for again: address, length, PSN"
    "req.read.middle_first" "rxe" "a remainder may be answered as the rest of the first answer"
    "req.read.progress" "9.7.6" "every answer restarts timeout and retries"
    "req.read.dup" "9.7.6" "answers that come again are dropped"
    "req.read.length" "9.9.2" "an answer of the wrong length fails the READ"
    "req.read.ack_only" "9.7.6" "a plain acknowledgement does not complete a READ"
    "req.read.protection" "9.9.2" "the sink is checked before it is written"
    "req.local" "9.9.2" "a local protection error completes after all before it, then the rest is flushed"
    "req.local.zero" "10.6" "zero bytes need no key"
    "req.flush" "10.3.1" "in ERR everything is flushed in order, signaled or not"
    "state.posts" "10.3.1" "which states take work requests"
    "state.packets" "10.3.1" "which states take packets"
    "state.init" "10.3.1" "INIT takes receives for later"
    "state.rtr" "10.3.1" "RTR responds"
    "state.established" "11.6.3" "the first packet in RTR makes an event"
    "state.err" "10.3.1" "ERR flushes both queues and ends the conversation"
    "state.reset" "10.3.1" "RESET forgets all, without completions"
    "state.sqd" "10.3.1" "SQD begins nothing, ends what was begun, sends again, and goes on in RTS"
    "state.modify" "11.2.5" "modify does what the table says, or nothing"
    "packet.icrc" "9.2, A17" "a wrong ICRC drops the packet"
    "packet.malformed" "9.6" "what is no packet of an assigned opcode is dropped"
    "packet.ignored" "9.6, A17" "reserved bits, congestion marks, MigReq, source port, ToS and TTL are not looked at"
    "packet.pkey" "10.9.3" "the partition must be the QP's, one side a full member"
    "packet.source" "9.6, A17" "the addresses must be the connection's"
    "packet.qp" "9.6" "the QP must be there, of the packet's service"
    "uc.requester" "9.8.2" "a UC message is complete once it is sent; nothing is answered or sent again"
    "uc.operations" "9.8.2, table 45" "UC has SENDs and WRITEs only"
    "uc.responder" "9.8.2" "whole UC messages are received and executed, unanswered"
    "uc.gap" "9.8.2.2" "a gap drops the message that it is in; the next one to begin is taken"
    "uc.drop" "9.9.3" "what is wrong with a UC message drops it, and the QP goes on"
    "uc.error" "9.9.3" "a receive whose memory is not accessible: protection error, ERR"
    "uc.sqe" "10.3.1.7" "a failed send stops the send queue (SQE), not the receives, until RTS"
    "ud.requester" "9.8.3" "a datagram carries the queue key and our QP; it is complete once it is sent"
    "ud.qkey.own" "10.2.5" "a work request's queue key with its highest bit set stands for the QP's own"
    "ud.length" "9.8.3, 9.9.3" "a datagram fits the port's MTU, and with the routing header the receive"
    "ud.operations" "9.8.3, table 45" "UD has SENDs only"
    "ud.destination" "10.2.2" "a datagram has an address handle of the QP's protection domain; other messages none"
    "ud.responder" "9.8.3, A17.4.5" "40 bytes of routing header come before the data; source and PSN do not matter"
    "ud.qkey" "10.2.5" "datagrams with another queue key are dropped"
    "ud.drop" "9.8.3" "a datagram that finds no receive is dropped"
    "ud.error" "9.9.3" "a receive whose memory is not accessible: protection error, ERR"
    "ud.service" "9.6" "a QP takes packets of its own service only"
    "srq.order" "10.2.9" "each message takes the oldest receive, when it begins"
    "srq.empty" "10.2.9" "an empty shared receive queue is not ready"
    "srq.post" "10.2.9" "receives are posted to the shared queue, within its limits"
    "srq.limit" "10.2.9.3" "fewer receives than the armed limit: one event"
    "srq.flush" "10.2.9.5" "a QP in error gives back what it took, and tells that it had its last receive"
    "srq.pd" "10.2.9" "keys of its receives are of the shared queue's protection domain"
    "srq.services" "10.2.9" "RC, UC and UD take from it"
    "srq.resize" "11.2.3" "its size may change, not below what is in it"
}

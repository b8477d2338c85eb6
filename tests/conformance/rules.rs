//! The conformance rules in our own words, each with the clause of IBA volume 1 that it comes from.

pub struct Rule {
    pub id: &'static str,
    pub section: &'static str,
    pub says: &'static str,
}

/// A part of the specification without a case.
pub struct Omission {
    pub section: &'static str,
    pub says: &'static str,
    pub why: &'static str,
}

/// Parts of the specification that do not apply to this device.
pub const EXCEPTED: &[Omission] = &[
    omit(
        "4 to 8, 13, 14",
        "LIDs, LRH, VCRC, virtual lanes, link credits, subnet management",
        "RoCEv2 has Ethernet and IP (annex A17)",
    ),
    omit(
        "9.7.8, 9.8.1",
        "reliable datagram, end-to-end contexts, RDETH, RESYNC",
        "no RoCE device has the service; its packets decode and are dropped",
    ),
    omit("9.8.4", "raw datagrams", "not in RoCEv2"),
    omit(
        "8.3, 9.6.1",
        "GRH checks: next header, hop limit, class",
        "the IP header stands for it; the links check that",
    ),
    omit(
        "9.7.7.2.4",
        "acknowledgements that nobody asked for, to renew credits",
        "optional; a limited requester learns by its next message",
    ),
    omit(
        "10.5",
        "joining a multicast group at the subnet administrator",
        "RoCE joins by IGMP and MLD (annex A17.9)",
    ),
    omit(
        "10.6.5.1",
        "physical buffer lists, pools of keys",
        "userspace has no physical addresses; a fast region maps a part of its memory",
    ),
    omit(
        "10.6.7.2.3",
        "a QP with bound windows of type 2A is not destroyed",
        "a handle in Rust cannot refuse to be dropped; QP numbers do not come again, so the windows are shut",
    ),
    omit(
        "10.9.4",
        "traps for P_Key and Q_Key violations",
        "there is no subnet manager to send them to; they are counted",
    ),
    omit("11.6.3.1", "LID change, SM change, client reregister events", "they have no cause on RoCE"),
    omit("A14.2", "XRC domains shared between processes by a file", "one NIC is one process here"),
];

/// Parts of the specification that apply but have no case yet.
pub const OPEN: &[Omission] = &[
    omit(
        "A17.9.3, Q-annex",
        "congestion notification: rate reduction by CNPs, CNPs sent for marked packets",
        "CNPs are counted only",
    ),
    omit(
        "12, 16.7",
        "the communication management protocol on QP1",
        "its tests are in tests/connection_manager",
    ),
    omit(
        "9.9.2 class F",
        "a CQ in error fails every QP on it at once",
        "each fails with its next completion",
    ),
];

const fn omit(section: &'static str, says: &'static str, why: &'static str) -> Omission {
    Omission { section, says, why }
}

/// A conformance case and the rule that it covers.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub rule: &'static str,
}

/// Generates a test for each `name => "rule" { body }`, and the list `CASES` of these tests.
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
    "resp.psn.far" "9.7.4, 9.7.5" "a lone request more than 256 packets ahead, and any more than 16,384 ahead, shows no loss: dropped without a NAK"
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
    "resp.dup.read.gone" "9.7.5" "a replay checks the region again, and is not answered if it has gone"
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
    "req.ackreq.rtt" "9.7.6.1" "an answer that is late, as answers have been so far, is asked for by the oldest and the last packet once more, in ever longer intervals"
    "req.window" "9.7.6" "bytes in flight are limited; acknowledgements make room"
    "req.window.shared" "9.7.6" "all queue pairs to one peer share what may be in flight; who waits comes first"
    "req.window.loss" "9.7.6" "what may be in flight is a part of what arrives between losses, but two packets"
    "req.timeout" "9.7.6" "the oldest packet unacknowledged for the timeout (then for half as long again): go-back-N"
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
    "state.farewell" "9.7.5.1.2" "what was done is acknowledged, though the queue pair ends"
    "state.reset" "10.3.1" "RESET forgets all, without completions"
    "state.sqd" "10.3.1" "SQD begins nothing, ends what was begun, sends again, and goes on in RTS"
    "state.query" "11.2.5.3" "query returns what was set, for every service"
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
    "ud.length" "9.8.3, 9.9.3" "a datagram fits the port's MTU, and with the routing header the receive; a longer one is dropped"
    "ud.operations" "9.8.3, table 45" "UD has SENDs only"
    "ud.destination" "10.2.2" "a datagram has an address handle of the QP's protection domain; other messages none"
    "ud.responder" "9.8.3, A17.4.5" "40 bytes of routing header come before the data; source and PSN do not matter"
    "ud.qkey" "10.2.5" "datagrams with another queue key are dropped"
    "ud.drop" "9.8.3" "a datagram that finds no receive is dropped"
    "ud.error" "9.9.3" "a receive whose memory is not accessible: protection error, ERR"
    "ud.service" "9.6" "a QP takes packets of its own service only"
    "mcast.deliver" "10.5.2" "a datagram to a group's address and QP 0xffffff reaches every QP attached to the group, once"
    "mcast.checks" "10.5.2, 9.8.3" "queue key, partition, state and receive are each member's own"
    "mcast.qpn" "9.6, 10.5.2" "a group's address and QP 0xffffff go together, and for datagrams only"
    "mcast.send" "10.5.2, A17" "a datagram to a group leaves for the group's address, as far as its hop limit says"
    "mcast.attach" "10.5.2" "UD QPs are attached to multicast GIDs, once each and within limits, until detached or destroyed"
    "srq.order" "10.2.9" "each message takes the oldest receive, when it begins"
    "srq.empty" "10.2.9" "an empty shared receive queue is not ready"
    "srq.post" "10.2.9" "receives are posted to the shared queue, within its limits"
    "srq.limit" "10.2.9.3" "fewer receives than the armed limit: one event"
    "srq.flush" "10.2.9.5" "a QP in error gives back what it took, and tells that it had its last receive"
    "srq.pd" "10.2.9" "keys of its receives are of the shared queue's protection domain"
    "srq.services" "10.2.9" "RC, UC and UD take from it"
    "srq.resize" "11.2.3" "its size may change, not below what is in it"
    "cq.overflow" "10.2.7, 11.6.3" "a completion that finds its queue full is lost: CQ error once, its QP in error"
    "cq.resize" "11.2.5" "a completion queue's size may change, not below what waits"
    "state.sqd.drained" "10.3.1.5" "in SQD, once what was begun is done, the event that was asked for comes, once"
    "mw.bind" "10.6.7.2" "a bind opens a part of a region under the window's new key, and completes in its turn"
    "mw.bind.region" "10.6.7.2, C10-73 to C10-75" "the region allows windows, and local writes if peers are to write; all of the part is inside it"
    "mw.bind.window" "10.6.7.2, C10-72, o10-37.2.30, o10-37.2.40" "the window is of the QP's protection domain; one of type 2 is not bound yet and gets at least a byte"
    "mw.type1" "10.6.7.2.1, o10-36.2.2" "a window of type 1 serves its whole domain, is bound anew at will, unbound by no bytes, and never counts from 0"
    "mw.type2" "10.6.7.2.2, 10.6.7.2.3" "a window of type 2 serves the QP that bound it only; 2B in its domain only"
    "mw.access" "10.6.7.2" "peers may do through a window what the bind allows, within its part, whatever the region allows peers"
    "mw.zero_based" "10.6.7.2" "a window that counts from 0 is named from 0"
    "mw.bound" "10.6.7.2, C10-70" "a region stays while windows are bound to it; revoked, it closes them"
    "mw.invalidate" "10.6.7.2.4, o10-37.2.26" "a local invalidate closes a window of type 2 under its present key, for its QP only"
    "local.order" "10.8.3" "work requests on our own keys are done in order, once, take no PSN and complete in their turn"
    "local.fence" "10.8.3" "a fenced one waits for READs and atomics, a local invalidate for all before it"
    "local.error" "9.9.2, 10.7.3" "one that may not be done fails in its turn with a memory management error"
    "inv.send" "9.4.1.1" "a SEND with invalidate closes what its key opens before its receive completes, which names the key"
    "inv.refused" "9.9.3 class J" "a key that may not be invalidated: acknowledged, the receive fails, ERR"
    "inv.requester" "9.4.1.1" "the key goes in the last packet of the SEND"
    "fast.reg" "10.6.5" "a fast registration opens a part of its memory under the key and address that it names"
    "fast.reg.refused" "10.6.5.2" "not what is open already, of another domain, or outside its memory"
    "fast.inv" "10.6.5.3" "a local or remote invalidate closes it; the key is stale then"
    "fast.windows" "10.6.5.3" "not while windows are bound to it"
    "atomic_write" "A19.4.2" "8 bytes are stored at once and answered as a READ of nothing"
    "atomic_write.invalid" "A19.4.2" "the address is a multiple of 8, the length 8; writing must be allowed"
    "flush" "A19.4.1" "a FLUSH is answered, as a READ of nothing, once all before it is placed"
    "flush.access" "A19.4.1" "the QP and the region must allow the placement; the range is inside, unless the whole region is meant"
    "flush.invalid" "A19.4.1" "no placement, a reserved one or a reserved selectivity is invalid"
    "placement.depth" "A19.4" "FLUSH and ATOMIC WRITE take READ and atomic resources on both sides"
    "placement.dup" "A19.4" "a duplicate FLUSH or ATOMIC WRITE is answered again and not executed"
    "placement.requester" "A19.4" "they complete by their answer, not by an acknowledgement; a gap asks again"
    "mr.null" "ibv_alloc_null_mr" "a null region takes what is written and reads as zeros, locally only"
    "mr.rereg" "10.6.6.2" "registered anew a region has other permissions, domain or memory; other memory has new keys, and the old are stale"
    "xrc.target" "A14.4" "a target executes requests with the receives of the shared queue that they name, which complete there"
    "xrc.srq" "A14.4" "it is a shared receive queue that is there, for XRC and of the target's domain; else the request is invalid"
    "xrc.message" "A14.4" "all packets of a message name the same one"
    "xrc.pd" "A14.3" "memory is that of the shared receive queue's protection domain, in replays too"
    "xrc.replay" "A14.4, 9.7.5" "a target acknowledges, refuses and replays as RC does"
    "xrc.initiator" "A14.4" "every request of an initiator names its shared receive queue, no response does"
    "xrc.post" "A14.3" "an initiator's work requests name one, targets have none, neither has receives"
    "xrc.kinds" "A14.4" "an initiator takes responses only, a target requests only, neither other services'"
    "xrc.flush" "A14.3" "a target in error gives back the receive that it took, where its queue completes"
    "xrc.states" "A14.3, table 96" "an initiator goes through its states without a responder's attributes, a target without a requester's"
    "credits.sent" "9.7.7.2, table 46" "positive acknowledgements and answers carry how many receives there are, never more"
    "credits.none" "9.7.7.2" "a shared receive queue, or a device without credits, says 31"
    "credits.honoured" "9.7.7.2.5" "beyond the credits a message that takes a receive goes alone, its first packet before the rest"
    "credits.free" "9.7.7.2" "READs, atomics and plain WRITEs need no credit; 31 lifts every limit"
    "credits.wrap" "9.7.7.2" "message numbers wrap at 24 bits"
    "habits.rxe" "rxe" "as rxe: no credits, MigReq 0, an acknowledgement each, short FIRST and long ONLY taken, depth not checked, too long is an operational error"
    "lenient.late" "devices; strict: 10.2.2, 9.8.3" "an operation that the service lacks, or a handle of another domain, completes with LOC_QP_OP_ERR in its turn"
    "lenient.atomics" "devices" "an atomic with longer elements fills 8 bytes"
    "early.sends" "mlx5, rxe; strict: C10-96" "sends posted before RTS leave with the next post in RTS, behind those before, with the PSNs of the connection"
    "early.receives" "mlx5" "receives posted in RESET are used from RTR on"
    "personality.rows" "personalities" "each row of the table has a visible result, the same where the table says the same"
    "apm.states" "17.2.8" "rearmed with an alternate path, armed when the peer's packets show that it is too, migrated when one end goes over"
    "apm.migreq" "17.2.8.1.1" "packets say MigReq while migrated only"
    "apm.peer" "17.2.8.1.3" "a request or answer by the alternate path that says MigReq takes an armed QP over, with an event"
    "apm.error" "17.2.8.1.4" "MigReq by the old path while armed is an error event, and the packet is dropped"
    "apm.failure" "17.2.8.1.2" "when the retries are used up an armed QP goes over and sends again with all of them"
    "apm.application" "17.2.8.1.2" "the application takes an armed QP over by setting MIGRATED"
    "apm.attributes" "11.2.5.2" "the alternate path brings its own GID, partition key and timeout, and is used up"
    "apm.closed" "17.2.8" "the alternate path is no path of the connection before it is armed"
    "pace.unacknowledged" "9.8" "UC and UD send no more in a millisecond than may be in flight to a peer"
    "pace.rate" "ibv_modify_qp rate_limit" "requests leave no faster than the limit, in small bursts"
    "pace.change" "ibv_modify_qp rate_limit" "the limit may change, and 0 lifts it"
    "pace.answers" "ibv_modify_qp rate_limit" "answers are not held back"
    "pkey.index" "10.9.1" "packets carry the partition key at the QP's index, completions that index"
    "pkey.change" "10.9.1, 11.6.3" "the partition key table may change under its QPs, and an event says so"
}

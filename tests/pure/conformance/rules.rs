//! Conformance rules: paraphrases of the specification, each with the clause of IBA volume 1 that it comes
//! from.

pub struct Rule {
    pub id: &'static str,
    pub section: &'static str,
    pub text: &'static str,
}

/// A part of the specification that no conformance case covers, with the reason.
pub struct Omission {
    pub section: &'static str,
    pub text: &'static str,
    pub reason: &'static str,
}

/// Parts of the specification that do not apply to this device.
pub const EXCLUDED: &[Omission] = &[
    omit(
        "4 to 8, 13, 14",
        "LIDs, LRH, VCRC, virtual lanes, link credits, subnet management",
        "RoCEv2 has Ethernet and IP (annex A17)",
    ),
    omit(
        "9.7.8, 9.8.1",
        "reliable datagram, end-to-end contexts, RDETH, RESYNC",
        "no RoCE device supports the service; its packets are decoded and dropped",
    ),
    omit("9.8.4", "raw datagrams", "not in RoCEv2"),
    omit(
        "8.3, 9.6.1",
        "GRH checks: next header, hop limit, class",
        "RoCEv2 has an IP header instead, which the links check",
    ),
    omit(
        "9.7.7.2.4",
        "unsolicited acknowledgements that update the credits",
        "optional; a limited requester gets new credits with the acknowledgement of its next message",
    ),
    omit(
        "10.5",
        "joining a multicast group through the subnet administrator",
        "RoCE joins groups with IGMP and MLD (annex A17.9)",
    ),
    omit(
        "10.6.5.1",
        "physical buffer lists, pools of keys",
        "userspace has no physical addresses; a fast region maps a part of its memory",
    ),
    omit(
        "10.6.7.2.3",
        "a QP with bound windows of type 2A cannot be destroyed",
        "dropping a handle in Rust cannot fail; QP numbers are not reused, so the windows are unusable",
    ),
    omit(
        "10.9.4",
        "traps for P_Key and Q_Key violations",
        "RoCE has no subnet manager to which they could be sent; violations are counted",
    ),
    omit("11.6.3.1", "LID change, SM change, client reregister events", "these events do not occur on RoCE"),
    omit("A14.2", "XRC domains shared between processes by a file", "a NIC belongs to one process"),
];

/// Parts of the specification that apply but have no case yet.
pub const NOT_COVERED: &[Omission] = &[
    omit(
        "12, 16.7",
        "the communication management protocol on QP1",
        "tested in tests/command/connection_manager",
    ),
    omit(
        "9.9.2 class F",
        "a CQ error moves all its QPs to ERR at once",
        "each QP fails at its next completion",
    ),
];

const fn omit(section: &'static str, text: &'static str, reason: &'static str) -> Omission {
    Omission { section, text, reason }
}

/// A conformance case and the rule that it covers.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub rule: &'static str,
}

/// Generates a test for each `name => "rule" { body }`, and a list `CASES` of the generated tests.
macro_rules! cases {
    ($($name:ident => $rule:literal $body:block)*) => {
        $(#[test] fn $name() $body)*
        pub const CASES: &[$crate::rules::Case] =
            &[$($crate::rules::Case { name: stringify!($name), rule: $rule }),*];
    };
}

macro_rules! rules {
    ($($id:literal $section:literal $text:literal)*) => {
        pub const RULES: &[Rule] = &[$(Rule { id: $id, section: $section, text: $text }),*];
    };
}

rules! {
    "resp.psn.expected" "9.7.4"
        "a request with the expected PSN is executed, exactly once"
    "resp.psn.ahead" "9.7.4, 9.7.5"
        "a request ahead of the expected PSN is not executed; one sequence error NAK is sent for the gap, \
         and no other until the gap is filled"
    "resp.psn.far" "9.7.4, 9.7.5"
        "a single request more than 256 packets ahead, and any request more than 16,384 packets ahead, does \
         not prove a loss and is dropped without a NAK"
    "resp.psn.halves" "9.7.2"
        "half of the PSN space is ahead of the expected PSN, half is behind it"
    "resp.psn.wrap" "9.7.2"
        "all PSNs wrap at 24 bits"
    "resp.msn" "9.7.7"
        "the MSN counts executed messages"
    "resp.sequence" "9.7.4"
        "FIRST and ONLY are valid if no message is in progress, MIDDLE and LAST of the same operation if one \
         is"
    "resp.opcode" "9.7.4"
        "a request with an opcode that the responder does not support is invalid"
    "resp.length.mtu" "9.7.4"
        "FIRST and MIDDLE carry path MTU bytes, LAST 1 to path MTU bytes, ONLY 0 to path MTU bytes, requests \
         without payload none"
    "resp.length.reth" "9.7.4"
        "a WRITE carries as many bytes as its RETH declares"
    "resp.length.max" "9.4.1"
        "no message is longer than 2^31 bytes"
    "resp.precedence" "9.7.4"
        "PSN, opcode sequence, opcode, resources, length, key and range are checked in this order; the first \
         failed check determines the NAK"
    "resp.access.qp" "9.7.4, 10.2"
        "the QP must allow the operation: WRITE, READ or atomic"
    "resp.access.region" "9.7.4, 10.6"
        "the memory region must allow the operation"
    "resp.access.key" "9.7.4, 10.6"
        "the R_Key must belong to a registered region in the protection domain of the QP"
    "resp.access.range" "9.7.4, 10.6"
        "all bytes of the request must be inside the region; this is checked before any byte is accessed"
    "resp.access.deregistered" "9.7.4, 10.6"
        "a region may be deregistered between two packets of a message"
    "resp.zero_length" "9.7.4"
        "a request of zero bytes needs no R_Key"
    "resp.receive.too_short" "9.7.4, 9.9.3"
        "a message longer than the receive: invalid request NAK, length error, ERR"
    "resp.receive.protection" "9.9.3"
        "a receive whose memory is not accessible: remote operational error NAK, protection error, ERR"
    "resp.atomic" "9.4.5"
        "FETCH ADD and COMPARE SWAP operate on 64 bits and return the original value"
    "resp.atomic.aligned" "9.4.5, 9.7.4"
        "the address of an atomic is a multiple of 8"
    "resp.send" "9.4.1"
        "a SEND fills the oldest receive, element by element"
    "resp.write" "9.4.3"
        "a WRITE stores its data in the range of its RETH and nowhere else"
    "resp.immediate" "9.4.1, 9.4.3"
        "immediate data consumes a receive, whose completion reports it with the length"
    "resp.solicited" "9.2.3"
        "the solicited event bit of the last packet is reported in the completion"
    "resp.read" "9.4.4"
        "the response to a READ consists of path MTU packets, whose PSNs begin with that of the request"
    "resp.order" "9.5, 9.7.5"
        "responses are sent in the order of the requests"
    "resp.ack.ackreq" "9.7.5"
        "AckReq is acknowledged on any packet; a packet without AckReq needs no acknowledgement"
    "resp.ack.coalesced" "9.7.5"
        "one acknowledgement may cover all earlier requests"
    "resp.ack.credits" "9.7.7"
        "without end-to-end credits the credit field is 31"
    "resp.ack.header" "9.2"
        "responses carry the P_Key of the QP and the destination QP of the peer"
    "resp.dup.send" "9.7.5"
        "a duplicate SEND or WRITE is acknowledged again and not executed"
    "resp.dup.read" "9.7.5"
        "a duplicate READ causes another response, complete or in part"
    "resp.dup.read.mismatch" "9.7.5"
        "a request with the PSN of an earlier READ but other contents is dropped"
    "resp.dup.read.queued" "9.7.5"
        "a duplicate READ whose response is still queued causes no second response"
    "resp.dup.read.deregistered" "9.7.5"
        "a replay checks the region again, and causes no response if the region was deregistered"
    "resp.dup.atomic" "9.7.5"
        "the response to a duplicate atomic contains the saved result"
    "resp.dup.evicted" "9.7.5"
        "the responder saves as many READs and atomics as negotiated; duplicates of older ones are dropped"
    "resp.dup.go_back" "9.7.5"
        "queued responses that follow a retransmitted READ are not sent twice"
    "resp.depth" "9.7.4"
        "more READs and atomics in progress than negotiated are invalid; replays do not count"
    "resp.rnr" "9.7.5"
        "a message without a receive: an RNR NAK with the timer of the QP, and no other NAK until the packet \
         is retransmitted"
    "resp.fatal" "9.9.3"
        "after a fatal NAK the QP is in ERR: responses queued before the NAK are sent, and no others"
    "req.segments" "9.4, 9.6"
        "messages are segmented at the path MTU; RETH in the first packet, immediate data and AckReq in the \
         last"
    "req.psn" "9.7.2"
        "PSNs continue across messages; a READ uses the PSNs of its response"
    "req.atomic" "9.4.5"
        "the original value of an atomic is stored in the elements of the work request"
    "req.sges" "10.8"
        "scatter/gather elements are transferred in order"
    "req.inline" "10.8"
        "inline data is copied when the work request is posted"
    "req.solicited" "9.2.3"
        "the solicited event bit is set only on the last packet of a SEND or of a WRITE with immediate"
    "req.unsignaled" "10.8"
        "an unsignaled work request that succeeds generates no completion"
    "req.fence" "10.8.3"
        "a fenced work request waits for earlier READs and atomics"
    "req.depth" "9.7.6"
        "no more READs and atomics are in flight than negotiated"
    "req.chunks" "9.7.3"
        "a long READ may be split into several requests; a retransmission stays within one of them"
    "req.trains" "personality throughput"
        "a long WRITE without immediate is a train of WRITE Only packets and completes once; a READ of a few packets is requested in pairs"
    "req.post" "10.8"
        "a work request that exceeds a limit is rejected without side effects"
    "req.ack.cumulative" "9.7.6"
        "an acknowledgement completes all requests up to its PSN, in order"
    "req.ack.partial" "9.7.6"
        "an acknowledgement of a packet inside a message advances snd_una"
    "req.ack.fields" "9.7.7"
        "credits and MSN of an acknowledgement do not affect completion"
    "req.ack.unsent" "9.7.6"
        "responses with PSNs that were never sent or are already acknowledged are dropped"
    "req.ack.reserved" "9.7.6"
        "responses with reserved syndromes are dropped"
    "req.ack.kind" "9.7.6"
        "a READ or atomic response does not complete a SEND"
    "req.ack.retransmission" "9.7.6"
        "acknowledgements of the first transmission are valid during a retransmission"
    "req.ackreq" "9.7.3"
        "AckReq is set at fixed positions, often enough that the window is never exhausted without a request \
         for an acknowledgement"
    "req.ackreq.unsignaled" "9.7.3"
        "unsignaled requests are sent without AckReq, except once per quarter of the send queue and when \
         retransmitted"
    "req.ackreq.probe" "9.7.3"
        "if no acknowledgement was requested, AckReq is set soon after: on the next packet, or on a \
         retransmission of the last one"
    "req.ackreq.rtt" "9.7.6.1"
        "if an acknowledgement is late compared with the measured round-trip time, the oldest and the newest \
         packet are retransmitted with AckReq, with exponential back-off"
    "req.window" "9.7.6"
        "bytes in flight are limited by the window; acknowledgements open it"
    "req.window.shared" "9.7.6"
        "all queue pairs connected to one peer share a window; blocked queue pairs are served first"
    "req.path.full" "9.7.6"
        "packets for a path that the link reports as full are held back, and those for other paths are sent"
    "req.window.loss" "9.7.6"
        "losses reduce the congestion window, to two packets at least; delivered data increases it"
    "req.timeout" "9.7.6"
        "if the oldest packet is not acknowledged within the timeout (1.5 times as long after the first \
         expiry), the requester goes back"
    "req.retry.exceeded" "9.7.6"
        "when the retries are exhausted, the oldest request fails"
    "req.retry.reset" "9.7.6"
        "progress restores the retry count"
    "req.nak.sequence" "9.7.6"
        "a sequence error NAK causes retransmission from its PSN and uses one retry"
    "req.nak.duplicate" "9.7.6"
        "NAKs for packets that are already being retransmitted have no effect"
    "req.nak.fatal" "9.9.2"
        "each other NAK fails its request with the completion status of the NAK code"
    "req.nak.after_read" "9.7.6"
        "a NAK for a request after an incomplete READ implies first that the READ response was lost"
    "req.rnr" "9.7.6"
        "after an RNR NAK the requester waits for the RNR timer, then retransmits from the PSN of the NAK"
    "req.rnr.exceeded" "9.7.6"
        "when the RNR retries are exhausted, the request fails"
    "req.rnr.unlimited" "9.7.6"
        "RNR retry count 7 means an unlimited number of retries"
    "req.rnr.retries" "9.7.6"
        "an RNR NAK shows that the peer is reachable and restores the transport retry count"
    "req.rnr.reset" "9.7.6"
        "progress restores the RNR retry count"
    "req.read" "9.4.4"
        "READ responses are stored in the elements of the work request, in order"
    "req.read.acks" "9.7.6"
        "a READ response acknowledges all earlier requests"
    "req.read.gap" "9.7.6"
        "a missing READ response is requested again when a later one arrives, once"
    "req.read.implied_nak" "9.7.6"
        "an acknowledgement of a request after a READ or atomic implies that the response of the latter was lost"
    "req.read.remainder" "9.7.6"
        "only the remainder of a READ is requested again: address, length and PSN are adjusted"
    "req.read.middle_first" "rxe"
        "the response to a remainder may begin with MIDDLE, as a continuation of the first response"
    "req.read.progress" "9.7.6"
        "each READ response restarts the timeout and restores the retry count"
    "req.read.dup" "9.7.6"
        "duplicate READ responses are dropped"
    "req.read.length" "9.9.2"
        "a READ response of the wrong length fails the READ"
    "req.read.ack_only" "9.7.6"
        "an ACK does not complete a READ"
    "req.read.protection" "9.9.2"
        "the sink of a READ is checked before data is stored in it"
    "req.local" "9.9.2"
        "a local protection error completes after all earlier requests; all later ones are flushed"
    "req.local.zero" "10.6"
        "an element of zero bytes needs no L_Key"
    "req.flush" "10.3.1"
        "in ERR all work requests are flushed in order, signaled or not"
    "state.posts" "10.3.1"
        "work requests are accepted in the states of the table"
    "state.packets" "10.3.1"
        "packets are processed in the states of the table"
    "state.init" "10.3.1"
        "receives posted in INIT are used from RTR on"
    "state.rtr" "10.3.1"
        "the QP responds to requests in RTR"
    "state.established" "11.6.3"
        "the first packet in RTR raises an event"
    "state.err" "10.3.1"
        "ERR flushes both queues; no packet is sent or processed"
    "state.final_ack" "9.7.5.1.2"
        "executed requests are acknowledged before the QP enters ERR or RESET"
    "state.reset" "10.3.1"
        "RESET discards all state without completions"
    "state.sqd" "10.3.1"
        "in SQD no message is begun; messages in progress are completed, with retransmissions; RTS resumes"
    "state.query" "11.2.5.3"
        "query returns the configured attributes, for every service"
    "state.modify" "11.2.5"
        "modify follows the attribute table; an invalid modify changes nothing"
    "packet.icrc" "9.2, A17"
        "a packet with a wrong ICRC is dropped"
    "packet.malformed" "9.6"
        "malformed packets and packets with unassigned opcodes are dropped"
    "packet.ignored" "9.6, A17"
        "reserved bits, congestion marks, MigReq, source port, ToS and TTL are ignored"
    "packet.pkey" "10.9.3"
        "the partition must match that of the QP, and one side must be a full member"
    "packet.source" "9.6, A17"
        "the addresses must be those of the connection"
    "packet.qp" "9.6"
        "the QP must exist and be of the service of the packet"
    "uc.requester" "9.8.2"
        "a UC message completes when it is sent; it is neither acknowledged nor retransmitted"
    "uc.operations" "9.8.2"
        "UC supports only SEND and WRITE"
    "uc.responder" "9.8.2"
        "complete UC messages are received and executed without acknowledgement"
    "uc.gap" "9.8.2.2"
        "a gap drops the message in progress; the next FIRST or ONLY packet is accepted"
    "uc.drop" "9.9.3"
        "an invalid UC message is dropped, and the QP continues"
    "uc.error" "9.9.3"
        "a receive whose memory is not accessible: protection error, ERR"
    "uc.sqe" "10.3.1.7"
        "a failed send stops the send queue (SQE) until RTS; the receive queue continues"
    "ud.requester" "9.8.3"
        "a datagram carries the Q_Key and the source QP; it completes when it is sent"
    "ud.qkey.own" "10.2.5"
        "a Q_Key with its highest bit set in a work request selects the Q_Key of the QP"
    "ud.length" "9.8.3, 9.9.3"
        "a datagram fits the MTU of the port and, with the GRH, the receive; a longer one is dropped"
    "ud.operations" "9.8.3"
        "UD supports only SEND"
    "ud.destination" "10.2.2"
        "a datagram needs an address handle in the protection domain of the QP; other services take none"
    "ud.responder" "9.8.3, A17.4.5"
        "the 40 bytes of the GRH precede the data; any source and any PSN is accepted"
    "ud.qkey" "10.2.5"
        "datagrams with a wrong Q_Key are dropped"
    "ud.drop" "9.8.3"
        "a datagram without a receive is dropped"
    "ud.error" "9.9.3"
        "a receive whose memory is not accessible: protection error, ERR"
    "ud.service" "9.6"
        "a QP accepts packets of its own service only"
    "mcast.deliver" "10.5.2"
        "a datagram to a group address and QP 0xffffff is delivered to each QP attached to the group, once"
    "mcast.checks" "10.5.2, 9.8.3"
        "Q_Key, partition, state and receive are checked for each member separately"
    "mcast.qpn" "9.6, 10.5.2"
        "group addresses and QP 0xffffff are valid only together, and only for datagrams"
    "mcast.send" "10.5.2, A17"
        "a datagram to a group is sent to the group address with the hop limit of the address handle"
    "mcast.attach" "10.5.2"
        "UD QPs attach to multicast GIDs, once each and within limits, until they are detached or destroyed"
    "srq.order" "10.2.9"
        "each message consumes the oldest receive when its first packet arrives"
    "srq.empty" "10.2.9"
        "an empty shared receive queue causes an RNR NAK"
    "srq.post" "10.2.9"
        "receives are posted to the shared receive queue, within its limits"
    "srq.limit" "10.2.9.3"
        "when fewer receives remain than the armed limit, one event is raised"
    "srq.flush" "10.2.9.5"
        "a QP in ERR flushes the receive that it has consumed, and raises the last-WQE-reached event"
    "srq.pd" "10.2.9"
        "the keys of shared receives are checked in the protection domain of the queue"
    "srq.services" "10.2.9"
        "RC, UC and UD queue pairs may use a shared receive queue"
    "srq.resize" "11.2.3"
        "a shared receive queue can be resized, but not below the number of posted receives"
    "cq.overflow" "10.2.7, 11.6.3"
        "a completion for a full CQ is lost: one CQ error event, and the QP enters ERR"
    "cq.resize" "11.2.5"
        "a CQ can be resized, but not below the number of pending completions"
    "state.sqd.drained" "10.3.1.5"
        "in SQD, the requested event is raised once, when all messages in progress are complete"
    "mw.bind" "10.6.7.2"
        "a bind grants access to a part of a region with the new key of the window, and completes in order"
    "mw.bind.region" "10.6.7.2, C10-73 to C10-75"
        "the region must allow binds, and local write if the window allows remote write; the range must be \
         inside the region"
    "mw.bind.window" "10.6.7.2, C10-72, o10-37.2.30, o10-37.2.40"
        "the window must be in the protection domain of the QP; one of type 2 must be unbound and is bound \
         to one byte at least"
    "mw.type1" "10.6.7.2.1, o10-36.2.2"
        "a window of type 1 is usable in its whole protection domain, can be rebound, is unbound by a bind \
         of length 0, and is never zero-based"
    "mw.type2" "10.6.7.2.2, 10.6.7.2.3"
        "a window of type 2 is usable only by the QP that bound it; type 2B only in its protection domain"
    "mw.access" "10.6.7.2"
        "peers have the access rights of the bind, within its range, independent of the remote access rights \
         of the region"
    "mw.zero_based" "10.6.7.2"
        "a zero-based window is addressed from 0"
    "mw.bound" "10.6.7.2, C10-70"
        "a region with bound windows cannot be deregistered; revoking it invalidates them"
    "mw.invalidate" "10.6.7.2.4, o10-37.2.26"
        "a local invalidate revokes a window of type 2 by its current key, for its QP only"
    "local.order" "10.8.3"
        "local operations are executed in order and once, use no PSN and complete in order"
    "local.fence" "10.8.3"
        "a fenced local operation waits for READs and atomics, a local invalidate for all earlier requests"
    "local.error" "9.9.2, 10.7.3"
        "an invalid local operation fails in order, with a memory management error"
    "inv.send" "9.4.1.1"
        "a SEND with invalidate revokes its key before its receive completes; the completion contains the key"
    "inv.invalid_key" "9.9.3 class J"
        "a key that cannot be invalidated: the SEND is acknowledged, the receive fails, ERR"
    "inv.requester" "9.4.1.1"
        "the key is in the last packet of the SEND"
    "fast.reg" "10.6.5"
        "a fast registration grants access to a part of its memory with the key and the address of the work \
         request"
    "fast.reg.invalid" "10.6.5.2"
        "a fast registration fails if the region is valid already, is in another protection domain, or lacks \
         the range"
    "fast.inv" "10.6.5.3"
        "a local or remote invalidate revokes a fast registration; its key is then stale"
    "fast.windows" "10.6.5.3"
        "a fast region with bound windows cannot be invalidated"
    "atomic_write" "A19.4.2"
        "8 bytes are stored atomically; the response is that of a READ of zero bytes"
    "atomic_write.invalid" "A19.4.2"
        "the address must be a multiple of 8, the length 8, and remote write must be allowed"
    "flush" "A19.4.1"
        "the response to a FLUSH is that of a READ of zero bytes, sent when all earlier data is placed"
    "flush.access" "A19.4.1"
        "the QP and the region must allow the placement type; the range must be inside the region unless the \
         whole region is selected"
    "flush.invalid" "A19.4.1"
        "a FLUSH without a placement type, with a reserved one or with a reserved selectivity level is \
         invalid"
    "placement.depth" "A19.4"
        "FLUSH and ATOMIC WRITE use READ and atomic resources on both sides"
    "placement.dup" "A19.4"
        "a duplicate FLUSH or ATOMIC WRITE causes another response and is not executed"
    "placement.requester" "A19.4"
        "FLUSH and ATOMIC WRITE complete with their response, not with an acknowledgement; a gap causes \
         retransmission"
    "mr.null" "ibv_alloc_null_mr"
        "a null region discards writes and reads as zeros; it is for local access only"
    "mr.rereg" "10.6.6.2"
        "re-registration changes access rights, protection domain or memory; new memory gets new keys, and \
         the old ones are stale"
    "xrc.target" "A14.4"
        "a target QP executes requests with the receives of the shared receive queue that they name, and \
         completes on its CQ"
    "xrc.srq" "A14.4"
        "the named SRQ must exist, be an XRC SRQ and be in the XRC domain of the target; otherwise the \
         request is invalid"
    "xrc.message" "A14.4"
        "all packets of a message name the same SRQ"
    "xrc.pd" "A14.3"
        "memory is checked in the protection domain of the SRQ, in replays too"
    "xrc.replay" "A14.4, 9.7.5"
        "a target acknowledges, NAKs and replays as an RC responder does"
    "xrc.initiator" "A14.4"
        "each request of an initiator names its SRQ; responses name none"
    "xrc.post" "A14.3"
        "work requests of an initiator name an SRQ; a target accepts no sends; neither accepts receives"
    "xrc.direction" "A14.4"
        "an initiator accepts only responses, a target only requests, and neither accepts packets of other \
         services"
    "xrc.flush" "A14.3"
        "a target in ERR flushes the receive that it has consumed, to the CQ of the SRQ"
    "xrc.states" "A14.3, table 96"
        "an initiator changes states without responder attributes, a target without requester attributes"
    "credits.sent" "9.7.7.2"
        "positive acknowledgements and responses advertise the number of posted receives, rounded down"
    "credits.none" "9.7.7.2"
        "a shared receive queue, and a device without end-to-end credits, advertises credit code 31"
    "credits.limit" "9.7.7.2.5"
        "beyond the limit, messages that consume a receive are sent one at a time, and the first packet \
         before the rest"
    "credits.exempt" "9.7.7.2"
        "READs, atomics and WRITEs without immediate need no credit; credit code 31 lifts the limit"
    "credits.wrap" "9.7.7.2"
        "message numbers wrap at 24 bits"
    "quirks.selective_repeat" "personality default; strict: 9.7.5"
        "SENDs and WRITEs behind a gap are kept until the missing request arrives, and a sequence error NAK causes the \
         retransmission of its packet alone, unless the peer keeps nothing"
    "quirks.rxe" "rxe"
        "as rxe: no credits, MigReq 0, one ACK per request, short FIRST and long ONLY accepted, depth not \
         checked, operational error for a message that is too long"
    "lenient.deferred_error" "devices; strict: 10.2.2, 9.8.3"
        "an operation that the service lacks, or an address handle of another protection domain, completes \
         in order with LOC_QP_OP_ERR"
    "lenient.atomics" "devices"
        "an atomic with elements of more than 8 bytes stores 8 bytes"
    "early.sends" "mlx5, rxe; strict: C10-96"
        "sends posted before RTS are sent with the next post in RTS, in order, with the PSNs of the \
         connection"
    "early.receives" "mlx5"
        "receives posted in RESET are used from RTR on"
    "personality.no_probes" "devices"
        "without tail loss probes, a loss that no later packet reveals is repaired after the ACK timeout"
    "personality.rows" "personalities"
        "each row of the table has an observable result, which is the same for personalities with the same \
         entry"
    "personality.send_slots" "10.7.3.1; devices"
        "a work request keeps its slot of the send queue until its completion, or that of a later one, is polled"
    "apm.states" "17.2.8"
        "REARM with an alternate path, ARMED when the packets of the peer show that it is in REARM too, \
         MIGRATED after a migration by either end"
    "apm.migreq" "17.2.8.1.1"
        "MigReq is set in packets only in state MIGRATED"
    "apm.peer" "17.2.8.1.3"
        "a request or response with MigReq on the alternate path migrates a QP in ARMED, with an event"
    "apm.error" "17.2.8.1.4"
        "MigReq on the primary path in ARMED raises an error event, and the packet is dropped"
    "apm.failure" "17.2.8.1.2"
        "when the retries are exhausted, a QP in ARMED migrates and retransmits with the full retry count"
    "apm.application" "17.2.8.1.2"
        "the application migrates a QP in ARMED by setting MIGRATED"
    "apm.attributes" "11.2.5.2"
        "the alternate path has its own GID, P_Key and timeout, and is consumed by the migration"
    "apm.before_armed" "17.2.8"
        "packets on the alternate path are not accepted before ARMED"
    "pacer.unacknowledged" "9.8"
        "UC and UD send at most one window of a peer per millisecond"
    "pacer.rate" "ibv_modify_qp rate_limit"
        "requests are sent no faster than the rate limit, in short bursts"
    "pacer.change" "ibv_modify_qp rate_limit"
        "the rate limit can be changed; 0 removes it"
    "pacer.responses" "ibv_modify_qp rate_limit"
        "responses are not rate-limited"
    "congestion.rate" "A17.9.3"
        "with DCQCN, a CNP reduces the rate of the QP's requests, which recovers with time"
    "congestion.responses" "A17.9.3"
        "READ responses are sent at the same rate, in turn with requests; acknowledgements are not delayed"
    "congestion.source" "A17.9.3"
        "a CNP counts only if it comes from the QP's peer, and is ignored without DCQCN"
    "congestion.none" "urxe"
        "without congestion control, losses do not reduce the window"
    "ecn.capable" "A17.9"
        "requests and READ responses of connected services are ECN-capable, ECT(0), if congestion control uses marks; \
         acknowledgements are not"
    "cnp.sent" "A17.9.3"
        "a marked packet of a connected service is answered with a CNP to the peer QP: BECN 1, PSN 0, the P_Key of \
         the QP, 16 reserved bytes of 0, not ECN-capable"
    "cnp.interval" "devices"
        "CNPs are sent at most once per interval: of the QP, of the pair of addresses, or of the port"
    "cnp.none" "rxe; A17.9.3"
        "no CNP answers unmarked packets, CNPs, datagrams, and packets that are dropped; rxe sends none"
    "pkey.index" "10.9.1"
        "packets carry the P_Key at the index of the QP; completions contain the index"
    "pkey.change" "10.9.1, 11.6.3"
        "a changed P_Key table applies to existing QPs and raises an event"
}

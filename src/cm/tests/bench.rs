//! Test fixture: one connection manager and a scripted peer, in virtual time.

use std::time::Duration;

use crate::cm::*;
use crate::transport::{AddressVector, Instant};
use crate::wire::mad::{CommId, Mad, Message, Rej, Rep, Req, ServiceId, TransportService};
use crate::wire::{AckTimeout, Gid, Mtu, Psn, Qpn};

pub const SERVICE: ServiceId = ServiceId(0x0106_1c06);
pub const OUR_GUID: u64 = 0x10;
pub const PEER_GUID: u64 = 0x20;
pub const PEER_ID: CommId = CommId(0x7777);
pub const PEER_QPN: Qpn = Qpn::new(0x111);
pub const OUR_QPN: Qpn = Qpn::new(0x222);

pub fn gid(last: u8) -> Gid {
    std::net::Ipv4Addr::new(10, 0, 0, last).into()
}

pub fn our_gid() -> Gid {
    gid(1)
}

pub fn peer_gid() -> Gid {
    gid(2)
}

pub fn config() -> CmConfig {
    // The first entries of the GID table are other addresses.
    CmConfig::new(OUR_GUID, vec![gid(101), Gid::default(), our_gid()])
}

pub fn source() -> AddressVector {
    source_from(peer_gid())
}

pub fn source_from(gid: Gid) -> AddressVector {
    AddressVector { sgid_index: 2, ..AddressVector::to(gid) }
}

pub fn path() -> Path {
    Path::to(source(), Mtu::Mtu1024)
}

pub fn our_qp() -> LocalQp {
    LocalQp { qpn: OUR_QPN, psn: Psn::new(0x1000), srq: false }
}

pub fn request(private_data: &[u8]) -> Request<'_> {
    Request::new(SERVICE, our_qp(), path(), private_data)
}

pub fn reply(private_data: &[u8]) -> Rep {
    Rep {
        qpn: OUR_QPN,
        psn: our_qp().psn,
        responder_resources: 3,
        initiator_depth: 4,
        rnr_retry_count: 5,
        private_data: padded(private_data).unwrap(),
        ..Rep::default()
    }
}

/// Returns a request from the peer.
pub fn req() -> Req {
    let mut req = Req {
        local: PEER_ID,
        service: SERVICE,
        ca_guid: PEER_GUID,
        qpn: PEER_QPN,
        responder_resources: 7,
        initiator_depth: 2,
        remote_response_timeout: AckTimeout::new(20),
        transport: TransportService::Rc,
        psn: Psn::new(0x2000),
        local_response_timeout: AckTimeout::new(20),
        retry_count: 6,
        mtu: Some(Mtu::Mtu1024),
        rnr_retry_count: 4,
        max_cm_retries: 3,
        ..Req::default()
    };
    req.primary.local_gid = peer_gid();
    req.primary.remote_gid = our_gid();
    req.primary.hop_limit = 64;
    req.primary.ack_timeout = AckTimeout::new(19);
    req
}

/// Returns the peer's reply to our request.
pub fn rep(to: ConnId) -> Rep {
    Rep {
        local: PEER_ID,
        remote: to.0,
        qpn: PEER_QPN,
        psn: Psn::new(0x2000),
        responder_resources: 7,
        initiator_depth: 2,
        target_ack_delay: AckTimeout::new(15),
        rnr_retry_count: 4,
        ca_guid: PEER_GUID,
        ..Rep::default()
    }
}

/// Returns the interval between retransmissions: the response timeout plus the round trip.
pub fn response_time() -> Duration {
    Duration::from_nanos(4096 << 20) + 2 * Duration::from_nanos(4096 << 18)
}

pub struct Bench {
    pub cm: Cm,
    pub now: Instant,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(config())
    }

    pub fn with(config: CmConfig) -> Bench {
        Bench { cm: Cm::new(config, 7), now: Instant(1_000_000) }
    }

    /// Creates a fixture that listens for requests for [`SERVICE`].
    pub fn listening() -> Bench {
        let mut bench = Bench::new();
        bench.cm.listen(SERVICE).unwrap();
        bench
    }

    pub fn inject(&mut self, message: impl Into<Message>) {
        self.inject_as(&source(), 0xabcd, message);
    }

    pub fn inject_as(&mut self, source: &AddressVector, transaction: u64, message: impl Into<Message>) {
        let mad = Mad { transaction, modifier: 0, message: message.into() };
        self.cm.handle_mad(self.now, source, Qpn::GSI, &mad.bytes());
    }

    /// Takes all messages that the connection manager has queued, and asserts that each is addressed to the
    /// peer.
    pub fn sent(&mut self) -> Vec<Message> {
        self.sent_mads().into_iter().map(|m| m.message).collect()
    }

    pub fn sent_mads(&mut self) -> Vec<Mad> {
        std::iter::from_fn(|| self.cm.poll_transmit())
            .map(|(to, mad)| {
                assert_eq!((to.dgid, to.sgid_index), (peer_gid(), 2));
                Mad::parse(&mad).unwrap()
            })
            .collect()
    }

    /// Takes the messages sent, and returns the only one.
    #[track_caller]
    pub fn sent_one(&mut self) -> Message {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0]
    }

    /// Takes the messages sent, and returns the only one, which must be a REJ.
    #[track_caller]
    pub fn sent_rej(&mut self) -> Rej {
        match self.sent_one() {
            Message::Rej(rej) => rej,
            other => panic!("{other:?}"),
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.cm.poll_event()).map(|(_, e)| e).collect()
    }

    /// Takes the only pending event, and returns it with its connection.
    #[track_caller]
    pub fn event(&mut self) -> (ConnId, Event) {
        let event = self.cm.poll_event().expect("an event is pending");
        assert_eq!(self.cm.poll_event(), None);
        event
    }

    #[track_caller]
    pub fn assert_quiet(&mut self) {
        assert_eq!((self.events(), self.sent()), (vec![], vec![]));
    }

    /// Advances virtual time, and handles each deadline exactly when it is due.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.cm.poll_timeout().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.cm.handle_timeout(self.now);
            assert!(
                self.cm.poll_timeout().is_none_or(|next| next > self.now),
                "handle_timeout leaves an expired deadline"
            );
        }
        self.now = end;
    }

    /// Creates a client that has sent its request.
    pub fn req_sent(&mut self) -> ConnId {
        let id = self.cm.connect(self.now, &request(b"hello")).unwrap();
        assert!(matches!(self.sent_one(), Message::Req(_)));
        id
    }

    /// Creates a client with an established connection.
    pub fn client(&mut self) -> ConnId {
        let id = self.req_sent();
        self.inject(rep(id));
        assert!(matches!(self.event(), (_, Event::Accepted { .. })));
        self.cm.ready(id).unwrap();
        assert!(matches!(self.sent_one(), Message::Rtu(_)));
        id
    }

    /// Creates a server that has received a request.
    pub fn requested(&mut self) -> ConnId {
        self.inject(req());
        let (id, event) = self.event();
        assert!(matches!(event, Event::Requested(_)));
        id
    }

    /// Creates a server that has sent its reply.
    pub fn accepted(&mut self) -> ConnId {
        let id = self.requested();
        self.cm.accept(self.now, id, &reply(b"granted"), 0).unwrap();
        assert!(matches!(self.sent_one(), Message::Rep(_)));
        id
    }

    /// Creates a server with an established connection.
    pub fn server(&mut self) -> ConnId {
        let id = self.accepted();
        self.inject(crate::wire::mad::Rtu { local: PEER_ID, remote: id.0, ..Default::default() });
        assert!(matches!(self.event(), (_, Event::Established)));
        id
    }

    #[track_caller]
    pub fn assert_empty(&self) {
        assert_eq!(self.cm.connection_counts(), (0, 0));
        assert_eq!(self.cm.poll_timeout(), None);
        self.cm.check();
    }
}

impl Cm {
    /// Asserts that the connection manager's tables are consistent with each other.
    #[track_caller]
    pub(in crate::cm) fn check(&self) {
        let has_connection = |id: &CommId| {
            assert!(self.connections.contains_key(id), "{id:?} is in a table, but has no connection")
        };
        self.by_remote.values().for_each(has_connection);
        self.by_qpn.values().for_each(has_connection);
        self.by_sidr_request.values().for_each(has_connection);
        self.peer_to_peer.iter().for_each(|(_, _, id)| has_connection(id));
        let deadlines = self.connections.values().filter(|c| c.deadline.is_some()).count();
        assert_eq!(deadlines, self.timers.len() + self.time_waits.len());
        let over = self.connections.values().filter(|c| c.state == State::TimeWait).count();
        assert_eq!(over, self.time_waits.len());
    }
}

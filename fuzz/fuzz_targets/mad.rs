//! Fuzz target: decodes arbitrary bytes as a management datagram, and attacks a connection manager. A peer
//! sends valid and invalid messages of all kinds, while a program performs arbitrary operations on its
//! connections. The connection manager must not panic, loop forever or grow without bound, and must hold no
//! state at the end.
#![no_main]

use std::net::Ipv4Addr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use urxe::cm::*;
use urxe::transport::{AddressVector, Instant, QpType};
use urxe::wire::mad::*;
use urxe::wire::{AckTimeout, Gid, Mtu, Psn, QKey, Qpn};

const SERVICE: ServiceId = ServiceId(7);
const MAX_CONNECTIONS: usize = 24;

/// Fuzz input, read byte by byte; reads past the end return zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let n = usize::from(self.u8());
        (!items.is_empty()).then(|| items[n % items.len()])
    }
}

fn gid(last: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, last).into()
}

struct World {
    cm: Cm,
    now: Instant,
    ids: Vec<ConnId>,
    /// Most recent messages sent by the connection manager, oldest first. The peer may send the newest one
    /// back.
    recent: Vec<[u8; MAD_LEN]>,
}

impl World {
    fn message(&mut self, input: &mut Input<'_>) -> Message {
        let kind = input.pick(MessageKind::ALL).expect("the list of message kinds is not empty");
        let remote = input.pick(&self.ids).map_or(CommId(u32::from(input.u8())), |id| id.0);
        let local = CommId(u32::from(input.u8() % 16));
        let qpn = Qpn::new(u32::from(input.u8() % 16));
        let (local_gid, remote_gid) = (gid(2 + input.u8() % 2), gid(1));
        let path =
            PathInfo { local_gid, remote_gid, ack_timeout: AckTimeout::new(12), ..PathInfo::default() };
        match kind {
            MessageKind::Req => Req {
                local,
                service: SERVICE,
                ca_guid: u64::from(input.u8() % 3),
                qpn,
                mtu: Some(Mtu::Mtu1024),
                primary: path,
                local_response_timeout: AckTimeout::new(14),
                max_cm_retries: input.u8() % 16,
                ..Req::default()
            }
            .into(),
            MessageKind::Mra => {
                let message = Acknowledged::from_code(input.u8() % 4);
                Mra { local, remote, message, service_timeout: AckTimeout::new(31), ..Mra::default() }.into()
            }
            MessageKind::Rej => {
                let message = Rejected::from_code(input.u8() % 4);
                let reason = RejReason::from_code(u16::from(input.u8() % 40));
                Rej { local, remote, message, reason, info_len: input.u8(), ..Rej::default() }.into()
            }
            MessageKind::Rep => {
                Rep { local, remote, qpn, ca_guid: u64::from(input.u8() % 3), ..Rep::default() }.into()
            }
            MessageKind::Rtu => Rtu { local, remote, ..Rtu::default() }.into(),
            MessageKind::Dreq => {
                Dreq { local, remote, remote_qpn: Qpn::new(0x77), private_data: [input.u8(); 220] }.into()
            }
            MessageKind::Drep => Drep { local, remote, ..Drep::default() }.into(),
            MessageKind::SidrReq => SidrReq { request: local, service: SERVICE, ..SidrReq::default() }.into(),
            MessageKind::SidrRep => SidrRep { request: remote, qpn, ..SidrRep::default() }.into(),
            MessageKind::Lap => {
                let remote_qpn = Qpn::new(0x77);
                Lap { local, remote, remote_qpn, local_gid, remote_gid, ..Lap::default() }.into()
            }
            MessageKind::Apr => Apr { local, remote, info_len: input.u8(), ..Apr::default() }.into(),
        }
    }

    /// Delivers a message from the peer, possibly altered: a new one, or the last one that the connection
    /// manager sent.
    fn receive_mad(&mut self, input: &mut Input<'_>) {
        let flags = input.u8();
        let mut bytes = match self.recent.last() {
            Some(recent) if flags & 1 != 0 => *recent,
            _ => {
                let message = self.message(input);
                Mad { transaction: u64::from(input.u8() % 4), modifier: 0, message }.bytes()
            }
        };
        for _ in 0..flags >> 5 {
            let (at, value) = (input.u8(), input.u8());
            bytes[usize::from(at)] = value;
        }
        let from = AddressVector::to(gid(2 + input.u8() % 2));
        let src_qpn = if flags & 2 != 0 && input.u8() == 9 { Qpn::new(5) } else { Qpn::GSI };
        self.cm.handle_mad(self.now, &from, src_qpn, &bytes);
    }

    /// Makes an arbitrary call to the connection manager, as the program would. A call that is not permitted
    /// must fail without a panic.
    fn call(&mut self, input: &mut Input<'_>) {
        let (now, cm) = (self.now, &mut self.cm);
        let data = [input.u8(); 300];
        // Sometimes more data than fits into a message.
        let data = &data[..usize::from(input.u8())];
        let path =
            Path { packet_life: AckTimeout::new(10), ..Path::to(AddressVector::to(gid(2)), Mtu::Mtu1024) };
        let qp = LocalQp { qpn: Qpn::new(0x77), psn: Psn::new(1), srq: false };
        let action = input.u8();
        let id = input.pick(&self.ids);
        match (action % 16, id) {
            (0, _) => {
                let request = Request {
                    peer_to_peer: action & 0x80 != 0,
                    qp_type: if action & 0x40 != 0 { QpType::Uc } else { QpType::Rc },
                    ..Request::new(SERVICE, qp, path, data)
                };
                self.ids.extend(cm.connect(now, &request));
            }
            (1, _) => self.ids.extend(cm.sidr_request(now, SERVICE, path, data)),
            (2, _) => cm.listen(SERVICE).unwrap_or_else(|_| cm.unlisten(now, SERVICE)),
            (3 | 4, Some(id)) => {
                let Ok(private_data) = padded(data) else { return };
                let (responder_resources, initiator_depth, rnr_retry_count) = (1, 1, 7);
                let rep = Rep {
                    qpn: qp.qpn,
                    psn: qp.psn,
                    responder_resources,
                    initiator_depth,
                    rnr_retry_count,
                    private_data,
                    ..Rep::default()
                };
                let _ = cm.accept(now, id, &rep, 0);
            }
            (5, Some(id)) => drop(cm.reject(now, id, RejReason::Consumer, &data[..data.len().min(80)], data)),
            (6 | 7, Some(id)) => drop(cm.ready(id)),
            (9, Some(id)) => drop(cm.establish(id)),
            (10, Some(id)) => drop(cm.disconnect(now, id)),
            (11, Some(id)) => cm.release(now, id),
            (12, Some(id)) => drop(cm.load_alternate(now, id, &path)),
            (13, Some(id)) => drop(cm.respond_to_alternate(id, AprStatus::Loaded)),
            (14, Some(id)) => {
                let Ok(private_data) = padded(data) else { return };
                let rep = SidrRep { qpn: qp.qpn, qkey: QKey(1), private_data, ..SidrRep::default() };
                let _ = cm.sidr_reply(now, id, &rep, 0);
            }
            (15, Some(id)) => {
                // The attributes for RTR and those for RTS are available together.
                assert_eq!(cm.rtr(id).is_ok(), cm.rts(id).is_ok());
            }
            _ => {}
        }
    }

    fn collect(&mut self) {
        while let Some((id, _)) = self.cm.poll_event() {
            if !self.ids.contains(&id) && self.cm.state(id).is_some() {
                self.ids.push(id);
            }
        }
        while let Some((_, mad)) = self.cm.poll_transmit() {
            let sent = Mad::parse(&mad).expect("a sent MAD is valid");
            assert_eq!(sent.bytes(), mad);
            self.recent.push(mad);
        }
        let excess = self.recent.len().saturating_sub(8);
        self.recent.drain(..excess);
        self.ids.retain(|id| self.cm.state(*id).is_some());
        let (all, in_time_wait) = self.cm.connection_counts();
        assert!(
            all - in_time_wait <= MAX_CONNECTIONS && in_time_wait <= 16,
            "{all} connections, {in_time_wait} of them in TIME_WAIT"
        );
    }

    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.cm.poll_timeout().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.cm.handle_timeout(self.now);
            assert!(self.cm.poll_timeout().is_none_or(|next| next > at), "the deadline did not advance");
            self.collect();
        }
        self.now = end;
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(mad) = Mad::parse(data) {
        assert_eq!(Mad::parse(&mad.bytes()), Ok(mad));
        let _ = ip::IpHeader::parse(&data[MAD_HEADER_LEN..])
            .map(|h| assert!(ip::IpHeader::parse(&h.bytes()).is_ok()));
    }
    let config = CmConfig {
        max_connections: MAX_CONNECTIONS,
        max_time_wait: 16,
        max_queued_responses: 32,
        ..CmConfig::new(1, vec![gid(1)])
    };
    let mut world = World { cm: Cm::new(config, 1), now: Instant(1), ids: vec![], recent: vec![] };
    world.cm.listen(SERVICE).expect("nothing listens yet");
    let mut input = Input(data);
    while !input.0.is_empty() {
        match input.u8() % 8 {
            0..=3 => world.receive_mad(&mut input),
            4..=6 => world.call(&mut input),
            _ => {
                let time = Duration::from_millis(1 << (input.u8() % 16));
                world.advance(time);
            }
        }
        world.collect();
    }
    // The listener is removed first: otherwise no program would respond to its pending requests.
    world.cm.unlisten(world.now, SERVICE);
    world.collect();
    for id in std::mem::take(&mut world.ids) {
        world.cm.release(world.now, id);
    }
    world.collect();
    world.advance(Duration::from_secs(100_000));
    assert_eq!(world.cm.connection_counts(), (0, 0));
});

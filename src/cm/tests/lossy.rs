//! Connections between two connection managers over a simulated network that loses, duplicates and delays
//! messages, with programs that reject and release at random.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

use super::bench::{SERVICE, gid};
use crate::cm::*;
use crate::transport::{AddressVector, Instant};
use crate::wire::mad::{CommId, RejReason, Rep};
use crate::wire::{Mtu, Psn, Qpn};

/// Faults of the network and the programs. Rates are in units of 1/256; `delay` is the maximum delay of a
/// message.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u8,
    pub duplicate: u8,
    pub delay: Duration,
    /// Probability that a program rejects a request.
    pub reject_rate: u8,
    /// Probability that a program releases a connection on any event.
    pub release_rate: u8,
}

impl Faults {
    pub const NONE: Faults =
        Faults { loss: 0, duplicate: 0, delay: Duration::from_micros(10), reject_rate: 0, release_rate: 0 };
}

/// State of a connection as known to its program.
#[derive(Debug, Default)]
pub struct Progress {
    pub established: bool,
    /// End of the connection, as reported to the program; `None` until then.
    pub ended: Option<&'static str>,
    pub released: bool,
}

pub struct World {
    pub cms: [Cm; 2],
    pub now: Instant,
    pub sides: [BTreeMap<CommId, Progress>; 2],
    random: Pcg32,
    faults: Faults,
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sequence: u64,
    /// Disconnects that programs have scheduled, by time.
    disconnects: BTreeMap<(Instant, u64), (usize, ConnId)>,
    next_qpn: u32,
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        let cm = |i: u8| Cm::new(CmConfig::new(u64::from(i), vec![gid(i)]), seed * 2 + u64::from(i));
        World {
            cms: [cm(1), cm(2)],
            now: Instant(0),
            sides: Default::default(),
            random: Pcg32::new(seed, 5),
            faults,
            in_flight: BTreeMap::new(),
            sequence: 0,
            disconnects: BTreeMap::new(),
            next_qpn: 2,
        }
    }

    fn bernoulli(&mut self, of_256: u8) -> bool {
        (self.random.next_u32() & 0xff) < u32::from(of_256)
    }

    fn random_time(&mut self, at_most: Duration) -> Instant {
        self.now + Duration::from_nanos(u64::from(self.random.next_u32()) % at_most.as_nanos().max(1) as u64)
    }

    fn qp(&mut self) -> LocalQp {
        self.next_qpn += 1;
        LocalQp { qpn: Qpn::new(self.next_qpn), psn: Psn::new(7), srq: false }
    }

    fn request(&mut self, side: usize) -> Request<'static> {
        let path = Path::to(AddressVector::to(gid(2 - side as u8)), Mtu::Mtu1024);
        Request::new(SERVICE, self.qp(), path, b"hello")
    }

    pub fn connect(&mut self, side: usize) {
        let request = self.request(side);
        let id = self.cms[side].connect(self.now, &request).unwrap();
        self.sides[side].insert(id.0, Progress::default());
        self.collect();
    }

    /// Starts a simultaneous connect from both sides; side `order` sends first.
    pub fn connect_simultaneously(&mut self, order: usize) {
        for side in [order, 1 - order] {
            let request = Request { peer_to_peer: true, ..self.request(side) };
            let id = self.cms[side].connect(self.now, &request).unwrap();
            self.sides[side].insert(id.0, Progress::default());
        }
        self.collect();
    }

    /// Puts the queued messages on the network and delivers the queued events to the programs, until there
    /// are no more of either.
    fn collect(&mut self) {
        loop {
            let mut idle = true;
            for side in 0..2 {
                while let Some((to, mad)) = self.cms[side].poll_transmit() {
                    idle = false;
                    assert_eq!(to.dgid, gid(2 - side as u8));
                    let copies = if self.bernoulli(self.faults.loss) { 0 } else { 1 };
                    let duplicates = if self.bernoulli(self.faults.duplicate) { 1 } else { 0 };
                    for _ in 0..copies + duplicates {
                        let at = self.random_time(self.faults.delay) + Duration::from_nanos(1);
                        self.sequence += 1;
                        self.in_flight.insert((at, self.sequence), (1 - side, mad.to_vec()));
                    }
                }
                while let Some((id, event)) = self.cms[side].poll_event() {
                    idle = false;
                    self.handle_event(side, id, event);
                }
            }
            if idle {
                return;
            }
        }
    }

    /// Reacts to an event as a program would, or releases the connection at random.
    fn handle_event(&mut self, side: usize, id: ConnId, event: Event) {
        if let Event::Requested(_) = event {
            let progress = self.sides[side].entry(id.0).or_default();
            assert!(progress.ended.is_none(), "a request on a connection that has ended");
        }
        let progress = self.sides[side].get_mut(&id.0).expect("the event belongs to a known connection");
        assert!(!progress.released, "{event:?} of a released connection");
        assert_eq!(progress.ended, None, "{event:?} after the end");
        if self.bernoulli(self.faults.release_rate) {
            self.sides[side].get_mut(&id.0).unwrap().released = true;
            return self.cms[side].release(self.now, id);
        }
        let now = self.now;
        let rejects = matches!(event, Event::Requested(_)) && self.bernoulli(self.faults.reject_rate);
        let progress = self.sides[side].get_mut(&id.0).unwrap();
        match event {
            Event::Requested(_) if rejects => {
                progress.ended = Some("rejected locally");
                self.cms[side].reject(now, id, RejReason::Consumer, b"", b"no").unwrap();
            }
            Event::Requested(_) => {
                let LocalQp { qpn, psn, .. } = self.qp();
                let reply = Rep { qpn, psn, ..super::bench::reply(b"granted") };
                self.cms[side].accept(now, id, &reply, 0).unwrap();
            }
            Event::Accepted { info, .. } => {
                assert_eq!(&info.private_data[..7], b"granted");
                progress.established = true;
                self.cms[side].ready(id).unwrap();
                self.schedule_disconnect(side, id);
            }
            Event::Established => {
                progress.established = true;
                self.schedule_disconnect(side, id);
            }
            Event::Rejected(_) => progress.ended = Some("rejected"),
            Event::Unreachable => progress.ended = Some("unreachable"),
            Event::DisconnectRequested => self.cms[side].disconnect(now, id).unwrap(),
            Event::Disconnected => {}
            Event::TimeWaitOver => progress.ended = Some("time-wait"),
            other => panic!("{other:?}"),
        }
    }

    fn schedule_disconnect(&mut self, side: usize, id: ConnId) {
        let at = self.random_time(Duration::from_secs(4));
        self.sequence += 1;
        self.disconnects.insert((at, self.sequence), (side, id));
    }

    /// Runs until nothing is pending. Panics if that takes more than a day of virtual time.
    pub fn run_until_idle(&mut self) {
        loop {
            let timers = self.cms.each_ref().map(|cm| cm.poll_timeout());
            let next = [self.in_flight.keys().next(), self.disconnects.keys().next()].map(|k| k.map(|k| k.0));
            let Some(at) = timers.into_iter().chain(next).flatten().min() else { return };
            assert!(at < Instant(0) + Duration::from_secs(86_400), "the simulation does not end");
            self.now = at.max(self.now);
            if next[0] == Some(at) {
                let (_, (side, mad)) = self.in_flight.pop_first().unwrap();
                let from = AddressVector::to(gid(2 - side as u8));
                self.cms[side].handle_mad(at, &from, Qpn::GSI, &mad);
            } else if next[1] == Some(at) {
                let (_, (side, id)) = self.disconnects.pop_first().unwrap();
                if self.cms[side].state(id).is_some() {
                    self.cms[side].disconnect(self.now, id).unwrap();
                }
            } else {
                self.cms.iter_mut().for_each(|cm| cm.handle_timeout(at));
            }
            self.cms.iter().for_each(Cm::check);
            self.collect();
        }
    }

    /// Asserts that every connection has ended or was released by its program, and that the tables are empty.
    fn all_ended(&self) {
        for side in &self.sides {
            for (id, progress) in side {
                assert!(progress.released || progress.ended.is_some(), "{id:?}: {progress:?}");
            }
        }
        self.cms.iter().for_each(|cm| assert_eq!(cm.connection_counts(), (0, 0)));
    }
}

fn play(seed: u64, faults: Faults, connections: usize) -> World {
    let mut world = World::new(seed, faults);
    for cm in &mut world.cms {
        cm.listen(SERVICE).unwrap();
    }
    for i in 0..connections {
        world.connect(i % 2);
    }
    world.run_until_idle();
    world.all_ended();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Every connection ends exactly once on each side, and no state remains, whatever the faults.
    #[test]
    fn every_connection_ends_exactly_once_under_any_faults(
        seed: u64,
        loss: u8,
        duplicate in 0..100_u8,
        delay in 1..20_000_000_u64,
        reject_rate in 0..60_u8,
        release_rate in 0..60_u8,
    ) {
        let delay = Duration::from_micros(delay);
        play(seed >> 1, Faults { loss, duplicate, delay, reject_rate, release_rate }, 6);
    }

    /// Retransmission recovers from occasional losses.
    #[test]
    fn lost_messages_are_retransmitted_and_every_connection_completes(
        seed: u64,
        loss in 0..70_u8,
        duplicate in 0..100_u8,
        delay in 1..1_000_000_u64,
    ) {
        let delay = Duration::from_micros(delay);
        let faults = Faults { loss, duplicate, delay, ..Faults::NONE };
        let world = play(seed >> 1, faults, 6);
        for progress in world.sides[0].values().chain(world.sides[1].values()) {
            prop_assert_eq!(progress.ended, Some("time-wait"), "{:?}", progress);
        }
        let counts = world.sides.each_ref().map(|e| e.len());
        prop_assert_eq!(counts, [6, 6]);
    }
}

#[test]
fn same_seed_reproduces_the_same_run() {
    let faults =
        Faults { loss: 60, duplicate: 60, delay: Duration::from_secs(3), reject_rate: 20, release_rate: 20 };
    let outcome = |seed| {
        let world = play(seed, faults, 10);
        (world.now, world.sequence, *world.cms[0].counters(), *world.cms[1].counters())
    };
    assert_eq!(outcome(3), outcome(3));
    assert_ne!(outcome(3), outcome(4));
}

#[test]
fn no_state_remains_after_thousands_of_connections() {
    let mut world = play(1, Faults::NONE, 1000);
    assert!(world.sides.iter().flatten().all(|(_, p)| p.established));
    for i in 0..10_000 {
        world.connect(i % 2);
        if i % 100 == 99 {
            world.run_until_idle();
        }
    }
    world.run_until_idle();
    world.all_ended();
    assert_eq!(world.sides.each_ref().map(|e| e.len()), [11_000, 11_000]);
    assert!(world.sides.iter().flatten().all(|(_, p)| p.established && p.ended == Some("time-wait")));
}

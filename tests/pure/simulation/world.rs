//! A simulation of two NICs: posts random work requests, runs the fabric, and checks every completion and the
//! memory against what was posted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::fabric::Outcome;
use urxe::verbs::*;

use crate::scenario::Scenario;
use crate::side::*;
use urxe_test_support::ring::Ring;
use urxe_test_support::rng::Rng;

/// Bound of the virtual time until everything has completed: nothing retries for longer.
const BOUND: Duration = Duration::from_secs(60);

struct World {
    scenario: Scenario,
    fabric: Fabric,
    sides: [Side; 2],
    /// Rings by the side that writes them, if they carry the packets.
    rings: Option<[Arc<Mutex<Ring>>; 2]>,
    addresses: [IpAddr; 2],
    /// Whether work requests may fail.
    may_fail: bool,
    completions: Vec<Completion>,
    log: DefaultHasher,
    verbose: bool,
}

impl World {
    fn new(scenario: Scenario, verbose: bool) -> World {
        if verbose {
            println!("{scenario:#?}");
        }
        let fabric = Fabric::virtual_time(scenario.wire.clone()).unwrap();
        let mut addresses = [(); 2].map(|()| fabric.auto_address().to_vec());
        let rings = scenario.rings.map(|_| {
            // A ring is for packets between two addresses.
            for both in &mut addresses {
                both.swap_remove((scenario.wire.seed % 2) as usize);
            }
            [(0, 1), (1, 0)].map(|(from, to)| {
                let has_icrcs = !scenario.faults[from].is_empty();
                Arc::new(Mutex::new(Ring::new(addresses[from][0], addresses[to][0], !has_icrcs)))
            })
        });
        let sides = [0, 1].map(|n| Side::new(&fabric, &scenario, n, &addresses, rings.as_ref()));
        sides[0].connect(&sides[1], &scenario.connect);
        sides[1].connect(&sides[0], &scenario.connect);
        World {
            addresses: sides.each_ref().map(|side| side.context.address().unwrap()),
            may_fail: scenario.is_harsh,
            fabric,
            sides,
            rings,
            scenario,
            completions: Vec::new(),
            log: DefaultHasher::new(),
            verbose,
        }
    }

    /// Returns side `n` and its peer.
    fn pair(&mut self, n: usize) -> (&mut Side, &mut Side) {
        let [a, b] = &mut self.sides;
        if n == 0 { (a, b) } else { (b, a) }
    }

    /// Posts a random work request on side `n`, and records its expected result.
    fn post(&mut self, n: usize, r: &mut Rng) {
        let (me, peer) = self.pair(n);
        let id = me.works.len();
        if id == MAX_WORK || me.is_removed {
            return;
        }
        let f = r.below(me.ends.len() as u64) as usize;
        let transport = me.ends[f].transport;
        let mut len = r.pick(&[0, 1, 8, 100, 256, 1000, 1024, 3000, 4096, MAX_LEN]);
        let kind = r.below(match transport {
            QpType::Ud => 2,
            QpType::Uc => 4,
            _ => 7,
        });
        match (transport, kind) {
            (QpType::Ud, _) => len = len.min(4096),
            (_, 5 | 6) => len = 8,
            _ => {}
        }
        let is_inline = len <= 256 && kind < 4 && r.percent(40);
        let from = r.below((SOURCE - len) as u64 + 1) as usize;
        let cut = r.below(len as u64 + 1) as usize;
        let mr = if kind == 4 { &me.target } else { &me.source };
        let at = if kind == 4 { read_place(id, len).start } else { from };
        let mut sges = [mr.sge(at..at + cut), mr.sge(at + cut..at + len)];
        let word = 8 * (me.ends.len() + id);
        let mut elements = &sges[..];
        if kind > 4 {
            sges[0] = me.words.sge(word..word + 8);
            elements = &sges[..1];
        }
        let imm = id as u32 ^ 0xabcd_0000;
        let (at_peer, words, before) =
            (peer.target.remote(write_place(id, len).start), peer.words.remote(8 * f), me.ends[f].word);
        let after = match kind {
            5 => before.wrapping_add(r.next()),
            6 => r.next(),
            _ => before,
        };
        let wr_id = id as u64;
        let (wr, imm) = match kind {
            0 => (SendWr::send(wr_id, elements), None),
            1 => (SendWr::send_imm(wr_id, elements, imm), Some(imm)),
            2 => (SendWr::write(wr_id, elements, at_peer), None),
            3 => (SendWr::write_imm(wr_id, elements, at_peer, imm), Some(imm)),
            4 => (SendWr::read(wr_id, elements, peer.source.remote(from)), None),
            5 => (SendWr::fetch_add(wr_id, elements, words, after.wrapping_sub(before)), None),
            _ => (SendWr::compare_swap(wr_id, elements, words, before, after), None),
        };
        let (effect, opcode) = match kind {
            0 | 1 => (Effect::Send, WcOpcode::Send),
            2 | 3 => (Effect::Write, WcOpcode::RdmaWrite),
            4 => (Effect::Read, WcOpcode::RdmaRead),
            5 => (Effect::Atomic { before, after }, WcOpcode::FetchAdd),
            _ => (Effect::Atomic { before, after }, WcOpcode::CompSwap),
        };
        let wr = if is_inline { wr.inline(&source(n)[from..from + len]) } else { wr };
        let signaled = r.percent(80);
        let flags = SendFlags { signaled, solicited: r.percent(20), fence: kind > 4 && r.percent(30) };
        let wr = wr.flags(flags).to(me.destination(f, peer));
        me.ends[f].qp.post_send(&wr).unwrap();
        let end = &mut me.ends[f];
        let message = matches!(kind, 0 | 1 | 3).then_some(end.messages);
        end.messages += usize::from(message.is_some());
        end.sends.push(id);
        end.word = after;
        me.works.push(Work { end: f, opcode, from, len, imm, signaled, effect, message, succeeded: false });
    }

    /// Stops a side, or a part of it.
    fn stop(&mut self, r: &mut Rng) {
        let n = r.below(2) as usize;
        let (address, side) = (self.addresses[n], &mut self.sides[n]);
        let qp = &side.ends[r.below(side.ends.len() as u64) as usize].qp;
        match r.below(4) {
            0 => self.fabric.set_port_up(address, false).unwrap(),
            1 => qp.modify(&QpAttr::new(QpState::Err)).unwrap(),
            2 => self.fabric.inject_event(address, AsyncEvent::QpFatal(qp.qpn())).unwrap(),
            _ => {
                self.fabric.remove_device(address).unwrap();
                side.is_removed = true;
            }
        }
    }

    /// Runs the fabric for `steps` steps, and polls completions after each.
    fn step(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.fabric.step().is_none() {
                break;
            }
            self.collect();
        }
    }

    /// Polls all completion queues, those for receives first: what a sender has completed must have arrived.
    fn collect(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for (is_send, n) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            let side = &self.sides[n];
            let cq = if is_send { &side.send_cq } else { &side.recv_cq };
            cq.poll(256, &mut completions).unwrap();
            for c in completions.drain(..) {
                (self.fabric.now(), n, c.wr_id, c.status, c.opcode, c.byte_len).hash(&mut self.log);
                if self.verbose {
                    println!("{:?} side {n}: {c:?}", self.fabric.now());
                }
                match is_send {
                    true => self.on_send(n, &c),
                    false => self.on_recv(n, &c),
                }
            }
        }
        self.completions = completions;
    }

    fn on_recv(&mut self, n: usize, c: &Completion) {
        let (is_ordered, may_fail) = (self.scenario.is_ordered(), self.may_fail);
        let (me, peer) = self.pair(n);
        let id = c.wr_id as usize;
        let earlier = me.recvs[id].status.replace(c.status);
        assert_eq!(earlier, None, "side {n}: second completion of a receive: {c:?}");
        if c.status != WcStatus::Success {
            assert!(may_fail && c.status == WcStatus::WrFlushErr, "side {n}: {c:?}");
            return;
        }
        let f = me.end_of(c.qpn);
        let end = &me.ends[f];
        assert_eq!(end.queue, me.recvs[id].queue, "side {n}: a receive of another queue: {c:?}");
        let header = if end.transport == QpType::Ud { grh::LEN } else { 0 };
        let matches = |work: &Work| {
            let data = &source(1 - n)[work.from..work.from + work.len];
            let (opcode, mr, place) = match work.effect {
                Effect::Send => (WcOpcode::Recv, &me.recv_buffers, recv_place(id, end.transport, work.len)),
                _ => (
                    WcOpcode::RecvRdmaWithImm,
                    &me.target,
                    write_place(c.imm.unwrap_or(0) as usize & 0xffff, work.len),
                ),
            };
            (c.opcode, c.byte_len as usize, c.imm) == (opcode, work.len + header, work.imm)
                && mr.read_vec(place).unwrap() == data
        };
        let is_reliable = end.is_reliable();
        let first = if is_reliable || is_ordered { end.arrived } else { 0 };
        let messages = peer.ends[f].sends.iter().filter(|i| peer.works[**i].message.is_some());
        let mut candidates = messages.enumerate().skip(first).take(if is_reliable { 1 } else { usize::MAX });
        let found = candidates.find(|(_, i)| matches(&peer.works[**i]));
        let (index, work) =
            found.unwrap_or_else(|| panic!("side {n}: no such message was sent, or its data differs: {c:?}"));
        me.recvs[id].message = Some(*work);
        me.ends[f].arrived = index + 1;
    }

    fn on_send(&mut self, n: usize, c: &Completion) {
        let may_fail = self.may_fail;
        let side = &mut self.sides[n];
        let id = c.wr_id as usize;
        let f = side.works[id].end;
        let end = &mut side.ends[f];
        let pending = &end.sends[end.completed..];
        let position = pending.iter().position(|i| *i == id);
        let position = position.unwrap_or_else(|| panic!("side {n}: second completion: {c:?}"));
        let skipped: Vec<usize> = pending[..position].to_vec();
        end.completed += position + 1;
        for i in &skipped {
            assert!(
                !side.works[*i].signaled && end.error.is_none(),
                "side {n}: no completion of {i} before {c:?}"
            );
        }
        if c.status == WcStatus::Success {
            assert_eq!((end.error, side.works[id].signaled), (None, true), "side {n}: {c:?}");
            let Work { opcode, len, .. } = side.works[id];
            assert_eq!((c.opcode, c.byte_len as usize), (opcode, len), "side {n}: {c:?}");
        } else {
            let expected: &[WcStatus] = match end.error {
                None => &[WcStatus::RetryExcErr, WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr],
                Some(_) => &[WcStatus::WrFlushErr],
            };
            assert!(may_fail && expected.contains(&c.status), "side {n}: {c:?}");
            end.error = end.error.or(Some(c.status));
        }
        skipped.into_iter().for_each(|i| self.succeed(n, i));
        if c.status == WcStatus::Success {
            self.succeed(n, id);
        }
    }

    /// Checks that work request `id`, which has succeeded, has had its effect.
    fn succeed(&mut self, n: usize, id: usize) {
        let (me, peer) = self.pair(n);
        let work = &mut me.works[id];
        let (f, len) = (work.end, work.len);
        let holds = |mr: &Mr, place: Range<usize>, side: usize| {
            mr.read_vec(place).unwrap() == source(side)[work.from..work.from + len]
        };
        if !me.ends[f].is_reliable() {
            return;
        }
        let has_effect = match work.effect {
            Effect::Send => true,
            Effect::Write => holds(&peer.target, write_place(id, len), n),
            Effect::Read => holds(&me.target, read_place(id, len), 1 - n),
            Effect::Atomic { before, .. } => {
                me.words.buffer().load_u64(8 * (me.ends.len() + id)) == Ok(before)
            }
        };
        assert!(has_effect, "side {n}: the memory does not match {id}: {work:?}");
        assert!(
            work.message < Some(peer.ends[f].arrived),
            "side {n}: the peer has not received {id}: {work:?}"
        );
        work.succeeded = true;
    }

    /// Runs until nothing is pending, and checks that this ends.
    fn settle(&mut self) {
        self.step(200_000);
        let idle = self.fabric.run_until_idle(BOUND);
        self.collect();
        assert_eq!(idle, Outcome::Idle, "at {:?}", self.fabric.now());
        for (n, side) in self.sides.iter().enumerate() {
            for end in &side.ends {
                let pending = &end.sends[end.completed..];
                let hangs = pending.iter().any(|i| side.works[*i].signaled || end.error.is_some());
                assert!(
                    !hangs,
                    "side {n}: {:?} {}: no completion of {pending:?}",
                    end.transport,
                    end.qp.qpn()
                );
            }
        }
    }

    /// Posts the receives that are still missing, waits for all completions, flushes what is outstanding, and
    /// checks the final state.
    fn finish(mut self, r: &mut Rng) -> u64 {
        for n in 0..2 {
            if !self.sides[n].is_removed && r.percent(70) {
                self.fabric.set_port_up(self.addresses[n], true).unwrap();
            }
            let (me, peer) = self.pair(n);
            for queue in 0..me.queues.len() {
                let ends = me.ends.iter().zip(&peer.ends).filter(|(end, _)| end.queue == queue);
                // A connection that fails may have consumed one receive more.
                let needed: usize = ends.map(|(_, from)| from.messages + 1).sum();
                while me.queues[queue].posted < needed && !me.is_removed {
                    me.post_recv(queue);
                }
            }
        }
        self.settle();
        if !self.scenario.is_harsh {
            for end in self.sides.iter().flat_map(|side| &side.ends) {
                assert_eq!((end.qp.state(), end.receiver().state()), (QpState::Rts, QpState::Rts));
            }
        }
        self.may_fail = true;
        self.sides.iter().for_each(Side::stop);
        self.settle();
        for n in 0..2 {
            self.check_exactly_once(n);
            self.check_memory(n);
        }
        if let Some(rings) = self.rings.as_ref().filter(|_| !self.scenario.is_harsh) {
            assert!(
                rings.iter().all(|ring| ring.lock().is_empty()),
                "a reader sleeps although bursts are waiting"
            );
        }
        let counters = self.sides.iter().flat_map(|side| side.context.counters().iter().collect::<Vec<_>>());
        counters.for_each(|c| c.hash(&mut self.log));
        (self.fabric.now(), self.fabric.counters().carried).hash(&mut self.log);
        self.log.finish()
    }

    /// Checks that nothing is outstanding: without a completion are only receives left in a shared queue, and
    /// unsignaled sends that have succeeded.
    fn check_exactly_once(&mut self, n: usize) {
        let ends = &self.sides[n].ends;
        let silent: Vec<usize> = ends.iter().flat_map(|end| end.sends[end.completed..].to_vec()).collect();
        silent.into_iter().for_each(|i| self.succeed(n, i));
        let side = &self.sides[n];
        for (i, queue) in side.queues.iter().enumerate() {
            let pending = side.recvs.iter().filter(|recv| recv.queue == i && recv.status.is_none()).count();
            let left = queue.srq.as_ref().map_or(0, |srq| srq.query().len);
            assert_eq!(pending, left, "side {n}: receives without a completion");
        }
    }

    /// Checks that the memory of side `n` holds what arrived and what may have arrived, and nothing else.
    fn check_memory(&self, n: usize) {
        let (me, peer) = (&self.sides[n], &self.sides[1 - n]);
        assert!(me.source.to_vec() == source(n), "side {n}: the source region was modified");
        let target = me.target.to_vec();
        let mut expected = vec![0; target.len()];
        let writes = peer.works.iter().enumerate().filter(|(_, w)| matches!(w.effect, Effect::Write));
        let reads = me.works.iter().enumerate().filter(|(_, w)| matches!(w.effect, Effect::Read));
        let writes = writes.map(|(i, work)| (work, write_place(i, work.len)));
        let reads = reads.map(|(i, work)| (work, read_place(i, work.len)));
        for (work, place) in writes.chain(reads) {
            let data = &source(1 - n)[work.from..work.from + work.len];
            for (at, byte) in place.zip(data) {
                // An incomplete message may have stored any part of its data.
                expected[at] = if work.succeeded || target[at] == *byte { *byte } else { 0 };
            }
        }
        let at = target.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(at, None, "side {n}: wrong data in the target region, first at this byte");
        for (i, recv) in me.recvs.iter().enumerate() {
            let Some(work) = recv.message.map(|message| peer.works[message]) else { continue };
            if matches!(work.effect, Effect::Send) {
                let place = recv_place(i, me.ends[work.end].transport, work.len);
                let received = me.recv_buffers.read_vec(place).unwrap();
                assert!(
                    received == source(1 - n)[work.from..work.from + work.len],
                    "side {n}: receive {i} was modified"
                );
            }
        }
        for (f, end) in peer.ends.iter().enumerate() {
            let word = me.words.buffer().load_u64(8 * f).unwrap();
            let mut possible = vec![0];
            for work in end.sends.iter().map(|i| &peer.works[*i]) {
                if let Effect::Atomic { after, .. } = work.effect {
                    if work.succeeded {
                        possible.clear();
                    }
                    possible.push(after);
                }
            }
            assert!(possible.contains(&word), "side {n}: word {f} is {word}, expected one of {possible:?}");
        }
    }
}

/// Runs a random sequence of verbs calls, and returns a hash of all completions, their times, and the final
/// counters.
pub fn run(seed: u64, scenario: fn(&mut Rng) -> Scenario, verbose: bool) -> u64 {
    let mut r = Rng::new(seed);
    let mut world = World::new(scenario(&mut r), verbose);
    let count = 1 + r.below(MAX_WORK as u64);
    let stop = (world.scenario.is_harsh && r.percent(70)).then(|| r.below(count));
    for i in 0..count {
        if r.below(4) > 0 {
            for side in world.sides.iter_mut().filter(|side| side.recvs.len() < EARLY_RECVS) {
                side.post_recv(r.below(side.queues.len() as u64) as usize);
            }
        }
        let n = r.below(2) as usize;
        if i % 4 == 0 {
            world.post(1 - n, &mut r);
        }
        world.post(n, &mut r);
        let steps = r.pick(&[0, 0, 1, 5, 50]);
        world.step(steps);
        if stop == Some(i) {
            world.stop(&mut r);
        }
    }
    world.finish(&mut r)
}

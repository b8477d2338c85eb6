//! Tests of simulated networks in virtual time: topologies, bandwidth and latency, marking, flow control,
//! ECMP, wires that go down, and replay from a seed.

use std::time::Duration;

use urxe::fabric::FabricError;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe_netsim::{Node, Pfc, QueueCounters, Red, Simulation, SwitchConfig, Topology, TopologyError, Wire};

const US: Duration = Duration::from_micros(1);
/// Limit of waits in virtual time.
const LONG: Duration = Duration::from_secs(60);
/// Payload of a full packet, and the bytes that it occupies on a wire: headers of IPv6, UDP, BTH, ICRC,
/// Ethernet, and preamble and gap.
const MTU: usize = 4096;
const ON_WIRE: usize = MTU + 48 + 12 + 4 + 18 + 20;

use Node::{Host, Switch};

fn contexts(simulation: &Simulation, hosts: usize) -> Vec<Context> {
    (0..hosts).map(|_| Context::on_fabric(simulation.fabric()).unwrap()).collect()
}

/// A connection that sends messages in one direction.
struct Flow {
    from: TestEndpoint,
    _to: TestEndpoint,
    source: Mr,
    target: Mr,
    posted: usize,
}

impl Flow {
    fn new(from: &Context, to: &Context, options: &ConnectOptions) -> Flow {
        let from = TestEndpoint::new(from.clone()).unwrap();
        let to = TestEndpoint::new(to.clone()).unwrap();
        from.connect(&to, options).unwrap();
        let source = from.pd.reg_mr(1 << 20, Access::ALL).unwrap();
        let target = to.pd.reg_mr(1 << 20, Access::ALL).unwrap();
        Flow { from, _to: to, source, target, posted: 0 }
    }

    /// Posts WRITEs of `len` bytes each.
    fn write(&mut self, messages: usize, len: usize) {
        for _ in 0..messages {
            let (id, sges) = (self.posted as u64, [self.source.sge(0..len)]);
            self.from.qp.post_send(&SendWr::write(id, &sges, self.target.remote(0))).unwrap();
            self.posted += 1;
        }
    }

    /// Waits until all messages have completed, and returns the time in nanoseconds at which the last has.
    fn finish(&mut self) -> u64 {
        let mut last = 0;
        while self.posted > 0 {
            self.from.cq.wait(LONG).unwrap();
            self.posted -= 1;
            last = self.from.context.clock();
        }
        last
    }
}

fn finish(flows: &mut [Flow]) -> Vec<u64> {
    flows.iter_mut().map(Flow::finish).collect()
}

/// Creates one flow from each of the hosts 1 to `senders` to host 0, with the given traffic class.
fn incast(simulation: &Simulation, senders: usize, traffic_class: u8) -> Vec<Flow> {
    let contexts = contexts(simulation, senders + 1);
    let options = ConnectOptions::default().traffic_class(traffic_class);
    contexts[1..].iter().map(|from| Flow::new(from, &contexts[0], &options)).collect()
}

fn small_buffer() -> SwitchConfig {
    SwitchConfig::default().buffer(400_000)
}

fn small_pfc() -> Pfc {
    Pfc::default().xoff(40_000).xon(30_000)
}

#[test]
fn packet_takes_the_latency_and_the_transmission_time_of_every_wire() {
    // An empty SEND: 102 bytes on the wire, 8.16 ns at 100 Gb/s.
    for (topology, wires) in [(Topology::pair(), 1), (Topology::star(2), 2), (Topology::dumbbell(1), 3)] {
        let simulation = Simulation::new(&topology, 1).unwrap();
        let (a, b) = simulation.fabric().pair().unwrap();
        b.qp.post_recv(&RecvWr::empty(1)).unwrap();
        a.qp.post_send(&SendWr::send(2, &[])).unwrap();
        b.cq.wait(LONG).unwrap();
        assert_eq!(b.context.clock(), (wires * 1_008_160_u64).div_ceil(1000));
    }
}

#[test]
fn message_is_sent_without_gaps_at_the_rate_of_the_wire() {
    let simulation = Simulation::new(&Topology::star(2), 1).unwrap();
    let (a, b) = simulation.fabric().pair().unwrap();
    let packets = 128;
    let source = a.pd.reg_mr(packets * MTU, Access::ALL).unwrap();
    let target = b.pd.reg_mr(packets * MTU, Access::ALL).unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[target.sge(0..packets * MTU)])).unwrap();
    a.qp.post_send(&SendWr::send(2, &[source.sge(0..packets * MTU)])).unwrap();
    b.cq.wait(LONG).unwrap();
    // All packets on the first wire, then the last one on the second.
    let picos = (packets as u64 + 1) * ON_WIRE as u64 * 80 + 2_000_000;
    assert_eq!(b.context.clock(), picos.div_ceil(1000));
}

#[test]
fn every_topology_delivers_from_each_host_to_another() {
    let topologies = [
        Topology::pair(),
        Topology::star(5),
        Topology::incast(4),
        Topology::dumbbell(3),
        Topology::parking_lot(4),
        Topology::ring(5),
        Topology::leaf_spine(2, 3, 2),
        Topology::fat_tree(4),
    ];
    for topology in topologies {
        let hosts = topology.host_count();
        let simulation = Simulation::new(&topology, 3).unwrap();
        let contexts = contexts(&simulation, hosts);
        let options = ConnectOptions::default();
        let flow = |i: usize| Flow::new(&contexts[i], &contexts[(i + hosts / 2) % hosts], &options);
        let mut flows: Vec<Flow> = (0..hosts).map(flow).collect();
        for (i, flow) in flows.iter_mut().enumerate() {
            flow.source.write(0, &[i as u8 + 1; 20_000]).unwrap();
            flow.write(2, 20_000);
        }
        finish(&mut flows);
        for (i, flow) in flows.iter().enumerate() {
            assert_eq!(flow.target.read_vec(0..20_000).unwrap(), vec![i as u8 + 1; 20_000]);
        }
        let counters = simulation.counters();
        assert_eq!((counters.dropped, counters.lost, counters.unroutable), (0, 0, 0), "{hosts} hosts");
        assert!(Context::on_fabric(simulation.fabric()).is_err(), "all hosts have a NIC");
    }
}

#[test]
fn two_flows_from_one_nic_share_its_wire() {
    let simulation = Simulation::new(&Topology::star(3), 1).unwrap();
    let contexts = contexts(&simulation, 3);
    let options = ConnectOptions::default();
    let mut flows = [1, 2].map(|to| Flow::new(&contexts[0], &contexts[to], &options));
    // The second starts when the first already has a long queue.
    flows.iter_mut().for_each(|flow| flow.write(8, 256 << 10));
    let ends = finish(&mut flows);
    let alone = (8 * (256 << 10) / MTU * ON_WIRE) as u64 * 80 / 1000;
    assert!(
        ends.iter().all(|end| (2 * alone - 50_000..2 * alone + 50_000).contains(end)),
        "{ends:?}, {alone}"
    );
}

#[test]
fn incast_drops_packets_without_flow_control_and_none_with_it() {
    for pfc in [None, Some(small_pfc())] {
        let topology = Topology::incast(8).switches(small_buffer().pfc(pfc));
        let simulation = Simulation::new(&topology, 1).unwrap();
        let mut flows = incast(&simulation, 8, 3 << 5);
        flows.iter_mut().for_each(|flow| flow.write(10, 100_000));
        finish(&mut flows);
        let counters = simulation.counters();
        assert_eq!(counters.dropped == 0, pfc.is_some(), "{counters:?}");
        assert_eq!(counters.pauses > 0, pfc.is_some());
        for host in 1..=8 {
            let input = simulation.input(Host(host), Switch(0), 3).unwrap();
            assert!(input.max_headroom <= input.headroom);
            assert_eq!((input.pauses > 0, input.headroom_drops, input.queued), (pfc.is_some(), 0, 0));
            let uplink = simulation.queue(Host(host), Switch(0), 3).unwrap();
            assert_eq!(uplink.pauses, input.pauses);
            assert_eq!(uplink.paused_ns > 0, pfc.is_some());
        }
    }
}

#[test]
fn incast_with_flow_control_fills_the_receivers_wire() {
    for senders in [2, 4, 8, 16] {
        let switch = SwitchConfig::default().pfc(small_pfc());
        let simulation = Simulation::new(&Topology::incast(senders).switches(switch), 1).unwrap();
        let mut flows = incast(&simulation, senders, 0);
        flows.iter_mut().for_each(|flow| flow.write(8, 250_000));
        let ends = finish(&mut flows);
        let last = *ends.iter().max().unwrap();
        let bytes = simulation.queue(Switch(0), Host(0), 0).unwrap().bytes;
        let utilisation = (bytes * 8) as f64 / (last * 100) as f64;
        assert!(utilisation > 0.98, "{senders}:1: {utilisation}");
        // Round trips of pause frames do not drain the queues, so all get the same share.
        assert!(*ends.iter().min().unwrap() > last * 8 / 10, "{ends:?}");
    }
}

#[test]
fn pause_of_one_priority_does_not_stop_another() {
    let switch = SwitchConfig::default().pfc(small_pfc());
    let simulation = Simulation::new(&Topology::star(5).switches(switch), 1).unwrap();
    let contexts = contexts(&simulation, 5);
    let lossless = ConnectOptions::default().traffic_class(3 << 5);
    let mut incast: Vec<Flow> = (1..4).map(|i| Flow::new(&contexts[i], &contexts[0], &lossless)).collect();
    incast.iter_mut().for_each(|flow| flow.write(20, 250_000));
    simulation.fabric().advance(200 * US);
    assert!(simulation.queue(Host(1), Switch(0), 3).unwrap().pauses > 0);
    let mut other = Flow::new(&contexts[1], &contexts[4], &ConnectOptions::default());
    let start = simulation.fabric().now();
    other.write(1, 250_000);
    let time = other.finish() - start.0;
    // Half of the wire in the worst case.
    assert!(time < 50_000, "{time} ns");
    assert_eq!(simulation.queue(Host(1), Switch(0), 0).unwrap().pauses, 0);
    finish(&mut incast);
}

#[test]
fn queue_pair_that_is_paused_for_ever_completes_its_work_when_it_enters_err() {
    // XON cannot be reached while the receiver's wire takes hours for a packet.
    let slow = Wire::default().bandwidth(1);
    let switch = SwitchConfig::default().pfc(Pfc::default().xoff(4000).xon(0));
    let topology = Topology::star(2).switches(switch).wire(Host(1), Switch(0), slow);
    let simulation = Simulation::new(&topology, 1).unwrap();
    let contexts = contexts(&simulation, 2);
    let options = ConnectOptions::default().timeout(urxe::wire::AckTimeout::new(0));
    let mut flow = Flow::new(&contexts[0], &contexts[1], &options);
    flow.write(3, 100_000);
    simulation.fabric().advance(100 * US);
    assert!(simulation.queue(Host(0), Switch(0), 0).unwrap().pauses > 0);
    flow.from.qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    simulation.fabric().advance(US);
    let mut completions = Vec::new();
    assert_eq!(flow.from.cq.poll(8, &mut completions).unwrap(), 3);
    assert!(completions.iter().all(|completion| completion.status == WcStatus::WrFlushErr));
}

/// Returns Jain's fairness index.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn dcqcn_keeps_an_incast_below_the_thresholds_of_flow_control() {
    let ecn = Red::new(40_000, 200_000, 0.1);
    let switch = SwitchConfig::default().ecn(ecn).pfc(Pfc::default().xoff(400_000).xon(390_000));
    let simulation = Simulation::new(&Topology::incast(4).switches(switch), 1).unwrap();
    let options = ContextOptions::default().congestion(Congestion::DCQCN_CONNECTX);
    let context = |host: usize| {
        let port = simulation.port(host, &simulation.fabric().auto_address()).unwrap();
        Context::on_port(port, &options, |port| Box::new(port)).unwrap()
    };
    let contexts: Vec<Context> = (0..5).map(context).collect();
    let connect = ConnectOptions::default().traffic_class(26 << 2 | 2);
    let mut flows: Vec<Flow> =
        contexts[1..].iter().map(|from| Flow::new(from, &contexts[0], &connect)).collect();
    flows.iter_mut().for_each(|flow| flow.write(120, 1 << 20));
    let sent =
        || -> Vec<u64> { (1..5).map(|i| simulation.queue(Host(i), Switch(0), 3).unwrap().bytes).collect() };
    let pauses = || simulation.counters().pauses;
    simulation.fabric().advance(Duration::from_millis(5));
    let (before, pauses_before) = (sent(), pauses());
    let queue = simulation.queue(Switch(0), Host(0), 3).unwrap();
    simulation.sample(Switch(0), Host(0), 3, US).unwrap();
    simulation.fabric().advance(Duration::from_millis(15));
    let shares: Vec<f64> = sent().iter().zip(&before).map(|(now, then)| (now - then) as f64).collect();
    let delivered = simulation.queue(Switch(0), Host(0), 3).unwrap().bytes - queue.bytes;
    let utilisation = (delivered * 8) as f64 / (15e-3 * 100e9);
    let mut lengths = simulation.take_samples(Switch(0), Host(0), 3).unwrap();
    lengths.sort_unstable();
    let p99 = lengths[lengths.len() * 99 / 100];
    println!("Jain {:.4}, utilisation {utilisation:.4}, queue p99 {p99}", jain(&shares));
    assert!(contexts[0].counters().np_cnp_sent > 100);
    assert_eq!((pauses() - pauses_before, simulation.counters().dropped), (0, 0));
    assert!(jain(&shares) > 0.98 && utilisation > 0.97 && p99 <= 200_000);
}

/// Runs an incast to host 4 behind switch 1, and a flow from host 3 to host 7 that shares with it only the
/// wire between the switches. Returns the completion time of that flow.
fn victim(pfc: Option<Pfc>) -> u64 {
    let fast = Wire::default().bandwidth(400_000_000_000);
    let switch = SwitchConfig::default().pfc(pfc);
    let topology = Topology::dumbbell(4).wire(Switch(0), Switch(1), fast).switches(switch);
    let simulation = Simulation::new(&topology, 1).unwrap();
    let contexts = contexts(&simulation, 8);
    let options = ConnectOptions::default();
    let mut flows: Vec<Flow> =
        [0, 1, 2, 5, 6].map(|from| Flow::new(&contexts[from], &contexts[4], &options)).into();
    flows.iter_mut().for_each(|flow| flow.write(16, 250_000));
    let mut victim = Flow::new(&contexts[3], &contexts[7], &options);
    victim.write(4, 250_000);
    let time = victim.finish();
    finish(&mut flows);
    assert_eq!(simulation.counters().dropped, 0);
    time
}

#[test]
fn flow_control_makes_a_flow_suffer_that_does_not_use_the_congested_wire() {
    let (lossy, lossless) = (victim(None), victim(Some(small_pfc())));
    let alone = (1_000_000 / MTU * ON_WIRE) as u64 * 80 / 1000;
    assert!(lossy < alone * 11 / 10 + 10_000, "{lossy} ns instead of {alone} ns");
    assert!(lossless > 2 * lossy, "{lossless} ns instead of {lossy} ns");
}

#[test]
fn packets_are_marked_with_the_probability_that_the_queue_length_gives() {
    let red = Red::new(20_000, 400_000, 0.2);
    let switch = SwitchConfig::default().ecn(red);
    let simulation = Simulation::new(&Topology::incast(2).switches(switch).window(200_000), 5).unwrap();
    let mut flows = incast(&simulation, 2, 2);
    // The queue is sampled once per packet.
    let packet = Duration::from_nanos((ON_WIRE as u64 * 80).div_ceil(1000));
    simulation.sample(Switch(0), Host(0), 0, packet).unwrap();
    flows.iter_mut().for_each(|flow| flow.write(40, 250_000));
    finish(&mut flows);
    let samples = simulation.take_samples(Switch(0), Host(0), 0).unwrap();
    let probability = |bytes: u64| match bytes {
        ..=20_000 => 0.0,
        400_000.. => 1.0,
        _ => 0.2 * (bytes - 20_000) as f64 / 380_000.0,
    };
    let expected: f64 = samples.iter().map(|bytes| probability(*bytes)).sum();
    let QueueCounters { marked, packets, .. } = simulation.queue(Switch(0), Host(0), 0).unwrap();
    assert!(expected > 200.0 && packets > 4000, "{expected} of {packets}");
    // Four standard deviations.
    assert!(
        (marked as f64 - expected).abs() < 4.0 * expected.sqrt() + 0.02 * expected,
        "{marked}, {expected}"
    );
    assert_eq!(simulation.counters().marked, marked);
}

#[test]
fn only_ecn_capable_packets_are_marked_and_none_up_to_k_min() {
    for (ecn, k_min, marks) in [(0, 0, false), (2, 10_000_000, false), (2, 0, true), (1, 0, true)] {
        let switch = SwitchConfig::default().ecn(Red::new(k_min, k_min, 1.0));
        let simulation = Simulation::new(&Topology::incast(2).switches(switch), 5).unwrap();
        let mut flows = incast(&simulation, 2, ecn);
        flows.iter_mut().for_each(|flow| flow.write(2, 100_000));
        finish(&mut flows);
        assert_eq!(simulation.counters().marked > 0, marks, "{ecn}, {k_min}");
    }
}

#[test]
fn circle_of_paused_wires_is_reported_as_a_deadlock() {
    let switch = SwitchConfig::default().pfc(small_pfc());
    for (switches, distance, deadlock) in [(5, 2, true), (3, 1, false)] {
        let simulation = Simulation::new(&Topology::ring(switches).switches(switch), 1).unwrap();
        let contexts = contexts(&simulation, switches);
        let options = ConnectOptions::default();
        let to = |i: usize| &contexts[(i + distance) % switches];
        let mut flows: Vec<Flow> = (0..switches).map(|i| Flow::new(&contexts[i], to(i), &options)).collect();
        flows.iter_mut().for_each(|flow| flow.write(16, 250_000));
        simulation.fabric().advance(Duration::from_millis(2));
        let deadlocks = simulation.deadlocks();
        assert_eq!(deadlocks.len(), usize::from(deadlock), "{deadlocks:?}");
        if let Some(found) = deadlocks.first() {
            let circle: Vec<_> = (0..5).map(|i| (Switch(i), Switch((i + 1) % 5))).collect();
            assert_eq!((found.wires.clone(), found.priority), (circle, 0));
            assert!(found.at_ns < 1_000_000);
            assert!(flows.iter().all(|flow| flow.from.cq.poll(16, &mut Vec::new()).unwrap() < 16));
        }
    }
}

#[test]
fn ecmp_spreads_connections_over_all_paths_and_keeps_each_in_order() {
    let simulation = Simulation::new(&Topology::leaf_spine(4, 2, 4), 11).unwrap();
    let contexts = contexts(&simulation, 8);
    let options = ConnectOptions::default();
    let mut flows: Vec<Flow> =
        (0..64).map(|i| Flow::new(&contexts[i % 4], &contexts[4 + i / 4 % 4], &options)).collect();
    flows.iter_mut().for_each(|flow| flow.write(2, 100_000));
    finish(&mut flows);
    for spine in 2..6 {
        let packets = simulation.queue(Switch(0), Switch(spine), 0).unwrap().packets;
        assert!((64 * 50 / 10..64 * 50 / 2).contains(&packets), "spine {spine}: {packets} packets");
    }
    for context in &contexts {
        assert_eq!(context.counters().out_of_seq_request, 0);
        assert_eq!(context.counters().retransmitted_pkts, 0);
    }
}

#[test]
fn connection_continues_on_another_path_when_a_wire_goes_down_and_fails_without_one() {
    let simulation = Simulation::new(&Topology::leaf_spine(2, 2, 1), 2).unwrap();
    let contexts = contexts(&simulation, 2);
    let options = ConnectOptions::default().timeout(urxe::wire::AckTimeout::new(4)).retry_cnt(3);
    let mut flow = Flow::new(&contexts[0], &contexts[1], &options);
    flow.write(40, 100_000);
    simulation.fabric().advance(50 * US);
    let busy = |spine| simulation.queue(Switch(0), Switch(spine), 0).unwrap().packets > 0;
    let used = if busy(2) { 2 } else { 3 };
    assert!(busy(used) && !busy(5 - used));
    simulation.set_wire_up(Switch(0), Switch(used), false).unwrap();
    flow.finish();
    assert!(simulation.counters().lost > 0 && busy(5 - used));
    assert!(contexts[0].counters().retransmitted_pkts > 0);
    simulation.set_wire_up(Switch(0), Switch(5 - used), false).unwrap();
    flow.write(1, 100_000);
    let Err(WaitError::Failed(completion)) = flow.from.cq.wait(LONG) else { panic!("the path is down") };
    assert_eq!(completion.status, WcStatus::RetryExcErr);
    assert!(simulation.counters().unroutable > 0);
}

#[test]
fn nic_learns_that_the_wire_of_its_host_is_down() {
    let simulation = Simulation::new(&Topology::star(2), 1).unwrap();
    let contexts = contexts(&simulation, 2);
    let mut flow = Flow::new(&contexts[0], &contexts[1], &ConnectOptions::default());
    for up in [false, true] {
        simulation.set_wire_up(Switch(0), Host(0), up).unwrap();
        let expected = if up { AsyncEvent::PortActive } else { AsyncEvent::PortError };
        assert_eq!(contexts[0].next_event(), Some(expected));
    }
    flow.write(3, 100_000);
    flow.finish();
}

#[test]
fn lost_packets_are_sent_again() {
    let topology = Topology::star(2).wires(Wire::default().loss(0.01));
    let simulation = Simulation::new(&topology, 9).unwrap();
    let contexts = contexts(&simulation, 2);
    let mut flow = Flow::new(&contexts[0], &contexts[1], &ConnectOptions::default());
    flow.source.write(0, &[7; 250_000]).unwrap();
    flow.write(8, 250_000);
    flow.finish();
    assert!(simulation.counters().lost > 5);
    assert_eq!(flow.target.read_vec(0..250_000).unwrap(), vec![7; 250_000]);
}

/// Runs an incast with losses, marks and pauses, and returns the packets that its NICs have sent and
/// received.
fn captured(seed: u64) -> Vec<u8> {
    let switch = small_buffer().pfc(small_pfc()).ecn(Red::new(5_000, 40_000, 0.5));
    let topology = Topology::incast(3).switches(switch).wires(Wire::default().loss(0.01));
    let simulation = Simulation::new(&topology, seed).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let capture = CaptureFile::create(file.path(), Timestamps::Virtual).unwrap();
    let context = |host: usize| {
        let addresses = [std::net::IpAddr::from([10, 0, 0, host as u8 + 1])];
        let port = simulation.port(host, &addresses).unwrap();
        let options = ContextOptions::default().seed(host as u64);
        Context::on_port(port, &options, |port| Box::new(capture.capture(port, &host.to_string()))).unwrap()
    };
    let contexts: Vec<Context> = (0..4).map(context).collect();
    let options = ConnectOptions::default().traffic_class(2);
    let mut flows: Vec<Flow> =
        contexts[1..].iter().map(|from| Flow::new(from, &contexts[0], &options)).collect();
    flows.iter_mut().for_each(|flow| flow.write(4, 50_000));
    finish(&mut flows);
    let counters = simulation.counters();
    assert!(counters.lost > 0 && counters.marked > 0 && counters.pauses > 0, "{counters:?}");
    capture.flush().unwrap();
    std::fs::read(file.path()).unwrap()
}

#[test]
fn same_seed_gives_the_same_packets_at_the_same_times() {
    let first = captured(5);
    assert!(first.len() > 600_000);
    assert_eq!(first, captured(5));
    assert_ne!(first, captured(6));
}

#[test]
fn impossible_topologies_and_calls_are_rejected() {
    let mut two_wires = Topology::pair();
    two_wires.connect(Host(0), Host(1), Wire::default());
    let error = |topology: &Topology| Simulation::new(topology, 0).err();
    assert_eq!(error(&two_wires), Some(TopologyError::HostWires { host: 0, count: 2 }));
    let stopped = Topology::star(2).wires(Wire::new(0, US));
    assert_eq!(error(&stopped), Some(TopologyError::Value(FabricError::Zero { field: "bandwidth" })));
    let reversed = Topology::star(2).switches(SwitchConfig::default().pfc(Pfc::default().xon(200_000)));
    assert!(matches!(error(&reversed), Some(TopologyError::Thresholds { low: "xon", .. })));
    let simulation = Simulation::new(&Topology::star(2), 0).unwrap();
    assert_eq!(simulation.queue(Host(0), Host(1), 0), Err(TopologyError::NoWire(Host(0), Host(1))));
    let address = std::net::IpAddr::from([10, 0, 0, 1]);
    assert_eq!(simulation.port(2, &[address]).err(), Some(FabricError::NoHost));
    let (a, b) = simulation.fabric().pair().unwrap();
    let [a, b] = [a, b].map(|node| node.context.address().unwrap());
    let path = FabricConfig::default();
    assert_eq!(simulation.fabric().set_path(a, b, path), Err(FabricError::Simulated));
}

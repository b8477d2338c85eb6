//! Random choices of a simulation: the wire, fault rules, options of NICs and connections, and transports.

use std::time::Duration;

use urxe::middleware::faults::{Action, Rule};
use urxe::verbs::*;

use crate::ring_link::RingOptions;
use urxe_test_support::ring::CAPACITY;
use urxe_test_support::rng::Rng;

/// Congestion controls.
pub const CONTROLS: [Congestion; 5] = [
    Congestion::LOSS_DRIVEN,
    Congestion::NONE,
    Congestion::DCQCN_CONNECTX,
    Congestion::DCQCN_SIGCOMM15,
    Congestion::DELAY,
];

/// Fault rules from which every reliable connection recovers. None answers in place of the peer: a NAK also
/// acknowledges earlier requests, and an earlier request that was lost would then be reported as successful.
const MILD: &[&str] = &[
    "drop=1",
    "drop=7",
    "drop=p:0.02",
    "rx:drop=3",
    "rx:drop=p:0.05,opcode=17",
    "dup=every:3",
    "rx:dup=p:0.2,opcode=17",
    "reorder=every:5",
    "rx:reorder=p:0.05",
    "corrupt=2",
    "rx:corrupt=p:0.01",
    "delay=p:0.05,by=300us",
    "rx:delay=every:9,by=20us",
    "drop=2..4",
    "mark=every:3",
    "dup=every:4,copies=3",
    "replay=every:6,by=500us",
];

/// Fault rules that may exhaust retries.
const HARSH: &[&str] = &[
    "drop=every:2",
    "drop=p:0.5",
    "rx:drop=p:1.0",
    "rx:drop=every:3,opcode=17",
    "corrupt=every:2",
    "delay=every:2,by=5ms",
    "dup=p:0.9",
    "drop=1..,time=100us..4ms",
];

/// Random parameters of one simulation.
#[derive(Debug)]
pub struct Scenario {
    pub wire: FabricConfig,
    /// Rings that carry all packets, if there are any.
    pub rings: Option<RingOptions>,
    /// Whether retries may be exhausted and a side may stop; otherwise every work request of a reliable
    /// connection must succeed.
    pub is_harsh: bool,
    /// Fault rules at the port of either side.
    pub faults: [Vec<Rule>; 2],
    pub contexts: [ContextOptions; 2],
    pub connect: ConnectOptions,
    /// Transport of each connection: `XrcSend` stands for XRC in both directions.
    pub transports: Vec<QpType>,
    /// Whether connections of a transport share their receives, if the transport permits that.
    pub has_srqs: bool,
}

/// Returns a random probability of at most `max`, often 0.
fn probability(r: &mut Rng, max: f64) -> f64 {
    if r.below(3) == 0 { 0.0 } else { max * r.below(1000) as f64 / 1000.0 }
}

fn wire(r: &mut Rng, is_harsh: bool) -> FabricConfig {
    let bandwidth = r.pick(&[None, None, Some(1_000_000_000), Some(25_000_000_000), Some(400_000_000_000)]);
    let times = if is_harsh { 5.0 } else { 1.0 };
    FabricConfig::default()
        .seed(r.next())
        .latency(Duration::from_nanos(r.pick(&[0, 200, 1_000, 10_000, 300_000])))
        .jitter(Duration::from_nanos(r.pick(&[0, 0, 100, 20_000])))
        .bandwidth(bandwidth)
        .queue_bytes(bandwidth.and(r.pick(&[None, Some(30_000), Some(200_000)])))
        .ecn_threshold(bandwidth.and(r.pick(&[None, Some(10_000)])))
        .loss(probability(r, 0.04 * times))
        .duplicate(probability(r, 0.05 * times))
        .reorder(probability(r, 0.05 * times))
        .reorder_by(Duration::from_nanos(r.pick(&[500, 5_000, 2_000_000])))
        .corrupt(probability(r, 0.02 * times))
}

impl Scenario {
    pub fn random(r: &mut Rng) -> Scenario {
        let is_harsh = r.below(3) == 0;
        let wire = wire(r, is_harsh);
        let faults = [(); 2].map(|()| {
            let count = r.pick(&[0, 0, 0, 1, 2]);
            let rule = |_| {
                let rules = if is_harsh && r.percent(50) { HARSH } else { MILD };
                r.pick(rules).parse().unwrap()
            };
            (0..count).map(rule).collect()
        });
        let contexts = [(); 2].map(|()| {
            let window = r.pick(&[None, None, Some(5_000), Some(60_000)]);
            ContextOptions::default().seed(r.next()).window(window).congestion(r.pick(&CONTROLS))
        });
        let mut connect = ConnectOptions::default()
            .traffic_class(r.pick(&[0, 0, 2]))
            .mtu(r.pick(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]))
            .timeout(AckTimeout::new(r.pick(&[9, 10, 12])))
            .min_rnr_timer(RnrTimer::new(r.pick(&[1, 4, 8])))
            .max_rd_atomic(r.pick(&[1, 2, 16]));
        if is_harsh {
            connect = connect.retry_cnt(r.below(8) as u8).rnr_retry(r.below(8) as u8);
        }
        let count = 1 + r.below(3);
        let transport = |_| r.pick(&[QpType::Rc, QpType::Rc, QpType::XrcSend, QpType::Uc, QpType::Ud]);
        let transports = (0..count).map(transport).collect();
        let has_srqs = r.percent(50);
        Scenario { wire, rings: None, is_harsh, faults, contexts, connect, transports, has_srqs }
    }

    /// Returns a random scenario with rings in shared memory. The fabric carries only the notifications of
    /// their readers.
    pub fn random_over_rings(r: &mut Rng) -> Scenario {
        let scenario = Scenario::random(r);
        let FabricConfig { seed, latency, jitter, .. } = scenario.wire;
        let rings = RingOptions {
            limit: r.pick(&[1, 4096, CAPACITY as u64]),
            interval: Duration::from_nanos(r.pick(&[100, 1_000, 20_000])),
            window: r.pick(&[None, Some(CAPACITY / 2)]),
        };
        let wire = FabricConfig::default().seed(seed).latency(latency).jitter(jitter);
        Scenario { wire, rings: Some(rings), ..scenario }
    }

    /// Reports whether packets arrive at most once and in order.
    pub fn is_ordered(&self) -> bool {
        let is_drop = |rule: &Rule| matches!(rule.action, Action::Drop | Action::Corrupt | Action::Mark);
        self.wire.duplicate == 0.0 && self.wire.reorder == 0.0 && self.faults.iter().flatten().all(is_drop)
    }
}

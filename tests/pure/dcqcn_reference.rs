//! DCQCN against an independent reference: a literal transcription of the published algorithm, in which every
//! timer is an event of its own. Random traces of CNPs and transmissions go through both; the rates must
//! agree after every event. Needs nothing.
//!
//! The periodic variant is that of the NIC model in the ns-3 simulator of HPCC (Li et al., SIGCOMM 2019), the
//! immediate variant that of the DCQCN paper (Zhu et al., SIGCOMM 2015, section 3), with the byte counter of
//! the paper in both.

use urxe::transport::{Congestion, CongestionConfig, CongestionParameter, Instant, QpController, Rate};

const TRACES: u64 = 1000;
/// Maximum relative difference of the rates.
const TOLERANCE: f64 = 1e-9;

/// Parameters in SI units and as published, written down here again rather than taken from the product's
/// table.
#[derive(Clone, Copy)]
struct Published {
    /// Weight of a new observation in α.
    g: f64,
    initial_alpha: f64,
    alpha_period: u64,
    /// Time between rate reductions; `None` if every CNP reduces the rate.
    reduction_period: Option<u64>,
    timer: u64,
    byte_counter: Option<u64>,
    /// Number of steps of fast recovery.
    f: u64,
    additive: f64,
    hyper: f64,
    min_rate: f64,
    /// Whether a reduction sets the target even before the first increase.
    always_clamps: bool,
}

const SIGCOMM15: Published = Published {
    g: 1.0 / 256.0,
    initial_alpha: 1.0,
    alpha_period: 55_000,
    reduction_period: None,
    timer: 55_000,
    byte_counter: Some(10_000_000),
    f: 5,
    additive: 40e6,
    hyper: 400e6,
    min_rate: 10e6,
    always_clamps: true,
};

const CONNECTX: Published = Published {
    g: 5.0 / 1024.0,
    initial_alpha: 1023.0 / 1024.0,
    alpha_period: 1000,
    reduction_period: Some(4000),
    timer: 300_000,
    byte_counter: Some(32_767),
    f: 1,
    additive: 5e6,
    hyper: 50e6,
    min_rate: 1e6,
    always_clamps: false,
};

/// Events of the reference that have happened in all traces, to show that the traces reach every rule.
#[derive(Default, Debug)]
struct Coverage {
    reductions: u64,
    at_min_rate: u64,
    kept_targets: u64,
    fast: u64,
    additive: u64,
    hyper: u64,
    at_line_rate: u64,
}

/// Reference model of one flow.
struct Reference {
    p: Published,
    line: f64,
    rate: f64,
    target: f64,
    alpha: f64,
    saw_first_cnp: bool,
    cnp_for_alpha: bool,
    cnp_for_rate: bool,
    timer_count: u64,
    byte_count: u64,
    sent: u64,
    /// Times of the next events: update of α, check for a reduction, increase by the timer.
    events: [Option<u64>; 3],
}

impl Reference {
    fn new(p: Published, line: f64) -> Reference {
        Reference {
            p,
            line,
            rate: line,
            target: line,
            alpha: p.initial_alpha,
            saw_first_cnp: false,
            cnp_for_alpha: false,
            cnp_for_rate: false,
            timer_count: 0,
            byte_count: 0,
            sent: 0,
            events: [None; 3],
        }
    }

    /// Runs all events up to `now`, one by one, in the order of their times.
    fn run(&mut self, now: u64, seen: &mut Coverage) {
        loop {
            let next = (0..3).filter_map(|i| self.events[i].map(|at| (at, i))).min();
            let Some((at, event)) = next.filter(|(at, _)| *at <= now) else { return };
            match event {
                0 => {
                    let observed = if std::mem::take(&mut self.cnp_for_alpha) { 1.0 } else { 0.0 };
                    self.alpha = (1.0 - self.p.g) * self.alpha + self.p.g * observed;
                    self.events[0] = Some(at + self.p.alpha_period);
                }
                1 => {
                    if std::mem::take(&mut self.cnp_for_rate) {
                        self.reduce(at, seen);
                    }
                    self.events[1] = self.p.reduction_period.map(|period| at + period);
                }
                _ => {
                    self.step_up(seen);
                    self.timer_count += 1;
                    self.events[2] = Some(at + self.p.timer);
                }
            }
        }
    }

    fn cnp(&mut self, now: u64, seen: &mut Coverage) {
        self.run(now, seen);
        let is_first = !std::mem::replace(&mut self.saw_first_cnp, true);
        let Some(period) = self.p.reduction_period else {
            self.reduce(now, seen);
            self.alpha = (1.0 - self.p.g) * self.alpha + self.p.g;
            self.events[0] = Some(now + self.p.alpha_period);
            return;
        };
        self.cnp_for_rate = true;
        if is_first {
            self.events[0] = Some(now + self.p.alpha_period);
            self.events[1] = Some(now + period);
        } else {
            self.cnp_for_alpha = true;
        }
    }

    fn reduce(&mut self, now: u64, seen: &mut Coverage) {
        seen.reductions += 1;
        if self.p.always_clamps || self.timer_count > 0 || self.byte_count > 0 {
            self.target = self.rate;
        } else {
            seen.kept_targets += 1;
        }
        self.rate *= 1.0 - self.alpha / 2.0;
        if self.rate < self.p.min_rate {
            self.rate = self.p.min_rate;
            seen.at_min_rate += 1;
        }
        (self.timer_count, self.byte_count, self.sent) = (0, 0, 0);
        self.events[2] = Some(now + self.p.timer);
    }

    fn sent(&mut self, now: u64, bytes: u64, seen: &mut Coverage) {
        self.run(now, seen);
        let (Some(counter), Some(_)) = (self.p.byte_counter, self.events[2]) else { return };
        self.sent += bytes;
        while self.sent >= counter {
            self.sent -= counter;
            self.step_up(seen);
            self.byte_count += 1;
        }
    }

    fn step_up(&mut self, seen: &mut Coverage) {
        let bytes = if self.p.byte_counter.is_some() { self.byte_count } else { self.timer_count };
        if self.timer_count >= self.p.f || bytes >= self.p.f {
            let is_hyper = self.timer_count > self.p.f && bytes > self.p.f;
            self.target += if is_hyper { self.p.hyper } else { self.p.additive };
            *if is_hyper { &mut seen.hyper } else { &mut seen.additive } += 1;
            if self.target > self.line {
                self.target = self.line;
                seen.at_line_rate += 1;
            }
        } else {
            seen.fast += 1;
        }
        self.rate = (self.rate + self.target) / 2.0;
    }
}

/// Pseudorandom numbers of a trace (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// Sends one random trace through both, and compares the rates after every event.
fn compare(seed: u64, p: Published, congestion: Congestion, length: u64, seen: &mut Coverage) {
    let mut random = Random(seed);
    let line = [10e9, 25e9, 40e9, 100e9][random.below(4) as usize];
    let config = CongestionConfig { control: congestion, line_rate: Rate::from_bits_per_second(line) };
    let (mut reference, mut dcqcn) = (Reference::new(p, line), QpController::new(&config));
    // Some traces have events at whole microseconds only, so that they coincide with the timers.
    let grid = [1, 1000][random.below(2) as usize];
    // CNPs arrive in phases of different density, or not at all, while much or little is sent.
    let (mut phase_ends, mut cnps_per_1000, mut most_bytes) = (0, 0, 1);
    let mut now = 0;
    while now < length {
        if now >= phase_ends {
            phase_ends = now + 10_000 + random.below(length / 2);
            cnps_per_1000 = [0, 0, 5, 50, 500][random.below(5) as usize];
            most_bytes = [1, 1000, 65_536, 65_536][random.below(4) as usize];
        }
        now += (1 + random.below(12_000)) / grid * grid;
        let at = Instant(now);
        let event = random.below(1000);
        let what = if event < cnps_per_1000 {
            reference.cnp(now, seen);
            assert!(dcqcn.on_cnp(at, &config));
            "CNP"
        } else if event < 900 {
            let bytes = 64 + random.below(most_bytes);
            reference.sent(now, bytes, seen);
            dcqcn.on_sent(bytes, at, &config);
            "transmission"
        } else {
            reference.run(now, seen);
            "timers"
        };
        let rate = dcqcn.rate(at, &config).map_or(line, Rate::bits_per_second);
        let difference = (rate / reference.rate - 1.0).abs();
        assert!(
            difference <= TOLERANCE,
            "seed {seed}: after {what} at {now} ns the rate is {rate}, that of the reference {}",
            reference.rate
        );
    }
}

#[test]
fn rate_with_parameters_of_the_paper_equals_the_reference_after_every_event() {
    let mut seen = Coverage::default();
    for seed in 0..TRACES {
        compare(seed, SIGCOMM15, Congestion::DCQCN_SIGCOMM15, 20_000_000, &mut seen);
    }
    let Coverage { reductions, at_min_rate, kept_targets, fast, additive, hyper, at_line_rate } = seen;
    assert!(
        [reductions, at_min_rate, fast, additive, hyper, at_line_rate].iter().all(|n| *n > 500),
        "{seen:?}"
    );
    assert_eq!(kept_targets, 0);
}

#[test]
fn rate_with_parameters_of_connectx_equals_the_reference_after_every_event() {
    let mut seen = Coverage::default();
    for seed in 0..TRACES {
        compare(seed, CONNECTX, Congestion::DCQCN_CONNECTX, 5_000_000, &mut seen);
    }
    let Coverage { reductions, at_min_rate, kept_targets, fast, additive, hyper, at_line_rate } = seen;
    let counts = [reductions, at_min_rate, kept_targets, fast, additive, hyper, at_line_rate];
    assert!(counts.iter().all(|n| *n > 500), "{seen:?}");
}

#[test]
fn rate_without_byte_counter_equals_the_model_of_hpcc_after_every_event() {
    let p = Published { byte_counter: None, additive: 50e6, hyper: 100e6, ..CONNECTX };
    let set = |congestion: Congestion, parameter, value| congestion.with(parameter, value).unwrap();
    let congestion = set(Congestion::DCQCN_CONNECTX, CongestionParameter::RpgByteReset, 0);
    let congestion = set(congestion, CongestionParameter::RpgAiRate, 50);
    let congestion = set(congestion, CongestionParameter::RpgHaiRate, 100);
    let mut seen = Coverage::default();
    for seed in 0..TRACES {
        compare(seed, p, congestion, 5_000_000, &mut seen);
    }
    let counts = [seen.reductions, seen.fast, seen.additive, seen.hyper];
    assert!(counts.iter().all(|n| *n > 500), "{seen:?}");
}

//! DCQCN, reaction point: a rate that CNPs reduce, and that a timer and a byte counter increase again (Zhu et
//! al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
//!
//! There are no timers that have to be served: each step first brings the state forward to the current time
//! ([`ReactionPoint::advance`]). A queue pair that sends nothing costs nothing, whatever the period of its
//! timers.

use std::time::Duration;

use super::CongestionConfig;
use super::parameters::CongestionParameter::{self, *};
use super::rate::Rate;
use crate::transport::{Instant, earliest};

/// Rate control of one queue pair; `None` before the first CNP, while the rate is the maximum.
#[derive(Debug, Default)]
pub struct Dcqcn(Option<ReactionPoint>);

/// State after the first CNP; rates in bits per second.
#[derive(Debug)]
struct ReactionPoint {
    current: f64,
    target: f64,
    alpha: f64,
    /// Time of the next update of α.
    alpha_due: Instant,
    /// Whether a CNP has arrived since the last update of α.
    alpha_saw_cnp: bool,
    /// Time of the first CNP, from which the monitor periods count.
    began: Instant,
    /// Time of the next rate cut, at the end of the monitor period in which a CNP has arrived.
    cut_at: Option<Instant>,
    /// Time of the next increase by the timer; `None` before the first cut.
    increase_at: Option<Instant>,
    /// Numbers of increases by the timer and by the byte counter since the last cut.
    time_stage: u32,
    byte_stage: u32,
    /// Bytes sent since the last increase by the byte counter, or since the last cut.
    bytes: u64,
}

/// Cause of a rate increase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Increase {
    Timer,
    ByteCounter,
}

impl Dcqcn {
    /// Handles a congestion notification packet.
    pub fn on_cnp(&mut self, now: Instant, config: &CongestionConfig) {
        match &mut self.0 {
            None => self.0 = Some(ReactionPoint::new(now, config)),
            Some(point) => point.on_cnp(now, config),
        }
    }

    /// Handles the transmission of `bytes`, including headers.
    pub fn on_sent(&mut self, bytes: u64, now: Instant, config: &CongestionConfig) {
        if let Some(point) = &mut self.0 {
            point.on_sent(bytes, now, config);
        }
    }

    /// Returns the rate at `now`; `None` if it is not limited.
    pub fn rate(&mut self, now: Instant, config: &CongestionConfig) -> Option<Rate> {
        let rate = match &mut self.0 {
            None => max_rate(config),
            Some(point) => {
                point.advance(now, config);
                point.current.min(max_rate(config))
            }
        };
        (rate < config.line_rate.bits_per_second()).then(|| Rate::from_bits_per_second(rate))
    }

    /// Returns α as of the last call; `None` before the first CNP.
    pub fn alpha(&self) -> Option<f64> {
        self.0.as_ref().map(|point| point.alpha)
    }

    /// Returns the time of the next increase by the timer.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.increase_at
    }
}

impl ReactionPoint {
    /// Starts with the first CNP.
    fn new(now: Instant, config: &CongestionConfig) -> ReactionPoint {
        let start = match mbps(config, RateToSetOnFirstCnp) {
            0.0 => max_rate(config),
            rate => rate.min(max_rate(config)),
        };
        let mut point = ReactionPoint {
            current: start,
            target: start,
            alpha: f64::from(config.control.get(InitialAlphaValue)) / 1024.0,
            alpha_due: now + micros(config, DceTcpRtt),
            alpha_saw_cnp: false,
            began: now,
            cut_at: None,
            increase_at: None,
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
        };
        point.schedule_cut(now, config);
        point
    }

    fn on_cnp(&mut self, now: Instant, config: &CongestionConfig) {
        self.advance(now, config);
        self.alpha_saw_cnp = true;
        self.schedule_cut(now, config);
    }

    /// Schedules a rate cut for the end of the current monitor period. Without such periods, cuts the rate
    /// and updates α at once, as in the paper.
    fn schedule_cut(&mut self, now: Instant, config: &CongestionConfig) {
        let period = micros(config, RateReduceMonitorPeriod);
        if period.is_zero() {
            self.cut(now, config);
            self.alpha_saw_cnp = true;
            self.alpha_due = now;
            self.update_alpha(now, config);
        } else if self.cut_at.is_none() {
            let periods = now.since(self.began).as_nanos() / period.as_nanos() + 1;
            self.cut_at = Some(Instant(self.began.0 + (periods * period.as_nanos()) as u64));
        }
    }

    fn on_sent(&mut self, bytes: u64, now: Instant, config: &CongestionConfig) {
        self.advance(now, config);
        let reset = u64::from(config.control.get(RpgByteReset));
        if reset == 0 || self.increase_at.is_none() {
            return;
        }
        self.bytes += bytes;
        while self.bytes >= reset {
            self.bytes -= reset;
            self.increase(Increase::ByteCounter, config);
        }
    }

    /// Brings the state forward to `now`: carries out the updates of α, cuts and increases that are due, in
    /// the order of their times; at one time, in this order.
    fn advance(&mut self, now: Instant, config: &CongestionConfig) {
        while let Some(at) = earliest([self.cut_at, self.increase_at]).filter(|at| *at <= now) {
            self.update_alpha(at, config);
            if self.cut_at == Some(at) {
                self.cut(at, config);
                continue;
            }
            let changed = self.increase(Increase::Timer, config);
            let period = micros(config, RpgTimeReset);
            let next = at + period;
            // At the maximum, further increases only count. They need not be carried out one by one.
            let until = if changed { at } else { self.cut_at.map_or(now, |cut| cut.min(now)) };
            let skipped = until.since(at).as_nanos() as u64 / period.as_nanos() as u64;
            self.time_stage = self.time_stage.saturating_add(u32::try_from(skipped).unwrap_or(u32::MAX));
            self.increase_at = Some(next + period * u32::try_from(skipped).unwrap_or(u32::MAX));
        }
        self.update_alpha(now, config);
    }

    /// Carries out the updates of α that are due at `now`: α ← g α + (1 − g) · CNP, where g is the weight of
    /// the old value.
    fn update_alpha(&mut self, now: Instant, config: &CongestionConfig) {
        if self.alpha_due > now {
            return;
        }
        let period = micros(config, DceTcpRtt).as_nanos() as u64;
        let updates = now.since(self.alpha_due).as_nanos() as u64 / period + 1;
        let weight = f64::from(config.control.get(DceTcpG)) / 1024.0;
        self.alpha_due = Instant(self.alpha_due.0 + updates * period);
        self.alpha *= weight;
        if std::mem::take(&mut self.alpha_saw_cnp) {
            self.alpha += 1.0 - weight;
        }
        self.alpha *= power(weight, updates - 1);
    }

    /// Cuts the rate, and returns to fast recovery.
    fn cut(&mut self, now: Instant, config: &CongestionConfig) {
        let is_set = |parameter| config.control.get(parameter) != 0;
        let has_increased = self.byte_stage > 0 || is_set(ClampTgtRateAfterTimeInc) && self.time_stage > 0;
        if is_set(ClampTgtRate) || has_increased {
            self.target = self.current;
        }
        let least = f64::from(config.control.get(RpgMinDecFac)) / 100.0;
        let factor = 1.0 - self.alpha / f64::from(1u32 << (config.control.get(RpgGd) - 10));
        self.current = (self.current * factor.max(least)).max(mbps(config, RpgMinRate));
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.increase_at = Some(now + micros(config, RpgTimeReset));
        self.cut_at = None;
    }

    /// Increases the rate: moves it half of the way to the target, which grows after fast recovery. Returns
    /// false if the same cause can increase the rate no more.
    fn increase(&mut self, cause: Increase, config: &CongestionConfig) -> bool {
        let before = (self.current, self.target);
        let threshold = config.control.get(RpgThreshold);
        // Without a byte counter, the timer alone decides.
        let has_byte_counter = config.control.get(RpgByteReset) != 0;
        let byte_stage = if has_byte_counter { self.byte_stage } else { self.time_stage };
        let is_recovering = self.time_stage.max(byte_stage) < threshold;
        if !is_recovering {
            let is_hyper = self.time_stage.min(byte_stage) > threshold;
            self.target += mbps(config, if is_hyper { RpgHaiRate } else { RpgAiRate });
            self.target = self.target.min(max_rate(config));
        }
        self.current = self.current / 2.0 + self.target / 2.0;
        let stage = match cause {
            Increase::Timer => &mut self.time_stage,
            Increase::ByteCounter => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(1);
        before != (self.current, self.target) || is_recovering
    }
}

/// Returns the maximum rate in bits per second.
fn max_rate(config: &CongestionConfig) -> f64 {
    let line = config.line_rate.bits_per_second();
    match mbps(config, RpgMaxRate) {
        0.0 => line,
        rate => rate.min(line),
    }
}

/// Returns a rate parameter in bits per second.
fn mbps(config: &CongestionConfig, parameter: CongestionParameter) -> f64 {
    Rate::from_mbps(config.control.get(parameter)).bits_per_second()
}

/// Returns a time parameter.
fn micros(config: &CongestionConfig, parameter: CongestionParameter) -> Duration {
    Duration::from_micros(config.control.get(parameter).into())
}

/// Returns `base` to the power of `exponent`. Unlike `f64::powi`, the result is the same on every machine.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 && result > 0.0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

//! Controller of a queue pair: one of the congestion controls, without allocation or dynamic dispatch.

use super::dcqcn::Dcqcn;
use super::delay::Delay;
use super::loss_driven::LossDriven;
use super::rate::Rate;
use super::selection::CongestionAlgorithm;
use super::{CongestionConfig, Controller, PathState};
use crate::transport::Instant;

/// Congestion controller of a queue pair.
#[derive(Debug)]
pub enum QpController {
    /// None: the peer's window limits what is in flight.
    None(Unlimited),
    /// Window that losses reduce.
    LossDriven(LossDriven),
    /// Rate that CNPs reduce.
    Dcqcn(Dcqcn),
    /// Window that delays reduce.
    Delay(Delay),
}

/// Controller without a limit of its own.
#[derive(Debug, Default)]
pub struct Unlimited;

impl Controller for Unlimited {
    fn window(&self, limit: u64) -> u64 {
        limit
    }

    fn on_ack(&mut self, _: u64, _: &PathState<'_>) {}

    fn on_loss(&mut self, _: &PathState<'_>) {}
}

impl QpController {
    /// Returns a new controller of the configured algorithm.
    pub fn new(config: &CongestionConfig) -> QpController {
        match config.control.algorithm() {
            CongestionAlgorithm::None => QpController::None(Unlimited),
            CongestionAlgorithm::LossDriven => QpController::LossDriven(LossDriven::default()),
            CongestionAlgorithm::Dcqcn => QpController::Dcqcn(Dcqcn::default()),
            CongestionAlgorithm::Delay => QpController::Delay(Delay::default()),
        }
    }
}

impl Default for QpController {
    fn default() -> QpController {
        QpController::LossDriven(LossDriven::default())
    }
}

/// Passes a call on to the controller of the algorithm.
macro_rules! dispatch {
    ($self:ident, $controller:ident => $call:expr) => {
        match $self {
            QpController::None($controller) => $call,
            QpController::LossDriven($controller) => $call,
            QpController::Dcqcn($controller) => $call,
            QpController::Delay($controller) => $call,
        }
    };
}

impl Controller for QpController {
    #[inline]
    fn window(&self, limit: u64) -> u64 {
        dispatch!(self, controller => controller.window(limit))
    }

    #[inline]
    fn on_ack(&mut self, acked: u64, path: &PathState<'_>) {
        dispatch!(self, controller => controller.on_ack(acked, path));
    }

    fn on_loss(&mut self, path: &PathState<'_>) {
        dispatch!(self, controller => controller.on_loss(path));
    }

    fn on_single_loss(&mut self, path: &PathState<'_>) {
        dispatch!(self, controller => controller.on_single_loss(path));
    }

    fn on_cnp(&mut self, now: Instant, config: &CongestionConfig) -> bool {
        dispatch!(self, controller => controller.on_cnp(now, config))
    }

    #[inline]
    fn on_sent(&mut self, bytes: u64, now: Instant, config: &CongestionConfig) {
        dispatch!(self, controller => controller.on_sent(bytes, now, config));
    }

    #[inline]
    fn rate(&mut self, now: Instant, config: &CongestionConfig) -> Option<Rate> {
        dispatch!(self, controller => controller.rate(now, config))
    }

    #[inline]
    fn response_rate(&mut self, now: Instant, config: &CongestionConfig) -> Option<Rate> {
        dispatch!(self, controller => controller.response_rate(now, config))
    }

    #[inline]
    fn deadline(&self) -> Option<Instant> {
        dispatch!(self, controller => controller.deadline())
    }
}

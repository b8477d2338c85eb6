//! Controller of a queue pair: one of the congestion controls, without allocation or dynamic dispatch.

use super::dcqcn::Dcqcn;
use super::delay::Delay;
use super::loss_driven::LossDriven;
use super::rate::Rate;
use super::selection::CongestionAlgorithm;
use super::{CongestionConfig, PathState};
use crate::transport::Instant;

/// Congestion controller of a queue pair.
#[derive(Debug)]
pub enum QpController {
    /// None: the peer's window limits what is in flight.
    None,
    /// Window that losses reduce.
    LossDriven(LossDriven),
    /// Rate that CNPs reduce, and window that losses reduce. A lossless network leaves the window at the
    /// peer's.
    Dcqcn(LossDriven, Dcqcn),
    /// Window that delays reduce.
    Delay(Delay),
}

impl Default for QpController {
    fn default() -> QpController {
        QpController::LossDriven(LossDriven::default())
    }
}

impl QpController {
    /// Returns a new controller of the configured algorithm.
    pub fn new(config: &CongestionConfig) -> QpController {
        match config.control.algorithm() {
            CongestionAlgorithm::None => QpController::None,
            CongestionAlgorithm::LossDriven => QpController::default(),
            CongestionAlgorithm::Dcqcn => QpController::Dcqcn(LossDriven::default(), Dcqcn::default()),
            CongestionAlgorithm::Delay => QpController::Delay(Delay::default()),
        }
    }

    /// Returns the congestion window in flight cost, at most `limit` (the peer's window).
    #[inline]
    pub fn window(&self, limit: u64) -> u64 {
        match self {
            QpController::None => limit,
            QpController::LossDriven(window) | QpController::Dcqcn(window, _) => window.window(limit),
            QpController::Delay(delay) => delay.window(limit),
        }
    }

    /// Handles the acknowledgement of packets with a total flight cost of `acked`.
    #[inline]
    pub fn on_ack(&mut self, acked: u64, path: &PathState<'_>) {
        match self {
            QpController::None => {}
            QpController::LossDriven(window) | QpController::Dcqcn(window, _) => window.on_ack(acked, path),
            QpController::Delay(delay) => delay.on_ack(acked, path),
        }
    }

    /// Handles the loss of a packet; called before the retransmission. `is_selective` is set if only the lost
    /// packet is retransmitted.
    pub fn on_loss(&mut self, is_selective: bool, path: &PathState<'_>) {
        match self {
            QpController::None => {}
            QpController::LossDriven(window) | QpController::Dcqcn(window, _) => {
                window.on_loss(is_selective, path);
            }
            QpController::Delay(delay) => delay.on_loss(path),
        }
    }

    /// Handles a congestion notification packet. Returns false if the algorithm ignores them.
    pub fn on_cnp(&mut self, now: Instant, config: &CongestionConfig) -> bool {
        let QpController::Dcqcn(_, dcqcn) = self else { return false };
        dcqcn.on_cnp(now, config);
        true
    }

    /// Handles the transmission of `bytes` of requests or READ responses, including their headers.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant, config: &CongestionConfig) {
        if let QpController::Dcqcn(_, dcqcn) = self {
            dcqcn.on_sent(bytes, now, config);
        }
    }

    /// Returns the sending rate at `now`; `None` if it is not limited.
    #[inline]
    pub fn rate(&mut self, now: Instant, config: &CongestionConfig) -> Option<Rate> {
        match self {
            QpController::None | QpController::LossDriven(_) => None,
            QpController::Dcqcn(_, dcqcn) => dcqcn.rate(now, config),
            QpController::Delay(delay) => delay.rate(),
        }
    }

    /// Returns the rate of READ responses at `now`; `None` if it is not limited. An algorithm that knows only
    /// the path of requests, by their acknowledgements, does not limit it.
    #[inline]
    pub fn response_rate(&mut self, now: Instant, config: &CongestionConfig) -> Option<Rate> {
        if let QpController::Dcqcn(_, dcqcn) = self { dcqcn.rate(now, config) } else { None }
    }

    /// Returns α of DCQCN, the estimate of the share of marked packets; `None` for other algorithms.
    pub fn alpha(&self) -> Option<f64> {
        if let QpController::Dcqcn(_, dcqcn) = self { dcqcn.alpha() } else { None }
    }

    /// Returns the time at which the rate will increase; packets that wait for the pacer may then be sent
    /// earlier.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        if let QpController::Dcqcn(_, dcqcn) = self { dcqcn.deadline() } else { None }
    }
}

//! Sending rates.

use std::time::Duration;

/// Sending rate.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Rate(f64);

impl Rate {
    /// Returns a rate in bits per second.
    pub const fn from_bits_per_second(bits: f64) -> Rate {
        Rate(bits)
    }

    /// Returns a rate in Mbit/s.
    pub fn from_mbps(mbps: u32) -> Rate {
        Rate(f64::from(mbps) * 1e6)
    }

    /// Returns a rate in kbit/s.
    pub fn from_kbps(kbps: u32) -> Rate {
        Rate(f64::from(kbps) * 1e3)
    }

    /// Returns the rate in bits per second.
    pub const fn bits_per_second(self) -> f64 {
        self.0
    }

    /// Returns the number of bits sent in `time`.
    pub fn bits_in(self, time: Duration) -> f64 {
        self.0 * (time.as_nanos() as f64 * 1e-9)
    }

    /// Returns the time that `bits` take, rounded up to nanoseconds.
    pub fn time_of(self, bits: f64) -> Duration {
        Duration::from_nanos((bits / self.0 * 1e9).ceil() as u64)
    }

    /// Returns the lower of two rates.
    pub fn min(self, other: Rate) -> Rate {
        Rate(self.0.min(other.0))
    }
}

//! Congestion control parameters: one table of names, units, ranges and defaults, which drives parsing,
//! printing, getters and setters. The names are those of ConnectX adapters.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Named set of default parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ParameterSet {
    /// Defaults of ConnectX adapters.
    #[default]
    ConnectX,
    /// Parameters of the DCQCN paper (Zhu et al., SIGCOMM 2015), for 40 Gb/s.
    Sigcomm15,
}

/// Row of the parameter table.
struct Row {
    name: &'static str,
    unit: &'static str,
    range: RangeInclusive<u32>,
    /// Defaults, in the order of [`ParameterSet`].
    defaults: [u32; 2],
    meaning: &'static str,
}

macro_rules! parameters {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident = $name:literal, $unit:literal, $range:expr, [$connectx:literal, $sigcomm15:literal];
    )*) => {
        /// Congestion control parameter.
        ///
        /// ```
        /// # use urxe::verbs::CongestionParameter;
        /// let parameter: CongestionParameter = "rpg_time_reset".parse()?;
        /// assert_eq!((parameter.to_string().as_str(), parameter.unit()), ("rpg_time_reset", "µs"));
        /// # Ok::<(), urxe::verbs::errors::CongestionError>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum CongestionParameter {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl CongestionParameter {
            /// All parameters, in the order of the table.
            pub const ALL: &'static [CongestionParameter] = &[$(CongestionParameter::$variant),*];
        }

        const TABLE: &[Row] = &[$(Row {
            name: $name,
            unit: $unit,
            range: $range,
            defaults: [$connectx, $sigcomm15],
            meaning: concat!($($doc),+),
        }),*];
    };
}

parameters! {
    /// Time between two rate increases by the timer.
    RpgTimeReset = "rpg_time_reset", "µs", 1..=u32::MAX, [300, 55];
    /// Bytes sent between two rate increases by the byte counter; 0 disables the byte counter.
    RpgByteReset = "rpg_byte_reset", "bytes", 0..=u32::MAX, [32_767, 10_000_000];
    /// Number of increases by the timer or by the byte counter that end fast recovery, and by both that start
    /// hyper increase.
    RpgThreshold = "rpg_threshold", "", 1..=31, [1, 5];
    /// Increase of the target rate in additive increase.
    RpgAiRate = "rpg_ai_rate", "Mbit/s", 1..=1_000_000, [5, 40];
    /// Increase of the target rate in hyper increase.
    RpgHaiRate = "rpg_hai_rate", "Mbit/s", 1..=1_000_000, [50, 400];
    /// Minimum rate.
    RpgMinRate = "rpg_min_rate", "Mbit/s", 1..=1_000_000, [1, 10];
    /// Maximum rate; 0 for the speed of the link.
    RpgMaxRate = "rpg_max_rate", "Mbit/s", 0..=1_000_000, [0, 0];
    /// Binary logarithm of the divisor of α in a rate cut: 10 for 1 − α, 11 for 1 − α/2.
    RpgGd = "rpg_gd", "log2", 10..=15, [11, 11];
    /// Minimum ratio of the rates after and before one cut.
    RpgMinDecFac = "rpg_min_dec_fac", "%", 0..=100, [50, 50];
    /// Weight of the old α in an update: 1024 − 1024 · g.
    DceTcpG = "dce_tcp_g", "1/1024", 0..=1023, [1019, 1020];
    /// Period of the update of α.
    DceTcpRtt = "dce_tcp_rtt", "µs", 1..=131_071, [1, 55];
    /// Initial value of α, at the first CNP.
    InitialAlphaValue = "initial_alpha_value", "1/1024", 1..=1024, [1023, 1024];
    /// Rate that the first CNP sets; 0 for the maximum rate.
    RateToSetOnFirstCnp = "rate_to_set_on_first_cnp", "Mbit/s", 0..=1_000_000, [0, 0];
    /// Minimum time between two rate cuts; 0 for a cut, and an update of α, at every CNP.
    RateReduceMonitorPeriod = "rate_reduce_monitor_period", "µs", 0..=u32::MAX, [4, 0];
    /// Whether every cut sets the target rate to the rate before the cut.
    ClampTgtRate = "clamp_tgt_rate", "0 or 1", 0..=1, [0, 1];
    /// Whether a cut sets the target rate to the rate before the cut if the timer has increased the rate since the
    /// previous cut. An increase by the byte counter always has this effect.
    ClampTgtRateAfterTimeInc = "clamp_tgt_rate_after_time_inc", "0 or 1", 0..=1, [1, 1];
    /// Minimum time between two CNPs of the notification point.
    MinTimeBetweenCnps = "min_time_between_cnps", "µs", 0..=4095, [4, 50];
    /// DSCP of CNPs.
    CnpDscp = "cnp_dscp", "", 0..=63, [48, 48];
    /// Priority in the VLAN tags of CNPs.
    Cnp8021pPrio = "cnp_802p_prio", "", 0..=7, [6, 6];
    /// Queueing delay above which the delay-based control reduces its window.
    DelayTarget = "delay_target", "µs", 1..=1_000_000, [50, 50];
    /// Additive increase of the delay-based control's window in each round trip.
    DelayAi = "delay_ai", "1/1000 packets", 1..=1_000_000, [1000, 1000];
    /// Reduction of the delay-based control's window if the delay is far above its target.
    DelayBeta = "delay_beta", "1/1000", 1..=1000, [800, 800];
    /// Maximum reduction of the delay-based control's window in one round trip.
    DelayMaxMdf = "delay_max_mdf", "1/1000", 1..=1000, [500, 500];
    /// Minimum window of the delay-based control; below one packet, packets are paced.
    DelayMinWindow = "delay_min_window", "1/1000 packets", 1..=1000, [10, 10];
}

impl CongestionParameter {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Returns the unit of the values; empty for plain numbers.
    pub fn unit(self) -> &'static str {
        self.row().unit
    }

    /// Returns the permitted values.
    pub fn range(self) -> RangeInclusive<u32> {
        self.row().range.clone()
    }

    /// Returns the value in a named set.
    pub fn default_in(self, set: ParameterSet) -> u32 {
        self.row().defaults[set as usize]
    }

    /// Returns a description.
    pub fn meaning(self) -> &'static str {
        self.row().meaning.trim()
    }
}

impl fmt::Display for CongestionParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

impl FromStr for CongestionParameter {
    type Err = CongestionError;

    fn from_str(name: &str) -> Result<Self, CongestionError> {
        let known = CongestionParameter::ALL.iter().find(|p| p.row().name == name);
        known.copied().ok_or_else(|| CongestionError::Parameter(name.into()))
    }
}

/// Values of all parameters, in the order of the table.
pub(super) type Values = [u32; TABLE.len()];

/// Returns the values of a named set.
pub(super) const fn defaults(set: ParameterSet) -> Values {
    let mut values = [0; TABLE.len()];
    let mut i = 0;
    while i < values.len() {
        values[i] = TABLE[i].defaults[set as usize];
        i += 1;
    }
    values
}

/// Error in a congestion control or its parameters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CongestionError {
    /// No such algorithm or parameter set.
    #[error(
        "unknown congestion control '{0}': use none, loss-driven, dcqcn:connectx, dcqcn:sigcomm15 or delay"
    )]
    Algorithm(String),
    /// No such parameter.
    #[error("unknown congestion control parameter '{0}': docs/guide/congestion.md lists them")]
    Parameter(String),
    /// A parameter without a value.
    #[error("congestion control parameter '{0}' has no value: write NAME=VALUE")]
    NoValue(String),
    /// A value outside of a parameter's range.
    #[error("{parameter} is '{value}': give a number from {} to {}", .range.start(), .range.end())]
    Value {
        /// Parameter to be set.
        parameter: CongestionParameter,
        /// Value given.
        value: String,
        /// Permitted values.
        range: RangeInclusive<u32>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_lists_every_parameter_with_its_defaults() {
        let guide = include_str!("../../../docs/guide/congestion.md");
        for parameter in CongestionParameter::ALL {
            let [connectx, paper] = parameter.row().defaults;
            let cells = format!("| `{parameter}` | {} | {connectx} | ", parameter.unit());
            let row = guide.lines().find(|line| line.starts_with(&cells));
            let row = row.unwrap_or_else(|| panic!("no row in docs/guide/congestion.md begins with {cells}"));
            assert!(connectx == paper || row.starts_with(&format!("{cells}{paper} | ")), "{row}");
            let meaning = parameter.meaning().trim_end_matches('.');
            assert!(row.ends_with(&format!(" {meaning} |")), "{row} does not end with {meaning}");
        }
    }

    #[test]
    fn names_are_unique_and_defaults_are_within_their_ranges() {
        for (i, parameter) in CongestionParameter::ALL.iter().enumerate() {
            assert_eq!(*parameter as usize, i);
            assert_eq!(parameter.to_string().parse(), Ok(*parameter), "{parameter}");
            for set in [ParameterSet::ConnectX, ParameterSet::Sigcomm15] {
                assert!(parameter.range().contains(&parameter.default_in(set)), "{parameter} in {set:?}");
                assert_eq!(defaults(set)[*parameter as usize], parameter.default_in(set));
            }
        }
    }
}

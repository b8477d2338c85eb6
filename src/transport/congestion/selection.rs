//! Selection of a congestion control with its parameters, and the text form of `--congestion`.

use std::fmt;
use std::str::FromStr;

use super::parameters::{CongestionError, CongestionParameter, ParameterSet, Values, defaults};

/// Congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// None: the peer's window alone limits what is in flight.
    None,
    /// Window that losses reduce.
    #[default]
    LossDriven,
    /// DCQCN: rate that CNPs reduce. Losses reduce the window, as with `LossDriven`.
    Dcqcn,
    /// Window that round-trip times above a target reduce; needs no ECN marks.
    Delay,
}

/// Congestion control of a NIC's queue pairs, with its parameters.
///
/// The text form, which `--congestion` and `URXE_CONGESTION` take, is `none`, `loss-driven`,
/// `dcqcn:connectx`, `dcqcn:sigcomm15` or `delay`, followed by changed parameters.
///
/// ```
/// # use urxe::verbs::{Congestion, CongestionParameter};
/// let congestion: Congestion = "dcqcn:connectx,rpg_time_reset=100".parse()?;
/// assert_eq!(congestion.get(CongestionParameter::RpgTimeReset), 100);
/// assert_eq!(congestion.get(CongestionParameter::RpgAiRate), 5);
/// assert_eq!(Congestion::default().to_string(), "loss-driven");
/// # Ok::<(), urxe::verbs::errors::CongestionError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Congestion {
    algorithm: CongestionAlgorithm,
    set: ParameterSet,
    values: Values,
}

/// Text forms of the selections without changed parameters; the first of each selection is the one printed.
const NAMES: [(&str, Congestion); 6] = [
    ("none", Congestion::NONE),
    ("loss-driven", Congestion::LOSS_DRIVEN),
    ("dcqcn:connectx", Congestion::DCQCN_CONNECTX),
    ("dcqcn:sigcomm15", Congestion::DCQCN_SIGCOMM15),
    ("delay", Congestion::DELAY),
    ("dcqcn", Congestion::DCQCN_CONNECTX),
];

impl Congestion {
    /// No congestion control.
    pub const NONE: Congestion = Congestion::new(CongestionAlgorithm::None, ParameterSet::ConnectX);
    /// Loss-driven window, the default.
    pub const LOSS_DRIVEN: Congestion =
        Congestion::new(CongestionAlgorithm::LossDriven, ParameterSet::ConnectX);
    /// DCQCN with the defaults of ConnectX adapters.
    pub const DCQCN_CONNECTX: Congestion =
        Congestion::new(CongestionAlgorithm::Dcqcn, ParameterSet::ConnectX);
    /// DCQCN with the parameters of the SIGCOMM 2015 paper.
    pub const DCQCN_SIGCOMM15: Congestion =
        Congestion::new(CongestionAlgorithm::Dcqcn, ParameterSet::Sigcomm15);
    /// Delay-based control.
    pub const DELAY: Congestion = Congestion::new(CongestionAlgorithm::Delay, ParameterSet::ConnectX);

    const fn new(algorithm: CongestionAlgorithm, set: ParameterSet) -> Congestion {
        Congestion { algorithm, set, values: defaults(set) }
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> CongestionAlgorithm {
        self.algorithm
    }

    /// Returns the set from which the unchanged parameters are.
    pub fn parameter_set(&self) -> ParameterSet {
        self.set
    }

    /// Reports whether the algorithm reacts to ECN marks, so that data packets should be sent as ECN-capable.
    pub fn uses_marks(&self) -> bool {
        self.algorithm == CongestionAlgorithm::Dcqcn
    }

    /// Returns the value of a parameter, in its [unit](CongestionParameter::unit).
    pub fn get(&self, parameter: CongestionParameter) -> u32 {
        self.values[parameter as usize]
    }

    /// Returns the same control with one parameter changed.
    ///
    /// # Errors
    /// [`CongestionError::Value`] if the value is outside of the parameter's range.
    pub fn with(mut self, parameter: CongestionParameter, value: u32) -> Result<Congestion, CongestionError> {
        let range = parameter.range();
        if !range.contains(&value) {
            return Err(CongestionError::Value { parameter, value: value.to_string(), range });
        }
        self.values[parameter as usize] = value;
        Ok(self)
    }

    /// Returns the same control with one parameter changed to the number in `text`.
    ///
    /// # Errors
    /// [`CongestionError::Value`] if the text is not a number in the parameter's range.
    pub fn with_text(
        self,
        parameter: CongestionParameter,
        text: &str,
    ) -> Result<Congestion, CongestionError> {
        let value = text.parse().map_err(|_| CongestionError::Value {
            parameter,
            value: text.into(),
            range: parameter.range(),
        })?;
        self.with(parameter, value)
    }

    /// Returns all parameters with their values, in the order of the table.
    pub fn parameters(&self) -> impl Iterator<Item = (CongestionParameter, u32)> + '_ {
        CongestionParameter::ALL.iter().map(|p| (*p, self.get(*p)))
    }
}

impl Default for Congestion {
    fn default() -> Congestion {
        Congestion::LOSS_DRIVEN
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_of = |c: &Congestion| (c.algorithm, c.set) == (self.algorithm, self.set);
        let name = NAMES.iter().find(|(_, c)| is_of(c)).map_or("", |(name, _)| name);
        f.write_str(name)?;
        let mut changed = self.parameters().filter(|(p, value)| p.default_in(self.set) != *value);
        changed.try_for_each(|(p, value)| write!(f, ",{p}={value}"))
    }
}

impl FromStr for Congestion {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Congestion, CongestionError> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let named = NAMES.iter().find(|(n, _)| *n == name);
        let (_, base) = named.ok_or_else(|| CongestionError::Algorithm(name.into()))?;
        parts.try_fold(*base, |congestion, part| {
            let (name, text) = part.split_once('=').ok_or_else(|| CongestionError::NoValue(part.into()))?;
            congestion.with_text(name.parse()?, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selection_is_printed_as_it_is_parsed() {
        for (name, congestion) in &NAMES[..5] {
            assert_eq!(congestion.to_string(), *name);
            assert_eq!(name.parse(), Ok(*congestion));
        }
        let text = "dcqcn:sigcomm15,rpg_time_reset=1500,cnp_dscp=46";
        assert_eq!(text.parse::<Congestion>().unwrap().to_string(), text);
        assert_eq!("dcqcn".parse(), Ok(Congestion::DCQCN_CONNECTX));
        assert_eq!("dcqcn,rpg_ai_rate=5".parse(), Ok(Congestion::DCQCN_CONNECTX));
    }

    #[test]
    fn errors_name_the_text_and_the_permitted_values() {
        let error = |text: &str| text.parse::<Congestion>().unwrap_err().to_string();
        assert!(error("dctcp").starts_with("unknown congestion control 'dctcp': use none, loss-driven"));
        assert!(error("dcqcn,rpg_time=1").starts_with("unknown congestion control parameter 'rpg_time'"));
        assert!(error("dcqcn,rpg_gd").contains("'rpg_gd' has no value: write NAME=VALUE"));
        assert_eq!(error("dcqcn,rpg_gd=9"), "rpg_gd is '9': give a number from 10 to 15");
        assert_eq!(error("dcqcn,rpg_gd=x"), "rpg_gd is 'x': give a number from 10 to 15");
    }
}

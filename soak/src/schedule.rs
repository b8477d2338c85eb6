//! Schedule of kills, stalls and packet faults, computed from the seed.

use std::iter;
use std::time::Duration;

use super::plan::Rng;

/// Disturbance of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disturbance {
    /// SIGKILL to a process, which is restarted after a time.
    Kill { process: usize, restart: Duration },
    /// SIGSTOP to a process, and SIGCONT after a time.
    Stall { process: usize, time: Duration },
    /// SIGKILL to the broker of the shared address; a process starts another one.
    KillBroker,
}

/// Returns the endless sequence of disturbances, each with its time since the beginning of the run.
pub fn schedule(seed: u64, processes: u64) -> impl Iterator<Item = (Duration, Disturbance)> {
    let (mut rng, mut at) = (Rng::new(seed, &[2]), Duration::ZERO);
    iter::repeat_with(move || {
        let mut millis = |from, to| Duration::from_millis(rng.range(from, to));
        let (pause, long_pause, restart) = (millis(100, 700), millis(1000, 5000), millis(0, 400));
        let (stall, long_stall) = (millis(10, 400), millis(1000, 4000));
        at += if rng.percent(70) { pause } else { long_pause };
        let disturbance = match rng.range(0, 100) {
            // The first process is never killed, so that its memory can be watched for the whole run.
            0..40 => Disturbance::Kill { process: rng.range(1, processes) as usize, restart },
            40..90 => {
                let time = if rng.percent(85) { stall } else { long_stall };
                Disturbance::Stall { process: rng.range(0, processes) as usize, time }
            }
            _ => Disturbance::KillBroker,
        };
        (at, disturbance)
    })
}

/// Returns the fault rules of one incarnation of a process.
pub fn fault_rules(seed: u64, process: usize, incarnation: u32) -> Vec<String> {
    let mut rng = Rng::new(seed, &[3, process as u64, incarnation.into()]);
    let mut rules = Vec::new();
    for (action, option) in
        [("drop", ""), ("dup", ""), ("reorder", ""), ("corrupt", ""), ("delay", ",by=2ms")]
    {
        for direction in ["tx", "rx"] {
            let p = [0.0, 0.0, 0.001, 0.01][rng.range(0, 4) as usize];
            if p > 0.0 {
                rules.push(format!("{direction}:{action}=p:{p}{option}"));
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_repeats_from_its_seed_and_never_kills_the_first_process() {
        let schedule = |seed| schedule(seed, 4).take(300).collect::<Vec<_>>();
        assert_eq!(schedule(1), schedule(1));
        assert_ne!(schedule(1), schedule(2));
        assert!(schedule(1).is_sorted_by_key(|(at, _)| *at));
        for (_, disturbance) in schedule(3) {
            assert!(!matches!(disturbance, Disturbance::Kill { process: 0, .. }));
        }
    }

    #[test]
    fn fault_rules_are_valid() {
        for incarnation in 0..50 {
            for rule in fault_rules(9, 1, incarnation) {
                rule.parse::<urxe::middleware::faults::Rule>().unwrap();
            }
        }
    }
}

//! Faults on calls: an error in place of the call's execution, or a delay before it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::call_table::{CallSet, call_set};
use super::errno_table::{ERRNOS, errno};
use super::{Call, FaultCount};
use crate::fault_rules::{RuleError, When, duration, hint, when};
use crate::sys::rng::splitmix64;
use crate::sys::tally::Tally;
use crate::transport::InjectedError;

/// Effect of a fault on a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallEffect {
    /// The call is not executed, and fails with this `errno` value.
    Error(i32),
    /// The call is executed after the given time.
    Slow(Duration),
}

/// A fault on calls of the C library or of the Rust API, which have the same names.
///
/// In text: `call:NAME=ERRNO[@N|@N..M|@every:N|@p:X]`, or `call:NAME=slow,by=2ms` with the same selection
/// after `slow`; `,when=N` is equivalent to `@N`. NAME is a function of libibverbs or librdmacm, or a prefix
/// of such names followed by `*`.
#[derive(Clone, PartialEq, Debug)]
pub struct CallFault {
    effect: CallEffect,
    when: When,
    calls: CallSet,
    /// The textual form; if the fault was parsed, as it was written.
    text: String,
}

impl CallFault {
    /// Creates a fault on one kind of call.
    pub fn new(call: Call, effect: CallEffect, when: When) -> CallFault {
        let at = if when == When::EACH { String::new() } else { format!("@{when}") };
        let name = call.name();
        let text = match effect {
            CallEffect::Error(number) => match ERRNOS.iter().find(|(_, known)| *known == number) {
                Some((errno, _)) => format!("call:{name}={errno}{at}"),
                None => format!("call:{name}={number}{at}"),
            },
            CallEffect::Slow(by) => format!("call:{name}=slow{at},by={}ns", by.as_nanos()),
        };
        CallFault { effect, when, calls: call_set(|of| of == call), text }
    }

    /// Returns the effect.
    pub fn effect(&self) -> CallEffect {
        self.effect
    }

    /// Returns the selection among the calls.
    pub fn when(&self) -> When {
        self.when
    }

    /// Reports whether the fault's name or group of names includes the call.
    pub fn matches(&self, call: Call) -> bool {
        self.calls[call as usize]
    }
}

impl fmt::Display for CallFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for CallFault {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<CallFault, RuleError> {
        parse(text).map_err(|reason| RuleError { rule: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<CallFault, String> {
    let expected = "expected call:NAME=ERRNO or call:NAME=slow,by=2ms, such as call:ibv_create_cq=ENOMEM@2";
    let mut fields = text.strip_prefix("call:").ok_or(expected)?.split(',');
    let (name, effect) = fields.next().and_then(|first| first.split_once('=')).ok_or(expected)?;
    let (effect, mut when) = match effect.split_once('@') {
        Some((effect, when)) => (effect, Some(self::when(when, "call")?)),
        None => (effect, None),
    };
    let mut by = None;
    for field in fields {
        match field.split_once('=') {
            Some(("by", value)) => by = Some(duration(value)?),
            Some(("when", value)) if when.is_none() => when = Some(self::when(value, "call")?),
            Some(("when", _)) => return Err("'when' repeats the part after '@': give one of them".into()),
            Some((key, _)) => return Err(format!("unknown key '{key}': expected when or by")),
            None => return Err(format!("'{field}' is not of the form KEY=VALUE")),
        }
    }
    let calls = calls(name)?;
    let effect = match (effect, by) {
        ("slow", Some(by)) => CallEffect::Slow(by),
        ("slow", None) => return Err("slow requires a duration: add ,by=2ms".into()),
        (_, Some(_)) => return Err(format!("'by' is valid only for slow, not for {effect}")),
        _ => CallEffect::Error(errno(effect).ok_or_else(|| {
            let hint = hint(effect, ERRNOS.iter().map(|(name, _)| name));
            format!("unknown error '{effect}': write a name such as ENOMEM, a number, or slow{hint}")
        })?),
    };
    Ok(CallFault { effect, when: when.unwrap_or(When::EACH), calls, text: text.to_owned() })
}

/// Returns the set of calls with the name `text` or, if it ends with `*`, with names that begin with it.
fn calls(text: &str) -> Result<CallSet, String> {
    let prefix = text.strip_suffix('*');
    let matches = |call: Call| prefix.map_or(call.name() == text, |prefix| call.name().starts_with(prefix));
    let calls = call_set(matches);
    if !calls.contains(&true) {
        let hint = hint(text, Call::ALL.iter().map(|call| call.name()));
        return Err(format!(
            "unknown call '{text}': write a function such as ibv_reg_mr, or a prefix such as ibv_create_*{hint}"
        ));
    }
    Ok(calls)
}

/// Returns a copy of a rule's text that lives as long as the process, the same for equal texts.
fn interned(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock();
    texts.get(text).copied().unwrap_or_else(|| {
        let text: &'static str = Box::leak(text.into());
        texts.insert(text);
        text
    })
}

/// Faults to apply to one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallVerdict {
    /// Time to wait before the call.
    pub delay: Option<Duration>,
    /// Error with which the call fails.
    pub error: Option<InjectedError>,
}

/// Faults on calls with their counters. Clones share the counters.
#[derive(Clone, Debug)]
pub struct CallFaults {
    faults: Arc<[ActiveFault]>,
    /// All calls that any of the faults matches.
    calls: CallSet,
}

#[derive(Debug)]
struct ActiveFault {
    fault: CallFault,
    rule: &'static str,
    seed: u64,
    tally: Tally,
}

impl CallFaults {
    /// Activates faults. `seed` is that of faults with a probability. Returns `None` if there are no faults.
    pub fn new(faults: Vec<CallFault>, seed: u64) -> Option<CallFaults> {
        let calls = call_set(|call| faults.iter().any(|fault| fault.matches(call)));
        let activate = |(index, fault): (usize, CallFault)| ActiveFault {
            rule: interned(&fault.text),
            tally: Tally::new(&fault.text, "call"),
            fault,
            seed: splitmix64(seed, index as u64 + 1),
        };
        let faults: Arc<[_]> = faults.into_iter().enumerate().map(activate).collect();
        (!faults.is_empty()).then_some(CallFaults { faults, calls })
    }

    /// Counts a call, and returns the faults that apply to it: the sum of all delays, and the first error.
    #[inline]
    pub fn on_call(&self, call: Call) -> CallVerdict {
        if self.calls[call as usize] { self.evaluate(call) } else { CallVerdict::default() }
    }

    #[cold]
    fn evaluate(&self, call: Call) -> CallVerdict {
        let mut verdict = CallVerdict::default();
        for active in self.faults.iter().filter(|active| active.fault.matches(call)) {
            let n = active.tally.matched().fetch_add(1, Ordering::Relaxed) + 1;
            // Random decisions depend on the seed and the number alone.
            let draw = |p| ((splitmix64(active.seed, n) >> 11) as f64) / ((1u64 << 53) as f64) < p;
            if !active.fault.when.selects(n, draw) {
                continue;
            }
            active.tally.struck().fetch_add(1, Ordering::Relaxed);
            match active.fault.effect {
                CallEffect::Error(errno) => {
                    let error = InjectedError { errno, call: call.name(), rule: active.rule, number: n };
                    verdict.error = verdict.error.or(Some(error));
                }
                CallEffect::Slow(by) => verdict.delay = Some(verdict.delay.unwrap_or_default() + by),
            }
        }
        verdict
    }

    /// Returns the counters of each fault, in the order given to [`new`](Self::new).
    pub fn counts(&self) -> impl Iterator<Item = FaultCount> {
        self.faults.iter().map(|active| FaultCount {
            rule: active.fault.to_string(),
            matched: active.tally.matched().load(Ordering::Relaxed),
            struck: active.tally.struck().load(Ordering::Relaxed),
            kind: "call",
        })
    }
}

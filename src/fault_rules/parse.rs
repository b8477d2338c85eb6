//! Textual form of fault rules.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::alteration::{Alteration, Place};
use super::filter::{Filter, PsnRange};
use super::hint;
use super::rule::{Action, Direction, Rule, RuleError, When};
use crate::wire::mad::{MessageKind, RejReason};
use crate::wire::{Ecn, NakCode, Opcode, Psn, Qpn, RnrTimer};

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        parse(text).map_err(|reason| RuleError { rule: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (direction, rest) = match text.split_once(':') {
        Some(("tx", rest)) => (Direction::Tx, rest),
        Some(("rx", rest)) => (Direction::Rx, rest),
        _ => (Direction::Tx, text),
    };
    let (to_cm, rest) = match rest.strip_prefix("cm:") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let mut fields = rest.split(',').map(|f| f.split_once('=').ok_or(f));
    let (name, value) = match fields.next() {
        Some(Ok(pair)) => pair,
        _ => return Err("expected ACTION=WHEN, such as drop=3, drop=every:13 or drop=p:0.01".into()),
    };
    let mut filter = Filter::default();
    let mut parameters = Parameters { by: None, copies: None, alteration: Alteration::CORRUPTION };
    for field in fields {
        let (key, value) = field.map_err(|f| format!("'{f}' is not of the form KEY=VALUE"))?;
        match PARAMETERS.iter().find(|(parameter, _)| *parameter == key) {
            Some((_, actions)) if !actions.contains(&name) => {
                return Err(format!("'{key}' is valid only for {}, not for {name}", actions.join(" and ")));
            }
            Some(_) => parameters.parse(key, value)?,
            None => parse_filter(&mut filter, key, value)?,
        }
    }
    let when = |text| self::when(text, "packet");
    let (object, optional) = value.split_once('@').unzip();
    let object = object.unwrap_or(value);
    let when_or_each = || optional.map_or(Ok(When::EACH), when);
    let (action, when) = match (name, to_cm) {
        ("nak", false) => (nak(object)?, when_or_each()?),
        ("rnr", false) => (rnr(object)?, when_or_each()?),
        ("rej", true) => (rej(object)?, when_or_each()?),
        (_, true) => {
            filter.cm = Some(alternatives(object, messages)?);
            (parameters.action(name)?, when_or_each()?)
        }
        (_, false) => (parameters.action(name)?, when(value)?),
    };
    Ok(Rule { direction, action, when, filter, text: text.to_owned() })
}

/// Parameters of actions, with the actions that they are valid for.
const PARAMETERS: [(&str, &[&str]); 5] = [
    ("by", &["delay", "replay"]),
    ("copies", &["dup"]),
    ("at", &["corrupt"]),
    ("xor", &["corrupt"]),
    ("icrc", &["corrupt"]),
];

struct Parameters {
    by: Option<Duration>,
    copies: Option<u32>,
    alteration: Alteration,
}

impl Parameters {
    fn parse(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "by" => self.by = Some(duration(value)?),
            "copies" => self.copies = Some(number(key, value, 1000)? as u32),
            "at" => self.alteration.at = place(value)?,
            "xor" => self.alteration.xor = number(key, value, 0xff)?,
            _ if value == "repair" => self.alteration.repair_icrc = true,
            _ => return Err(format!("icrc '{value}' is unknown: write icrc=repair, or leave it out")),
        }
        Ok(())
    }

    /// Returns the action called `name`, which the caller has checked to have these parameters.
    fn action(&self, name: &str) -> Result<Action, String> {
        let by = || self.by.ok_or_else(|| format!("{name} requires a duration: add ,by=2ms"));
        Ok(match name {
            "drop" => Action::Drop,
            "dup" => self.copies.map_or(Action::Duplicate, Action::Repeat),
            "reorder" => Action::Reorder,
            "mark" => Action::Mark,
            "delay" => Action::Delay(by()?),
            "replay" => Action::Replay(by()?),
            "corrupt" => match self.alteration {
                Alteration::CORRUPTION => Action::Corrupt,
                alteration => Action::Alter(alteration),
            },
            _ => {
                return Err(format!(
                    "unknown action '{name}': expected drop, dup, reorder, corrupt, mark, delay, replay, nak, rnr or \
                     cm:rej, optionally after tx: or rx:; or a fault on calls (call:NAME=) or objects (qp:, cq:, mr:, \
                     gid:, event:, port=, speed=, device=)"
                ));
            }
        })
    }
}

/// Names of NAK codes.
const NAK_CODES: [(&str, NakCode); 4] = [
    ("sequence", NakCode::PsnSequenceError),
    ("invalid-request", NakCode::InvalidRequest),
    ("access", NakCode::RemoteAccessError),
    ("operation", NakCode::RemoteOperationalError),
];

fn nak(text: &str) -> Result<Action, String> {
    if is_number(text) {
        let code = number("NAK code", text, 0x1f)? as u8;
        return Ok(Action::Nak(NakCode::from_code(code)));
    }
    let found = NAK_CODES.iter().find(|(name, _)| *name == text).map(|(_, code)| Action::Nak(*code));
    found.ok_or_else(|| {
        let names = NAK_CODES.map(|(name, _)| name).join(", ");
        format!("unknown NAK code '{text}': write {names} or a number from 0 to 31")
    })
}

fn rnr(text: &str) -> Result<Action, String> {
    Ok(Action::RnrNak(RnrTimer::new(number("RNR timer", text, 0x1f)? as u8)))
}

/// Parses the reason of a REJ: its number, or its name (`stale-connection`).
fn rej(text: &str) -> Result<Action, String> {
    if is_number(text) {
        let code = number("reason", text, 0xffff)? as u16;
        return Ok(Action::Reject(RejReason::from_code(code)));
    }
    let found = RejReason::ALL.iter().find(|reason| words(&reason.to_string()) == words(text));
    found.copied().map(Action::Reject).ok_or_else(|| {
        format!(
            "unknown reason '{text}': write a number, or a name such as consumer-reject or stale-connection"
        )
    })
}

/// Parses the name of a message of the connection manager.
fn messages(text: &str) -> Result<Vec<MessageKind>, String> {
    let found = MessageKind::ALL.iter().find(|kind| words(kind.name()) == words(text));
    found.map(|kind| vec![*kind]).ok_or_else(|| {
        let names: Vec<_> = MessageKind::ALL.iter().map(|kind| words(kind.name()).join("-")).collect();
        format!("unknown CM message '{text}': write {}", names.join(", "))
    })
}

fn place(text: &str) -> Result<Place, String> {
    if is_number(text) {
        return Ok(Place::Offset(number("at", text, 0xffff)? as u16));
    }
    Place::named(text).ok_or_else(|| {
        let fields = Place::names();
        format!(
            "unknown field '{text}': write the offset of a byte from the BTH, payload, or one of {fields}"
        )
    })
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Sets the condition `key` of a filter.
fn parse_filter(filter: &mut Filter, key: &str, value: &str) -> Result<(), String> {
    match key {
        "opcode" => filter.opcodes = Some(alternatives(value, opcodes)?),
        "psn" => filter.psn = Some(psn_range(value)?),
        "qp" => filter.qp = Some(Qpn::new(number(key, value, 0xff_ffff)? as u32)),
        "from" => filter.from = Some(address(key, value)?),
        "to" => filter.to = Some(address(key, value)?),
        "ecn" => filter.ecn = Some(ecn(value)?),
        "cm" => filter.cm = Some(alternatives(value, messages)?),
        "time" => filter.time = Some(time_range(value)?),
        "payload" => {
            let range = payload_range(value)?;
            filter.predicates.push(Arc::new(move |packet| range.contains(&packet.payload().len())));
        }
        _ => {
            let parameters = PARAMETERS.map(|(key, _)| key).join(", ");
            return Err(format!(
                "unknown key '{key}': expected opcode, psn, qp, from, to, ecn, cm, time, payload, or a parameter ({parameters})"
            ));
        }
    }
    Ok(())
}

/// Parses alternatives separated by `|`, and returns the results of all.
fn alternatives<T>(text: &str, parse: fn(&str) -> Result<Vec<T>, String>) -> Result<Vec<T>, String> {
    Ok(text.split('|').map(parse).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Parses the selection among packets or calls, as named by `of`.
pub(crate) fn when(text: &str, of: &str) -> Result<When, String> {
    let positive = |text| positive(text, of);
    if let Some((first, last)) = text.split_once("..") {
        let first = positive(first)?;
        let last = (!last.is_empty()).then(|| positive(last)).transpose()?;
        if last.is_some_and(|last| last < first) {
            return Err(format!("range '{text}' is empty: write the smaller number first, such as 3..7"));
        }
        return Ok(When::Range { first, last });
    }
    match text.split_once(':') {
        Some(("every", n)) => Ok(When::Every(positive(n)?)),
        Some(("p", p)) => match p.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(When::Probability(p)),
            _ => Err(format!("'{p}' is not a probability from 0 to 1: write 1 % as p:0.01")),
        },
        Some((other, _)) => Err(format!("unknown prefix '{other}:': write 3, 3..7, every:3 or p:0.3")),
        None => Ok(When::Nth(positive(text)?)),
    }
}

fn psn_range(text: &str) -> Result<PsnRange, String> {
    let psn = |text| Ok::<_, String>(Psn::new(number("psn", text, 0xff_ffff)? as u32));
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    Ok(PsnRange { first: psn(first)?, last: psn(last)? })
}

/// Parses a range of lengths in bytes, from the first to the last inclusive; without a last one, `1025..`.
fn payload_range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let length = |text: &str| number("payload", text, 0xffff).map(|length: u64| length as usize);
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    Ok(length(first)?..=if last.is_empty() { usize::MAX } else { length(last)? })
}

fn time_range(text: &str) -> Result<Range<Duration>, String> {
    let Some((from, to)) = text.split_once("..") else {
        return Err(format!("'{text}' is not a time window: write 2ms..5ms, 2ms.. or ..5ms"));
    };
    let bound = |text: &str, otherwise| if text.is_empty() { Ok(otherwise) } else { duration(text) };
    let window = bound(from, Duration::ZERO)?..bound(to, Duration::MAX)?;
    if window.is_empty() {
        return Err(format!("time window '{text}' is empty: write the earlier time first"));
    }
    Ok(window)
}

fn address(key: &str, text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{key} '{text}' is not an IP address"))
}

fn ecn(text: &str) -> Result<Ecn, String> {
    let names = [("ce", Ecn::Ce), ("ect0", Ecn::Ect0), ("ect1", Ecn::Ect1), ("not-ect", Ecn::NotEct)];
    let found = names.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, ecn)| *ecn)
        .ok_or_else(|| format!("ecn '{text}' is unknown: write ce, ect0, ect1 or not-ect"))
}

/// Parses a number of packets or calls, as named by `of`.
fn positive(text: &str, of: &str) -> Result<u64, String> {
    if let Some(n) = text.parse().ok().filter(|n| *n > 0) {
        return Ok(n);
    }
    Err(match text.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok()) {
        Some(percent) => format!("'{text}' is not a {of} count: write {percent} % as p:{}", percent / 100.0),
        None => format!("'{text}' is not a {of} count: write an integer from 1"),
    })
}

/// Returns all opcodes that match `text`: a number, a name as printed by Wireshark and `urxe demo`
/// (`rc-send-only`), a name without the service, for all services (`send-only`), or a prefix of a name
/// (`send`).
fn opcodes(text: &str) -> Result<Vec<Opcode>, String> {
    if is_number(text) {
        return Ok(vec![Opcode(number("opcode", text, 0xff)? as u8)]);
    }
    let wanted = words(text);
    let all = || (0..=0xff).map(Opcode).filter(|opcode| opcode.row().is_valid());
    let names = |opcode: Opcode| [words(&opcode.to_string()), words(opcode.row().name)];
    let equal: Vec<Opcode> = all().filter(|o| names(*o).contains(&wanted)).collect();
    let with_prefix =
        all().filter(|o| !wanted.is_empty() && names(*o).iter().any(|name| name.starts_with(&wanted)));
    let found = if equal.is_empty() { with_prefix.collect() } else { equal };
    if found.is_empty() {
        let similar = hint(&wanted.join("-"), all().map(|opcode| words(opcode.row().name).join("-")));
        return Err(format!(
            "unknown opcode '{text}': write a number, or a name such as send-only, write-middle, \
             read-request or ack{similar}"
        ));
    }
    Ok(found)
}

fn words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    let short = |word: String| if word == "acknowledge" { "ack".into() } else { word };
    words.filter(|word| !word.is_empty() && word != "rdma").map(short).collect()
}

/// Parses a number from 0 to `max`, in decimal, or in hexadecimal with the prefix `0x`.
pub(crate) fn number<N>(key: &str, text: &str, max: N) -> Result<N, String>
where
    N: Copy + PartialOrd + TryFrom<u64> + fmt::Display + fmt::LowerHex,
{
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed.ok().and_then(|n| N::try_from(n).ok()) {
        Some(n) if n <= max => Ok(n),
        _ => Err(format!("{key} '{text}' is not a number from 0 to {max} ({max:#x})")),
    }
}

/// Parses a duration such as `500us`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let parsed = units.iter().find_map(|(unit, nanos)| {
        let n: u64 = text.strip_suffix(unit)?.parse().ok()?;
        n.checked_mul(*nanos)
    });
    parsed
        .map(Duration::from_nanos)
        .ok_or(format!("'{text}' is not a duration: write for example 500us, 2ms or 1s"))
}

#[cfg(test)]
mod tests;

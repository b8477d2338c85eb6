//! Fault injection rules, and their textual form.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::{Opcode, Packet, Psn, Qpn};

/// Direction of a packet, as seen from the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Transmit.
    Tx,
    /// Receive.
    Rx,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
        })
    }
}

/// Fault to apply to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// The packet is delivered twice.
    Duplicate,
    /// The packet is delivered after the next one.
    Reorder,
    /// One byte of the packet is changed, so that its ICRC check fails.
    Corrupt,
    /// The packet is delivered later by the given duration; packets that arrive in the meantime overtake it.
    Delay(Duration),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Drop => f.write_str("drop"),
            Action::Duplicate => f.write_str("dup"),
            Action::Reorder => f.write_str("reorder"),
            Action::Corrupt => f.write_str("corrupt"),
            Action::Delay(_) => f.write_str("delay"),
        }
    }
}

/// Selection among the packets that match a rule's filter.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum When {
    /// The n-th packet only, counted from 1.
    Nth(u64),
    /// Every n-th packet: the n-th, the 2n-th and so on.
    Every(u64),
    /// Each packet with the given probability.
    Probability(f64),
}

type Filter = Arc<dyn Fn(&Packet<'_>) -> bool + Send + Sync>;

/// A fault, and the packets that it applies to.
///
/// On the command line: `[tx:|rx:]ACTION=WHEN[,opcode=N|NAME][,psn=N][,qp=N]` (default `tx`), with the
/// actions `drop`, `dup`, `reorder`, `corrupt` and `delay` (which also needs `,by=2ms`), and `3`, `every:13`
/// or `p:0.01` for WHEN.
#[derive(Clone)]
pub struct Rule {
    /// Direction of the packets.
    pub direction: Direction,
    /// The fault.
    pub action: Action,
    /// Packets affected, among those that match the filter.
    pub when: When,
    filter: Option<Filter>,
    /// The rule's textual form; if the rule was parsed, as it was written.
    text: String,
}

impl Rule {
    /// Creates a rule without a filter, which matches all packets in the given direction.
    pub fn new(direction: Direction, action: Action, when: When) -> Rule {
        let text = match when {
            When::Nth(n) => format!("{direction}:{action}={n}"),
            When::Every(n) => format!("{direction}:{action}=every:{n}"),
            When::Probability(p) => format!("{direction}:{action}=p:{p}"),
        };
        Rule { direction, action, when, filter: None, text }
    }

    /// Restricts the rule further, to packets for which `filter` returns true. Only packets that match all
    /// filters are counted.
    #[must_use]
    pub fn only(mut self, filter: impl Fn(&Packet<'_>) -> bool + Send + Sync + 'static) -> Rule {
        self.filter = Some(match self.filter.take() {
            Some(first) => Arc::new(move |p| first(p) && filter(p)),
            None => Arc::new(filter),
        });
        self
    }

    /// Reports whether a packet, given from BTH to ICRC, matches the filter.
    pub(super) fn matches_filter(&self, bytes: &[u8]) -> bool {
        match &self.filter {
            Some(filter) => Packet::parse(bytes).is_ok_and(|p| filter(&p)),
            None => true,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.text)
    }
}

/// Error when parsing a fault rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("fault rule '{rule}': {reason}")]
pub struct RuleError {
    /// Text of the rule.
    pub rule: String,
    /// The reason, and the form expected.
    pub reason: String,
}

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
    let mut fields = rest.split(',').map(|f| f.split_once('=').ok_or(f));
    let (action, when) = match fields.next() {
        Some(Ok(pair)) => pair,
        _ => return Err("expected ACTION=WHEN, such as drop=3, drop=every:13 or drop=p:0.01".into()),
    };
    let when = parse_when(when)?;
    let (mut opcode, mut psn, mut qp, mut by) = (None, None, None, None);
    for field in fields {
        let (key, value) = field.map_err(|f| format!("'{f}' is not of the form KEY=VALUE"))?;
        match key {
            "opcode" => opcode = Some(opcodes(value)?),
            "psn" => psn = Some(Psn::new(number(key, value, 0xff_ffff)? as u32)),
            "qp" => qp = Some(Qpn::new(number(key, value, 0xff_ffff)? as u32)),
            "by" => by = Some(duration(value)?),
            _ => return Err(format!("unknown key '{key}': expected opcode, psn, qp or by")),
        }
    }
    let action = match (action, by) {
        ("delay", Some(by)) => Action::Delay(by),
        ("delay", None) => return Err("delay requires a duration: add ,by=2ms".into()),
        (_, Some(_)) => return Err(format!("'by' is valid only for delay, not for {action}")),
        ("drop", None) => Action::Drop,
        ("dup", None) => Action::Duplicate,
        ("reorder", None) => Action::Reorder,
        ("corrupt", None) => Action::Corrupt,
        _ => {
            let expected = "expected drop, dup, reorder, corrupt or delay, optionally after tx: or rx:";
            return Err(format!("unknown action '{action}': {expected}"));
        }
    };
    let mut rule = Rule { direction, action, when, filter: None, text: text.to_owned() };
    if opcode.is_some() || psn.is_some() || qp.is_some() {
        rule = rule.only(move |p| {
            opcode.as_ref().is_none_or(|some| some.contains(&p.bth().opcode))
                && psn.is_none_or(|n| p.bth().psn == n)
                && qp.is_none_or(|n| p.bth().dest_qp == n)
        });
    }
    Ok(rule)
}

fn parse_when(text: &str) -> Result<When, String> {
    match text.split_once(':') {
        Some(("every", n)) => Ok(When::Every(positive(n)?)),
        Some(("p", p)) => match p.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(When::Probability(p)),
            _ => Err(format!("'{p}' is not a probability from 0 to 1: write 1 % as p:0.01")),
        },
        Some((other, _)) => Err(format!("unknown prefix '{other}:': write 3, every:3 or p:0.3")),
        None => Ok(When::Nth(positive(text)?)),
    }
}

fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("'{text}' is not a packet count: write an integer from 1")),
    }
}

/// Returns all opcodes that match `text`: a number, a name as printed by Wireshark and `urxe demo`
/// (`rc-send-only`), a name without the service, for all services (`send-only`), or a prefix of a name
/// (`send`).
fn opcodes(text: &str) -> Result<Vec<Opcode>, String> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
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
        return Err(format!(
            "unknown opcode '{text}': write a number, or a name such as send-only, write-middle, \
             read-request or ack"
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
fn number(key: &str, text: &str, max: u64) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(n) if n <= max => Ok(n),
        _ => Err(format!("{key} '{text}' is not a number from 0 to {max} ({max:#x})")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
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
mod tests {
    use super::*;

    #[test]
    fn rules_round_trip_through_text() {
        let shape = |text: &str| {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            (rule.direction, rule.action, rule.when, rule.filter.is_some())
        };
        assert_eq!(shape("drop=3"), (Direction::Tx, Action::Drop, When::Nth(3), false));
        assert_eq!(shape("rx:dup=every:5"), (Direction::Rx, Action::Duplicate, When::Every(5), false));
        assert_eq!(
            shape("tx:reorder=p:0.25"),
            (Direction::Tx, Action::Reorder, When::Probability(0.25), false)
        );
        assert_eq!(
            shape("corrupt=1,opcode=0x0a,qp=17"),
            (Direction::Tx, Action::Corrupt, When::Nth(1), true)
        );
        let two_ms = Action::Delay(Duration::from_millis(2));
        assert_eq!(shape("rx:delay=every:2,by=2ms"), (Direction::Rx, two_ms, When::Every(2), false));
        let own = Rule::new(Direction::Rx, Action::Drop, When::Every(7));
        assert_eq!(own.to_string(), "rx:drop=every:7");
    }

    #[test]
    fn opcode_is_parsed_from_a_number_a_name_or_a_prefix_of_names() {
        let codes = |text: &str| opcodes(text).unwrap().iter().map(|o| o.0).collect::<Vec<_>>();
        assert_eq!(codes("0x0a"), [0x0a]);
        assert_eq!(codes("RC SEND Only"), [0x04]);
        assert_eq!(codes("send-only"), [0x04, 0x24, 0x44, 0x64, 0xa4]);
        assert_eq!(codes("rc-write"), [0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b]);
        assert_eq!(codes("rc_rdma_read_request"), [0x0c]);
        assert_eq!(codes("rc-ack"), [0x11]);
        assert_eq!(codes("uc"), (0x20..0x2c).collect::<Vec<_>>());
        assert_eq!(codes("CNP"), [0x81]);
        for invalid in ["", "-", "sned", "only"] {
            assert!(opcodes(invalid).unwrap_err().contains(&format!("unknown opcode '{invalid}'")));
        }
        // The full name of an opcode means that opcode only.
        for opcode in (0..=0xff).map(Opcode).filter(|opcode| opcode.row().is_valid()) {
            assert_eq!(opcodes(&opcode.to_string()), Ok(vec![opcode]));
        }
    }

    #[test]
    fn error_for_an_invalid_rule_explains_the_cause() {
        let error = |text: &str| text.parse::<Rule>().unwrap_err().to_string();
        assert_eq!(
            error("drop=0"),
            "fault rule 'drop=0': '0' is not a packet count: write an integer from 1"
        );
        assert!(error("lose=3").contains("unknown action 'lose'"));
        assert!(error("drop").contains("ACTION=WHEN"));
        assert!(error("drop=p:2").contains("from 0 to 1"));
        assert!(error("drop=often:2").contains("'often:'"));
        assert!(error("delay=2").contains("by=2ms"));
        assert!(error("drop=2,by=2ms").contains("only for delay"));
        assert!(error("delay=2,by=2min").contains("'2min'"));
        assert!(error("drop=2,psn=0x1000000").contains("0xffffff"));
        assert!(error("drop=2,color=1").contains("'color'"));
        assert!(error("up:drop=2").contains("up:drop"));
    }
}

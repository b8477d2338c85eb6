//! Textual form of faults on objects.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::driver::{ObjectChange, ObjectFault, Trigger};
use crate::fault_rules::{RuleError, duration, hint, number};
use crate::nic::PortSpeed;
use crate::transport::{AsyncEvent, CqId, SrqId};
use crate::wire::{Gid, Qpn, RKey};

/// Kinds of objects, which begin the text of a fault, with a form of the text.
const KINDS: [(&str, &str); 8] = [
    ("qp", "qp:NUMBER=err@5ms, or qp:*=err@5ms for all"),
    ("cq", "cq:NUMBER=overrun@5ms, or cq:*=overrun@5ms for all"),
    ("mr", "mr:RKEY=revoke@5ms, or mr:*=revoke@5ms for all"),
    ("gid", "gid:INDEX=ADDRESS@5ms or gid:INDEX=remove@5ms"),
    ("port", "port=down@5ms or port=up@5ms"),
    ("speed", "speed=25G@5ms"),
    ("device", "device=fatal@5ms"),
    ("event", "event:NAME@5ms, followed by ,qp=NUMBER, ,cq=NUMBER or ,srq=NUMBER for an object's event"),
];

/// Splits a text into the kind of an object, with which it should begin, and the rest.
fn split_kind(text: &str) -> (&str, &str) {
    text.split_at(text.find([':', '=', '@']).unwrap_or(text.len()))
}

/// Reports whether `text` begins with the kind of an object.
pub(super) fn is_object(text: &str) -> bool {
    KINDS.iter().any(|(kind, _)| *kind == split_kind(text).0)
}

impl ObjectFault {
    /// Creates a fault.
    pub fn new(change: ObjectChange, trigger: Trigger) -> ObjectFault {
        let at = match trigger {
            Trigger::After(time) => format!("{}ns", time.as_nanos()),
            Trigger::Packets(count) => count.to_string(),
        };
        let text = match change {
            ObjectChange::QpError(qpn) => format!("qp:{}=err@{at}", all_or(qpn.map(Qpn::get))),
            ObjectChange::CqOverrun(id) => format!("cq:{}=overrun@{at}", all_or(id.map(|id| id.0))),
            ObjectChange::Port { up } => format!("port={}@{at}", if up { "up" } else { "down" }),
            ObjectChange::Gid { index, gid: Some(gid) } => format!("gid:{index}={}@{at}", gid.ip()),
            ObjectChange::Gid { index, gid: None } => format!("gid:{index}=remove@{at}"),
            ObjectChange::Speed(speed) => format!("speed={speed}@{at}"),
            ObjectChange::DeviceFatal => format!("device=fatal@{at}"),
            ObjectChange::RevokeMr(rkey) => format!("mr:{}=revoke@{at}", all_or(rkey.map(|rkey| rkey.0))),
            ObjectChange::Event(event) => {
                let name = event_name(event);
                let qp = event.qpn().map(|qpn| format!(",qp={qpn}"));
                let cq = event.cq().map(|id| format!(",cq={}", id.0));
                let srq = event.srq().map(|id| format!(",srq={}", id.0));
                let subject = qp.or(cq).or(srq).unwrap_or_default();
                format!("event:{name}@{at}{subject}")
            }
        };
        ObjectFault { change, trigger, text }
    }
}

fn all_or(number: Option<impl fmt::Display>) -> String {
    number.map_or_else(|| "*".into(), |number| number.to_string())
}

impl FromStr for ObjectFault {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<ObjectFault, RuleError> {
        parse(text).map_err(|reason| RuleError { rule: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<ObjectFault, String> {
    let (found, rest) = split_kind(text);
    let Some((kind, form)) = KINDS.iter().find(|(kind, _)| *kind == found) else {
        let kinds = KINDS.map(|(kind, _)| kind).join(", ");
        return Err(format!("'{found}' is no kind of object: expected one of {kinds}"));
    };
    let expected = || format!("expected {form}");
    let (object, at) = rest.rsplit_once('@').ok_or_else(expected)?;
    let (at, subject) = match at.split_once(',') {
        Some((at, subject)) if *kind == "event" => (at, Some(subject)),
        Some(_) => return Err(expected()),
        None => (at, None),
    };
    let trigger = trigger(at)?;
    let change = match (*kind, object.strip_prefix(':').and_then(|object| object.split_once('='))) {
        ("qp", Some((qpn, "err"))) => {
            ObjectChange::QpError(one_or_all("QP number", qpn, 0xff_ffff, Qpn::new)?)
        }
        ("cq", Some((id, "overrun"))) => {
            ObjectChange::CqOverrun(one_or_all("CQ number", id, u32::MAX, CqId)?)
        }
        ("mr", Some((rkey, "revoke"))) => ObjectChange::RevokeMr(one_or_all("rkey", rkey, u32::MAX, RKey)?),
        ("gid", Some((index, gid))) => {
            ObjectChange::Gid { index: number("GID index", index, 0xff_usize)?, gid: self::gid(gid)? }
        }
        ("event", None) => {
            let name = object.strip_prefix(':').ok_or_else(expected)?;
            of_event(event(name, subject)?)
        }
        _ => match (*kind, object.strip_prefix('=')) {
            ("port", Some("down")) => ObjectChange::Port { up: false },
            ("port", Some("up")) => ObjectChange::Port { up: true },
            ("speed", Some(speed)) => ObjectChange::Speed(speed.parse::<PortSpeed>()?),
            ("device", Some("fatal")) => ObjectChange::DeviceFatal,
            _ => return Err(expected()),
        },
    };
    Ok(ObjectFault { change, trigger, text: text.to_owned() })
}

/// Parses the part after `@`: a duration, or a number of packets.
fn trigger(text: &str) -> Result<Trigger, String> {
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        let packets = text.parse().map_err(|_| format!("'{text}' is not a number of packets"))?;
        return Ok(Trigger::Packets(packets));
    }
    duration(text)
        .map(Trigger::After)
        .map_err(|reason| format!("{reason}, or a number of packets such as 100"))
}

fn one_or_all<T>(name: &str, text: &str, max: u32, make: fn(u32) -> T) -> Result<Option<T>, String> {
    if text == "*" {
        return Ok(None);
    }
    Ok(Some(make(number(name, text, max)?)))
}

fn gid(text: &str) -> Result<Option<Gid>, String> {
    if text == "remove" {
        return Ok(None);
    }
    let address: IpAddr =
        text.parse().map_err(|_| format!("'{text}' is not a GID: write an IP address, or remove"))?;
    Ok(Some(address.into()))
}

/// Returns the change that raises an event: for events of the port and the device, the cause of the event.
fn of_event(event: AsyncEvent) -> ObjectChange {
    match event {
        AsyncEvent::DeviceFatal => ObjectChange::DeviceFatal,
        AsyncEvent::PortActive => ObjectChange::Port { up: true },
        AsyncEvent::PortError => ObjectChange::Port { up: false },
        _ => ObjectChange::Event(event),
    }
}

/// Returns the name of an event in the text of faults: as in libibverbs, without `IBV_EVENT_`.
fn event_name(event: AsyncEvent) -> &'static str {
    event.name().trim_start_matches("IBV_EVENT_")
}

fn event(name: &str, subject: Option<&str>) -> Result<AsyncEvent, String> {
    let (key, value) = match subject.map(|subject| subject.split_once('=').ok_or(subject)) {
        Some(Ok(("qp", value))) => ("qp", number("QP number", value, 0xff_ffff)?),
        Some(Ok((key @ ("cq" | "srq"), value))) => (key, number("queue number", value, u32::MAX)?),
        Some(Ok((key, _))) => return Err(format!("unknown key '{key}': expected qp, cq or srq")),
        Some(Err(text)) => return Err(format!("'{text}' is not of the form KEY=VALUE")),
        None => ("", 0),
    };
    let all = AsyncEvent::all(Qpn::new(value), CqId(value), SrqId(value));
    let wanted = name.trim_start_matches("IBV_EVENT_");
    let Some(event) = all.clone().find(|event| event_name(*event) == wanted) else {
        let hint = hint(wanted, all.map(event_name));
        return Err(format!("unknown event '{name}': write a name such as QP_ACCESS_ERR{hint}"));
    };
    let needed = match (event.qpn(), event.cq(), event.srq()) {
        (Some(_), ..) => "qp",
        (_, Some(_), _) => "cq",
        (.., Some(_)) => "srq",
        _ => "",
    };
    match needed {
        _ if needed == key => Ok(event),
        "" => Err(format!("{wanted} concerns no object: remove ,{key}={value}")),
        _ => Err(format!("{wanted} concerns a queue: add ,{needed}=NUMBER")),
    }
}

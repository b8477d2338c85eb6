//! Messages between a client and the broker. Each is a line of text; the table in [`super`] lists them.

use std::fmt;
use std::str::FromStr;

use crate::host::unix_sockets::fd_message::MAX_FDS;
use crate::link::udp::BindAddr;
use crate::nic::QpnPartition;

/// Protocol version, the first word of every line. Peers with another version are refused.
const VERSION: &str = "urxe-broker-5";

/// Words for the users whose processes the broker serves: any user, or only its own user.
const ANY_USER: &str = "any";
const OWN_USER: &str = "own";

/// Request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// First partition that the client already has, in a request to a new broker (`reattach`). That request
    /// also carries the keepalive descriptors for the addresses, in the order of `bind_addrs`. `None`
    /// requests any free partitions (`acquire`). The first descriptor of each request is that of the last
    /// acknowledgements.
    pub partition: Option<usize>,
    /// Number of shards, a power of two. The client has one partition per shard, with consecutive numbers.
    pub shards: usize,
    /// The addresses to share.
    pub bind_addrs: Vec<BindAddr>,
}

/// Response of the broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// Granted, with the client's first partition, and whether the broker serves processes of any user and
    /// therefore uses abstract socket names.
    Granted { partition: usize, any_user: bool },
    /// Refused, with the reason as an errno value and as text.
    Refused { errno: i32, reason: String },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} ")?;
        match self.partition {
            None => write!(f, "acquire {}", self.shards)?,
            Some(partition) => write!(f, "reattach {partition} {}", self.shards)?,
        }
        self.bind_addrs.iter().try_for_each(|bind_addr| write!(f, " {bind_addr}"))
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Request, String> {
        let mut words = line.split(' ');
        check_version(words.next())?;
        let invalid = || format!("invalid request: '{}'", line.escape_debug());
        let number = |words: &mut std::str::Split<'_, char>| {
            words.next().and_then(|n| n.parse().ok()).ok_or_else(invalid)
        };
        let partition: Option<usize> = match words.next() {
            Some("acquire") => None,
            Some("reattach") => Some(number(&mut words)?),
            _ => return Err(invalid()),
        };
        let shards = number(&mut words)?;
        let bind_addrs: Vec<BindAddr> =
            words.map(str::parse).collect::<Result<_, _>>().map_err(|()| invalid())?;
        let last = partition.unwrap_or(0).checked_add(shards).ok_or_else(invalid)?;
        let request = Request { partition, shards, bind_addrs };
        let fits = shards.is_power_of_two() && last <= QpnPartition::COUNT && !request.bind_addrs.is_empty();
        if fits && request.fits_a_message() { Ok(request) } else { Err(invalid()) }
    }
}

impl Request {
    /// Reports whether a grant's descriptors fit in one message: a token for each shard and, for each
    /// address, its sockets and its keepalive descriptor.
    pub fn fits_a_message(&self) -> bool {
        self.shards.saturating_add(self.bind_addrs.len().saturating_mul(self.shards.saturating_add(1)))
            <= MAX_FDS
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Response::Granted { partition, any_user } => {
                write!(f, "{VERSION} granted {partition} {}", if *any_user { ANY_USER } else { OWN_USER })
            }
            Response::Refused { errno, reason } => write!(f, "{VERSION} refused {errno} {reason}"),
        }
    }
}

impl Response {
    /// Returns a refusal for a request that violates the protocol.
    pub fn protocol_error(reason: impl Into<String>) -> Response {
        Response::Refused { errno: libc::EPROTO, reason: reason.into() }
    }
}

impl FromStr for Response {
    type Err = String;

    fn from_str(line: &str) -> Result<Response, String> {
        let mut words = line.splitn(4, ' ');
        check_version(words.next())?;
        let kind = words.next().unwrap_or_default();
        match (kind, words.next().map(str::parse::<u16>), words.next()) {
            ("granted", Some(Ok(partition)), Some(user @ (ANY_USER | OWN_USER))) => {
                Ok(Response::Granted { partition: partition.into(), any_user: user == ANY_USER })
            }
            ("refused", Some(Ok(errno)), Some(reason)) => {
                Ok(Response::Refused { errno: errno.into(), reason: reason.into() })
            }
            _ => Err(format!("invalid response: '{}'", line.escape_debug())),
        }
    }
}

fn check_version(word: Option<&str>) -> Result<(), String> {
    match word {
        Some(VERSION) => Ok(()),
        _ => Err("processes of another version of urxe share this address: stop them first".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_addr(text: &str) -> BindAddr {
        text.parse().unwrap()
    }

    #[test]
    fn messages_round_trip_through_lines_of_text() {
        let bind_addrs = vec![bind_addr("10.0.0.1"), bind_addr("fe80::1%eth0")];
        for (partition, shards) in [(None, 1), (Some(5), 1), (Some(8), 8), (None, 32)] {
            let request = Request { partition, shards, bind_addrs: bind_addrs.clone() };
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        let refused = Response::Refused { errno: 98, reason: "in use by process 5 (x y)".into() };
        let granted = |any_user| Response::Granted { partition: 63, any_user };
        for response in [granted(false), granted(true), refused] {
            assert_eq!(response.to_string().parse(), Ok(response));
        }
    }

    #[test]
    fn malformed_lines_are_rejected() {
        for line in [
            "urxe-broker-5 acquire 3 10.0.0.1",
            "urxe-broker-5 acquire 1",
            "urxe-broker-5 acquire 0 10.0.0.1",
            "urxe-broker-5 acquire 64 10.0.0.1 fd00::1 fd00::2",
            "urxe-broker-5 acquire 1 ten",
            "urxe-broker-5 reattach 64 1 10.0.0.1",
            "urxe-broker-5 reattach 18446744073709551615 1 10.0.0.1",
            "urxe-broker-5 release",
            "urxe-broker-5",
        ] {
            assert!(line.parse::<Request>().unwrap_err().contains("invalid request"), "{line}");
        }
        for version in ["urxe-broker-4", "urxe-broker", "urxe"] {
            let request = format!("{version} acquire 1 10.0.0.1").parse::<Request>().unwrap_err();
            let response = format!("{version} granted 1 own").parse::<Response>().unwrap_err();
            assert!([request, response].iter().all(|error| error.contains("another version")), "{version}");
        }
        for line in ["granted x own", "granted 5", "granted 5 all", "granted 5 own 6"] {
            assert!(format!("urxe-broker-5 {line}").parse::<Response>().is_err(), "{line}");
        }
    }
}

//! Messages between a process and the broker: one line of text each, with descriptors.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::BindAddr;
use crate::nic::QpnPartition;

/// First word of every line: peers of another version are rejected.
const VERSION: &str = "urxe-steward-3";

/// Words for the users whose processes the broker serves: any user, or only its own.
const ANY_USER: &str = "any";
const OWN_USER: &str = "own";

/// Maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
const MAX_FDS: usize = 253;

/// Maximum length of a line, in bytes.
const MAX_LEN: usize = 8192;

/// Request of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Partition that the process already has, for a new broker; the keepers of its addresses come with the
    /// request, in the order of `bind_addrs`. `None` requests any free partition.
    pub partition: Option<usize>,
    /// Number of shards, a power of two. Each has a partition of its own, in consecutive order.
    pub shards: usize,
    /// The addresses to share.
    pub bind_addrs: Vec<BindAddr>,
}

/// Response of the broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Response {
    /// Granted: the first partition of the process, and whether the broker serves processes of any user,
    /// whose names it then uses to forward requests. A new grant carries descriptors: a token for each shard,
    /// then for each address the sockets of all shards and the keeper.
    Granted { partition: usize, any_user: bool },
    /// Refused, with the reason as an errno value and as text.
    Refused { errno: i32, reason: String },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} ")?;
        match self.partition {
            None => write!(f, "join {}", self.shards)?,
            Some(partition) => write!(f, "return {partition} {}", self.shards)?,
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
            Some("join") => None,
            Some("return") => Some(number(&mut words)?),
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
    /// Reports whether the descriptors of a grant fit in one message: a token for each shard, and for each
    /// address the sockets and the keeper.
    pub fn fits_a_message(&self) -> bool {
        self.shards.saturating_add(self.bind_addrs.len().saturating_mul(self.shards.saturating_add(1)))
            <= MAX_FDS
    }
}

impl FromStr for BindAddr {
    type Err = ();

    fn from_str(text: &str) -> Result<BindAddr, ()> {
        let (ip, interface) =
            text.split_once('%').map_or((text, None), |(ip, name)| (ip, Some(name.to_owned())));
        Ok(BindAddr { ip: ip.parse().map_err(drop)?, interface })
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Response::Granted { partition, any_user } => {
                write!(f, "{VERSION} lease {partition} {}", if *any_user { ANY_USER } else { OWN_USER })
            }
            Response::Refused { errno, reason } => write!(f, "{VERSION} refused {errno} {reason}"),
        }
    }
}

impl FromStr for Response {
    type Err = String;

    fn from_str(line: &str) -> Result<Response, String> {
        let mut words = line.splitn(4, ' ');
        check_version(words.next())?;
        let kind = words.next().unwrap_or_default();
        match (kind, words.next().map(str::parse::<u16>), words.next()) {
            ("lease", Some(Ok(partition)), Some(ANY_USER)) => {
                Ok(Response::Granted { partition: partition.into(), any_user: true })
            }
            ("lease", Some(Ok(partition)), Some(OWN_USER)) => {
                Ok(Response::Granted { partition: partition.into(), any_user: false })
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

/// Sends a line with descriptors.
pub(super) fn send(to: impl AsFd, line: &impl fmt::Display, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!("a message cannot carry {} descriptors", fds.len())));
    }
    let text = line.to_string();
    if text.len() > MAX_LEN {
        return Err(io::Error::other(format!("a message cannot have {} bytes", text.len())));
    }
    sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a line with descriptors; `None` at the end of the connection. With `peek`, the message stays
/// queued and can be received again, with new descriptors of the same files.
pub(super) fn receive(from: impl AsFd, peek: bool) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; MAX_LEN];
    // A peek never blocks; otherwise the mode of the descriptor decides.
    let peek = if peek { RecvFlags::PEEK | RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let flags = RecvFlags::CMSG_CLOEXEC | peek;
    let received = loop {
        match recvmsg(&from, &mut [IoSliceMut::new(&mut text)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        // Treated as a lack of descriptors: no peer of this version sends more than there is room for.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let line = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
    Ok((received.bytes > 0).then_some((line, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_addr(text: &str) -> BindAddr {
        text.parse().unwrap()
    }

    #[test]
    fn lines_parse_to_the_messages_they_were_written_from() {
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
            "urxe-steward-3 join 3 10.0.0.1",
            "urxe-steward-3 join 1",
            "urxe-steward-3 join 0 10.0.0.1",
            "urxe-steward-3 join 64 10.0.0.1 fd00::1 fd00::2",
            "urxe-steward-3 join 1 ten",
            "urxe-steward-3 return 64 1 10.0.0.1",
            "urxe-steward-3 return 18446744073709551615 1 10.0.0.1",
            "urxe-steward-3 leave",
            "urxe-steward-3",
        ] {
            assert!(line.parse::<Request>().unwrap_err().contains("invalid request"), "{line}");
        }
        let other = "urxe-steward-4 join 1 10.0.0.1".parse::<Request>().unwrap_err();
        assert!(other.contains("another version"), "{other}");
        for line in ["lease x own", "lease 5", "lease 5 all", "lease 5 own 6"] {
            assert!(format!("urxe-steward-3 {line}").parse::<Response>().is_err(), "{line}");
        }
    }
}

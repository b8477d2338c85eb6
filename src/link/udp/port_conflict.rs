//! Finds the owner of a UDP port that is already in use, for the error message.

use std::fmt;
use std::fs;
use std::net::IpAddr;

use crate::host::netlink;

/// Owner of a UDP port.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PortOwner {
    /// A process.
    Process {
        /// Process ID.
        pid: u32,
        /// Command name of the process (comm).
        name: String,
    },
    /// A process with the given user ID, which the calling process may not inspect.
    User(u32),
    /// The kernel itself (rdma_rxe).
    Kernel,
    /// A socket that has since been closed, or is not listed in /proc.
    Unknown,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortOwner::Process { pid, name } => write!(f, "process {pid} ({name})"),
            PortOwner::User(uid) => write!(f, "a process of uid {uid}"),
            PortOwner::Kernel => write!(f, "the kernel (probably the rdma_rxe module)"),
            PortOwner::Unknown => write!(f, "an unknown socket"),
        }
    }
}

/// Socket tables of this thread's network namespace. Both are searched, because a wildcard IPv6 socket may
/// also occupy the IPv4 port.
const PROC_TABLES: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];

/// Owner fields from a line of /proc/net/udp.
struct Entry {
    uid: u32,
    inode: u64,
}

impl PortOwner {
    /// Returns the end of an error message: what the user can do about a port that this owner occupies.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            // The kernel binds its sockets to the wildcard address.
            PortOwner::Kernel => {
                "it occupies the port on all addresses; remove its devices (rdma link delete), or use another \
                 network namespace"
            }
            PortOwner::Process { name, .. } if name == "urxe" => {
                "stop it, use another address of this machine, or share this one, with --shared-memory auto for each `urxe perf`, \
                 `pingpong` and `serve` on it (`urxe run` needs no option)"
            }
            _ => "stop it, or use another address of this machine",
        }
    }

    /// Returns the owner's user ID, as seen in this user namespace, of a reuseport group of `size` sockets
    /// that already occupies `port` on `ip`, or `None` if there is no such group.
    ///
    /// Half of the sockets are enough: the kernel's table is not a snapshot, and a socket that closes while
    /// the table is read can hide another one.
    pub(crate) fn user_of_group(ip: IpAddr, port: u16, size: usize) -> Option<u32> {
        let sockets = conflicts(ip, port);
        sockets.first().filter(|_| sockets.len() >= size.div_ceil(2).max(2)).map(|socket| socket.uid)
    }

    /// Finds the owner of the first socket that conflicts with binding `port` on `ip`. Returns
    /// [`PortOwner::Unknown`] if no listed socket conflicts (any more).
    pub fn find(ip: IpAddr, port: u16) -> PortOwner {
        PortOwner::of(ip, port).unwrap_or(PortOwner::Unknown)
    }

    /// Returns the owner of the first socket that conflicts with binding `port` on `ip`, or `None` if no
    /// listed socket conflicts.
    pub fn of(ip: IpAddr, port: u16) -> Option<PortOwner> {
        Some(match conflicts(ip, port).first()? {
            Entry { inode: 0, .. } => PortOwner::Kernel,
            Entry { uid, inode } => process_of(*inode)
                .map_or(PortOwner::User(*uid), |(pid, name)| PortOwner::Process { pid, name }),
        })
    }
}

/// Returns the sockets that conflict with binding `port` on `ip`.
fn conflicts(ip: IpAddr, port: u16) -> Vec<Entry> {
    let tables = PROC_TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
    let entries = |table: String| -> Vec<Entry> {
        table.lines().skip(1).filter_map(|line| conflicting_entry(line, ip, port)).collect()
    };
    tables.flat_map(entries).collect()
}

/// Parses a line of a socket table. Returns the socket if it conflicts with binding `port` on `ip`.
fn conflicting_entry(line: &str, ip: IpAddr, port: u16) -> Option<Entry> {
    let mut fields = line.split_ascii_whitespace();
    let (addr, at) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(at, 16).ok()? != port {
        return None;
    }
    let bound = address(addr)?;
    // A wildcard of the other family conflicts only if it is IPv6, which may include IPv4.
    let wild = bound.is_unspecified() && (bound.is_ipv6() || ip.is_ipv4());
    let same_family = bound.is_ipv4() == ip.is_ipv4();
    if !(bound == ip || wild || ip.is_unspecified() && same_family) {
        return None;
    }
    Some(Entry { uid: fields.nth(5)?.parse().ok()?, inode: fields.nth(1)?.parse().ok()? })
}

/// Parses an address as /proc prints it: 32-bit words in the machine's byte order.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |digits| Some(u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?.to_ne_bytes());
    let words: Option<Vec<_>> = hex.as_bytes().chunks(8).map(word).collect();
    netlink::address(words?.as_flattened())
}

/// Finds the process that has the socket open, among those that the calling process may inspect.
fn process_of(inode: u64) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let has_socket = fs::read_dir(process.path().join("fd"))
            .ok()?
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str()));
        let name = || fs::read_to_string(process.path().join("comm")).unwrap_or_default().trim().to_owned();
        has_socket.then(|| (pid, name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::udp::{UdpOptions, steer};
    use crate::wire::ROCE_PORT;

    #[test]
    fn group_is_recognised_even_if_some_of_its_sockets_are_not_listed() {
        let ip: IpAddr = "127.18.246.1".parse().unwrap();
        assert_eq!(PortOwner::user_of_group(ip, ROCE_PORT, 64), None);
        let one = steer::bind_group(ip, &UdpOptions::default(), 1).unwrap();
        assert_eq!(PortOwner::user_of_group(ip, ROCE_PORT, 64), None);
        drop(one);
        let _most = steer::bind_group(ip, &UdpOptions::default(), 48).unwrap();
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(PortOwner::user_of_group(ip, ROCE_PORT, 64), Some(user));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn proc_net_udp_line_yields_its_socket_only_if_it_conflicts_with_the_bind() {
        let v4 = "  77: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 21 2 0 0";
        let ip = |s: &str| s.parse().unwrap();
        let entry = conflicting_entry(v4, ip("127.0.0.1"), 4791).unwrap();
        assert_eq!((entry.uid, entry.inode), (1000, 21));
        assert!(conflicting_entry(v4, ip("0.0.0.0"), 4791).is_some());
        assert!(conflicting_entry(v4, ip("127.0.0.2"), 4791).is_none());
        assert!(conflicting_entry(v4, ip("127.0.0.1"), 4792).is_none());
        assert!(conflicting_entry(v4, ip("::"), 4791).is_none());
        let any6 = "1: 00000000000000000000000000000000:12B7 0:0 07 0:0 0:0 0 0 0 33 2 0 0";
        assert_eq!(conflicting_entry(any6, ip("10.0.0.1"), 4791).unwrap().inode, 33);
    }
}

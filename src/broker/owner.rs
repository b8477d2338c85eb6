//! The process that owns a queue pair of a shared address of this host, from the kernel's tables.

use std::net::IpAddr;
use std::{fmt, fs};

use crate::host::unix_sockets::socket_table::{self, LEASE, names};
use crate::nic::QpnPartition;
use crate::wire::Qpn;

/// Process that owns a queue pair number of a shared address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QpOwner {
    /// No process has leased the number: its owner has ended.
    Gone,
    /// A process.
    Process {
        /// Process ID.
        pid: u32,
        /// Name.
        name: String,
        /// Whether a signal or a debugger has stopped it.
        is_stopped: bool,
    },
}

impl fmt::Display for QpOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpOwner::Gone => f.write_str("ended: no process of this host has the peer's QP"),
            QpOwner::Process { pid, name, is_stopped: true } => {
                write!(f, "process {pid} ({name}) is stopped, by a signal or a debugger")
            }
            QpOwner::Process { pid, name, .. } => write!(f, "process {pid} ({name}) is running"),
        }
    }
}

/// Returns the owner of a queue pair number of an address; `None` if the address is not shared by processes of
/// this host, or this process may not look at the owner.
pub fn owner_of(address: IpAddr, qpn: Qpn) -> Option<QpOwner> {
    owner_in(&socket_table::read().ok()?, address, qpn)
        .map(|inode| inode.map_or(Some(QpOwner::Gone), process))?
}

/// Returns the inode of the lease's socket in the table, `Some(None)` if only other numbers of the address are
/// leased.
fn owner_in(table: &str, address: IpAddr, qpn: Qpn) -> Option<Option<u64>> {
    let index = qpn.get() >> (24 - QpnPartition::BITS);
    let mut is_shared = false;
    for line in table.lines() {
        let Some((directory, LEASE, rest)) =
            names(&format!("\n{line}")).next().map(|(d, k, r)| (d.is_some(), k, r.to_owned()))
        else {
            continue;
        };
        let Some((leased, number)) = rest.rsplit_once(if directory { '-' } else { '/' }) else { continue };
        let leased = leased.split('%').next().and_then(|text| text.parse::<IpAddr>().ok());
        if leased == Some(address) {
            is_shared = true;
            if number.parse() == Ok(index) {
                return line.split_ascii_whitespace().nth(6)?.parse().ok().map(Some);
            }
        }
    }
    is_shared.then_some(None)
}

/// Finds the process that has a socket open.
fn process(inode: u64) -> Option<QpOwner> {
    let wanted = format!("socket:[{inode}]");
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let has_socket = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to.as_os_str() == wanted.as_str())
    };
    // A forked child has a copy of the descriptor, and a higher number.
    let pid = pids.into_iter().find(has_socket)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, state) = name_and_state(&stat)?;
    Some(QpOwner::Process { pid, name: name.to_owned(), is_stopped: matches!(state, 'T' | 't') })
}

/// Returns the name and the state in a process's `stat` file. The name may contain parentheses and spaces.
fn name_and_state(stat: &str) -> Option<(&str, char)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    Some((head.split_once('(')?.1, tail.chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_of_a_queue_pair_number_is_found_by_address_and_partition() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 100 /none/urxe-1-2/urxe-broker-10.0.0.1
0000000000000000: 00000002 00000000 00000000 0002 01 102 /none/urxe-1-2/urxe-lease-10.0.0.1-1
0000000000000000: 00000002 00000000 00000000 0002 01 105 @urxe-lease/fe80::1%eth-0/63
";
        let found = |address: &str, qpn| owner_in(table, address.parse().unwrap(), Qpn::new(qpn));
        assert_eq!(found("10.0.0.1", 0x04_0001), Some(Some(102)));
        assert_eq!(found("10.0.0.1", 0x08_0001), Some(None));
        assert_eq!(found("fe80::1", 0xff_0001), Some(Some(105)));
        assert_eq!(found("10.0.0.2", 0x04_0001), None);
    }

    #[test]
    fn stat_of_a_process_yields_its_name_and_state() {
        assert_eq!(name_and_state("12 (a ) b) T 1 12"), Some(("a ) b", 'T')));
    }
}

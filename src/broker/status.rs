//! Status of the brokers in this network namespace, from the kernel's table of Unix sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::host::unix_sockets::socket_table::{self, BROKER, LEASE, names};

/// Status of a shared address: its broker, and the leases, which outlive a broker that dies.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BrokerStatus {
    /// Shared address, with `%` and the interface if it is link-local.
    pub address: String,
    /// Directory of the socket files; `None` if the names are abstract, for processes of any user.
    pub directory: Option<PathBuf>,
    /// Owner of the directory; `None` without a directory.
    pub user: Option<u32>,
    /// Whether a broker is listening; otherwise the next process starts one.
    pub is_running: bool,
    /// Number of leased QPN partitions; a process has one for each shard of its NIC.
    pub leases: usize,
    /// Number of registered services, such as connection manager ports.
    pub services: usize,
}

/// Returns the status of each shared address in this thread's network namespace, for all users. Omits an
/// address whose socket names are hashes because they would be too long otherwise.
///
/// # Errors
/// Error from reading the kernel's table of Unix sockets.
pub fn statuses() -> io::Result<Vec<BrokerStatus>> {
    Ok(parse(&socket_table::read()?))
}

/// Groups the sockets in the kernel's table by address.
fn parse(table: &str) -> Vec<BrokerStatus> {
    let mut all: BTreeMap<(&str, Option<&str>), BrokerStatus> = BTreeMap::new();
    // A listener appears again in the table for each connection that it has accepted.
    for (directory, kind, rest) in names(table).collect::<BTreeSet<_>>() {
        let separator = if directory.is_some() { '-' } else { '/' };
        let address = match kind {
            BROKER => rest,
            _ => rest.rsplit_once(separator).map_or(rest, |(address, _)| address),
        };
        let status = all.entry((address, directory)).or_insert_with(|| BrokerStatus {
            address: address.to_owned(),
            directory: directory.map(PathBuf::from),
            user: directory.and_then(|directory| Some(fs::symlink_metadata(directory).ok()?.uid())),
            is_running: false,
            leases: 0,
            services: 0,
        });
        match kind {
            BROKER => status.is_running = true,
            LEASE => status.leases += 1,
            _ => status.services += 1,
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_unix_sockets_yields_brokers_with_leases_and_services() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 100 /none/urxe-1-2/urxe-broker-10.0.0.1
0000000000000000: 00000003 00000000 00000000 0005 03 101 /none/urxe-1-2/urxe-broker-10.0.0.1
0000000000000000: 00000002 00000000 00000000 0002 01 102 /none/urxe-1-2/urxe-lease-10.0.0.1-1
0000000000000000: 00000002 00000000 00000000 0002 01 103 /none/urxe-1-2/urxe-lease-10.0.0.1-2
0000000000000000: 00000002 00000000 00000000 0002 01 104 /none/urxe-1-2/urxe-service-10.0.0.1-0000000001061234
0000000000000000: 00000002 00000000 00000000 0002 01 105 @urxe-lease/fe80::1%eth-0/63
0000000000000000: 00000002 00000000 00000000 0002 01 106
0000000000000000: 00000002 00000000 00000000 0002 01 107 /run/other/urxe-brokers
";
        let status = |address: &str, directory: Option<&str>, is_running, leases, services| BrokerStatus {
            address: address.into(),
            directory: directory.map(Into::into),
            user: None,
            is_running,
            leases,
            services,
        };
        let expected = [
            status("10.0.0.1", Some("/none/urxe-1-2"), true, 2, 1),
            status("fe80::1%eth-0", None, false, 1, 0),
        ];
        assert_eq!(parse(table), expected);
    }
}

//! The kernel's table of Unix sockets, and the names of the broker's sockets in it.

use std::{fs, io};

/// Unix sockets of this thread's network namespace.
const UNIX_SOCKETS: &str = "/proc/thread-self/net/unix";

/// Prefixes of the names in [`super::socket_names`], without the separator that follows.
pub const BROKER: &str = "urxe-broker";
pub const LEASE: &str = "urxe-lease";
const SERVICE: &str = "urxe-service";

/// Reads the table.
pub fn read() -> io::Result<String> {
    fs::read_to_string(UNIX_SOCKETS)
}

/// Iterates over the sockets of brokers, leases and services in a table: the directory (`None` if the name is
/// abstract), the prefix and the rest of the name.
pub fn names(table: &str) -> impl Iterator<Item = (Option<&str>, &'static str, &str)> {
    table.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(7)).filter_map(socket_name)
}

/// Splits a path of the table into the directory (`None` if the name is abstract), the prefix and the rest of
/// the name. Returns `None` for sockets of other programs.
fn socket_name(path: &str) -> Option<(Option<&str>, &'static str, &str)> {
    let (directory, name) = match path.strip_prefix('@') {
        Some(name) => (None, name),
        None => path.rsplit_once('/').map(|(directory, name)| (Some(directory), name))?,
    };
    let separator = if directory.is_some() { '-' } else { '/' };
    [BROKER, LEASE, SERVICE].into_iter().find_map(|prefix| {
        let rest = name.strip_prefix(prefix)?.strip_prefix(separator)?;
        (!rest.is_empty()).then_some((directory, prefix, rest))
    })
}

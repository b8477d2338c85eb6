//! Binding by interface name: either all the interface's addresses as one link, with a socket for each (a
//! wildcard socket would also receive packets for other interfaces), or a single address, possibly one that
//! other interfaces have too.

use std::net::IpAddr;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::{UdpLink, UdpLinkError, UdpOptions};
use crate::host::{Interface, interfaces};
use crate::link::{Link, Multihomed};

/// Maximum time to wait for duplicate address detection (DAD, RFC 4862): the kernel delays its probe by up to
/// a second, then waits another second for a response.
const DAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time to wait for the link-local address of an interface with a new carrier. The kernel assigns it
/// when its link-watch work item processes the carrier, at once or up to a second later
/// (`net/core/link_watch.c`), but never while 802.1X keeps the interface dormant.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks.
const DAD_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// `IFA_F_DADFAILED` and `IFA_F_TENTATIVE` of linux/if_addr.h.
const DAD_FAILED: u32 = 0x08;
const TENTATIVE: u32 = 0x40;

impl UdpOptions {
    /// Returns a copy of the options restricted to the named interface, which allows binding an address that
    /// other interfaces have too. Waits up to three seconds for duplicate address detection.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn on_interface(&self, name: &str) -> Result<UdpOptions, UdpLinkError> {
        Ok(find(name, self)?.1)
    }
}

impl UdpLink {
    /// Binds UDP port 4791 on every address of an interface, with one link per shard of a NIC, as
    /// [`bind_shards`](Self::bind_shards) does. The GID table is in the order of
    /// [`Interface::addresses`](crate::host::Interface::addresses).
    ///
    /// # Errors
    /// If there is no such interface, or one of its addresses cannot be bound.
    pub fn bind_interface(
        name: &str,
        options: &UdpOptions,
        count: usize,
    ) -> Result<Vec<Multihomed<UdpLink>>, UdpLinkError> {
        let (addresses, options) = find(name, options)?;
        let bind = |ip| UdpLink::bind_shards(ip, &options, count);
        let mut by_address: Vec<Vec<UdpLink>> = addresses.into_iter().map(bind).collect::<Result<_, _>>()?;
        // The first link monitors the state of the port for all addresses.
        by_address.iter_mut().skip(1).flatten().for_each(UdpLink::ignore_link_state);
        combine(name, by_address)
    }
}

/// Returns the addresses of an interface, and the options for binding them.
pub(crate) fn find(name: &str, options: &UdpOptions) -> Result<(Vec<IpAddr>, UdpOptions), UdpLinkError> {
    let options = UdpOptions { interface: Some(name.to_owned()), ..options.clone() };
    Ok((wait_for_dad(name)?.addresses, options))
}

/// Combines links into one link per shard that has all addresses. `by_address` contains, for each address,
/// one link per shard.
pub(crate) fn combine<L: Link>(
    name: &str,
    by_address: Vec<Vec<L>>,
) -> Result<Vec<Multihomed<L>>, UdpLinkError> {
    let mut by_shard: Vec<Vec<L>> = Vec::new();
    for links in by_address {
        by_shard.resize_with(links.len(), Vec::new);
        by_shard.iter_mut().zip(links).for_each(|(shard, link)| shard.push(link));
    }
    let combined = by_shard.into_iter().map(|links| Multihomed::new(format!("udp {name}"), links));
    combined.collect::<Option<_>>().ok_or_else(|| missing(name))
}

fn missing(name: &str) -> UdpLinkError {
    UdpLinkError::NoInterface { name: name.to_owned() }
}

/// Returns the interface called `name` once the kernel has acted on its carrier, and none of its addresses is
/// tentative, so that GID indices do not depend on timing. If duplicate address detection takes too long, or
/// cannot proceed without a carrier, the tentative addresses are included; packets sent from them are lost
/// until it completes.
fn wait_for_dad(name: &str) -> Result<Interface, UdpLinkError> {
    let start = Instant::now();
    let mut dad_start = start;
    loop {
        let found = interfaces().into_iter().find(|i| i.name == name).ok_or_else(|| missing(name))?;
        // Not /proc/net, which shows the network namespace of the main thread.
        let list = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        let is_tentative = found.has_carrier && has_tentative(&list, found.index);
        if found.has_new_carrier && start.elapsed() < CARRIER_TIMEOUT {
            dad_start = Instant::now();
        } else if !is_tentative || dad_start.elapsed() >= DAD_TIMEOUT {
            return Ok(found);
        }
        thread::sleep(DAD_POLL_INTERVAL);
    }
}

/// Reports whether `list`, in the format of /proc/net/if_inet6, contains a tentative address of the interface
/// `index`. Each line has the address, interface index, prefix length, scope and flags as hexadecimal
/// numbers, and the interface name.
fn has_tentative(list: &str, index: u32) -> bool {
    list.lines().any(|line| {
        let mut numbers = line.split_whitespace().skip(1).map(|field| u32::from_str_radix(field, 16));
        let (of, flags) = (numbers.next(), numbers.nth(2));
        let flags = flags.and_then(Result::ok).unwrap_or(0);
        of == Some(Ok(index)) && flags & (TENTATIVE | DAD_FAILED) == TENTATIVE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tentative_addresses_of_the_interface_are_detected() {
        let list = "fe8000000000000000fc00fffe000001 11 40 20 80     eth0\n\
                    fd000000000000000000000000000002 12 40 00 c0     eth1\n\
                    fe8000000000000000fc00fffe000002 13 40 20 c8     eth2\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n";
        let tentative = |index| has_tentative(list, index);
        assert_eq!(
            [0x11, 0x12, 0x13, 1, 0x40, 0xc0].map(tentative),
            [false, true, false, false, false, false]
        );
        assert!(!has_tentative("", 1) && !has_tentative("nonsense\n1 2\n", 1));
    }
}

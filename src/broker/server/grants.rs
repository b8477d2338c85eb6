//! Grants of QPN partitions: new leases, processes that reattach to a new broker, and released partitions.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::served_address::ServedAddress;
use super::{IDLE_TIMEOUT, Lease, Server};
use crate::broker::keepalive::FdKeepalive;
use crate::broker::protocol::{Request, Response};
use crate::broker::steering;
use crate::host::unix_sockets::{SocketNames, datagram_socket, fd_message};
use crate::link::udp::{self, BindAddr, PortOwner, UdpLinkError, steer};
use crate::nic::QpnPartition;
use crate::wire::ROCE_PORT;

/// Maximum time to wait for an exiting process to release its port and its partitions.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(200);

impl Server {
    /// Handles a request. The request stays pending while it must wait for the port, or for other processes
    /// to receive descriptors.
    pub(super) fn grant(&mut self, i: usize, request: Request, fds: Vec<OwnedFd>) -> Result<(), Response> {
        if let Some(partition) = request.partition {
            return self.reattach(i, partition, &request, fds);
        }
        let before = self.served.len();
        let bound = request.bind_addrs.iter().try_for_each(|bind_addr| self.bind(bind_addr));
        let used_port = match &bound {
            Err(UdpLinkError::InUse { ip, .. }) => Some(*ip),
            _ => None,
        };
        let granted = match bound {
            Ok(()) => self.grant_partitions(i, &request),
            Err(e) => Err(refusal_of(e)),
        };
        let Err(Response::Refused { errno, reason }) = granted else { return Ok(()) };
        // Releases the addresses that only this request needed.
        self.served.truncate(before);
        let max_wait = match (errno, used_port) {
            // Other processes of this user have not yet received descriptors that were sent to them.
            (libc::ETOOMANYREFS, _) => IDLE_TIMEOUT,
            (_, Some(ip)) => port_timeout(ip),
            _ => Duration::ZERO,
        };
        if self.clients[i].since.elapsed() < max_wait {
            self.clients[i].pending = Some(request);
            return Ok(());
        }
        let hint = match errno {
            libc::ETOOMANYREFS => {
                "; raise the limit on open files (`ulimit -Hn`) of all processes that share addresses, or use fewer addresses"
            }
            _ => "",
        };
        Err(Response::Refused { errno, reason: format!("{reason}{hint}") })
    }

    /// Binds an address unless it is already bound.
    fn bind(&mut self, bind_addr: &BindAddr) -> Result<(), UdpLinkError> {
        if self.served.iter().any(|served| served.bind_addr == *bind_addr) {
            return Ok(());
        }
        let served = ServedAddress::bind(bind_addr.clone())?;
        let program = steering::by_partition(&self.sharded_clients());
        steer::attach(bind_addr.ip(), &served.sockets[0], &program)?;
        self.served.push(served);
        Ok(())
    }

    /// Releases the partitions of a client that has disconnected.
    pub(super) fn release(&mut self, i: usize) {
        let Some(Lease { partitions, .. }) = self.clients[i].lease.take() else { return };
        self.releasing.push((partitions.clone(), Instant::now()));
        self.update_steering();
    }

    /// Checks which partitions of disconnected processes have become free, and marks them as orphaned.
    pub(super) fn collect_released(&mut self) {
        let Server { bind_addr, names, orphaned, releasing, .. } = self;
        releasing.retain(|(partitions, since)| {
            let closed = partitions.clone().all(|partition| token(names, bind_addr, partition).is_ok());
            if closed {
                orphaned.extend(partitions.clone());
            }
            !closed && since.elapsed() < RELEASE_TIMEOUT
        });
    }

    /// Stops serving addresses on which no process has a lease any more. Their sockets would otherwise
    /// accumulate, 64 for each address that was ever leased, as long as any process has a lease of
    /// another address.
    pub(super) fn release_addresses(&mut self) {
        // A process that is exiting may still use its sockets.
        if self.releasing.is_empty() {
            let leases = || self.clients.iter().filter_map(|client| client.lease.as_ref());
            self.served.retain(|served| leases().any(|lease| lease.bind_addrs.contains(&served.bind_addr)));
        }
    }

    /// Grants free partitions to a client, and sends their sockets to it.
    fn grant_partitions(&mut self, i: usize, request: &Request) -> Result<(), Response> {
        let count = request.shards;
        let (partition, tokens) = self.free_partitions(count)?;
        self.set_lease(i, partition..partition + count, request);
        self.update_steering();
        let mut fds: Vec<BorrowedFd<'_>> = tokens.iter().map(AsFd::as_fd).collect();
        for bind_addr in &request.bind_addrs {
            let served = self.served.iter().find(|served| served.bind_addr == *bind_addr);
            let served = served.expect("all of them were bound");
            let own = &served.sockets[partition..partition + count];
            own.iter().for_each(udp::drain);
            fds.extend(own.iter().map(AsFd::as_fd));
            fds.push(served.keepalive.0.as_fd());
        }
        let granted = Response::Granted { partition, any_user: self.any_user };
        if let Err(e) = fd_message::send(&self.clients[i].connection, &granted, &fds) {
            self.clients[i].lease = None;
            self.update_steering();
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let reason = format!("the broker of {} could not send the sockets: {e}", self.bind_addr);
            return Err(Response::Refused { errno, reason });
        }
        self.last = partition;
        Ok(())
    }

    /// Finds `count` consecutive free partitions. Returns the number of the first and the tokens that mark
    /// them as in use. The client keeps the tokens, so its partitions are not free even for a broker that
    /// does not know the client.
    fn free_partitions(&self, count: usize) -> Result<(usize, Vec<OwnedFd>), Response> {
        let address = &self.bind_addr;
        // The order is unpredictable, because the numbers of queue pairs and connections begin with the
        // partition's.
        let rank = |partition: usize| {
            (partition * (self.random | 1)).wrapping_add(self.random >> 8) % QpnPartition::COUNT
        };
        // The first partition belongs to the broker.
        let mut all: Vec<usize> =
            (0..QpnPartition::COUNT).step_by(count).filter(|first| *first > 0).collect();
        all.sort_by_key(|first| (rank(*first) <= rank(self.last), rank(*first)));
        for first in all {
            let tokens = (first..first + count).map(|partition| token(&self.names, address, partition));
            match tokens.collect::<io::Result<_>>() {
                Ok(tokens) => return Ok((first, tokens)),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => {
                    let reason =
                        format!("the broker of {address} cannot create the token of a partition: {e}");
                    return Err(Response::Refused { errno: e.raw_os_error().unwrap_or(libc::EIO), reason });
                }
            }
        }
        let reason = match count {
            1 => format!("all {} QPN partitions of {address} are in use", QpnPartition::COUNT - 1),
            _ => format!("no {count} consecutive QPN partitions of {address} are free"),
        };
        let reason = format!("{reason}: use another address");
        Err(Response::Refused { errno: libc::EUSERS, reason })
    }

    /// Registers a process that already has partitions, and takes over its sockets for the addresses that
    /// this broker does not yet serve.
    fn reattach(
        &mut self,
        i: usize,
        partition: usize,
        request: &Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Response> {
        if fds.len() != request.bind_addrs.len() {
            return Err(Response::protocol_error(format!(
                "{} keepalive descriptors for {} addresses",
                fds.len(),
                request.bind_addrs.len()
            )));
        }
        let (claimed, before) = (partition..partition + request.shards, self.served.len());
        let overlaps =
            |Lease { partitions: own, .. }: &Lease| own.start < claimed.end && claimed.start < own.end;
        // A process that has a partition also holds its token, so that the token's name cannot be bound.
        let has_tokens = || {
            claimed.clone().all(|partition| {
                token(&self.names, &self.bind_addr, partition)
                    .is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse)
            })
        };
        if partition == 0
            || self.clients.iter().filter_map(|c| c.lease.as_ref()).any(overlaps)
            || !has_tokens()
        {
            return Err(Response::protocol_error(format!(
                "the process has no lease on partition {partition}"
            )));
        }
        for (bind_addr, keepalive) in request.bind_addrs.iter().zip(fds) {
            if self.served.iter().all(|served| served.bind_addr != *bind_addr) {
                match ServedAddress::take_over(bind_addr.clone(), FdKeepalive(keepalive)) {
                    Ok(served) => self.served.push(served),
                    Err(e) => {
                        self.served.truncate(before);
                        return Err(Response::protocol_error(format!("invalid sockets of {bind_addr}: {e}")));
                    }
                }
            }
        }
        self.set_lease(i, claimed, request);
        self.update_steering();
        // The next poll detects a process that has disconnected.
        let granted = Response::Granted { partition, any_user: self.any_user };
        let _ = fd_message::send(&self.clients[i].connection, &granted, &[]);
        Ok(())
    }

    fn set_lease(&mut self, i: usize, partitions: Range<usize>, request: &Request) {
        self.orphaned.retain(|orphaned| !partitions.contains(orphaned));
        self.clients[i].lease = Some(Lease { partitions, bind_addrs: request.bind_addrs.clone() });
    }

    /// Returns the partitions of each client that has more than one.
    fn sharded_clients(&self) -> Vec<Range<usize>> {
        let partitions = self.clients.iter().filter_map(|c| Some(c.lease.as_ref()?.partitions.clone()));
        partitions.filter(|partitions| partitions.len() > 1).collect()
    }

    /// Attaches the steering program for the current partitions.
    fn update_steering(&self) {
        let program = steering::by_partition(&self.sharded_clients());
        for served in &self.served {
            // Best effort: attaching succeeded when the first socket was bound, and no caller can handle a
            // failure.
            let _ = steer::attach(served.bind_addr.ip(), &served.sockets[0], &program);
        }
    }
}

/// Opens the token for a partition: a socket with a unique name, which a process keeps as long as it has the
/// partition.
fn token(names: &SocketNames, bind_addr: &BindAddr, partition: usize) -> io::Result<OwnedFd> {
    let token = datagram_socket()?;
    names.bind(&token, &format!("urxe-lease/{}/{partition}", bind_addr.key()))?;
    Ok(token)
}

/// Returns the maximum time for which a request waits for a port that is in use. It is longer if the port has
/// a full group of sockets: processes then have partitions and are expected to register with this broker.
fn port_timeout(ip: IpAddr) -> Duration {
    let group = PortOwner::user_of_group(ip, ROCE_PORT, QpnPartition::COUNT);
    if group.is_some() { IDLE_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// Converts an error to a refusal with its text and the errno value that verbs report for it.
fn refusal_of(e: UdpLinkError) -> Response {
    let errno = match &e {
        UdpLinkError::InUse { .. } => libc::EADDRINUSE,
        UdpLinkError::NotLocal { .. } | UdpLinkError::NoInterface { .. } => libc::ENODEV,
        UdpLinkError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
    };
    // A group that no process has brought along for this broker.
    let hint = match &e {
        UdpLinkError::InUse { ip, .. }
            if PortOwner::user_of_group(*ip, ROCE_PORT, QpnPartition::COUNT).is_some() =>
        {
            "; processes of another version of urxe may share it"
        }
        _ => "",
    };
    Response::Refused { errno, reason: format!("{e}{hint}") }
}

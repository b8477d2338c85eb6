//! Multicast groups of a UDP link. A socket bound to a unicast address receives no multicast packets, so each
//! group gets a socket of its own, bound to the group's address; a wildcard socket joins groups itself.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::recv::Receiver;
use super::{Local, UdpOptions, socket};
use crate::burst::RxBurst;
use crate::host::membership::{self, JoinError};
use crate::link::LinkCounters;

/// A group that the link has joined.
struct Group {
    /// Local address of received packets, which is the group.
    local: Local,
    /// The group's own socket; `None` if the link's wildcard socket has joined the group.
    socket: Option<OwnedFd>,
}

/// Multicast groups of a link.
#[derive(Default)]
pub(super) struct Groups {
    joined: Vec<Group>,
    /// Receiver shared by all group sockets, created when the first group is joined.
    receiver: Option<Receiver>,
    /// Number of datagrams that the kernel dropped at group sockets now closed.
    overflow: u64,
}

impl Groups {
    /// Joins a group, using the link's own socket if it is bound to the wildcard address, and otherwise a new
    /// socket that is added to `epoll`.
    pub fn join(
        &mut self,
        group: IpAddr,
        own: (&OwnedFd, &Local),
        options: &UdpOptions,
        epoll: &Epoll,
    ) -> Result<(), JoinError> {
        let (main, local) = own;
        membership::check(group, [local.ip].into_iter())?;
        if self.joined.iter().any(|g| g.local.ip == group) {
            return Ok(());
        }
        let failed = |source| JoinError::System { group, source };
        let socket = if local.ip.is_unspecified() {
            join_everywhere(main, group, local).map_err(failed)?;
            None
        } else {
            let ifindex = local.interface_of(local.ip);
            let socket = socket::open_group(group, ifindex, options).map_err(failed)?;
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(|e| failed(e.into()))?;
            Some(socket)
        };
        self.receiver.get_or_insert_with(Receiver::new);
        let local = Local { ip: group, addresses: Vec::new() };
        self.joined.push(Group { local, socket });
        Ok(())
    }

    /// Leaves a group. Closing its socket also removes it from the epoll set.
    pub fn leave(&mut self, group: IpAddr, own: (&OwnedFd, &Local)) {
        let Some(at) = self.joined.iter().position(|g| g.local.ip == group) else { return };
        match self.joined.swap_remove(at).socket {
            Some(socket) => self.overflow += socket::dropped_datagrams(&socket),
            None => own.1.interface_indices().for_each(|index| {
                // Fails if the group was not joined on this interface.
                let _ = membership::leave(own.0, group, index);
            }),
        }
    }

    /// Receives from all group sockets. Returns the number of packets.
    pub fn receive(&mut self, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let mut packets = 0;
        if let Some(receiver) = &mut self.receiver {
            for group in &self.joined {
                if let Some(socket) = &group.socket {
                    packets += receiver.receive(socket, &group.local, sink)?;
                }
            }
        }
        Ok(packets)
    }

    /// Returns the counters of all group sockets, including those already closed.
    pub fn counters(&self) -> LinkCounters {
        let mut all = self.receiver.as_ref().map(|r| r.counters).unwrap_or_default();
        let sockets = self.joined.iter().filter_map(|g| g.socket.as_ref());
        all.rx_overflow += self.overflow + sockets.map(socket::dropped_datagrams).sum::<u64>();
        all
    }
}

/// Joins a group on every interface that has a local address. Fails only if no interface accepts the
/// membership.
fn join_everywhere(socket: &OwnedFd, group: IpAddr, local: &Local) -> io::Result<()> {
    let joined = local.interface_indices().map(|index| membership::join(socket, group, index));
    joined.fold(Err(io::Error::from_raw_os_error(libc::ENODEV)), io::Result::or)
}

//! Service of the connections of rings.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};

use super::connection::{Connection, Role, Room, Writer, path_to};
use super::offer::take_offer;
use super::{BACKLOG, LISTENER, Rings, WAKE};
use crate::host::unix_sockets::{fd_message, is_trusted, peer_user};
use crate::rings::limits;
use crate::rings::messages::{CONFIRMATION, Taken, announce_changes, take_from_reader, take_from_writer};
use crate::sys::fork::CloseOnForkFd;
use crate::sys::quota::Share;
use crate::transport::PeerChange;

/// Number of events taken per poll.
const EVENTS: usize = 16;

impl Rings {
    pub(super) fn add(&mut self, socket: OwnedFd, role: Role, counted: Share) -> io::Result<usize> {
        let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        let connection = Some(Connection { socket: CloseOnForkFd::new(socket), role, _counted: counted });
        match self.connections.get_mut(index) {
            Some(free) => *free = connection,
            None => self.connections.push(connection),
        }
        Ok(index)
    }

    pub(super) fn close(&mut self, index: usize) {
        let Some(Connection { socket, role, .. }) = self.connections.get_mut(index).and_then(Option::take)
        else {
            return;
        };
        // A program started meanwhile may have a copy of the socket, which would keep it in the epoll set.
        let _ = self.epoll.delete(&socket);
        if let Role::Writer(Writer { room: Room::Full { .. }, to, .. }) = role {
            self.full -= 1;
            self.room_changes.push_back(PeerChange::Room(path_to(self.bind_addr.ip(), to)));
        }
        match role {
            Role::Writer(Writer { to, is_confirmed: true, .. }) => self.routes.end(to),
            Role::Writer(Writer { to, .. }) => self.give_up(to),
            Role::Reader { ring, .. } => {
                self.readers -= 1;
                self.routes.note_reader_change(ring.src());
            }
            Role::Pending => {}
        }
    }

    /// Serves the connections: accepts new ones, takes rings and notifications, and notices their ends.
    /// Returns the number of connections served.
    pub(super) fn poll_connections(&mut self) -> usize {
        let mut ready = [EpollEvent::empty(); EVENTS];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        for connection in self.connections.iter_mut().flatten() {
            if let Connection { socket, role: Role::Writer(writer), .. } = connection {
                announce_changes(&mut writer.ring, socket);
            }
        }
        let events = ready[..count].iter().map(EpollEvent::data).filter(|data| *data != WAKE);
        let mut served = 0;
        for event in events {
            served += 1;
            match event {
                LISTENER => self.accept(),
                index => self.serve(index as usize),
            }
        }
        served
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if self.spare.is_none() {
            self.spare = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok();
        }
        for _ in 0..BACKLOG {
            let Some(listener) = &self.listener else { return };
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    // Refuses the connection, so that the other process uses the socket.
                    drop(accept_with(listener, flags));
                    self.spare = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok();
                    continue;
                }
                Err(_) => return,
            };
            if peer_user(&socket).is_ok_and(|user| is_trusted(user, false))
                && let Some(counted) = limits::connection()
                && let Ok(index) = self.add(socket, Role::Pending, counted)
            {
                // The writer sends its offer right after it has connected.
                self.serve(index);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return };
        let socket = &connection.socket;
        let is_open = match &mut connection.role {
            Role::Pending => match fd_message::receive(socket, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                Ok(Some((line, fds))) => match take_offer(&line, &fds, self.bind_addr.ip()) {
                    Some((ring, memory)) => {
                        // Fails if the writer has ended; its packets are still read.
                        let _ = send(socket, CONFIRMATION, SendFlags::NOSIGNAL);
                        self.readers += 1;
                        self.routes.note_reader_change(ring.src());
                        connection.role = Role::Reader { ring, has_ended: false, _memory: memory };
                        true
                    }
                    None => false,
                },
                _ => false,
            },
            Role::Reader { ring, has_ended, .. } => {
                let taken = take_from_writer(ring, socket);
                if taken == Taken::Ended {
                    // A closed connection stays readable; the rest of the ring is still read.
                    *has_ended = true;
                    let _ = self.epoll.delete(socket);
                } else if taken == Taken::Broken {
                    trace_event!(WARN, "urxe::link", "ring closed", reason = "unexpected message");
                }
                taken != Taken::Broken
            }
            Role::Writer(Writer { ring, is_confirmed, .. }) => {
                take_from_reader(ring, is_confirmed, socket) == Taken::Open
            }
        };
        if !is_open {
            self.close(index);
        }
    }
}

//! Link state monitoring of network interfaces (rtnetlink, RFC 3549).
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::SockFlag;

use super::netlink::{self, Request, RouteSocket};

/// Length of an ifinfomsg in bytes: family, type, index, flags, change mask.
const IFINFOMSG_LEN: usize = 16;
const UP_AND_RUNNING: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;

/// Link state monitor for a set of interfaces in the network namespace in which it was opened. Without
/// interfaces, the state is always up.
#[derive(Debug, Default)]
pub(crate) struct LinkStateMonitor {
    /// `None` without interfaces.
    netlink: Option<RouteSocket>,
    /// Interface indices, each with the interface's last known state.
    interfaces: Vec<(u32, State)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Up,
    Down,
    Removed,
}

impl LinkStateMonitor {
    /// Starts monitoring the interfaces with the given indices, if the system reports interface states.
    pub fn open(interfaces: impl IntoIterator<Item = u32>) -> LinkStateMonitor {
        let interfaces: Vec<_> = interfaces.into_iter().map(|index| (index, State::Up)).collect();
        let open = |_| RouteSocket::open(libc::RTMGRP_LINK, SockFlag::SOCK_NONBLOCK).ok();
        match interfaces.first().and_then(open) {
            Some(netlink) if request_states(&netlink, &interfaces).is_ok() => {
                LinkStateMonitor { netlink: Some(netlink), interfaces }
            }
            _ => LinkStateMonitor::default(),
        }
    }

    /// Processes pending messages, then reports whether at least one interface is up and running.
    pub fn is_up(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        while let Some(netlink) = &self.netlink {
            match netlink.receive(&mut buffer) {
                Ok(messages) => self.process_messages(messages),
                Err(Errno::EINTR) => {}
                // The receive buffer has overflowed: the state of all interfaces is requested again. That
                // fails only for lack of memory; the next change is then reported as usual.
                Err(Errno::ENOBUFS) => drop(request_states(netlink, &self.interfaces)),
                Err(_) => break,
            }
        }
        self.netlink.is_none() || self.interfaces.iter().any(|(_, state)| *state == State::Up)
    }

    /// Checks that an interface exists, as of the last call to [`is_up`](Self::is_up).
    ///
    /// # Errors
    /// `ENODEV` if all interfaces have been removed.
    pub fn check_exists(&self) -> io::Result<()> {
        match self.interfaces.iter().any(|(_, state)| *state != State::Removed) {
            false if self.netlink.is_some() => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            _ => Ok(()),
        }
    }

    /// Returns a descriptor that is readable when the state may have changed; `None` without interfaces.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.netlink.as_ref().map(AsFd::as_fd)
    }

    fn process_messages(&mut self, messages: &[u8]) {
        for (kind, body) in netlink::messages(messages) {
            let (libc::RTM_NEWLINK | libc::RTM_DELLINK, Some(body)) =
                (kind, body.first_chunk::<IFINFOMSG_LEN>())
            else {
                continue;
            };
            let [family, _, _, _, index @ .., _, _, _, _, _, _, _, _] = *body;
            // Messages of another family come from a bridge about its ports; it reports a port that leaves it
            // as deleted.
            if libc::c_int::from(family) != libc::AF_UNSPEC {
                continue;
            }
            let [.., f0, f1, f2, f3, _, _, _, _] = *body;
            let state = match u32::from_ne_bytes([f0, f1, f2, f3]) & UP_AND_RUNNING {
                _ if kind == libc::RTM_DELLINK => State::Removed,
                UP_AND_RUNNING => State::Up,
                _ => State::Down,
            };
            let index = u32::from_ne_bytes(index);
            self.interfaces.iter_mut().filter(|i| i.0 == index).for_each(|i| i.1 = state);
        }
    }
}

/// Requests the current state of each interface from the kernel.
fn request_states(netlink: &RouteSocket, interfaces: &[(u32, State)]) -> io::Result<()> {
    for (index, _) in interfaces {
        let mut body = [0; IFINFOMSG_LEN];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        netlink.send(Request::new(libc::RTM_GETLINK, &body))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, index: u32, flags: libc::c_int, tail: usize) -> Vec<u8> {
        let len = netlink::HEADER_LEN + IFINFOMSG_LEN + tail;
        let mut message = vec![0; len];
        message[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[20..24].copy_from_slice(&index.to_ne_bytes());
        message[24..28].copy_from_slice(&(flags as u32).to_ne_bytes());
        message
    }

    fn is_up_after(
        link_state: &mut LinkStateMonitor,
        kind: u16,
        index: u32,
        flags: libc::c_int,
        tail: usize,
    ) -> bool {
        // The message follows another, padded one about something else.
        let other = [&21u32.to_ne_bytes()[..], &[0; 20]].concat();
        link_state.process_messages(&[other, message(kind, index, flags, tail)].concat());
        link_state.is_up()
    }

    #[test]
    fn monitor_reports_up_while_any_interface_has_a_carrier() {
        let mut monitor = LinkStateMonitor::open([1 << 30, 1 << 29]);
        let (up, running) = (libc::IFF_UP, libc::IFF_UP | libc::IFF_RUNNING);
        assert!(is_up_after(&mut monitor, libc::RTM_NEWLINK, 1 << 30, up, 0));
        assert!(
            is_up_after(&mut monitor, libc::RTM_NEWLINK, 7, 0, 8),
            "the message is for another interface"
        );
        assert!(!is_up_after(&mut monitor, libc::RTM_NEWLINK, 1 << 29, 0, 8));
        assert!(is_up_after(&mut monitor, libc::RTM_NEWLINK, 1 << 29, running, 8));
        assert!(
            !is_up_after(&mut monitor, libc::RTM_DELLINK, 1 << 29, running, 8),
            "the interface was removed"
        );
        assert!(monitor.check_exists().is_ok());
        // An interface that leaves a bridge.
        let mut bridge_message = vec![0; netlink::HEADER_LEN + IFINFOMSG_LEN];
        bridge_message[..4].copy_from_slice(&((netlink::HEADER_LEN + IFINFOMSG_LEN) as u32).to_ne_bytes());
        bridge_message[4..6].copy_from_slice(&libc::RTM_DELLINK.to_ne_bytes());
        bridge_message[netlink::HEADER_LEN] = libc::AF_BRIDGE as u8;
        bridge_message[20..24].copy_from_slice(&(1u32 << 30).to_ne_bytes());
        monitor.process_messages(&bridge_message);
        assert!(monitor.check_exists().is_ok());
        assert!(
            !is_up_after(&mut monitor, libc::RTM_DELLINK, 1 << 30, 0, 8) && monitor.check_exists().is_err()
        );
    }

    #[test]
    fn truncated_and_invalid_messages_change_nothing() {
        let mut monitor = LinkStateMonitor::open([1 << 30]);
        let removal = message(libc::RTM_DELLINK, 1 << 30, 0, 0);
        let is_unchanged = |monitor: &mut LinkStateMonitor| monitor.is_up() && monitor.check_exists().is_ok();
        assert!(is_up_after(&mut monitor, libc::RTM_NEWLINK, 1 << 30, libc::IFF_UP | libc::IFF_RUNNING, 0));
        for len in 0..removal.len() {
            monitor.process_messages(&removal[..len]);
            assert!(is_unchanged(&mut monitor), "after the first {len} bytes of a removal");
        }
        for bytes in [&[1; 3][..], &[0; 16], &[0xff; 64]] {
            // The length in an invalid message does not lead to the next one.
            monitor.process_messages(&[bytes, &removal].concat());
            assert!(is_unchanged(&mut monitor), "after {bytes:?}");
        }
        monitor.process_messages(&removal);
        assert!(!monitor.is_up() && monitor.check_exists().is_err());
    }

    #[test]
    fn loopback_interface_is_reported_up() {
        let lo = pnet_datalink::interfaces().into_iter().find(|i| i.is_loopback()).unwrap();
        let mut link_state = LinkStateMonitor::open([lo.index]);
        assert_eq!(link_state.is_up(), lo.is_up());
    }
}

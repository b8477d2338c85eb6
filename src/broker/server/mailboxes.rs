//! Mailboxes, which deliver forwarded MADs to processes without blocking the broker: immediately, or later if
//! a socket is full or missing.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, sendto};

use crate::host::socket_calls::unsent_bytes;
use crate::host::unix_sockets::{SocketNames, datagram_socket};

/// Maximum number of datagrams queued per name, in addition to the ten or so that the kernel queues
/// (`net.unix.max_dgram_qlen`).
const MAX_QUEUED_PER_NAME: usize = 4096;

/// Maximum number of datagrams queued in total: several megabytes.
const MAX_QUEUED: usize = 16_384;

/// Maximum number of names with queued datagrams.
const MAX_SOCKETS: usize = 64;

/// Maximum time for which datagrams stay queued for a full socket. A process that accepts none for longer is
/// probably suspended, and peers retransmit anyway.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

/// Memory occupied by unread datagrams, in bytes, above which the send buffer is considered full and the
/// sending socket is replaced, so that a process that does not read cannot delay datagrams for others.
const SEND_BUFFER_FULL: usize = 64 << 10;

/// Grace period for a name that recently lost its owner, because a program may close a listener and then
/// listen again.
const OWNER_GRACE: Duration = Duration::from_secs(1);

/// Time for which the mailboxes remember that a name had an owner.
const OWNER_MEMORY: Duration = Duration::from_secs(5);
/// Maximum number of names remembered.
const MAX_REMEMBERED: usize = 256;

/// Result of sending a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Delivered or queued.
    Sent,
    /// No socket has the name, and none had it recently.
    NoOwner,
    /// Dropped, because a queue limit was reached or sending failed.
    Lost,
}

/// Sender of datagrams to named sockets, with a queue for each name whose socket is full or missing.
pub struct Mailboxes {
    socket: OwnedFd,
    names: SocketNames,
    queues: HashMap<String, Mailbox>,
    /// Time at which each name was last known to have an owner.
    last_owned: HashMap<String, Instant>,
    /// Datagrams not delivered within the grace period, each with its destination name.
    undelivered: Vec<(String, Vec<u8>)>,
    owner_grace: Duration,
}

/// Datagrams queued for a name.
struct Mailbox {
    /// Time at which the socket last accepted a datagram; initially, the time at which the first datagram
    /// was queued.
    since: Instant,
    /// Time at which the name was first found without an owner.
    ownerless_since: Option<Instant>,
    datagrams: VecDeque<Vec<u8>>,
}

impl Mailboxes {
    pub fn new(names: SocketNames) -> io::Result<Mailboxes> {
        let (queues, last_owned) = (HashMap::new(), HashMap::new());
        Ok(Mailboxes {
            socket: datagram_socket()?,
            names,
            queues,
            last_owned,
            undelivered: Vec::new(),
            owner_grace: OWNER_GRACE,
        })
    }

    /// Reports whether datagrams are queued, so that [`retry`](Self::retry) should be called soon.
    pub fn has_queued(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Sends a datagram to a name, or queues it if the socket is full or the name has recently lost its
    /// owner.
    pub fn send(&mut self, name: &str, datagram: Vec<u8>) -> Outcome {
        if !self.queues.contains_key(name) {
            let had_owner = |at: &Instant| at.elapsed() < OWNER_MEMORY;
            match self.try_send(name, &datagram) {
                Ok(()) => return Outcome::Sent,
                Err(Errno::AGAIN) => {}
                Err(Errno::CONNREFUSED) if self.last_owned.get(name).is_some_and(had_owner) => {}
                Err(Errno::CONNREFUSED) => return Outcome::NoOwner,
                Err(_) => return Outcome::Lost,
            }
        }
        self.enqueue(name, datagram)
    }

    /// Removes and returns the undeliverable datagrams for the names that `is_selected` accepts.
    /// [`send`](Self::send) reported them as [sent](Outcome::Sent), but no socket had the name within the
    /// grace period.
    pub fn undelivered(&mut self, is_selected: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        self.undelivered.extract_if(.., |(name, _)| is_selected(name)).map(|(_, datagram)| datagram).collect()
    }

    /// Records that a name has an owner or will soon have one. If it has none when a datagram is sent to it,
    /// the datagram is queued for a grace period.
    pub fn record(&mut self, name: &str) {
        let now = Instant::now();
        if let Some(at) = self.last_owned.get_mut(name) {
            *at = now;
            return;
        }
        if self.last_owned.len() >= MAX_REMEMBERED {
            self.last_owned.retain(|_, at| now.duration_since(*at) < OWNER_MEMORY);
        }
        if self.last_owned.len() < MAX_REMEMBERED {
            self.last_owned.insert(name.to_owned(), now);
        }
    }

    /// Queues a datagram until the socket exists and has room. Drops the datagram if a queue limit is
    /// reached.
    fn enqueue(&mut self, name: &str, datagram: Vec<u8>) -> Outcome {
        let all: usize = self.queues.values().map(|queue| queue.datagrams.len()).sum();
        if all >= MAX_QUEUED || self.queues.len() >= MAX_SOCKETS && !self.queues.contains_key(name) {
            return Outcome::Lost;
        }
        let new_mailbox =
            || Mailbox { since: Instant::now(), ownerless_since: None, datagrams: VecDeque::new() };
        let queue = self.queues.entry(name.to_owned()).or_insert_with(new_mailbox);
        if queue.datagrams.len() >= MAX_QUEUED_PER_NAME {
            return Outcome::Lost;
        }
        queue.datagrams.push_back(datagram);
        Outcome::Sent
    }

    /// Sends queued datagrams until the sockets are full.
    pub fn retry(&mut self) {
        // Uncollected datagrams belong to addresses that are no longer served.
        self.undelivered.clear();
        let mut queues = std::mem::take(&mut self.queues);
        queues.retain(|name, queue| {
            while let Some(datagram) = queue.datagrams.front() {
                match self.try_send(name, datagram) {
                    Ok(()) => {
                        queue.datagrams.pop_front();
                        (queue.since, queue.ownerless_since) = (Instant::now(), None);
                    }
                    Err(Errno::AGAIN) => {
                        queue.ownerless_since = None;
                        return queue.since.elapsed() < QUEUE_TIMEOUT;
                    }
                    Err(Errno::CONNREFUSED) => {
                        if queue.ownerless_since.get_or_insert_with(Instant::now).elapsed() < self.owner_grace
                        {
                            return true;
                        }
                        self.last_owned.remove(name);
                        let all = queue.datagrams.drain(..).map(|datagram| (name.clone(), datagram));
                        self.undelivered.extend(all);
                    }
                    Err(_) => return false,
                }
            }
            false
        });
        self.queues = queues;
    }

    fn try_send(&mut self, name: &str, datagram: &[u8]) -> Result<(), Errno> {
        let name = self.names.address(name)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let outcome = match sendto(&self.socket, datagram, flags, &name) {
            // A private name without a file has no owner either.
            Err(Errno::NOENT) => Err(Errno::CONNREFUSED),
            outcome => outcome,
        };
        if outcome == Err(Errno::AGAIN) && unsent_bytes(&self.socket) > SEND_BUFFER_FULL {
            // Datagrams that the old socket has sent stay queued at their receivers.
            self.socket = datagram_socket()?;
            return sendto(&self.socket, datagram, flags, &name).map(drop);
        }
        outcome.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvFlags, recv};

    use super::*;

    /// Returns a name that no other process uses.
    fn name(what: &str) -> String {
        format!("urxe-test/{}/{what}", std::process::id())
    }

    fn receiver(name: &str) -> OwnedFd {
        let socket = datagram_socket().unwrap();
        SocketNames::Abstract.bind(&socket, name).unwrap();
        socket
    }

    fn drain(socket: &OwnedFd) -> Vec<u16> {
        let mut all = Vec::new();
        let mut bytes = [0; 512];
        while let Ok((len, _)) = recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            assert_eq!(len, 300);
            all.push(u16::from_be_bytes([bytes[0], bytes[1]]));
        }
        all
    }

    fn datagram(number: u16) -> Vec<u8> {
        let mut bytes = vec![0; 300];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn datagrams_for_a_full_socket_are_delivered_later_in_order() {
        let mut mailboxes = Mailboxes::new(SocketNames::Abstract).unwrap();
        assert_eq!(mailboxes.send(&name("delivery/0"), datagram(0)), Outcome::NoOwner);
        let name = name("delivery/1");
        let socket = receiver(&name);
        let outcomes: Vec<Outcome> = (0..6000).map(|n| mailboxes.send(&name, datagram(n))).collect();
        let sent = outcomes.iter().filter(|o| **o == Outcome::Sent).count();
        assert!((MAX_QUEUED_PER_NAME..6000).contains(&sent), "{sent}");
        assert!(outcomes[sent..].iter().all(|o| *o == Outcome::Lost));
        let mut received = Vec::new();
        while received.len() < sent {
            received.extend(drain(&socket));
            mailboxes.retry();
        }
        assert_eq!(received, (0..sent as u16).collect::<Vec<_>>());
        assert!(!mailboxes.has_queued());
    }

    #[test]
    fn datagrams_for_a_name_that_lost_its_owner_are_delivered_to_its_next_owner() {
        let (name, long, short) = (name("vacant/1"), Duration::from_secs(3600), Duration::from_millis(50));
        let mut mailboxes = Mailboxes { owner_grace: long, ..Mailboxes::new(SocketNames::Abstract).unwrap() };
        let first = receiver(&name);
        assert_eq!(mailboxes.send(&name, datagram(0)), Outcome::Sent);
        drop(first);
        mailboxes.record(&name);
        assert_eq!(mailboxes.send(&name, datagram(1)), Outcome::Sent);
        assert_eq!(mailboxes.send(&name, datagram(2)), Outcome::Sent);
        mailboxes.retry();
        let second = receiver(&name);
        mailboxes.retry();
        assert_eq!((drain(&second), mailboxes.has_queued()), (vec![1, 2], false));
        // Without a new owner, the datagrams are returned and the name is removed.
        drop(second);
        mailboxes.owner_grace = short;
        let start = Instant::now();
        send_until_grace_ends(&mut mailboxes, &name, datagram(3));
        assert!(start.elapsed() >= short);
        assert_eq!(mailboxes.undelivered(|other| other != name), Vec::<Vec<u8>>::new());
        assert_eq!(mailboxes.undelivered(|other| other == name), [datagram(3)]);
        assert_eq!(mailboxes.send(&name, datagram(4)), Outcome::NoOwner);
        // Returned datagrams that are not collected are dropped.
        send_until_grace_ends(&mut mailboxes, &name, datagram(5));
        mailboxes.retry();
        assert!(mailboxes.undelivered.is_empty());
    }

    /// Sends a datagram to a name that recently had an owner, and retries until the queue is empty, which
    /// means that the grace period is over.
    fn send_until_grace_ends(mailboxes: &mut Mailboxes, name: &str, datagram: Vec<u8>) {
        mailboxes.record(name);
        assert_eq!(mailboxes.send(name, datagram), Outcome::Sent);
        while mailboxes.has_queued() {
            mailboxes.retry();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn grace_period_starts_when_the_owner_disconnects_even_if_it_was_slow_before() {
        let (name, owner_grace) = (name("slow"), Duration::from_secs(5));
        let mut mailboxes = Mailboxes { owner_grace, ..Mailboxes::new(SocketNames::Abstract).unwrap() };
        let slow = receiver(&name);
        let mut sent = 0;
        while !mailboxes.has_queued() {
            assert_eq!(mailboxes.send(&name, datagram(sent)), Outcome::Sent);
            sent += 1;
        }
        mailboxes.queues.get_mut(&name).unwrap().since = Instant::now() - owner_grace;
        drop(slow);
        mailboxes.retry();
        let next = receiver(&name);
        mailboxes.retry();
        assert_eq!((drain(&next), mailboxes.has_queued()), (vec![sent - 1], false));
    }

    #[test]
    fn receivers_that_do_not_read_do_not_block_others() {
        let mut mailboxes = Mailboxes::new(SocketNames::Abstract).unwrap();
        let names: Vec<String> = (0..200).map(|i| name(&format!("stopped/{i}"))).collect();
        let _stopped: Vec<OwnedFd> = names.iter().map(|name| receiver(name)).collect();
        let start = Instant::now();
        for number in 0..20 {
            for name in &names {
                mailboxes.send(name, datagram(number));
            }
        }
        assert!(mailboxes.queues.len() <= MAX_SOCKETS);
        let awake = name("awake");
        let socket = receiver(&awake);
        for number in 0..50 {
            assert_eq!(mailboxes.send(&awake, datagram(number)), Outcome::Sent);
            assert_eq!(drain(&socket), [number]);
        }
        // Eventually the datagrams are dropped.
        while mailboxes.has_queued() {
            mailboxes.retry();
            assert!(start.elapsed() < 30 * QUEUE_TIMEOUT);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(start.elapsed() >= QUEUE_TIMEOUT / 2);
    }
}

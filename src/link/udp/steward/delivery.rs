//! Mailboxes: delivers forwarded MADs to processes, immediately or a little later, without ever blocking the
//! broker.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, sendto};

use super::super::socket::unread;
use super::{Names, datagram_socket};

/// Maximum number of datagrams queued for one socket, beyond the ten or so that the kernel queues
/// (`net.unix.max_dgram_qlen`).
const MOST_OF_ONE: usize = 4096;

/// Maximum number of datagrams queued in total: some megabytes.
const MOST: usize = 16_384;

/// Maximum number of sockets with queued datagrams.
const MOST_SOCKETS: usize = 64;

/// Time for which datagrams are queued: a process that accepts none for longer is stopped, and peers
/// retransmit anyway.
const PATIENCE: Duration = Duration::from_secs(2);

/// Unread bytes of the sending socket above which its send buffer counts as full and it is replaced: a
/// process that does not read must not hold up datagrams for others.
const CLOGGED: usize = 64 << 10;

/// Grace period for a name that lost its owner a moment ago: programs close a listener and listen again.
const VACANCY: Duration = Duration::from_secs(1);

/// Time for which a name is remembered to have had an owner.
const MEMORY: Duration = Duration::from_secs(5);
/// Maximum number of names remembered.
const MOST_KNOWN: usize = 256;

/// Result of sending a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Delivered or queued.
    Sent,
    /// No socket has the name.
    Nobody,
    /// Dropped: there was no room, or sending failed.
    Lost,
}

/// Sends datagrams to named sockets.
pub(super) struct Delivery {
    socket: OwnedFd,
    names: Names,
    waiting: HashMap<String, Waiting>,
    /// Time at which each name last had an owner.
    known: HashMap<String, Instant>,
    /// Datagrams that were not delivered within the grace period, with the names they were for.
    returned: Vec<(String, Vec<u8>)>,
    vacancy: Duration,
}

/// Datagrams queued for a name.
struct Waiting {
    /// Time at which the socket last accepted a datagram, or at which the first was queued.
    since: Instant,
    /// Time at which the name was found without an owner.
    vacant: Option<Instant>,
    datagrams: VecDeque<Vec<u8>>,
}

impl Delivery {
    pub fn new(names: Names) -> io::Result<Delivery> {
        let (waiting, known) = (HashMap::new(), HashMap::new());
        Ok(Delivery {
            socket: datagram_socket()?,
            names,
            waiting,
            known,
            returned: Vec::new(),
            vacancy: VACANCY,
        })
    }

    /// Reports whether datagrams are queued, so that [`retry`](Self::retry) should be called soon.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a datagram to a name, or queues it if the socket is full or the name lost its owner recently.
    pub fn send(&mut self, name: &str, datagram: Vec<u8>) -> Outcome {
        if !self.waiting.contains_key(name) {
            match self.try_send(name, &datagram) {
                Ok(()) => return Outcome::Sent,
                Err(Errno::AGAIN) => {}
                Err(Errno::CONNREFUSED) if self.was_somebodys(name) => {}
                Err(Errno::CONNREFUSED) => return Outcome::Nobody,
                Err(_) => return Outcome::Lost,
            }
        }
        self.keep(name, datagram)
    }

    /// Removes and returns the datagrams that were reported as [sent](Outcome::Sent) to names that `is_one`
    /// accepts, but that no socket took, as the last [`retry`](Self::retry) found.
    pub fn returned(&mut self, is_one: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        self.returned.extract_if(.., |(name, _)| is_one(name)).map(|(_, datagram)| datagram).collect()
    }

    /// Records that the name has, or will have, an owner: datagrams for it are queued for a grace period if
    /// it has none.
    pub fn note(&mut self, name: &str) {
        if let Some(at) = self.known.get_mut(name) {
            *at = Instant::now();
            return;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.retain(|_, at| at.elapsed() < MEMORY);
        }
        if self.known.len() < MOST_KNOWN {
            self.known.insert(name.to_owned(), Instant::now());
        }
    }

    fn was_somebodys(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|at| at.elapsed() < MEMORY)
    }

    /// Queues a datagram until the socket exists and has room, within the limits.
    fn keep(&mut self, name: &str, datagram: Vec<u8>) -> Outcome {
        let all: usize = self.waiting.values().map(|queue| queue.datagrams.len()).sum();
        if all >= MOST || self.waiting.len() >= MOST_SOCKETS && !self.waiting.contains_key(name) {
            return Outcome::Lost;
        }
        let begin = || Waiting { since: Instant::now(), vacant: None, datagrams: VecDeque::new() };
        let queue = self.waiting.entry(name.to_owned()).or_insert_with(begin);
        if queue.datagrams.len() >= MOST_OF_ONE {
            return Outcome::Lost;
        }
        queue.datagrams.push_back(datagram);
        Outcome::Sent
    }

    /// Sends queued datagrams as far as there is room.
    pub fn retry(&mut self) {
        // Uncollected datagrams belong to addresses that are no longer served.
        self.returned.clear();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|name, queue| {
            while let Some(datagram) = queue.datagrams.front() {
                match self.try_send(name, datagram) {
                    Ok(()) => {
                        queue.datagrams.pop_front();
                        (queue.since, queue.vacant) = (Instant::now(), None);
                    }
                    Err(Errno::AGAIN) => {
                        queue.vacant = None;
                        return queue.since.elapsed() < PATIENCE;
                    }
                    Err(Errno::CONNREFUSED) => {
                        if queue.vacant.get_or_insert_with(Instant::now).elapsed() < self.vacancy {
                            return true;
                        }
                        self.known.remove(name);
                        let all = queue.datagrams.drain(..).map(|datagram| (name.clone(), datagram));
                        self.returned.extend(all);
                    }
                    Err(_) => return false,
                }
            }
            false
        });
        self.waiting = waiting;
    }

    fn try_send(&mut self, name: &str, datagram: &[u8]) -> Result<(), Errno> {
        let name = self.names.address(name)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let outcome = match sendto(&self.socket, datagram, flags, &name) {
            // A private name without a file has no owner either.
            Err(Errno::NOENT) => Err(Errno::CONNREFUSED),
            outcome => outcome,
        };
        if outcome == Err(Errno::AGAIN) && unread(&self.socket) > CLOGGED {
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
        Names::Shared.bind(&socket, name).unwrap();
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
        let mut delivery = Delivery::new(Names::Shared).unwrap();
        assert_eq!(delivery.send(&name("delivery/0"), datagram(0)), Outcome::Nobody);
        let name = name("delivery/1");
        let socket = receiver(&name);
        let outcomes: Vec<Outcome> = (0..6000).map(|n| delivery.send(&name, datagram(n))).collect();
        let sent = outcomes.iter().filter(|o| **o == Outcome::Sent).count();
        assert!((MOST_OF_ONE..6000).contains(&sent), "{sent}");
        assert!(outcomes[sent..].iter().all(|o| *o == Outcome::Lost));
        let mut got = Vec::new();
        while got.len() < sent {
            got.extend(drain(&socket));
            delivery.retry();
        }
        assert_eq!(got, (0..sent as u16).collect::<Vec<_>>());
        assert!(!delivery.is_waiting());
    }

    #[test]
    fn datagrams_for_a_name_that_lost_its_owner_wait_for_the_next() {
        let (name, long, short) = (name("vacant/1"), Duration::from_secs(3600), Duration::from_millis(50));
        let mut delivery = Delivery { vacancy: long, ..Delivery::new(Names::Shared).unwrap() };
        let first = receiver(&name);
        assert_eq!(delivery.send(&name, datagram(0)), Outcome::Sent);
        drop(first);
        delivery.note(&name);
        assert_eq!(delivery.send(&name, datagram(1)), Outcome::Sent);
        assert_eq!(delivery.send(&name, datagram(2)), Outcome::Sent);
        delivery.retry();
        let second = receiver(&name);
        delivery.retry();
        assert_eq!((drain(&second), delivery.is_waiting()), (vec![1, 2], false));
        // Without a new owner, the datagrams are returned and the name is forgotten.
        drop(second);
        delivery.vacancy = short;
        let began = Instant::now();
        give_up(&mut delivery, &name, datagram(3));
        assert!(began.elapsed() >= short);
        assert_eq!(delivery.returned(|other| other != name), Vec::<Vec<u8>>::new());
        assert_eq!(delivery.returned(|other| other == name), [datagram(3)]);
        assert_eq!(delivery.send(&name, datagram(4)), Outcome::Nobody);
        // Returned datagrams that are not collected are dropped.
        give_up(&mut delivery, &name, datagram(5));
        delivery.retry();
        assert!(delivery.returned.is_empty());
    }

    /// Sends to a name that recently had an owner, until the grace period is over.
    fn give_up(delivery: &mut Delivery, name: &str, datagram: Vec<u8>) {
        delivery.note(name);
        assert_eq!(delivery.send(name, datagram), Outcome::Sent);
        while delivery.is_waiting() {
            delivery.retry();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn slow_owner_that_goes_away_gets_the_full_grace_period() {
        let (name, vacancy) = (name("slow"), Duration::from_secs(5));
        let mut delivery = Delivery { vacancy, ..Delivery::new(Names::Shared).unwrap() };
        let slow = receiver(&name);
        let mut sent = 0;
        while !delivery.is_waiting() {
            assert_eq!(delivery.send(&name, datagram(sent)), Outcome::Sent);
            sent += 1;
        }
        delivery.waiting.get_mut(&name).unwrap().since = Instant::now() - vacancy;
        drop(slow);
        delivery.retry();
        let next = receiver(&name);
        delivery.retry();
        assert_eq!((drain(&next), delivery.is_waiting()), (vec![sent - 1], false));
    }

    #[test]
    fn receivers_that_do_not_read_do_not_block_others() {
        let mut delivery = Delivery::new(Names::Shared).unwrap();
        let names: Vec<String> = (0..200).map(|i| name(&format!("stopped/{i}"))).collect();
        let _stopped: Vec<OwnedFd> = names.iter().map(|name| receiver(name)).collect();
        for number in 0..20 {
            for name in &names {
                delivery.send(name, datagram(number));
            }
        }
        assert!(delivery.waiting.len() <= MOST_SOCKETS);
        let awake = name("awake");
        let socket = receiver(&awake);
        for number in 0..50 {
            assert_eq!(delivery.send(&awake, datagram(number)), Outcome::Sent);
            assert_eq!(drain(&socket), [number]);
        }
        // Eventually the datagrams are dropped.
        let began = Instant::now();
        while delivery.is_waiting() {
            delivery.retry();
            assert!(began.elapsed() < 2 * PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(began.elapsed() >= PATIENCE / 2);
    }
}

//! How inquiries reach processes: at once, or a little later, and never so that the steward waits for anybody.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, sendto};

use super::super::socket::unread;
use super::{Names, datagram_socket};

/// A socket takes but ten datagrams or so (`net.unix.max_dgram_qlen`): how many more are kept for one.
const MOST_OF_ONE: usize = 4096;

/// For all together: some megabytes.
const MOST: usize = 16_384;

/// For how many sockets.
const MOST_SOCKETS: usize = 64;

/// How long they are kept: whoever takes none for longer is stopped, and they will be sent again anyway.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes that one socket of ours has in those of others before it is replaced: who does not read is not to keep what is
/// for others.
const CLOGGED: usize = 64 << 10;

/// How long a name that was somebody's a moment ago may be nobody's: programs end a listener and listen again.
const VACANCY: Duration = Duration::from_secs(1);

/// How long it is known that a name was somebody's, and of how many.
const MEMORY: Duration = Duration::from_secs(5);
const MOST_KNOWN: usize = 256;

/// What came of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It is there, or will be.
    Sent,
    /// Nobody has that name.
    Nobody,
    /// There was no room.
    Lost,
}

/// Sends datagrams to names.
pub(super) struct Delivery {
    socket: OwnedFd,
    names: Names,
    waiting: HashMap<String, Waiting>,
    /// When each of some names was somebody's.
    known: HashMap<String, Instant>,
    /// What has waited for somebody in vain, and for whom.
    returned: Vec<(String, Vec<u8>)>,
    vacancy: Duration,
}

struct Waiting {
    /// When its socket took the last one, or the first one came.
    since: Instant,
    /// When the name was found to be nobody's.
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

    /// Whether to [`retry`](Self::retry) soon.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

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

    /// What nobody took of what is [sent](Outcome::Sent) to names that `is_one` knows, as the last
    /// [`retry`](Self::retry) found.
    pub fn returned(&mut self, is_one: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        self.returned.extract_if(.., |(name, _)| is_one(name)).map(|(_, datagram)| datagram).collect()
    }

    /// The name is somebody's, or will be: what is for it waits for a moment from now on.
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

    /// Keeps it until its socket is there and has room, if that many can be kept.
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

    /// Sends what there was no room for, as far as there is now.
    pub fn retry(&mut self) {
        // Of places that have been given up.
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
            // A private name has a file as long as it is somebody's.
            Err(Errno::NOENT) => Err(Errno::CONNREFUSED),
            outcome => outcome,
        };
        if outcome == Err(Errno::AGAIN) && unread(&self.socket) > CLOGGED {
            // What it has sent stays where it is.
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

    /// A name that no other process has.
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
    fn what_a_socket_has_no_room_for_comes_later_in_order() {
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
    fn what_is_for_a_name_that_was_somebodys_waits_for_its_next_owner() {
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
        // If none comes, they come back, and the name is forgotten.
        drop(second);
        delivery.vacancy = short;
        let began = Instant::now();
        give_up(&mut delivery, &name, datagram(3));
        assert!(began.elapsed() >= short);
        assert_eq!(delivery.returned(|other| other != name), Vec::<Vec<u8>>::new());
        assert_eq!(delivery.returned(|other| other == name), [datagram(3)]);
        assert_eq!(delivery.send(&name, datagram(4)), Outcome::Nobody);
        // What nobody asks for is not kept.
        give_up(&mut delivery, &name, datagram(5));
        delivery.retry();
        assert!(delivery.returned.is_empty());
    }

    /// Sends to a name that was somebody's, until that comes to nothing.
    fn give_up(delivery: &mut Delivery, name: &str, datagram: Vec<u8>) {
        delivery.note(name);
        assert_eq!(delivery.send(name, datagram), Outcome::Sent);
        while delivery.is_waiting() {
            delivery.retry();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_owner_that_was_slow_before_it_went_has_as_long_to_come_back() {
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
    fn those_who_do_not_read_keep_nothing_from_others() {
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
        // And in the end they are given up.
        let began = Instant::now();
        while delivery.is_waiting() {
            delivery.retry();
            assert!(began.elapsed() < 2 * PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(began.elapsed() >= PATIENCE / 2);
    }
}

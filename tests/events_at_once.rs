//! Who has polled for long and then waits for an event is told of it at once: the thread in the background no longer leaves
//! the link to who polls.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

const ROUNDS: usize = 7;
/// The thread would stand back for 16 ms after so much polling.
const POLLED_FOR: Duration = Duration::from_millis(150);

fn context(ip: &str) -> Context {
    let link = UdpLink::bind(ip.parse::<IpAddr>().unwrap(), &UdpOptions::default()).unwrap();
    Context::open(Box::new(link), &ContextOptions::default()).unwrap()
}

#[test]
fn an_event_after_polling_comes_at_once() {
    let (ours, theirs) = (context("127.92.0.1"), context("127.92.0.2"));
    let channel = ours.create_channel().unwrap();
    let options = CqOptions { capacity: 64, channel: Some(channel.clone()), ..CqOptions::default() };
    let cq = ours.create_cq_with(&options).unwrap();
    let their_cq = theirs.create_cq(64).unwrap();
    let pd = ours.alloc_pd().unwrap();
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    let their_qp = theirs.alloc_pd().unwrap().create_qp(&their_cq, &their_cq, &QpOptions::default()).unwrap();
    qp.connect(&their_qp.endpoint(), &ConnectOptions::default()).unwrap();
    their_qp.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
    let mut delays: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
            let (start, mut out) = (Instant::now(), Vec::new());
            while start.elapsed() < POLLED_FOR {
                assert_eq!(cq.poll(1, &mut out).unwrap(), 0);
            }
            cq.req_notify(Notify::Any);
            // As every program does, against a completion that came just before.
            assert_eq!(cq.poll(1, &mut out).unwrap(), 0);
            let sent = Instant::now();
            their_qp.post_send(&SendWr::send(2, &[])).unwrap();
            // Programs wait by descriptor, of which the library learns nothing.
            let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(5000_u16)), Ok(1));
            let event = channel.next_event().unwrap();
            let delay = sent.elapsed();
            assert_eq!(event.poll(1, &mut out).unwrap(), 1);
            their_cq.wait(Duration::from_secs(5)).unwrap();
            delay
        })
        .collect();
    delays.sort();
    println!("from a message to its event: {delays:?}");
    assert!(delays[ROUNDS / 2] < Duration::from_millis(5), "{delays:?}");
}

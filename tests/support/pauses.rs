//! Check that a NIC whose neighbour pauses a priority stops the queue pairs of this priority and no others. A
//! target that uses it has the module `nic` too.

use std::time::{Duration, Instant};

use urxe::verbs::*;
use urxe::wire::frame::PauseFrame;

use super::nic::{SpreadNic, connect_with};

const TIMEOUT: Duration = Duration::from_secs(30);
const QKEY: QKey = QKey(0x1111_1111);
/// Number of queue pairs of each priority.
const PAIRS: usize = 4;
const PAUSED: u8 = 3;
const OTHER: u8 = 1;

/// Speed of the first NIC's link in Mb/s at which a pause takes up to 33 seconds.
pub const SLOW: &str = "speed=1";

/// Transfers data from the first NIC to the second while `send` sends pause frames to the first, whose link
/// has flow control and the speed [`SLOW`].
pub fn check_that_pauses_stop_queue_pairs(contexts: [Context; 2], send: impl Fn(&PauseFrame)) {
    let [a, b] = contexts.map(|context| SpreadNic::new(context, 1 << 16));
    let connected = |priority: u8| {
        let pairs = [(); PAIRS].map(|()| [&a, &b].map(|nic| nic.qp(QpType::Rc)));
        let options = ConnectOptions::default().traffic_class(priority << 5);
        pairs.iter().for_each(|[from, to]| connect_with(from, to, &options));
        pairs
    };
    let (stopped, free) = (connected(PAUSED), connected(OTHER));
    let write = |pairs: &[[Qp; 2]], first: u64| {
        for (id, [qp, _]) in (first..).zip(pairs) {
            qp.post_send(&SendWr::write(id, &[a.mr.sge(0..200)], b.mr.remote(0))).unwrap();
        }
    };
    let datagrams = [&a, &b].map(|nic| nic.qp(QpType::Ud));
    datagrams.iter().for_each(|qp| qp.activate(QKEY).unwrap());
    let gid = b.context.query_gid(0).unwrap();
    let send_datagram = |id: u64, priority: u8| {
        let av = AddressVector::to(gid).traffic_class(priority << 5);
        let to = a.pd.create_ah(&av).unwrap().to(datagrams[1].qpn(), QKEY);
        datagrams[0].post_send(&SendWr::send(id, &[a.mr.sge(0..8)]).to(Some(to))).unwrap();
    };
    let completed = |count: usize| {
        let mut ids: Vec<u64> = a.completions(count).iter().map(|done| done.wr_id).collect();
        ids.sort_unstable();
        ids
    };
    let pause = |quanta: u16| {
        let frames = || a.context.link_state().0.rx_prio_pause[usize::from(PAUSED)];
        let (before, start) = (frames(), Instant::now());
        send(&PauseFrame::new(1 << PAUSED, quanta));
        while frames() == before {
            assert!(start.elapsed() < TIMEOUT, "the pause frame does not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let received = || {
        let counters = b.context.counters();
        (counters.rx_write_requests, counters.rx_no_receive)
    };

    // The neighbours are resolved first.
    write(&stopped, 0);
    write(&free, 10);
    assert_eq!(completed(2 * PAIRS), [0, 1, 2, 3, 10, 11, 12, 13]);
    pause(u16::MAX);
    write(&stopped, 0);
    // A datagram of another priority waits behind one that is paused.
    send_datagram(20, PAUSED);
    send_datagram(21, OTHER);
    for _ in 0..5 {
        write(&free, 10);
        assert_eq!(completed(PAIRS), [10, 11, 12, 13]);
        pause(u16::MAX);
    }
    assert_eq!(received(), (7 * PAIRS as u64, 0));
    pause(0);
    assert_eq!(completed(PAIRS + 2), [0, 1, 2, 3, 20, 21]);
    assert_eq!(received().0, 8 * PAIRS as u64);
}

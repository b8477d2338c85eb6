//! Driver tests on fabric and UDP links: which thread drives a shard, delayed acknowledgements, and batching.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::adaptive::timing::MAX_DELAYED_ACK_PACKETS;
use super::turn::AckDelay;
use crate::link::Link;
use crate::link::udp::{UdpLink, UdpOptions};
use crate::verbs::{
    Access, AckTimeout, Congestion, ConnectOptions, Context, ContextOptions, CqOptions, Fabric, ListPolicy,
    Notify, QpAttr, QpOptions, QpState, Qpn, RecvWr, SendWr, TestEndpoint,
};

/// Returns two connected endpoints on UDP links. The first endpoint's timeouts are too long to expire while a
/// thread is not scheduled, because an expiry would request another acknowledgement.
fn pair_without_timers(a: &str, b: &str) -> (TestEndpoint, TestEndpoint) {
    let options = ConnectOptions { timeout: AckTimeout::new(31), ..ConnectOptions::default() };
    let on = |ip: &str| {
        let link = UdpLink::bind(ip.parse().unwrap(), &UdpOptions::default()).unwrap();
        TestEndpoint::new(Context::open(Box::new(link), &ContextOptions::default()).unwrap()).unwrap()
    };
    let (a, b) = (on(a), on(b));
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.connect(&a.qp.endpoint(), &options).unwrap();
    a.context
        .shards()
        .first()
        .with_state_and_send(|state, _| state.nic.tuning_mut().min_probe_timeout = Duration::from_secs(3600));
    (a, b)
}

#[test]
fn poll_skips_a_locked_nic_and_poll_once_rings_its_doorbell() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let shard = a.context.shards().first();
    let state = shard.lock_fairly();
    shard.poll();
    assert!(!shard.drive_state.is_doorbell_rung());
    shard.poll_once();
    assert!(shard.drive_state.is_doorbell_rung());
    shard.release(state, shard.clock.now());
}

#[test]
fn polling_once_more_after_req_notify_does_not_count_as_polling() {
    let (a, b) = Fabric::new().pair().unwrap();
    let polls = || a.context.shards().first().drive_state.last_poll().is_some();
    let look = || assert_eq!(a.cq.poll(1, &mut Vec::new()), Ok(0));
    look();
    assert!(polls());
    a.cq.req_notify(Notify::Any);
    look();
    look();
    assert!(!polls());
    a.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    b.qp.post_send(&SendWr::send(2, &[])).unwrap();
    a.cq.wait(Duration::from_secs(10)).unwrap();
    // The event has been raised: a thread that polls now counts as polling.
    look();
    assert!(polls());
}

#[test]
fn armed_queue_leaves_polling_to_the_application_until_it_stops() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let polls = || a.context.shards().first().drive_state.last_poll().is_some();
    assert_eq!(a.cq.poll(1, &mut Vec::new()), Ok(0));
    a.cq.arm(Notify::Any);
    assert!(a.cq.is_armed() && polls());
    a.cq.stop_polling();
    assert!(!polls());
}

#[test]
fn req_notify_leaves_polling_to_a_program_whose_waits_in_calls_announce_themselves() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let channel = a.context.create_channel().unwrap();
    let cq = a.context.create_cq(CqOptions::new(8).channel(&channel)).unwrap();
    let qp = a.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.enter_init(Access::ALL).unwrap();
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    let polls_after_req_notify = || {
        a.context.poll();
        cq.req_notify(Notify::Any);
        a.context.shards().first().drive_state.last_poll().is_some()
    };
    assert!(!polls_after_req_notify(), "it has not waited yet");
    channel.get_event(Duration::from_millis(2)).unwrap_err();
    assert!(!polls_after_req_notify(), "as another thread may still sleep");
    // Completes at once, with an error.
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    drop(channel.next_event().unwrap());
    assert!(polls_after_req_notify());
    channel.get_event(Duration::from_millis(2)).unwrap_err();
    assert!(a.context.shards().first().drive_state.last_poll().is_none());
}

#[test]
fn waiting_application_wakes_the_background_thread_only_if_it_backs_off() {
    let (a, _b) = pair_without_timers("127.88.11.1", "127.88.11.2");
    let state = &a.context.shards().first().drive_state;
    let eventually = |condition: &dyn Fn() -> bool| {
        (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            condition()
        })
    };
    assert!(eventually(&|| !state.on_wait()), "it sleeps until packets arrive");
    // Wakes it by a change, after which it finds that the application polls.
    let backs_off = || {
        a.context.poll();
        a.context.shards().first().wake_thread();
        a.context.poll();
        state.on_wait()
    };
    assert!(eventually(&backs_off));
}

#[test]
fn waiting_application_wakes_the_background_thread_if_acks_are_delayed() {
    let (a, b) = pair_without_timers("127.88.11.3", "127.88.11.4");
    let (from, to) = (a.pd.reg_mr(8, Access::ALL).unwrap(), b.pd.reg_mr(8, Access::ALL).unwrap());
    let shard = b.context.shards().first();
    let mut state = shard.lock_fairly();
    a.qp.post_send(&SendWr::write(1, &[from.sge(0..8)], to.remote(0))).unwrap();
    while state.nic.held_acknowledgements() == 0 {
        shard.drive_state.set_must_wake_to_wait(false);
        shard.turn(&mut state, shard.clock.now(), AckDelay::OneTurn);
    }
    assert!(shard.drive_state.on_wait());
    shard.release(state, shard.clock.now());
    a.cq.wait(Duration::from_secs(10)).unwrap();
}

#[test]
fn acks_are_delayed_for_a_responding_application_whatever_the_message_length() {
    let (a, b) = pair_without_timers("127.88.7.1", "127.88.7.2");
    let len = 2 * MAX_DELAYED_ACK_PACKETS * 4096;
    let (from, to) = (a.pd.reg_mr(len, Access::ALL).unwrap(), b.pd.reg_mr(len, Access::ALL).unwrap());
    let shard = b.context.shards().first();
    // Returns whether the acknowledgement of a message of `len` bytes is still delayed after b received it.
    let waits = |len: usize, hold: AckDelay, responds_without_polling: bool| {
        let mut state = shard.lock_fairly();
        shard.drive_state.responds_without_polling.store(responds_without_polling, Ordering::Relaxed);
        to.write(len - 1, &[0]).unwrap();
        from.write(len - 1, &[1]).unwrap();
        let sent = a.context.counters().sent_pkts;
        a.qp.post_send(&SendWr::write(1, &[from.sge(0..len)], to.remote(0))).unwrap();
        // Wait until every packet has been sent, so that one turn receives them all.
        while a.context.counters().sent_pkts < sent + len.div_ceil(4096) as u64 {
            a.context.poll();
        }
        while to.buffer().load_u8(len - 1) != Ok(1) {
            shard.turn(&mut state, shard.clock.now(), hold);
        }
        let waits = state.nic.held_acknowledgements() > 0;
        shard.release(state, shard.clock.now());
        // The background thread of b does not delay it for ever.
        a.cq.wait(Duration::from_secs(10)).unwrap();
        waits
    };
    let outcomes =
        |len, hold, responds_without_polling| [(); 20].map(|()| waits(len, hold, responds_without_polling));
    assert_eq!(outcomes(8, AckDelay::Off, false), [false; 20]);
    assert_eq!(outcomes(8, AckDelay::OneTurn, false), [true; 20]);
    assert_eq!(outcomes(8, AckDelay::UntilResponse, false), [true; 20]);
    // Acknowledgements of a stream, whose sender waits for them, are sent at once, except when the
    // application is known to respond without polling.
    assert_eq!(outcomes(len, AckDelay::OneTurn, false), [false; 20]);
    // The packets of a long message may arrive in several turns, of which an earlier one requests an
    // acknowledgement.
    let is_delayed = |hold| outcomes(len, hold, true).contains(&true);
    assert!(is_delayed(AckDelay::OneTurn) && is_delayed(AckDelay::UntilResponse));
}

#[test]
fn acks_of_many_queue_pairs_with_one_packet_each_are_delayed() {
    const QPS: usize = 64;
    let (a, b) = pair_without_timers("127.88.10.1", "127.88.10.2");
    let (from, to) = (a.pd.reg_mr(8, Access::ALL).unwrap(), b.pd.reg_mr(8, Access::ALL).unwrap());
    let options = ConnectOptions { timeout: AckTimeout::new(31), ..ConnectOptions::default() };
    let qps = [(); QPS].map(|()| {
        let of = |end: &TestEndpoint| end.pd.create_qp(&end.cq, &end.cq, &QpOptions::default()).unwrap();
        let (qp, peer) = (of(&a), of(&b));
        qp.connect(&peer.endpoint(), &options).unwrap();
        peer.connect(&qp.endpoint(), &options).unwrap();
        (qp, peer)
    });
    let shard = b.context.shards().first();
    let mut state = shard.lock_fairly();
    let before = state.nic.counters().rcvd_pkts;
    for (qp, _) in &qps {
        qp.post_send(&SendWr::write(1, &[from.sge(0..8)], to.remote(0))).unwrap();
    }
    let mut turn = || {
        shard.turn(&mut state, shard.clock.now(), AckDelay::OneTurn);
        (state.nic.counters().rcvd_pkts - before, state.nic.held_acknowledgements() > 0)
    };
    // The link reads more datagrams in each turn while it finds as many as it asked for. Every other turn
    // sends what was delayed.
    assert_eq!([(); 4].map(|()| turn()), [(1, true), (2, false), (4, true), (8, false)]);
    const { assert!(8 > MAX_DELAYED_ACK_PACKETS) };
    assert_eq!([(); 2].map(|()| turn()), [(16, true), (24, false)]);
    shard.release(state, shard.clock.now());
    for _ in 0..QPS {
        a.cq.wait(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn one_read_is_answered_in_parts_and_several_at_once() {
    const LEN: usize = 128 << 10;
    let (a, b) = pair_without_timers("127.88.11.1", "127.88.11.2");
    let (to, from) = (a.pd.reg_mr(2 * LEN, Access::ALL).unwrap(), b.pd.reg_mr(LEN, Access::ALL).unwrap());
    let shard = b.context.shards().first();
    // Returns the number of packets in each of two turns.
    let answers = |reads: usize| {
        let sges = [[to.sge(0..LEN)], [to.sge(LEN..2 * LEN)]];
        let mut state = shard.lock_fairly();
        let requests =
            sges[..reads].iter().map(|sges| SendWr::read(1, sges, from.remote(0))).collect::<Vec<_>>();
        // In one list, so that they arrive together.
        a.qp.post_send_list(&requests, ListPolicy::UntilRejected).unwrap();
        let sent = [(); 2].map(|()| {
            let before = state.nic.counters().sent_pkts;
            shard.turn(&mut state, shard.clock.now(), AckDelay::Off);
            state.nic.counters().sent_pkts - before
        });
        shard.release(state, shard.clock.now());
        for _ in 0..reads {
            a.cq.wait(Duration::from_secs(10)).unwrap();
        }
        sent
    };
    assert_eq!(answers(1), [16, 16]);
    assert_eq!(answers(2), [64, 0]);
}

#[test]
fn requests_posted_while_many_are_in_flight_are_sent_together_without_a_call() {
    const LEN: usize = 64 << 10;
    let (a, b) = pair_without_timers("127.88.8.1", "127.88.8.2");
    let (from, to) = (a.pd.reg_mr(LEN, Access::ALL).unwrap(), b.pd.reg_mr(5 * LEN, Access::ALL).unwrap());
    // Reads the counter without running a turn, as a call would.
    let count = || {
        let shard = a.context.shards().first();
        let state = shard.lock_fairly();
        let count = state.nic.counters().sent_pkts;
        drop(state);
        count
    };
    // Returns how many packets have left after each of five messages, while the peer does not respond.
    let sent = || {
        to.write(5 * LEN - 1, &[0]).unwrap();
        from.write(LEN - 1, &[1]).unwrap();
        let sges = [from.sge(0..LEN)];
        let write = |n| SendWr::write(1, &sges, to.remote(n * LEN));
        // The first write yields a round-trip time measurement.
        a.qp.post_send(&write(0)).unwrap();
        a.cq.wait(Duration::from_secs(10)).unwrap();
        let shard = b.context.shards().first();
        let state = shard.lock_fairly();
        let before = count();
        let sent = [0, 1, 2, 3, 4].map(|n| {
            a.qp.post_send(&write(n)).unwrap();
            count() - before
        });
        shard.release(state, shard.clock.now());
        while to.buffer().load_u8(5 * LEN - 1) != Ok(1) {
            std::thread::yield_now();
        }
        for _ in 0..5 {
            a.cq.wait(Duration::from_secs(10)).unwrap();
        }
        sent
    };
    // Two messages are enough in flight to batch; the fourth makes two unsent ones, which leave together, and
    // the fifth waits. On a loaded machine a late turn of the background thread may send the waiting message
    // earlier: then at most one message is unsent all the same, and the round does not count.
    let (expected, least) = ([16, 32, 32, 64, 64], [16, 32, 32, 48, 64]);
    let undisturbed = (0..1000).filter(|_| {
        let sent = sent();
        assert!(sent.iter().zip(least).all(|(n, least)| *n >= least), "{sent:?}");
        sent == expected
    });
    assert_eq!(undisturbed.take(20).count(), 20);
}

#[test]
fn bounded_change_of_congestion_control_fails_while_a_shard_is_locked_and_then_changes_all_shards() {
    let links = UdpLink::bind_shards("127.88.9.1".parse().unwrap(), &UdpOptions::default(), 2).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    let context = Context::open_shards(links, &ContextOptions::default()).unwrap();
    let (shards, nic) = (context.shards(), context.downgrade());
    let (second, changed) = (shards.of(Qpn::new(1)), Congestion::DCQCN_SIGCOMM15);
    let state = second.lock_fairly();
    assert!(!nic.set_congestion_within(changed, Duration::from_millis(1)));
    second.release(state, second.clock.now());
    assert!(nic.set_congestion_within(changed, Duration::from_secs(60)));
    let is_changed = shards.with_all_nics(|nics| {
        nics.iter().map(|nic| nic.config().tuning.congestion.control == changed).collect::<Vec<_>>()
    });
    assert_eq!(is_changed, [true, true]);
    drop(context);
    assert!(!nic.set_congestion_within(changed, Duration::ZERO));
}

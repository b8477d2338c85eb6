//! Tests of extended polling: polling rounds, completion fields, timestamps, CQ overflow.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use urxe::verbs::errors::{CqOverflow, CreateError};

/// Runs one round of extended polling, and returns the `wr_id`, status and timestamp of each completion.
fn round(cq: &Cq) -> Vec<(u64, WcStatus, u64)> {
    let (mut poll, mut found) = (cq.start_poll(), Vec::new());
    while let Some(wc) = poll.next_poll().unwrap() {
        found.push((wc.wr_id, wc.status, wc.completion_timestamp()));
    }
    poll.end_poll();
    found
}

#[test]
fn completion_in_virtual_time_has_the_arrival_time_of_its_packet() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    assert_eq!(a.context.clock(), 0);
    b.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    fabric.advance(Duration::from_micros(100));
    b.qp.post_recv(&RecvWr::new(3, &[])).unwrap();
    a.qp.post_send(&SendWr::send(4, &[])).unwrap();
    fabric.advance(Duration::from_micros(100));
    assert_eq!(a.context.clock(), 200_000);
    // The message arrives after 10 µs, and its acknowledgement after 10 more; the time of polling does not
    // matter.
    use WcStatus::{Success, WrFlushErr};
    assert_eq!(round(&b.cq), [(1, Success, 10_000), (3, Success, 110_000)]);
    assert_eq!(round(&a.cq), [(2, Success, 20_000), (4, Success, 120_000)]);
    assert_eq!(round(&a.cq), []);

    // A flushed request has the time of the flush, whether at the transition or when it is posted.
    b.qp.post_recv(&RecvWr::new(5, &[])).unwrap();
    fabric.advance(Duration::from_micros(7));
    b.qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    fabric.advance(Duration::from_micros(7));
    b.qp.post_recv(&RecvWr::new(6, &[])).unwrap();
    fabric.advance(Duration::from_micros(7));
    b.qp.post_send(&SendWr::send(7, &[])).unwrap();
    let flushed = [(5, WrFlushErr, 207_000), (6, WrFlushErr, 214_000), (7, WrFlushErr, 221_000)];
    assert_eq!(round(&b.cq), flushed);
}

#[test]
fn reset_discards_completions_of_its_qp() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let other = b.pd.create_qp(&b.cq, &b.cq, &QpOptions::default()).unwrap();
    other.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let to = |state| QpAttr::new(state);
    for (qp, wr_id) in [(&b.qp, 1), (&other, 2), (&b.qp, 3)] {
        qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        qp.modify(&to(QpState::Err)).unwrap();
    }
    b.qp.modify(&to(QpState::Reset)).unwrap();
    assert_eq!(round(&b.cq).iter().map(|(wr_id, ..)| *wr_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn datagram_completes_when_the_link_has_accepted_it() {
    let fabric = slow_fabric();
    let a = TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let qp = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default().qp_type(QpType::Ud)).unwrap();
    qp.activate(QKey(1)).unwrap();
    let path = a.pd.create_ah(&AddressVector::to(a.context.query_gid(0).unwrap())).unwrap();
    fabric.advance(Duration::from_micros(3));
    let to = Some(path.to(qp.qpn(), QKey(1)));
    qp.post_send(&SendWr::send(1, &[]).to(to)).unwrap();
    assert_eq!(round(&a.cq), [(1, WcStatus::Success, 3_000)]);
}

#[test]
fn extended_poll_returns_every_completion_field() {
    let (a, b) = slow_fabric().pair().unwrap();
    let dst = region(&b, 64);
    b.qp.post_recv(&RecvWr::new(1, &[dst.sge(0..64)])).unwrap();
    let data = WrData::Inline(b"hello");
    a.qp.post_send(&SendWr::send_imm(2, &[], 99).data(data)).unwrap();
    a.cq.wait(TIMEOUT).unwrap();
    let mut poll = b.cq.start_poll();
    assert!(poll.current().is_none());
    let wc = poll.next_poll().unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.imm, wc.pkey_index, wc.vendor_err), (5, Some(99), 0, 0));
    assert_eq!((wc.qpn, wc.src_qpn), (b.qp.qpn(), a.qp.qpn()));
    assert_eq!(wc.wc_flags(), WcFlags::WITH_IMM);
    // In virtual time the wall clock is the fabric's clock.
    assert_eq!((wc.completion_timestamp(), wc.completion_wallclock_ns()), (10_000, 10_000));
    assert_eq!(poll.current().map(|wc| wc.wr_id), Some(1));
    assert!(poll.next_poll().unwrap().is_none() && poll.current().is_none());
    let bits = [WcFlags::GRH, WcFlags::WITH_IMM, WcFlags::WITH_INV].map(|flag| flag.bits());
    assert_eq!(bits, [1, 2, 8]);
}

#[test]
fn posting_between_start_poll_and_end_poll_succeeds() {
    let fabric = Fabric::new();
    let (a, b) = fabric.pair().unwrap();
    for id in 0..4 {
        b.qp.post_recv(&RecvWr::new(id, &[])).unwrap();
    }
    a.qp.post_send(&SendWr::send(0, &[])).unwrap();
    a.cq.wait(TIMEOUT).unwrap();
    let mut poll = b.cq.start_poll();
    for id in 1..4 {
        assert_eq!(poll.next_poll().unwrap().unwrap().wr_id, id - 1);
        // The receive completes on the queue that is being polled, on this thread.
        a.qp.post_send(&SendWr::send(id, &[])).unwrap();
        a.cq.wait(TIMEOUT).unwrap();
    }
}

#[test]
fn completion_in_real_time_has_the_wallclock_time_of_the_system() {
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    // Both clocks, read within a millisecond of each other.
    let clocks = |context: &Context| loop {
        let (before, clock, after) = (wall(), context.clock(), wall());
        if after - before < 1_000_000 {
            return (clock, after);
        }
    };
    let (a, b) = Fabric::new().pair().unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    let before = clocks(&a.context);
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    while a.cq.start_poll().next_poll().unwrap().is_none() {}
    let after = clocks(&a.context);
    std::thread::sleep(Duration::from_millis(50));
    let mut poll = b.cq.start_poll();
    let wc = poll.next_poll().unwrap().unwrap();
    assert!((before.0..=after.0).contains(&wc.completion_timestamp()));
    // The two clocks are not read at the same moment.
    let slack = 20_000_000;
    let expected = before.1 - slack..=after.1 + slack;
    assert!(
        expected.contains(&wc.completion_wallclock_ns()),
        "{} {expected:?}",
        wc.completion_wallclock_ns()
    );
    assert!(after.0 - before.0 <= after.1 - before.1 + slack, "the clock of the context counts nanoseconds");
}

#[test]
fn cq_overflow_ends_the_poll_round() {
    let (_, b) = slow_fabric().pair().unwrap();
    let cq = b.context.create_cq(1).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    (0..2).for_each(|id| qp.post_recv(&RecvWr::new(id, &[])).unwrap());
    let mut poll = cq.start_poll();
    assert_eq!(poll.next_poll().unwrap().map(|wc| wc.wr_id), Some(0));
    assert_eq!(poll.next_poll().map(|_| ()), Err(CqOverflow { capacity: 1 }));
    assert_eq!(b.context.next_event(), Some(AsyncEvent::CqError(cq.id())));
}

#[test]
fn draining_ends_at_an_empty_queue_or_after_an_overflow() {
    let (_, b) = slow_fabric().pair().unwrap();
    let cq = b.context.create_cq(2).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    let post = |ids: std::ops::Range<u64>| {
        ids.for_each(|id| qp.post_recv(&RecvWr::empty(id)).unwrap());
        let mut drain = cq.drain();
        let found: Vec<_> = drain.by_ref().map(|wc| wc.map(|wc| wc.wr_id)).collect();
        assert_eq!(drain.next(), None);
        found
    };
    assert_eq!(post(0..2), [Ok(0), Ok(1)]);
    assert_eq!(post(2..5), [Ok(2), Ok(3), Err(CqOverflow { capacity: 2 })]);
}

#[test]
fn cq_ignoring_overruns_keeps_the_newest_completions() {
    let (_, b) = slow_fabric().pair().unwrap();
    let options = CqOptions::new(2).ignore_overrun(true);
    let cq = b.context.create_cq(&options).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    (0..5).for_each(|id| qp.post_recv(&RecvWr::new(id, &[])).unwrap());
    assert_eq!(round(&cq).iter().map(|c| c.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!((round(&cq), events(&b.context)), (vec![], vec![]));
}

#[test]
fn creating_a_cq_with_invalid_completion_vector_or_capacity_fails() {
    let context = Context::on_fabric(&slow_fabric()).unwrap();
    let vectors = context.query_device().limits.num_comp_vectors;
    let with = |comp_vector| CqOptions::new(1).comp_vector(comp_vector);
    context.create_cq(with(vectors - 1)).unwrap();
    let refused = context.create_cq(with(vectors)).unwrap_err();
    assert_eq!(refused.to_string(), format!("comp_vector is {vectors}, it must be 0 to {}", vectors - 1));
    let none = CqOptions::new(0);
    assert!(matches!(context.create_cq(&none), Err(CreateError::Value { value: 0, .. })));
}

#[test]
fn wallclock_times_are_monotonic_with_one_offset_per_round() {
    let (a, b) = Fabric::new().pair().unwrap();
    let mut last = 0;
    for turn in 0..50u64 {
        for wr_id in 0..8 {
            b.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
        }
        let (mut poll, mut remaining, mut offset) = (b.cq.start_poll(), 8, None);
        while remaining > 0 {
            let Some(wc) = poll.next_poll().unwrap() else {
                // The rest has not arrived yet.
                poll.end_poll();
                (poll, offset) = (b.cq.start_poll(), None);
                continue;
            };
            let (ticks, wall) = (wc.completion_timestamp(), wc.completion_wallclock_ns());
            assert_eq!(wall - ticks, *offset.get_or_insert(wall - ticks), "turn {turn}");
            assert!(wall >= last, "turn {turn}: {wall} after {last}");
            (last, remaining) = (wall, remaining - 1);
        }
        drop(poll);
        round(&a.cq);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(now.abs_diff(last) < 60_000_000_000, "last completion at {last}, now {now}");
}

//! Tests of the textual form of faults, and of the selection of calls.

use std::net::IpAddr;
use std::time::Duration;

use urxe::verbs::faults::{
    Call, CallEffect, CallFault, CallFaults, Fault, ObjectChange, ObjectFault, PortSpeed, Trigger, When,
};
use urxe::verbs::{AsyncEvent, CqId, Gid, Qpn, RKey, SrqId};

fn gid(text: &str) -> Gid {
    text.parse::<IpAddr>().unwrap().into()
}

fn error(text: &str) -> String {
    text.parse::<Fault>().unwrap_err().to_string()
}

#[test]
fn call_faults_round_trip_through_text() {
    let parse = |text: &str| {
        let fault: Fault = text.parse().unwrap();
        assert_eq!(fault.to_string(), text);
        let Fault::Call(call) = fault else { panic!("{fault:?} is no fault on calls") };
        (call.effect(), call.when(), call.matches(Call::ibv_create_cq), call.matches(Call::ibv_reg_mr))
    };
    let nomem = CallEffect::Error(libc::ENOMEM);
    let two_ms = CallEffect::Slow(Duration::from_millis(2));
    const EACH: When = When::Range { first: 1, last: None };
    assert_eq!(parse("call:ibv_create_cq=ENOMEM"), (nomem, EACH, true, false));
    assert_eq!(parse("call:ibv_create_cq=12@2"), (nomem, When::Nth(2), true, false));
    assert_eq!(parse("call:ibv_reg_mr=ENOMEM@every:3"), (nomem, When::Every(3), false, true));
    assert_eq!(parse("call:ibv_reg_mr=ENOMEM,when=p:0.1"), (nomem, When::Probability(0.1), false, true));
    assert_eq!(parse("call:ibv_create_*=ENOMEM@1"), (nomem, When::Nth(1), true, false));
    assert_eq!(parse("call:*=slow@4,by=2ms"), (two_ms, When::Nth(4), true, true));
    for effect in [nomem, two_ms, CallEffect::Error(4000)] {
        for when in [
            EACH,
            When::Nth(2),
            When::Range { first: 2, last: Some(4) },
            When::Every(3),
            When::Probability(0.5),
        ] {
            let fault = CallFault::new(Call::rdma_connect, effect, when);
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
    }
}

#[test]
fn error_for_an_invalid_call_fault_explains_the_cause() {
    assert_eq!(
        error("call:ibv_creat_cq=ENOMEM"),
        "fault rule 'call:ibv_creat_cq=ENOMEM': unknown call 'ibv_creat_cq': write a function such as ibv_reg_mr, or \
         a prefix such as ibv_create_*; similar: ibv_create_cq, ibv_create_ah, ibv_create_qp"
    );
    assert!(error("call:ibv_foo_*=EIO").contains("unknown call 'ibv_foo_*'"));
    assert!(error("call:ibv_poll_cq").contains("expected call:NAME=ERRNO"));
    assert!(error("call:").contains("expected call:NAME=ERRNO"));
    assert!(error("call:ibv_reg_mr=ENOMEN").contains("unknown error 'ENOMEN'"));
    assert!(error("call:ibv_reg_mr=ENOMEN").ends_with("similar: ENOMEM, ENODEV, ENOENT"));
    assert!(error("call:ibv_reg_mr=0").contains("unknown error '0'"));
    assert!(error("call:ibv_reg_mr=4096").contains("unknown error '4096'"));
    assert!(error("call:ibv_reg_mr=EIO@0").contains("'0' is not a call count"));
    assert!(error("call:ibv_reg_mr=EIO@p:2").contains("from 0 to 1"));
    assert!(error("call:ibv_reg_mr=EIO@often:2").contains("'often:'"));
    assert!(error("call:ibv_reg_mr=EIO@2,when=3").contains("repeats"));
    assert!(error("call:ibv_reg_mr=EIO,by=2ms").contains("only for slow"));
    assert!(error("call:ibv_reg_mr=slow").contains("by=2ms"));
    assert!(error("call:ibv_reg_mr=slow,by=2min").contains("'2min'"));
    assert!(error("call:ibv_reg_mr=EIO,color=1").contains("'color'"));
    assert!(error("call:ibv_reg_mr=EIO,2").contains("KEY=VALUE"));
    // Text without a known prefix is a packet rule.
    assert!(error("lose=3").contains("unknown action 'lose'"));
    assert!(error("lose=3").contains("call:NAME="));
    assert!(error("drop=1%").contains("write 1 % as p:0.01"));
    assert!(error("call:ibv_reg_mr=EIO@2.5%").contains("write 2.5 % as p:0.025"));
    assert!(error("drop=1,opcode=write-onyl").contains("similar: write-only"));
    assert!(matches!("rx:drop=3".parse(), Ok(Fault::Packet(_))));
}

/// Returns for each of `n` calls the error of the faults, and the counters.
fn run(faults: &[&str], call: Call, n: usize) -> (Vec<Option<i32>>, Vec<(u64, u64)>) {
    let faults = faults.iter().map(|text| text.parse().unwrap()).collect();
    let faults = CallFaults::new(faults, 7).unwrap();
    let errors = (0..n).map(|_| faults.on_call(call).error.map(|error| error.errno)).collect();
    (errors, faults.counts().map(|count| (count.matched, count.struck)).collect())
}

#[test]
fn occurrence_selects_calls_and_other_calls_do_not_count() {
    let (nth, every) = ("call:ibv_reg_mr=ENOMEM@2", "call:ibv_reg_*=EIO@every:3");
    let (errors, counts) = run(&[nth, every], Call::ibv_reg_mr, 6);
    let (nomem, io) = (Some(libc::ENOMEM), Some(libc::EIO));
    assert_eq!(errors, [None, nomem, io, None, None, io]);
    assert_eq!(counts, [(6, 1), (6, 2)]);
    assert_eq!(run(&[nth], Call::ibv_create_cq, 5), (vec![None; 5], vec![(0, 0)]));
}

#[test]
fn probability_repeats_with_the_seed_and_is_kept() {
    let first = run(&["call:ibv_reg_mr=EIO@p:0.1"], Call::ibv_reg_mr, 10_000);
    assert_eq!(first, run(&["call:ibv_reg_mr=EIO@p:0.1"], Call::ibv_reg_mr, 10_000));
    let struck = first.1[0].1;
    assert!((900..1100).contains(&struck), "{struck} of 10,000 calls failed with a probability of 0.1");
    assert_eq!(run(&["call:ibv_reg_mr=EIO@p:0"], Call::ibv_reg_mr, 1000).1, [(1000, 0)]);
    assert_eq!(run(&["call:ibv_reg_mr=EIO@p:1"], Call::ibv_reg_mr, 1000).1, [(1000, 1000)]);
}

#[test]
fn delays_of_several_faults_add_up() {
    let faults = ["call:ibv_poll_cq=slow,by=2ms", "call:ibv_*=slow@1,by=1ms"];
    let faults = CallFaults::new(faults.map(|text| text.parse().unwrap()).into(), 1).unwrap();
    let delays = [(); 2].map(|()| faults.on_call(Call::ibv_poll_cq).delay);
    assert_eq!(delays, [3, 2].map(|ms| Some(Duration::from_millis(ms))));
}

#[test]
fn object_faults_round_trip_through_text() {
    let parse = |text: &str| {
        let fault: Fault = text.parse().unwrap();
        assert_eq!(fault.to_string(), text);
        let Fault::Object(object) = fault else { panic!("{fault:?} is no fault on objects") };
        (object.change(), object.trigger())
    };
    let five_ms = Trigger::After(Duration::from_millis(5));
    let qpn = Qpn::new(17);
    let cases = [
        ("qp:17=err@5ms", ObjectChange::QpError(Some(qpn)), five_ms),
        ("qp:0x11=err@100", ObjectChange::QpError(Some(qpn)), Trigger::Packets(100)),
        ("qp:*=err@5ms", ObjectChange::QpError(None), five_ms),
        ("cq:2=overrun@5ms", ObjectChange::CqOverrun(Some(CqId(2))), five_ms),
        ("mr:0xffffffff=revoke@5ms", ObjectChange::RevokeMr(Some(RKey(u32::MAX))), five_ms),
        ("port=down@5ms", ObjectChange::Port { up: false }, five_ms),
        ("port=up@0", ObjectChange::Port { up: true }, Trigger::Packets(0)),
        ("gid:1=fd00::9@5ms", ObjectChange::Gid { index: 1, gid: Some(gid("fd00::9")) }, five_ms),
        ("gid:0=remove@5ms", ObjectChange::Gid { index: 0, gid: None }, five_ms),
        ("speed=200G@5ms", ObjectChange::Speed(PortSpeed::ALL[5]), five_ms),
        ("device=fatal@5ms", ObjectChange::DeviceFatal, five_ms),
        ("event:QP_ACCESS_ERR@5ms,qp=17", ObjectChange::Event(AsyncEvent::QpAccessError(qpn)), five_ms),
        ("event:IBV_EVENT_CQ_ERR@5ms,cq=2", ObjectChange::Event(AsyncEvent::CqError(CqId(2))), five_ms),
        (
            "event:SRQ_LIMIT_REACHED@1,srq=3",
            ObjectChange::Event(AsyncEvent::SrqLimit(SrqId(3))),
            Trigger::Packets(1),
        ),
        ("event:GID_CHANGE@5ms", ObjectChange::Event(AsyncEvent::GidChange), five_ms),
        // The cause of the event is what happens.
        ("event:PORT_ERR@5ms", ObjectChange::Port { up: false }, five_ms),
        ("event:DEVICE_FATAL@5ms", ObjectChange::DeviceFatal, five_ms),
    ];
    for (text, change, trigger) in cases {
        assert_eq!(parse(text), (change, trigger), "{text}");
        let own = ObjectFault::new(change, trigger);
        assert_eq!(parse(&own.to_string()), (change, trigger), "{own}");
    }
}

#[test]
fn error_for_an_invalid_object_fault_explains_the_cause() {
    assert_eq!(
        error("qp:17=err"),
        "fault rule 'qp:17=err': expected qp:NUMBER=err@5ms, or qp:*=err@5ms for all"
    );
    assert!(error("qp:17=reset@5ms").contains("expected qp:NUMBER=err@5ms"));
    assert!(error("qp:x=err@5ms").contains("QP number 'x' is not a number from 0 to 16777215 (0xffffff)"));
    assert!(error("qp:17=err@5ms,by=2ms").contains("expected qp:NUMBER=err@5ms"));
    assert!(error("cq:1=err@5ms").contains("expected cq:NUMBER=overrun@5ms"));
    assert!(error("mr=revoke@5ms").contains("expected mr:RKEY=revoke@5ms"));
    assert!(error("gid:0=10.0.0@5ms").contains("'10.0.0' is not a GID: write an IP address, or remove"));
    assert!(error("gid:256=remove@5ms").contains("GID index '256'"));
    assert!(error("port:down@5ms").contains("expected port=down@5ms or port=up@5ms"));
    assert!(error("port=down@soon").contains("'soon' is not a duration"));
    assert!(error("port=down@").contains("or a number of packets such as 100"));
    assert!(error("speed=30G@5ms").contains("write one of 10G, 25G, 40G, 50G, 100G, 200G, 400G"));
    assert!(error("device=lost@5ms").contains("expected device=fatal@5ms"));
    assert!(error("event:QP_FATL@5ms,qp=1").contains("unknown event 'QP_FATL'"));
    assert!(error("event:QP_FATL@5ms,qp=1").contains("similar: QP_FATAL"));
    assert!(error("event:QP_FATAL@5ms").contains("QP_FATAL concerns a queue: add ,qp=NUMBER"));
    assert!(error("event:QP_FATAL@5ms,cq=1").contains("add ,qp=NUMBER"));
    assert!(error("event:GID_CHANGE@5ms,qp=1").contains("GID_CHANGE concerns no object: remove ,qp=1"));
    assert!(error("event:GID_CHANGE@5ms,port=1").contains("unknown key 'port'"));
}

//! Tests of the textual form and of the evaluation of faults.

use std::time::Duration;

use super::*;

fn error(text: &str) -> String {
    text.parse::<Fault>().unwrap_err().to_string()
}

#[test]
fn call_faults_round_trip_through_text() {
    let parse = |text: &str| {
        let fault: Fault = text.parse().unwrap();
        assert_eq!(fault.to_string(), text);
        let Fault::Call(call) = fault else { panic!("{fault:?} is no fault on calls") };
        (call.effect(), call.occurrence(), call.matches(Call::ibv_create_cq), call.matches(Call::ibv_reg_mr))
    };
    let nomem = CallEffect::Error(libc::ENOMEM);
    let two_ms = CallEffect::Slow(Duration::from_millis(2));
    assert_eq!(parse("call:ibv_create_cq=ENOMEM"), (nomem, Occurrence::All, true, false));
    assert_eq!(parse("call:ibv_create_cq=12@2"), (nomem, Occurrence::Nth(2), true, false));
    assert_eq!(parse("call:ibv_reg_mr=ENOMEM@every:3"), (nomem, Occurrence::Every(3), false, true));
    assert_eq!(
        parse("call:ibv_reg_mr=ENOMEM,when=p:0.1"),
        (nomem, Occurrence::Probability(0.1), false, true)
    );
    assert_eq!(parse("call:ibv_create_*=ENOMEM@1"), (nomem, Occurrence::Nth(1), true, false));
    assert_eq!(parse("call:*=slow@4,by=2ms"), (two_ms, Occurrence::Nth(4), true, true));
    for effect in [nomem, two_ms, CallEffect::Error(4000)] {
        for occurrence in
            [Occurrence::All, Occurrence::Nth(2), Occurrence::Every(3), Occurrence::Probability(0.5)]
        {
            let fault = CallFault::new(Call::rdma_connect, effect, occurrence);
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
    assert!(error("call:ibv_reg_mr=EIO@0").contains("'0' is not a number of calls"));
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
    assert!(matches!("rx:drop=3".parse(), Ok(Fault::Packet(_))));
}

/// Returns for each of `n` calls the error of the faults, and the counters.
fn run(faults: &[&str], call: Call, n: usize) -> (Vec<Option<i32>>, Vec<(u64, u64)>) {
    let faults = faults.iter().map(|text| text.parse().unwrap()).collect();
    let faults = CallFaults::new(faults, 7).unwrap();
    let errors = (0..n).map(|_| faults.on_call(call).errno).collect();
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

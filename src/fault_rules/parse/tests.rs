//! The textual form of rules: what is accepted, the errors of what is not, and the way back.

use proptest::prelude::*;

use super::*;
use crate::fault_rules::HeaderField;

#[test]
fn rules_round_trip_through_text() {
    let shape = |text: &str| {
        let rule: Rule = text.parse().unwrap();
        assert_eq!(rule.to_string(), text);
        (rule.direction, rule.action, rule.when)
    };
    assert_eq!(shape("drop=3"), (Direction::Tx, Action::Drop, When::Nth(3)));
    assert_eq!(shape("rx:dup=every:5"), (Direction::Rx, Action::Duplicate, When::Every(5)));
    assert_eq!(shape("tx:reorder=p:0.25"), (Direction::Tx, Action::Reorder, When::Probability(0.25)));
    assert_eq!(shape("corrupt=1,opcode=0x0a,qp=17"), (Direction::Tx, Action::Corrupt, When::Nth(1)));
    let two_ms = Action::Delay(Duration::from_millis(2));
    assert_eq!(shape("rx:delay=every:2,by=2ms"), (Direction::Rx, two_ms, When::Every(2)));
    let each = When::Range { first: 1, last: None };
    assert_eq!(
        shape("dup=3..5,copies=4"),
        (Direction::Tx, Action::Repeat(4), When::Range { first: 3, last: Some(5) })
    );
    assert_eq!(shape("corrupt=1,xor=32,at=middle"), (Direction::Tx, Action::Corrupt, When::Nth(1)));
    let rkey = Alteration { at: Place::Field(HeaderField::RKey), xor: 1, repair_icrc: true };
    assert_eq!(
        shape("corrupt=1,at=rkey,xor=1,icrc=repair"),
        (Direction::Tx, Action::Alter(rkey), When::Nth(1))
    );
    assert_eq!(shape("nak=operation"), (Direction::Tx, Action::Nak(NakCode::RemoteOperationalError), each));
    assert_eq!(shape("nak=9@2"), (Direction::Tx, Action::Nak(NakCode::Reserved(9)), When::Nth(2)));
    assert_eq!(
        shape("rx:rnr=12@every:5"),
        (Direction::Rx, Action::RnrNak(RnrTimer::new(12)), When::Every(5))
    );
    let stale = Action::Reject(RejReason::StaleConnection);
    assert_eq!(shape("cm:rej=10@1"), (Direction::Tx, stale, When::Nth(1)));
    assert_eq!(shape("rx:cm:rej=stale-connection"), (Direction::Rx, stale, each));
    assert_eq!(shape("cm:drop=rtu|sidr-req@2"), (Direction::Tx, Action::Drop, When::Nth(2)));
    let own = Rule::new(Direction::Rx, Action::Drop, When::Every(7));
    assert_eq!(own.to_string(), "rx:drop=every:7");
}

#[test]
fn opcode_is_parsed_from_a_number_a_name_or_a_prefix_of_names() {
    let codes = |text: &str| opcodes(text).unwrap().iter().map(|o| o.0).collect::<Vec<_>>();
    assert_eq!(codes("0x0a"), [0x0a]);
    assert_eq!(codes("RC SEND Only"), [0x04]);
    assert_eq!(codes("send-only"), [0x04, 0x24, 0x44, 0x64, 0xa4]);
    assert_eq!(codes("rc-write"), [0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b]);
    assert_eq!(codes("rc_rdma_read_request"), [0x0c]);
    assert_eq!(codes("rc-ack"), [0x11]);
    assert_eq!(codes("uc"), (0x20..0x2c).collect::<Vec<_>>());
    assert_eq!(codes("CNP"), [0x81]);
    for invalid in ["", "-", "sned", "only"] {
        assert!(opcodes(invalid).unwrap_err().contains(&format!("unknown opcode '{invalid}'")));
    }
    // The full name of an opcode means that opcode only.
    for opcode in (0..=0xff).map(Opcode).filter(|opcode| opcode.row().is_valid()) {
        assert_eq!(opcodes(&opcode.to_string()), Ok(vec![opcode]));
    }
}

#[test]
fn error_for_an_invalid_rule_explains_the_cause() {
    let error = |text: &str| text.parse::<Rule>().unwrap_err().to_string();
    assert_eq!(error("drop=0"), "fault rule 'drop=0': '0' is not a packet count: write an integer from 1");
    assert!(error("lose=3").contains("unknown action 'lose'"));
    assert!(error("drop").contains("ACTION=WHEN"));
    assert!(error("drop=p:2").contains("from 0 to 1"));
    assert!(error("drop=often:2").contains("'often:'"));
    assert!(error("delay=2").contains("by=2ms"));
    assert!(error("drop=2,by=2ms").contains("only for delay"));
    assert!(error("delay=2,by=2min").contains("'2min'"));
    assert!(error("drop=2,psn=0x1000000").contains("0xffffff"));
    assert!(error("drop=2,color=1").contains("'color'"));
    assert!(error("drop=2,icrc=repair").contains("'icrc' is valid only for corrupt, not for drop"));
    assert!(error("corrupt=2,icrc=keep").contains("write icrc=repair"));
    assert!(error("corrupt=2,at=cookie").contains("payload, or one of opcode, pkey, qp, psn"));
    assert!(error("dup=2,copies=1001").contains("copies '1001'"));
    assert!(error("replay=2").contains("replay requires a duration"));
    assert!(error("nak=no@3").contains("sequence, invalid-request, access, operation or a number"));
    assert!(error("rnr=32").contains("RNR timer '32'"));
    assert!(error("rej=10").contains("unknown action 'rej'"));
    assert!(error("cm:nak=1").contains("unknown CM message '1'"));
    assert!(error("cm:rej=none").contains("stale-connection"));
    assert!(
        error("cm:drop=hello").contains("req, mra, rej, rep, rtu, dreq, drep, sidr-req, sidr-rep, lap, apr")
    );
    assert!(error("drop=7..3").contains("'7..3' is empty"));
    assert!(error("drop=..3").contains("'' is not a packet count"));
    assert!(error("drop=1,time=2ms").contains("write 2ms..5ms"));
    assert!(error("drop=1,time=5ms..2ms").contains("'5ms..2ms' is empty"));
    assert!(error("drop=1,opcode=ack|sned").contains("unknown opcode 'sned'"));
    assert!(error("drop=1,psn=3..0x1000000").contains("psn '0x1000000'"));
    assert!(error("drop=1,to=host").contains("to 'host' is not an IP address"));
    assert!(error("drop=1,ecn=yes").contains("write ce, ect0, ect1 or not-ect"));
    assert!(error("up:drop=2").contains("up:drop"));
}

/// Texts of one part of a rule, each valid wherever that part may stand.
fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(texts)
}

fn rule_text() -> impl Strategy<Value = String> {
    let when = prop_oneof![
        (1u64..9).prop_map(|n| format!("{n}")),
        (1u64..9).prop_map(|n| format!("every:{n}")),
        (0u64..=4).prop_map(|n| format!("p:{}", n as f64 / 4.0)),
        (1u64..9, 0u64..9).prop_map(|(n, more)| format!("{n}..{}", n + more)),
        (1u64..9).prop_map(|n| format!("{n}..")),
    ];
    let filters = prop::collection::vec(
        one_of(&[
            ",opcode=ack",
            ",opcode=rc-write|0x0c",
            ",psn=7",
            ",psn=0xfffff0..15",
            ",qp=0x11",
            ",from=10.0.0.1",
            ",to=fd00::2",
            ",ecn=ce",
            ",payload=1025..",
            ",cm=req|rtu",
            ",time=2ms..5ms",
            ",time=..1s",
        ]),
        0..4,
    );
    // An action with what precedes and what follows WHEN.
    let actions = prop::sample::select(vec![
        ("drop=", ""),
        ("dup=", ""),
        ("dup=", ",copies=3"),
        ("reorder=", ""),
        ("mark=", ""),
        ("corrupt=", ",icrc=repair"),
        ("corrupt=", ",at=17,xor=0x81"),
        ("corrupt=", ",at=payload"),
        ("delay=", ",by=3us"),
        ("replay=", ",by=2ms"),
        ("nak=invalid-request@", ""),
        ("rnr=0x1f@", ""),
        ("cm:rej=28@", ""),
        ("cm:delay=dreq|drep@", ",by=1s"),
    ]);
    (one_of(&["", "tx:", "rx:"]), actions, when, filters).prop_map(
        |(direction, (before, after), when, filters)| {
            format!("{direction}{before}{when}{after}{}", filters.concat())
        },
    )
}

/// Returns all that a rule consists of, except its text.
fn parts(rule: &Rule) -> String {
    let Rule { direction, action, when, filter, .. } = rule;
    let Filter { opcodes, psn, qp, from, to, ecn, cm, time, .. } = filter;
    format!(
        "{direction} {action:?} {when:?} {opcodes:?} {psn:?} {qp:?} {from:?} {to:?} {ecn:?} {cm:?} {time:?}"
    )
}

proptest! {
    #[test]
    fn printed_rule_parses_to_the_same_rule(text in rule_text()) {
        let rule: Rule = text.parse().unwrap();
        prop_assert_eq!(parts(&rule.to_string().parse().unwrap()), parts(&rule));
        // A rule that a program has created is printed from its parts.
        let created = Rule::new(rule.direction, rule.action, rule.when);
        prop_assert_eq!(parts(&created.to_string().parse().unwrap()), parts(&created));
    }

    #[test]
    fn arbitrary_text_is_parsed_or_refused_with_a_reason(text in "[a-z0-9:=,.|@]{0,40}") {
        if let Err(e) = text.parse::<Rule>() {
            prop_assert!(!e.reason.is_empty());
        }
    }
}

//! Conformance tests: each implemented rule of the InfiniBand transport, checked against a scripted peer.
//!
//! `rules::RULES` paraphrases each rule. Every case names the rule that it covers, and
//! `every_rule_has_a_case` checks that every rule has a case. The list of rules with their cases, and of the
//! parts of the specification that are not covered or excluded, with the reasons: `cargo test --test
//! conformance every_rule -- --nocapture`.

#[macro_use]
#[path = "conformance/rules.rs"]
mod rules;
#[path = "conformance/bench.rs"]
mod bench;
#[path = "../support/nic.rs"]
mod nic;
#[path = "conformance/pkt.rs"]
mod pkt;
#[path = "../support/mod.rs"]
mod support;

#[path = "conformance/congestion.rs"]
mod congestion;
#[path = "conformance/credits.rs"]
mod credits;
#[path = "conformance/datagram.rs"]
mod datagram;
#[path = "conformance/direct.rs"]
mod direct;
#[path = "conformance/fast_regions.rs"]
mod fast_regions;
#[path = "conformance/forgeries.rs"]
mod forgeries;
#[path = "conformance/migration.rs"]
mod migration;
#[path = "conformance/multicast.rs"]
mod multicast;
#[path = "conformance/notification_point.rs"]
mod notification_point;
#[path = "conformance/pacer.rs"]
mod pacer;
#[path = "conformance/partitions.rs"]
mod partitions;
#[path = "conformance/personalities.rs"]
mod personalities;
#[path = "conformance/placement.rs"]
mod placement;
#[path = "conformance/queues.rs"]
mod queues;
#[path = "conformance/quirks.rs"]
mod quirks;
#[path = "conformance/requester_ackreq.rs"]
mod requester_ackreq;
#[path = "conformance/requester_acks.rs"]
mod requester_acks;
#[path = "conformance/requester_errors.rs"]
mod requester_errors;
#[path = "conformance/requester_messages.rs"]
mod requester_messages;
#[path = "conformance/requester_reads.rs"]
mod requester_reads;
#[path = "conformance/responder_memory.rs"]
mod responder_memory;
#[path = "conformance/responder_messages.rs"]
mod responder_messages;
#[path = "conformance/responder_order.rs"]
mod responder_order;
#[path = "conformance/responder_replay.rs"]
mod responder_replay;
#[path = "conformance/selective_repeat.rs"]
mod selective_repeat;
#[path = "conformance/shared_receives.rs"]
mod shared_receives;
#[path = "conformance/shared_window.rs"]
mod shared_window;
#[path = "conformance/states.rs"]
mod states;
#[path = "conformance/unreliable_connection.rs"]
mod unreliable_connection;

#[path = "conformance/windows.rs"]
mod windows;

#[path = "conformance/xrc.rs"]
mod xrc;

#[test]
fn every_rule_has_a_case() {
    let suites = [
        personalities::CASES,
        shared_window::CASES,
        responder_memory::CASES,
        responder_messages::CASES,
        responder_order::CASES,
        responder_replay::CASES,
        partitions::CASES,
        queues::CASES,
        requester_acks::CASES,
        requester_ackreq::CASES,
        requester_errors::CASES,
        requester_messages::CASES,
        requester_reads::CASES,
        states::CASES,
        unreliable_connection::CASES,
        datagram::CASES,
        multicast::CASES,
        shared_receives::CASES,
        windows::CASES,
        migration::CASES,
        congestion::CASES,
        pacer::CASES,
        notification_point::CASES,
        credits::CASES,
        quirks::CASES,
        selective_repeat::CASES,
        xrc::CASES,
        fast_regions::CASES,
        placement::CASES,
        forgeries::CASES,
    ];
    let cases: Vec<_> = suites.concat();
    let mut uncovered = Vec::new();
    for rule in rules::RULES {
        let names: Vec<_> = cases.iter().filter(|c| c.rule == rule.id).map(|c| c.name).collect();
        println!("{} ({}): {}\n    {}", rule.id, rule.section, rule.text, names.join(", "));
        if names.is_empty() {
            uncovered.push(rule.id);
        }
    }
    println!("covered: {} rules, {} cases", rules::RULES.len(), cases.len());
    for (name, list) in [("not covered", rules::NOT_COVERED), ("excluded", rules::EXCLUDED)] {
        println!("{name}: {}", list.len());
        list.iter().for_each(|o| println!("  {}: {} - {}", o.section, o.text, o.reason));
    }
    assert!(uncovered.is_empty(), "rules without a case: {uncovered:?}");
    let unknown: Vec<_> = cases.iter().filter(|c| rules::RULES.iter().all(|r| r.id != c.rule)).collect();
    assert!(unknown.is_empty(), "cases that name an unknown rule: {unknown:?}");
}

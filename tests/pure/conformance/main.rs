//! Conformance tests: each implemented rule of the InfiniBand transport, checked against a scripted peer.
//!
//! `rules::RULES` paraphrases each rule. Every case names the rule that it covers, and
//! `every_rule_has_a_case` checks that every rule has a case. The list of rules with their cases, and of the
//! parts of the specification that are not covered or excluded, with the reasons: `cargo test --test
//! conformance every_rule -- --nocapture`.

#[macro_use]
mod rules;
mod bench;
mod pkt;

mod congestion;
mod credits;
mod datagram;
mod direct;
mod fast_regions;
mod forgeries;
mod full_paths;
mod migration;
mod multicast;
mod notification_point;
mod pacer;
mod partitions;
mod personalities;
mod placement;
mod properties;
mod queues;
mod quirks;
mod requester_ackreq;
mod requester_acks;
mod requester_errors;
mod requester_messages;
mod requester_reads;
mod responder_memory;
mod responder_messages;
mod responder_order;
mod responder_replay;
mod selective_repeat;
mod shared_receives;
mod shared_window;
mod states;
mod unreliable_connection;

mod windows;

mod xrc;

#[test]
fn every_rule_has_a_case() {
    let suites = [
        personalities::CASES,
        shared_window::CASES,
        full_paths::CASES,
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

//! Conformance tests: each implemented rule of the InfiniBand transport, checked against a scripted peer.
//!
//! `rules::RULES` states each rule in our own words. Every case names the rule that it covers, and
//! `every_rule_has_a_case` checks that no rule is without a case. The list of rules (covered by which cases,
//! not covered, excepted and why): `cargo test --test conformance every_rule -- --nocapture`.

#[macro_use]
#[path = "conformance/rules.rs"]
mod rules;
#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/pkt.rs"]
mod pkt;
mod support;

#[path = "conformance/credits.rs"]
mod credits;
#[path = "conformance/datagram.rs"]
mod datagram;
#[path = "conformance/fast_regions.rs"]
mod fast_regions;
#[path = "conformance/forgeries.rs"]
mod forgeries;
#[path = "conformance/migration.rs"]
mod migration;
#[path = "conformance/multicast.rs"]
mod multicast;
#[path = "conformance/pace.rs"]
mod pace;
#[path = "conformance/partitions.rs"]
mod partitions;
#[path = "conformance/personalities.rs"]
mod personalities;
#[path = "conformance/placement.rs"]
mod placement;
#[path = "conformance/queues.rs"]
mod queues;
#[path = "conformance/habits.rs"]
mod quirks;
#[path = "conformance/requester_acks.rs"]
mod requester_acks;
#[path = "conformance/requester_asks.rs"]
mod requester_asks;
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
        requester_asks::CASES,
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
        pace::CASES,
        credits::CASES,
        quirks::CASES,
        xrc::CASES,
        fast_regions::CASES,
        placement::CASES,
        forgeries::CASES,
    ];
    let cases: Vec<_> = suites.concat();
    let mut bare = Vec::new();
    for rule in rules::RULES {
        let of: Vec<_> = cases.iter().filter(|c| c.rule == rule.id).map(|c| c.name).collect();
        println!("{} ({}): {}\n    {}", rule.id, rule.section, rule.says, of.join(", "));
        if of.is_empty() {
            bare.push(rule.id);
        }
    }
    println!("covered: {} rules, {} cases", rules::RULES.len(), cases.len());
    for (name, list) in [("not covered", rules::OPEN), ("excepted", rules::EXCEPTED)] {
        println!("{name}: {}", list.len());
        list.iter().for_each(|o| println!("  {}: {} - {}", o.section, o.says, o.why));
    }
    assert!(bare.is_empty(), "rules without a case: {bare:?}");
    let strays: Vec<_> = cases.iter().filter(|c| rules::RULES.iter().all(|r| r.id != c.rule)).collect();
    assert!(strays.is_empty(), "cases for no known rule: {strays:?}");
}

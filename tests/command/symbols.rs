//! Tests of the library's exported symbols and their versions.

use std::collections::BTreeSet;
use std::process::Command;
use urxe_test_support::programs;

/// Returns `name@@version` of every symbol that the library exports.
fn exported() -> BTreeSet<String> {
    let out = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(programs::library()).output();
    let out = out.expect("this test needs readelf (apt-get install binutils)");
    let text = String::from_utf8(out.stdout).unwrap();
    // Columns: number, value, size, type, binding, visibility, section, name. The section of an undefined
    // symbol is UND.
    let symbols = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined = symbols.filter(|f| f.len() >= 8 && !f.contains(&"UND") && !f.contains(&"Ndx"));
    defined.filter_map(|f| f.last().map(|name| (*name).to_owned())).collect()
}

#[test]
fn every_symbol_that_programs_need_is_exported_in_its_version() {
    let exports = exported();
    let missing: Vec<_> = include_str!("symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (version, name) = line.split_once(' ').unwrap();
            (format!("{name}@@{version}"), format!("{name}@{version}"))
        })
        .filter(|(default, other)| {
            let is_private = default.contains("IBVERBS_PRIVATE");
            !(exports.contains(default) || is_private && exports.contains(other))
        })
        .collect();
    assert!(missing.is_empty(), "missing symbols: {missing:#?}; {} are exported", exports.len());
}

#[test]
fn only_libibverbs_and_librdmacm_symbols_are_exported() {
    let is_public = |s: &&String| {
        s.contains("ibv")
            || s.contains("verbs")
            || s.contains("IBVERBS")
            || s.contains("RDMACM")
            || s.contains("execute_ioctl")
            || s.starts_with("__ioctl_final_num_attrs@")
    };
    let exports = exported();
    let others: Vec<_> = exports.iter().filter(|s| !is_public(s)).collect();
    assert!(others.is_empty(), "unexpected symbols: {others:#?}");
}

/// Returns the name, node and releases of each line of `releases.txt`, and whether it is a default version.
fn of_releases() -> impl Iterator<Item = (&'static str, bool, &'static str, &'static str)> {
    let lines = include_str!("releases.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let (symbol, releases) = line.split_once(' ').unwrap();
        let (name, node) = symbol.split_once('@').unwrap();
        let (is_default, node) = (node.starts_with('@'), node.trim_start_matches('@'));
        (name, is_default, node, releases)
    })
}

#[test]
fn every_symbol_of_releases_33_to_65_is_exported_in_its_node() {
    let exports = exported();
    let mut found = 0;
    let mut missing = Vec::new();
    for (name, is_default, node, releases) in of_releases() {
        // The functions of libibverbs 1.0 take structs with another layout, and no program of these releases
        // is linked against them: their libraries have a newer default version of each.
        if node == "IBVERBS_1.0" && !is_default {
            assert!(exports.contains(&format!("{name}@@IBVERBS_1.1")), "{name}");
            continue;
        }
        // In the newest private node, our symbols are default versions, in the others they are not.
        let (default, other) = (format!("{name}@@{node}"), format!("{name}@{node}"));
        let is_private = node.starts_with("IBVERBS_PRIVATE");
        match exports.contains(&default) || is_private && exports.contains(&other) {
            true => found += 1,
            false => missing.push(format!("{default} of {releases}")),
        }
    }
    assert!(missing.is_empty(), "missing: {missing:#?}");
    assert!(found > 400, "only {found} symbols are listed");
}

#[test]
fn every_private_node_has_its_registration_function_and_all_other_private_names() {
    let exports = exported();
    let nodes = |name: &str| -> BTreeSet<u32> {
        let prefixes = [format!("{name}@IBVERBS_PRIVATE_"), format!("{name}@@IBVERBS_PRIVATE_")];
        let numbers =
            exports.iter().filter_map(|symbol| prefixes.iter().find_map(|p| symbol.strip_prefix(p)));
        numbers.map(|number| number.parse().unwrap()).collect()
    };
    let all = BTreeSet::from([17, 18, 19, 20, 21, 22, 25, 33, 34, 57, 59, 64, 65]);
    let names: BTreeSet<_> =
        of_releases().filter(|(.., node, _)| node.contains("PRIVATE")).map(|s| s.0).collect();
    for name in names.into_iter().filter(|name| !name.starts_with("verbs_register_driver_")) {
        assert_eq!(nodes(name), all, "{name}");
    }
    for node in all {
        assert_eq!(nodes(&format!("verbs_register_driver_{node}")), BTreeSet::from([node]));
    }
}

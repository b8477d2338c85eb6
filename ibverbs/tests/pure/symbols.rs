//! Tests of the library's exported symbols and their versions.

use std::collections::BTreeSet;
use std::process::Command;

/// Returns `name@@version` of every symbol that the library exports.
fn exported() -> BTreeSet<String> {
    let test = std::env::current_exe().unwrap();
    let library = test.ancestors().map(|dir| dir.join("libibverbs.so")).find(|path| path.exists());
    let library = library.expect("cargo builds the library before its tests");
    let out = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output();
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
            format!("{name}@@{version}")
        })
        .filter(|symbol| !exports.contains(symbol))
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
    };
    let exports = exported();
    let others: Vec<_> = exports.iter().filter(|s| !is_public(s)).collect();
    assert!(others.is_empty(), "unexpected symbols: {others:#?}");
}

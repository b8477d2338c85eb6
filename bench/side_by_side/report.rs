//! JSON report of a run.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::machine::Machine;
use crate::table::{Key, Row, Spread, Table};
use crate::targets::{Limit, Target, Verdict};

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    arguments: Vec<String>,
    rows: Vec<ReportedRow<'a>>,
    #[serde(rename = "bars")]
    targets: Vec<ReportedTarget<'a>>,
}

#[derive(Serialize)]
struct ReportedRow<'a> {
    #[serde(flatten)]
    key: &'a Key,
    /// Median, minimum and maximum over the rounds, keyed by metric name.
    figures: BTreeMap<&'a str, Spread>,
    #[serde(flatten)]
    row: &'a Row,
}

#[derive(Serialize)]
struct ReportedTarget<'a> {
    what: &'a str,
    value: Option<Spread>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    verdict: Verdict,
}

pub fn write(path: &Path, machine: &Machine, table: &Table, targets: &[Target]) -> Result<()> {
    let rows = table
        .rows()
        .map(|(key, row)| {
            let names = row.rounds.values().flat_map(|m| m.keys().map(String::as_str));
            let figures = names.filter_map(|name| Some((name, table.spread(key, name)?))).collect();
            ReportedRow { key, figures, row }
        })
        .collect();
    let targets = targets
        .iter()
        .map(|target| {
            let (at_least, at_most) = match target.limit {
                Limit::AtLeast(v) => (Some(v), None),
                Limit::AtMost(v) => (None, Some(v)),
            };
            let (value, verdict) = (target.value(table), target.verdict(table));
            ReportedTarget { what: &target.what, value, at_least, at_most, verdict }
        })
        .collect();
    let report = Report { machine, arguments: std::env::args().skip(1).collect(), rows, targets };
    Ok(std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?)
}

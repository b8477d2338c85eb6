//! Results by round: medians, spreads, and ratios of adjacent measurements.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::job::Metrics;

/// Key of a row: a series and a message size.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Key {
    pub series: String,
    /// Bytes per message; 0 for a row without a message size.
    pub size: usize,
}

impl Key {
    pub fn new(series: impl Into<String>, size: usize) -> Key {
        Key { series: series.into(), size }
    }

    pub fn name(&self) -> String {
        match self.size {
            0 => self.series.clone(),
            size => format!("{}, {}", self.series, bytes(size)),
        }
    }
}

/// Formats a size with a binary unit.
pub fn bytes(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Metrics of a row, one set per round.
#[derive(Default, Serialize)]
pub struct Row {
    pub rounds: BTreeMap<usize, Metrics>,
    /// Reason why the row cannot be measured on this machine.
    #[serde(rename = "lack")]
    pub skip_reason: Option<String>,
    /// Errors of the rounds that failed.
    pub failures: Vec<String>,
}

#[derive(Default)]
pub struct Table {
    /// Keys in the order of measurement.
    keys: Vec<Key>,
    rows: BTreeMap<Key, Row>,
}

/// Median, minimum and maximum of several values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    #[serde(rename = "least")]
    pub min: f64,
    #[serde(rename = "most")]
    pub max: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut v: Vec<f64> = values.into_iter().collect();
        v.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*v.first()?, *v.last()?);
        let median = (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0;
        Some(Spread { median, min, max })
    }
}

impl Table {
    pub fn row(&mut self, key: &Key) -> &mut Row {
        if !self.rows.contains_key(key) {
            self.keys.push(key.clone());
        }
        self.rows.entry(key.clone()).or_default()
    }

    pub fn rows(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.keys.iter().map(|key| (key, &self.rows[key]))
    }

    fn metrics<'a>(&'a self, key: &Key, metric: &'a str) -> impl Iterator<Item = (usize, f64)> + 'a {
        let rounds = self.rows.get(key).into_iter().flat_map(|row| &row.rounds);
        rounds.filter_map(move |(round, metrics)| Some((*round, *metrics.get(metric)?)))
    }

    pub fn spread(&self, key: &Key, metric: &str) -> Option<Spread> {
        Spread::of(self.metrics(key, metric).map(|(_, v)| v))
    }

    /// Returns the ratio of two rows, computed per round, because measurements adjacent in time remain
    /// comparable when the machine's speed changes.
    pub fn ratio(
        &self,
        (numerator, metric): (&Key, &str),
        (denominator, denominator_metric): (&Key, &str),
    ) -> Option<Spread> {
        let denominator: BTreeMap<usize, f64> = self.metrics(denominator, denominator_metric).collect();
        Spread::of(
            self.metrics(numerator, metric).filter_map(|(round, v)| Some(v / denominator.get(&round)?)),
        )
    }
}

//! Parts of the textual form that faults on calls and on objects share.

use std::fmt::Display;
use std::time::Duration;

/// Parses a duration such as `500us`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let parsed = units.iter().find_map(|(unit, nanos)| {
        let n: u64 = text.strip_suffix(unit)?.parse().ok()?;
        n.checked_mul(*nanos)
    });
    parsed
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("'{text}' is not a duration: write for example 500us, 2ms or 1s"))
}

/// Parses a number from 0 to `max`, in decimal, or in hexadecimal with the prefix `0x`.
pub(super) fn number(name: &str, text: &str, max: u32) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(n) if n <= max => Ok(n),
        _ => Err(format!("{name} '{text}' is not a number from 0 to {max} ({max:#x})")),
    }
}

/// Returns the end of an error message that names the candidates most similar to `text`, at most three; empty
/// if none is similar.
pub(super) fn hint<T: Display>(text: &str, candidates: impl Iterator<Item = T>) -> String {
    let limit = 2 + text.len() / 5;
    let mut near: Vec<(usize, String)> = candidates
        .map(|candidate| candidate.to_string())
        .map(|candidate| (edits(text, &candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    near.sort();
    let names: Vec<String> = near.into_iter().take(3).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}

/// Returns the number of insertions, deletions and replacements of bytes that turn `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

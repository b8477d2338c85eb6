//! Hints to similar names in errors of faults.

use std::fmt::Display;

/// Returns the end of an error message that names the candidates most similar to `text`, at most three; empty
/// if none is similar.
pub(crate) fn hint<T: Display>(text: &str, candidates: impl Iterator<Item = T>) -> String {
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

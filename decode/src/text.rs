//! Text of numbers and times.

/// Formats a duration in nanoseconds with three significant digits.
pub fn duration(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a number with its noun: `1 packet`, `2 packets`.
pub fn count(n: u64, noun: &str) -> String {
    match (n, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{n} {stem}ies"),
        (_, None) => format!("{n} {noun}s"),
    }
}

/// Returns the verb for a number of things: `is` or `are`.
pub fn is(n: u64) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

/// Returns the verb for a number of things: `was` or `were`.
pub fn was(n: u64) -> &'static str {
    if n == 1 { "was" } else { "were" }
}

/// Returns the verb for a number of things: `has` or `have`.
pub fn has(n: u64) -> &'static str {
    if n == 1 { "has" } else { "have" }
}

/// Formats a number of bytes.
pub fn bytes(n: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| n >= *size) {
        Some((size, unit)) if n.is_multiple_of(*size) => format!("{} {unit}", n / size),
        Some((size, unit)) => format!("{:.1} {unit}", n as f64 / *size as f64),
        None => count(n, "byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_counts_have_the_right_number() {
        let all = [0, 999, 1_000, 67_108_864, 4_096, 99_960, 655_360_000, 4_290_000_000].map(duration);
        assert_eq!(all, ["0 ns", "999 ns", "1.00 µs", "67.1 ms", "4.10 µs", "100 µs", "655 ms", "4.29 s"]);
        assert_eq!(
            [count(1, "packet"), count(2, "packet"), count(0, "retry")],
            ["1 packet", "2 packets", "0 retries"]
        );
        assert_eq!([bytes(1), bytes(4096), bytes(1500)], ["1 byte", "4 KiB", "1.5 KiB"]);
    }
}

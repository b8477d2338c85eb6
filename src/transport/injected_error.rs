//! Errors of calls that fault rules make fail.

use std::{fmt, io};

/// Error of a call in place of its execution, by a fault rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} ({call}, by the fault rule '{rule}', {} call)", io::Error::from_raw_os_error(*errno), Ordinal(*number))]
pub struct InjectedError {
    /// `errno` value with which the call fails.
    pub errno: i32,
    /// Name of the call in the C library.
    pub call: &'static str,
    /// Text of the rule.
    pub rule: &'static str,
    /// Number of the call among those that the rule matches, from 1.
    pub number: u64,
}

impl InjectedError {
    /// Returns a line for programs that report only the number of the error.
    #[doc(hidden)]
    pub fn line(&self) -> String {
        let InjectedError { call, rule, number, .. } = self;
        format!("{call} failed by '{rule}', {} call", Ordinal(*number))
    }
}

/// Ordinal number as text.
struct Ordinal(u64);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [&str; 9] =
            ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"];
        if let Some(word) = usize::try_from(self.0).ok().and_then(|n| WORDS.get(n.checked_sub(1)?)) {
            return f.write_str(word);
        }
        let suffix = match (self.0 % 100, self.0 % 10) {
            (11..=13, _) => "th",
            (_, 1) => "st",
            (_, 2) => "nd",
            (_, 3) => "rd",
            _ => "th",
        };
        write!(f, "{}{suffix}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_call_is_an_ordinal() {
        let text = [1, 3, 9, 10, 11, 13, 21, 102, 113, 1003].map(|n| Ordinal(n).to_string());
        let expected =
            ["first", "third", "ninth", "10th", "11th", "13th", "21st", "102nd", "113th", "1003rd"];
        assert_eq!(text, expected);
    }
}

//! Files of fault rules.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::fault_rules::Rule;

/// A rule, or the rules of a file: an argument `RULE` or `@FILE`. The file has one rule per line; empty lines
/// and text after `#` are ignored.
///
/// ```no_run
/// use urxe::middleware::faults::{Rule, Rules};
///
/// let Rules(rules) = "@faults.txt".parse::<Rules>()?;
/// let Rules(one) = "drop=3".parse::<Rules>()?;
/// assert_eq!(one.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rules<R = Rule>(pub Vec<R>);

/// Error when reading fault rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError<E: Display> {
    /// The rule is invalid.
    #[error("{0}")]
    Rule(E),
    /// A line of the file is not a valid rule.
    #[error("{}:{line}: {error}", path.display())]
    Line {
        /// File name.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Error of the rule.
        error: E,
    },
    /// The file cannot be read.
    #[error("fault rules in {}: {source}", path.display())]
    File {
        /// File name.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl<R: FromStr<Err: Display>> FromStr for Rules<R> {
    type Err = RulesError<R::Err>;

    fn from_str(text: &str) -> Result<Rules<R>, RulesError<R::Err>> {
        let Some(path) = text.strip_prefix('@').map(PathBuf::from) else {
            return Ok(Rules(vec![text.parse().map_err(RulesError::Rule)?]));
        };
        let text = match read(&path) {
            Ok(text) => text,
            Err(source) => return Err(RulesError::File { path, source }),
        };
        let mut rules = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let rule = line.split('#').next().unwrap_or_default().trim();
            if rule.is_empty() {
                continue;
            }
            match rule.parse() {
                Ok(rule) => rules.push(rule),
                Err(error) => return Err(RulesError::Line { path, line: i + 1, error }),
            }
        }
        Ok(Rules(rules))
    }
}

/// Maximum length of a file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Reads a file, which may be a device that never ends.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_LEN + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_LEN {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {MAX_LEN} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_a_rule_per_line_with_comments_and_errors_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults");
        let argument = format!("@{}", path.display());
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let rules = argument.parse::<Rules>().map_err(|e| e.to_string())?;
            Ok::<_, String>(rules.0.iter().map(Rule::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            read("# two rules\n\ndrop=3 # the third\r\n  rx:dup=1..,psn=7\n").unwrap(),
            ["drop=3", "rx:dup=1..,psn=7"]
        );
        assert!(read("# none\n").unwrap().is_empty());
        let error = read("drop=3\nlose=1\n").unwrap_err();
        assert!(
            error.starts_with(&format!("{}:2: fault rule 'lose=1': unknown action", path.display())),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        let error = argument.parse::<Rules>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("fault rules in {}: No such file", path.display())), "{error}");
        let error = "@/dev/zero".parse::<Rules>().unwrap_err().to_string();
        assert!(error.ends_with("it has more than 1048576 bytes"), "{error}");
        assert_eq!("drop=3".parse::<Rules>().unwrap().0.len(), 1);
        assert!("lose=3".parse::<Rules>().unwrap_err().to_string().contains("unknown action 'lose'"));
    }
}

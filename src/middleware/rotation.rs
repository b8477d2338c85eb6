//! Rotation of captures: a file that is large or old gets a number in its name, and a new one begins.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::output::with_suffix;

/// Limits of a capture file. Its `FromStr` takes a list such as `size=100M,time=60,files=10`: bytes, also with the suffix
/// K, M or G for powers of 1024; seconds; number of files that are kept beside the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rotation {
    size: Option<u64>,
    time: Option<Duration>,
    files: Option<u32>,
}

/// Text of a rotation that cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("rotation '{text}': {reason}; write for example size=100M,time=60,files=10")]
pub struct ParseRotationError {
    text: String,
    reason: &'static str,
}

fn size(text: &str) -> Option<u64> {
    let suffix = [('K', 10), ('M', 20), ('G', 30)].into_iter().find(|(letter, _)| text.ends_with(*letter));
    let (digits, shift) = suffix.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], shift));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size > 0)
}

impl FromStr for Rotation {
    type Err = ParseRotationError;

    fn from_str(text: &str) -> Result<Rotation, ParseRotationError> {
        let error = |reason| ParseRotationError { text: text.to_owned(), reason };
        let mut rotation = Rotation::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| error("a limit is KEY=VALUE"))?;
            match key {
                "size" => {
                    let bytes =
                        size(value).ok_or_else(|| error("size is a number of bytes, or with K, M or G"))?;
                    rotation.size = Some(bytes);
                }
                "time" => {
                    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                    let seconds = seconds.ok_or_else(|| error("time is a number of seconds"))?;
                    rotation.time = Some(Duration::from_secs(seconds));
                }
                "files" => {
                    let files = value.parse().map_err(|_| error("files is a number"))?;
                    rotation.files = Some(files);
                }
                _ => return Err(error("the limits are size, time and files")),
            }
        }
        match rotation {
            Rotation { size: None, time: None, .. } => Err(error("size or time is missing")),
            rotation => Ok(rotation),
        }
    }
}

impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            self.size.map(|bytes| format!("size={bytes}")),
            self.time.map(|time| format!("time={}", time.as_secs())),
            self.files.map(|files| format!("files={files}")),
        ];
        f.write_str(&limits.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

/// Rotation of one capture.
pub(super) struct Rotated {
    rotation: Rotation,
    path: PathBuf,
    /// Time at which the current file began.
    started: Instant,
    /// Number of files that were renamed.
    number: u32,
}

impl Rotated {
    pub fn new(rotation: Rotation, path: PathBuf) -> Rotated {
        Rotated { rotation, path, started: Instant::now(), number: 0 }
    }

    /// Path of the current file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reports whether a file of this length is to be renamed.
    pub fn is_due(&self, len: u64) -> bool {
        let Rotation { size, time, .. } = self.rotation;
        size.is_some_and(|size| len >= size) || time.is_some_and(|time| self.started.elapsed() >= time)
    }

    /// Renames the current file, and removes the oldest one if there are too many.
    pub fn rename(&mut self) -> std::io::Result<()> {
        self.number += 1;
        self.started = Instant::now();
        std::fs::rename(&self.path, self.numbered(self.number))?;
        let oldest = self.rotation.files.and_then(|files| self.number.checked_sub(files)).filter(|n| *n > 0);
        match oldest.map(|number| std::fs::remove_file(self.numbered(number))) {
            Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Returns the path of a renamed file: `out-00001.pcapng` for `out.pcapng`.
    fn numbered(&self, number: u32) -> PathBuf {
        with_suffix(&self.path, &format!("-{number:05}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_is_parsed_and_an_error_names_the_mistake() {
        let rotation: Rotation = "size=100M,time=60,files=10".parse().unwrap();
        let time = Some(Duration::from_secs(60));
        assert_eq!(rotation, Rotation { size: Some(100 << 20), time, files: Some(10) });
        assert_eq!(rotation.to_string().parse(), Ok(rotation));
        for (text, reason) in [
            ("", "KEY=VALUE"),
            ("files=3", "size or time is missing"),
            ("size=0", "number of bytes"),
            ("size=99999999999G", "number of bytes"),
            ("time=x", "number of seconds"),
            ("age=1", "the limits are"),
        ] {
            let error = text.parse::<Rotation>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("size=100M"), "{error}");
        }
    }
}

//! Progress on standard error, if that is a terminal, of captures that take long to read.

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use urxe_decode::{Capture, CaptureError};

/// Time after which the progress is shown.
const LONG: Duration = Duration::from_secs(1);

/// A file, and how much of it was read.
struct Progress {
    file: File,
    bar: ProgressBar,
    started: Instant,
}

impl Read for Progress {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.bar.inc(len as u64);
        if self.bar.is_hidden() && self.started.elapsed() > LONG {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        Ok(len)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Opens a capture; `-` is standard input, whose length nothing tells.
pub(super) fn open(path: &Path) -> Result<Capture, CaptureError> {
    let file = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
    let is_shown = |(metadata, _): &(Metadata, File)| metadata.is_file() && io::stderr().is_terminal();
    let Some((metadata, file)) = file.ok().filter(is_shown) else { return Capture::open(path) };
    let name = path.display().to_string();
    let style = ProgressStyle::with_template("{msg}  {bar:30}  {bytes} of {total_bytes}  {bytes_per_sec}");
    let bar = ProgressBar::with_draw_target(Some(metadata.len()), ProgressDrawTarget::hidden())
        .with_style(style.expect("the template is valid"))
        .with_message(name.clone());
    Capture::read(Progress { file, bar, started: Instant::now() }, &name)
}

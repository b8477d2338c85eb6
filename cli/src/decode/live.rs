//! `urxe decode --live`: follows a capture that is being written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use urxe_decode::{Capture, Live};

use super::result;
use crate::CliError;
use crate::interrupt::Interrupt;

/// Time between two looks at a file.
const POLL: Duration = Duration::from_millis(100);

/// Time between two evaluations.
const EVALUATE: Duration = Duration::from_secs(1);

/// Standard input, read by a thread of its own, because an idle pipe would block the evaluation.
struct Input {
    chunks: Receiver<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    /// Whether reads wait: only until the header of the capture is there.
    waits: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
}

impl Input {
    fn new(waits: Arc<AtomicBool>, has_ended: Arc<AtomicBool>) -> Input {
        let (sender, chunks) = sync_channel(64);
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(len @ 1..) = io::stdin().read(&mut buffer)
                && sender.send(buffer[..len].to_vec()).is_ok()
            {}
        });
        Input { chunks, chunk: Vec::new(), at: 0, waits, has_ended }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() {
            match self.chunks.recv_timeout(Duration::ZERO) {
                Ok(chunk) => (self.chunk, self.at) = (chunk, 0),
                Err(RecvTimeoutError::Timeout) if self.waits.load(Ordering::Relaxed) => thread::sleep(POLL),
                Err(RecvTimeoutError::Timeout) => return Ok(0),
                Err(RecvTimeoutError::Disconnected) => {
                    self.has_ended.store(true, Ordering::Relaxed);
                    return Ok(0);
                }
            }
        }
        let len = buffer.len().min(self.chunk.len() - self.at);
        buffer[..len].copy_from_slice(&self.chunk[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Follows a capture until Ctrl-C, or until the end of standard input, and prints its report at the end.
pub(super) fn run(file: &Path) -> Result<(), CliError> {
    let failed = |e: urxe_decode::CaptureError| CliError::Failed(e.to_string());
    let interrupt = Interrupt::install()?;
    let (waits, has_ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let capture = if file.as_os_str() == "-" {
        Capture::read(Input::new(waits.clone(), has_ended.clone()), "standard input")
    } else {
        let open = File::open(file).map_err(CliError::io(format!("cannot read {}", file.display())))?;
        Capture::read(open, &file.display().to_string())
    };
    let capture = capture.map_err(failed)?;
    waits.store(false, Ordering::Relaxed);
    let mut live = Live::new(capture);
    let mut evaluated = Instant::now();
    let mut out = anstream::AutoStream::auto(io::stdout());
    let end = loop {
        // Before the packets are taken: what came until then is in them.
        let is_last = interrupt.is_set() || has_ended.load(Ordering::Relaxed);
        match live.advance() {
            Err(e) => break Some(e),
            Ok(_) if is_last => break None,
            Ok(0) => thread::sleep(POLL),
            Ok(_) => {}
        }
        if evaluated.elapsed() >= EVALUATE {
            for finding in live.new_findings() {
                writeln!(out, "{finding:#}")?;
            }
            out.flush()?;
            evaluated = Instant::now();
        }
    };
    let report = live.report();
    write!(out, "{report:#}")?;
    match end {
        Some(e) => Err(failed(e)),
        None => result(&report),
    }
}

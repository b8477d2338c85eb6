//! Control of the two processes (or the one) that perform a measurement.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Result;
use crate::job::{End, Job, Metrics, Task};
use crate::place::Place;
use crate::talk::{PATIENCE, Word};

/// Environment variable that makes a process an end of a measurement.
pub const END: &str = "URXE_BENCH_END";

/// Process that is an end of a measurement. Dropping this closes its standard input, and kills it if it does
/// not exit by itself within 5 s.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    words: Receiver<Word>,
    end: End,
}

impl Process {
    fn start(job: &Job, place: &Place) -> Result<Process> {
        let mut command = place.command(&std::env::current_exe()?);
        let mut child = command.env(END, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let out = child.stdout.take().ok_or("no pipe")?;
        let (to, words) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                let word =
                    serde_json::from_str(&line).unwrap_or_else(|e| Word::Failed(format!("{e}: {line}")));
                if to.send(word).is_err() {
                    break;
                }
            }
        });
        let mut process = Process { child, stdin, words, end: job.end };
        process.tell(job)?;
        Ok(process)
    }

    fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or("no pipe")?;
        Ok(writeln!(stdin, "{}", serde_json::to_string(what)?)?)
    }

    fn hear(&self, limit: Duration) -> Result<Word> {
        let end = self.end;
        match self.words.recv_timeout(limit) {
            Ok(Word::Failed(why)) => Err(format!("the {end:?} end: {why}").into()),
            Ok(word) => Ok(word),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("nothing from the {end:?} end in {limit:?}").into())
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("the {end:?} end has ended").into()),
        }
    }

    fn hear_ready(&self) -> Result<()> {
        match self.hear(PATIENCE)? {
            Word::Ready => Ok(()),
            _ => Err(format!("the {:?} end was not ready", self.end).into()),
        }
    }

    fn hear_done(&self, limit: Duration) -> Result<Metrics> {
        match self.hear(limit)? {
            Word::Done(metrics) => Ok(metrics),
            _ => Err(format!("the {:?} end did not say what came out", self.end).into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin = None;
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        // The process has exited already if these calls fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures `task` in one or two new processes, the active one at the first place. The result includes the
/// metrics of the passive end.
pub fn measure(task: &Task, seconds: f64, places: [&Place; 2]) -> Result<Metrics> {
    let progress = tempfile::NamedTempFile::new()?;
    progress.as_file().set_len(4096)?;
    let job = |end| Job { task: task.clone(), end, seconds, progress: progress.path().to_path_buf() };
    let limit = PATIENCE + Duration::from_secs_f64(4.0 * seconds);
    if !task.is_for_two() {
        return Process::start(&job(End::Active), places[0])?.hear_done(limit);
    }
    let mut passive = Process::start(&job(End::Passive), places[1])?;
    let mut active = Process::start(&job(End::Active), places[0])?;
    match (active.hear(PATIENCE)?, passive.hear(PATIENCE)?) {
        (Word::Hello(a), Word::Hello(p)) => {
            passive.tell(&a)?;
            active.tell(&p)?;
        }
        _ => return Err("an end said something else than who it is".into()),
    }
    active.hear_ready()?;
    passive.hear_ready()?;
    passive.tell(&())?;
    active.tell(&())?;
    let ours = active.hear_done(limit);
    passive.stdin = None;
    let theirs = passive.hear_done(PATIENCE);
    match (ours, theirs) {
        (Ok(mut ours), Ok(theirs)) => {
            ours.extend(theirs);
            Ok(ours)
        }
        (Err(a), Err(p)) => Err(format!("{a}; {p}").into()),
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}

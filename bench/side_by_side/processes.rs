//! Control of the one or two processes that perform a measurement.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::Result;
use crate::control::{Message, TIMEOUT};
use crate::job::{Job, Metrics, Role, Task};
use crate::namespace::Namespace;

/// Environment variable that makes a process run one end of a measurement.
pub const END: &str = "URXE_BENCH_END";

/// Process that runs one end of a measurement. Dropping it closes the process's standard input, and kills the
/// process if it does not exit within 5 s.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Message>,
    role: Role,
}

impl Process {
    fn start(job: &Job, namespace: &Namespace) -> Result<Process> {
        let mut command = namespace.command(&std::env::current_exe()?);
        let mut child = command.env(END, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let out = child.stdout.take().ok_or("the process has no pipe")?;
        let (sender, messages) = unbounded();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                let message =
                    serde_json::from_str(&line).unwrap_or_else(|e| Message::Failed(format!("{e}: {line}")));
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut process = Process { child, stdin, messages, role: job.role };
        process.send(job)?;
        Ok(process)
    }

    fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or("the process has no pipe")?;
        Ok(writeln!(stdin, "{}", serde_json::to_string(value)?)?)
    }

    fn recv(&self, limit: Duration) -> Result<Message> {
        let role = self.role;
        match self.messages.recv_timeout(limit) {
            Ok(Message::Failed(reason)) => Err(format!("the {role:?} end: {reason}").into()),
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the {role:?} end sent no message within {limit:?}").into())
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("the {role:?} end exited").into()),
        }
    }

    fn recv_ready(&self) -> Result<()> {
        match self.recv(TIMEOUT)? {
            Message::Ready => Ok(()),
            _ => Err(format!("the {:?} end sent another message instead of Ready", self.role).into()),
        }
    }

    fn recv_done(&self, limit: Duration) -> Result<Metrics> {
        match self.recv(limit)? {
            Message::Done(metrics) => Ok(metrics),
            _ => Err(format!("the {:?} end sent another message instead of Done", self.role).into()),
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

/// The two processes of a measurement, ready to start.
struct Pair {
    active: Process,
    passive: Process,
}

impl Pair {
    fn new(job: impl Fn(Role) -> Job, namespaces: [&Namespace; 2]) -> Result<Pair> {
        let mut passive = Process::start(&job(Role::Passive), namespaces[1])?;
        let mut active = Process::start(&job(Role::Active), namespaces[0])?;
        match (active.recv(TIMEOUT)?, passive.recv(TIMEOUT)?) {
            (Message::ConnInfo(a), Message::ConnInfo(p)) => {
                passive.send(&a)?;
                active.send(&p)?;
            }
            _ => return Err("an end sent another message instead of ConnInfo".into()),
        }
        active.recv_ready()?;
        passive.recv_ready()?;
        Ok(Pair { active, passive })
    }

    fn start(&mut self) -> Result<()> {
        self.passive.send(&())?;
        self.active.send(&())
    }

    /// Returns the metrics of both ends.
    fn finish(&mut self, limit: Duration) -> Result<Metrics> {
        let active_result = self.active.recv_done(limit);
        self.passive.stdin = None;
        let passive_result = self.passive.recv_done(TIMEOUT);
        match (active_result, passive_result) {
            (Ok(mut active_result), Ok(passive_result)) => {
                active_result.extend(passive_result);
                Ok(active_result)
            }
            (Err(a), Err(p)) => Err(format!("{a}; {p}").into()),
            (Err(e), _) | (_, Err(e)) => Err(e),
        }
    }
}

/// Measures `task` in one or two new processes, the active one in the first namespace. The result includes
/// the passive end's metrics.
pub fn measure(task: &Task, seconds: f64, namespaces: [&Namespace; 2]) -> Result<Metrics> {
    let progress = progress_file()?;
    let job = |role| Job { task: task.clone(), role, seconds, progress: progress.path().to_path_buf() };
    let limit = limit(seconds);
    if !task.uses_two_processes() {
        return Process::start(&job(Role::Active), namespaces[0])?.recv_done(limit);
    }
    let mut pair = Pair::new(job, namespaces)?;
    pair.start()?;
    pair.finish(limit)
}

/// Measures several tasks of two processes each at the same time, and returns the sum of each metric.
pub fn measure_together(tasks: &[Task], seconds: f64) -> Result<Metrics> {
    let files = tasks.iter().map(|_| progress_file()).collect::<Result<Vec<_>>>()?;
    let start = |(task, file): (&Task, &NamedTempFile)| {
        let job = |role| Job { task: task.clone(), role, seconds, progress: file.path().to_path_buf() };
        Pair::new(job, [&Namespace::Current; 2])
    };
    let mut pairs = tasks.iter().zip(&files).map(start).collect::<Result<Vec<_>>>()?;
    pairs.iter_mut().try_for_each(Pair::start)?;
    let mut sum = Metrics::new();
    for pair in &mut pairs {
        for (name, value) in pair.finish(limit(seconds))? {
            *sum.entry(name).or_default() += value;
        }
    }
    Ok(sum)
}

fn progress_file() -> Result<NamedTempFile> {
    let progress = NamedTempFile::new()?;
    progress.as_file().set_len(4096)?;
    Ok(progress)
}

fn limit(seconds: f64) -> Duration {
    TIMEOUT + Duration::from_secs_f64(4.0 * seconds)
}

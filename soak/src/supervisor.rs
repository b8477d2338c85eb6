//! Supervisor of the soak test: starts the workers, disturbs them according to the schedule, and compares
//! their reports.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::progress::Progress;
use super::report::{Incarnation, Ledger, Report, Totals};
use super::schedule::{Disturbance, schedule};
use super::usage::Monitor;
use super::worker::{Config, DRAIN, EXIT};
use super::{Plant, Summary};
use urxe_cli::CliError;
use urxe_cli::interrupt::Interrupt;

/// Time within which the workers are ready, and within which they end their connections.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between measurements of memory, threads and descriptors.
const MEASURING_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum wait for a report, which limits the delay of disturbances and in noticing Ctrl-C.
const TICK: Duration = Duration::from_millis(10);

/// A line of a worker; `None` once its output has ended.
type Line = (Incarnation, Option<Result<Report, String>>);

/// The running processes of a soak.
pub struct Supervisor {
    summary: Summary,
    plant: Option<Plant>,
    addresses: Vec<IpAddr>,
    workers: Vec<Worker>,
    lines: Receiver<Line>,
    sender: Sender<Line>,
    ledger: Ledger,
    totals: HashMap<Incarnation, Totals>,
}

/// A process of the soak. Dropping it kills the process.
struct Worker {
    incarnation: u32,
    /// `None` from a kill to the restart.
    child: Option<Child>,
    monitor: Monitor,
    is_ready: bool,
    is_drained: bool,
    has_ended: bool,
    /// Time at which the stopped process continues.
    stalled_until: Option<Instant>,
    restart_at: Option<Instant>,
}

impl Worker {
    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(|child| Pid::from_raw(child.id() as i32))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // Fails if the process has ended, which its output reports.
            let _ = kill(pid, signal);
        }
    }

    fn command(&mut self, command: u8) {
        if let Some(stdin) = self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            // Fails if the process has ended, which its output reports.
            let _ = stdin.write_all(&[command]);
        }
    }
}

/// Kills a process.
///
/// # Errors
/// The exit status, if the process has ended by itself.
fn kill_child(mut child: Child) -> Result<(), String> {
    // Fails only if the process has ended.
    let _ = child.kill();
    let status = child.wait();
    let was_killed = status.as_ref().is_ok_and(|status| status.signal() == Some(Signal::SIGKILL as i32));
    if was_killed { Ok(()) } else { Err(format!("ended before it was killed: {status:?}")) }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The result of the run is known by now, so the status of the worker is not needed.
        let _ = self.child.take().map(kill_child);
    }
}

/// Returns an address for each process, on loopback and different for each supervisor. The first two of every
/// four processes share one.
fn addresses(supervisor: u32, processes: usize) -> Vec<IpAddr> {
    let [_, a, b, c] = (supervisor << 5).to_be_bytes();
    let address = |n: usize| match n % 4 {
        0 | 1 => 0,
        _ => 1 + n as u8,
    };
    (0..processes).map(|n| Ipv4Addr::new(127, 128 | a & 0x3f, b, c & 0xe0 | address(n)).into()).collect()
}

impl Supervisor {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`CliError::Io`] if no process can be started.
    pub fn start(summary: Summary, plant: Option<Plant>) -> Result<Supervisor, CliError> {
        let (sender, lines) = unbounded();
        let addresses = addresses(std::process::id(), summary.processes.into());
        let (workers, ledger, totals) = (Vec::new(), Ledger::default(), HashMap::new());
        let mut supervisor = Supervisor { summary, plant, addresses, workers, lines, sender, ledger, totals };
        let workers = 0..supervisor.addresses.len();
        supervisor.workers =
            workers.map(|process| supervisor.spawn((process, 0))).collect::<Result<_, _>>()?;
        Ok(supervisor)
    }

    /// Kills all processes, and returns the results.
    pub fn end(self) -> Summary {
        self.summary
    }

    fn spawn(&self, (process, incarnation): Incarnation) -> Result<Worker, CliError> {
        let failed = |source| CliError::Io { what: "cannot start a process of the soak".into(), source };
        let config = Config {
            supervisor: std::process::id() as i32,
            seed: self.summary.seed,
            process,
            incarnation,
            addresses: self.addresses.clone(),
            plant: self.plant,
        };
        let config = serde_json::to_string(&config).map_err(|e| failed(e.into()))?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(["soak-worker", &config])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the supervisor, which then ends the workers.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (sender, from) = (self.sender.clone(), (process, incarnation));
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let report = serde_json::from_str(&line).map_err(|e| format!("{e} in '{line}'"));
                    // The supervisor has ended if nothing receives the report.
                    let _ = sender.send((from, Some(report)));
                }
                let _ = sender.send((from, None));
            });
        }
        Ok(Worker {
            incarnation,
            child: Some(child),
            monitor: Monitor::new(),
            is_ready: false,
            is_drained: false,
            has_ended: false,
            stalled_until: None,
            restart_at: None,
        })
    }

    /// Waits until the workers are ready, disturbs them for the given time or until Ctrl-C, lets them end
    /// their connections, and fills the summary.
    ///
    /// # Errors
    /// The text of a violation.
    pub fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<(), String> {
        let ready = self.await_all("become ready", |worker| worker.is_ready);
        let begin = Instant::now();
        let disturbed = ready.and_then(|()| self.disturb(begin, time, interrupt));
        let result = disturbed.and_then(|()| self.finish());
        self.summary.seconds = begin.elapsed().as_secs_f64();
        self.totals.values().for_each(|totals| self.summary.totals += totals);
        result
    }

    fn disturb(&mut self, begin: Instant, time: Duration, interrupt: &Interrupt) -> Result<(), String> {
        let mut schedule = schedule(self.summary.seed, self.workers.len() as u64).peekable();
        let (mut measured, mut shown) = (begin, begin);
        let progress = Progress::new(time);
        while begin.elapsed() < time && !interrupt.is_set() {
            self.receive(TICK)?;
            if let Some((_, disturbance)) = schedule.next_if(|(at, _)| begin.elapsed() >= *at) {
                self.apply(disturbance)?;
            }
            self.resume(false)?;
            if measured.elapsed() >= MEASURING_INTERVAL {
                measured = Instant::now();
                self.measure()?;
            }
            if shown.elapsed() >= progress.interval() {
                shown = Instant::now();
                let messages: u64 = self.totals.values().map(|totals| totals.messages).sum();
                progress.show(begin.elapsed(), messages, self.summary.kills);
            }
        }
        progress.end();
        Ok(())
    }

    fn apply(&mut self, disturbance: Disturbance) -> Result<(), String> {
        match disturbance {
            Disturbance::Kill { process, restart } => {
                let worker = &mut self.workers[process];
                if worker.is_ready
                    && let Some(child) = worker.child.take()
                {
                    self.summary.kills += 1;
                    kill_child(child).map_err(|reason| format!("process {process} {reason}"))?;
                    (worker.restart_at, worker.stalled_until) = (Some(Instant::now() + restart), None);
                    let killed = (process, worker.incarnation);
                    // Reports from before the kill are still compared.
                    while !self.workers[process].has_ended {
                        self.receive(PATIENCE)?;
                    }
                    self.ledger.killed(killed);
                }
            }
            Disturbance::Stall { process, time } => {
                let worker = &mut self.workers[process];
                if worker.is_ready && worker.child.is_some() && worker.stalled_until.is_none() {
                    self.summary.stalls += 1;
                    worker.signal(Signal::SIGSTOP);
                    worker.stalled_until = Some(Instant::now() + time);
                }
            }
            Disturbance::KillBroker => {
                if let Some(pid) = broker_pid(self.addresses[0]) {
                    // Fails if the broker has just ended.
                    self.summary.broker_kills += u64::from(kill(pid, Signal::SIGKILL).is_ok());
                }
            }
        }
        Ok(())
    }

    /// Continues stopped processes and restarts killed ones, if it is time or if `all` is set.
    fn resume(&mut self, all: bool) -> Result<(), String> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| all || at <= now);
        for process in 0..self.workers.len() {
            let worker = &mut self.workers[process];
            if is_due(worker.stalled_until) {
                worker.stalled_until = None;
                worker.signal(Signal::SIGCONT);
            }
            if is_due(worker.restart_at) {
                let next = (process, worker.incarnation + 1);
                self.workers[process] = self.spawn(next).map_err(|e| e.to_string())?;
                self.summary.restarts += 1;
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<(), String> {
        for (process, worker) in self.workers.iter_mut().enumerate() {
            if let Some(pid) = worker.pid() {
                let checked = worker.monitor.check(pid.as_raw(), &mut self.summary.peak);
                checked.map_err(|reason| format!("process {process}: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Lets all workers end their connections, then ends them.
    fn finish(&mut self) -> Result<(), String> {
        self.resume(true)?;
        self.await_all("become ready", |worker| worker.is_ready)?;
        self.workers.iter_mut().for_each(|worker| worker.command(DRAIN));
        self.await_all("end its connections", |worker| worker.is_drained)?;
        self.workers.iter_mut().for_each(|worker| worker.command(EXIT));
        self.await_all("exit", |worker| worker.has_ended)?;
        for (process, worker) in self.workers.iter_mut().enumerate() {
            let status = worker.child.take().map(|mut child| child.wait());
            if let Some(status) = status.filter(|status| !status.as_ref().is_ok_and(|s| s.success())) {
                return Err(format!("process {process} ended with {status:?}"));
            }
        }
        self.ledger.finish()
    }

    /// Waits until a condition holds for all workers.
    fn await_all(&mut self, what: &str, holds: impl Fn(&Worker) -> bool) -> Result<(), String> {
        let begin = Instant::now();
        while let Some(process) = self.workers.iter().position(|worker| !holds(worker)) {
            if begin.elapsed() > PATIENCE {
                return Err(format!("process {process} did not {what} within {PATIENCE:?}"));
            }
            self.receive(TICK)?;
        }
        Ok(())
    }

    /// Handles the reports that have arrived, or the next one that arrives in time.
    fn receive(&mut self, timeout: Duration) -> Result<(), String> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => self.on_line(line)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
        }
        while let Ok(line) = self.lines.try_recv() {
            self.on_line(line)?;
        }
        Ok(())
    }

    fn on_line(&mut self, (from, report): Line) -> Result<(), String> {
        let (process, _) = from;
        let worker = &mut self.workers[process];
        let Some(report) = report else {
            worker.has_ended = true;
            // A worker ends after it was killed, or after all connections have ended.
            if worker.child.is_some() && !worker.is_drained {
                let status = worker.child.take().map(|mut child| child.wait());
                return Err(format!("process {process} ended: {status:?}"));
            }
            return Ok(());
        };
        match report.map_err(|e| format!("process {process}: {e}"))? {
            Report::Ready => worker.is_ready = true,
            Report::Drained => worker.is_drained = true,
            Report::Totals(totals) => drop(self.totals.insert(from, totals)),
            Report::Initiated(report) => self.ledger.initiated(report)?,
            Report::Accepted { connection, received } => self.ledger.accepted(from, connection, received)?,
            Report::Violation(text) => return Err(format!("process {process}: {text}")),
        }
        Ok(())
    }
}

/// Returns the process ID of the broker of an address, which some worker has started.
fn broker_pid(address: IpAddr) -> Option<Pid> {
    let line = format!("urxe\0broker\0{address}\0");
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_broker =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|cmdline| cmdline == line.as_bytes());
    pids.find(is_broker).map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn process_that_ended_before_it_was_killed_is_reported() {
        let start = |command: &str| {
            Command::new("sh")
                .args(["-c", command])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        assert_eq!(kill_child(start("read line")), Ok(()));
        for command in ["kill -s ABRT $$", "exit 3", "exit 0"] {
            let mut child = start(command);
            // The output ends with the process.
            std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
            let reason = kill_child(child).unwrap_err();
            assert!(reason.starts_with("ended before it was killed: Ok(ExitStatus("), "{command}: {reason}");
        }
    }

    #[test]
    fn two_of_every_four_processes_share_an_address_and_supervisors_share_none() {
        let unique = |supervisor| addresses(supervisor, 16).into_iter().collect::<HashSet<_>>();
        assert_eq!(unique(2).len(), 9);
        assert!(unique(2).is_disjoint(&unique(3)) && addresses(2, 16).iter().all(IpAddr::is_loopback));
    }
}

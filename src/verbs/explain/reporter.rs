//! Reports of failures as they happen: of failed completions that the program takes, and of refused requests.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::{Condvar, Mutex};

use super::super::context::Inner;
use super::joined::peer_of;
use super::surroundings::complete;
use super::{ConnectionReport, FailureCause, FailureReport};
use crate::sys::fork::ForkGeneration;
use crate::sys::thread::spawn_background;
use crate::transport::{Completion, Failure, WcStatus};
use crate::verbs::{Context, Cq};
use crate::wire::Qpn;

/// Number of failures that are remembered.
const REMEMBERED: usize = 64;

/// Maximum time until a peer in this process has received the NAK. Its report contains that of the refusal.
const PEER_WAIT: Duration = Duration::from_secs(1);

/// Queue pair and time of a failure.
type Key = (Qpn, u64);

/// Report of a [`Reporter`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Report {
    /// A queue pair failed.
    Failure(Box<FailureReport>),
    /// A connection request was not answered or was rejected.
    Connection(ConnectionReport),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Failure(report) => report.fmt(f),
            Report::Connection(report) => report.fmt(f),
        }
    }
}

/// Reporter of failures, which passes one report of each failure to a function.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # use urxe::verbs::explain::Reporter;
/// let (a, b) = Fabric::new().pair()?;
/// let (sender, reports) = std::sync::mpsc::channel();
/// let reporter = Reporter::new(move |report| sender.send(report.to_string()).unwrap());
/// reporter.watch(&b.context)?;
/// let unknown = RemoteAddr { va: 0x1000, rkey: RKey(0x1234_5678) };
/// a.qp.post_send(&SendWr::write(1, &[], unknown).inline(&[1]))?;
/// // B has posted no receive and polls nothing.
/// let report = reports.recv_timeout(Duration::from_secs(60))?;
/// assert!(report.contains("key 0x12345678 does not refer to a region or a bound window"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reporter {
    shared: Arc<Shared>,
    /// Thread that reports refusals, and the process that has started it.
    thread: Mutex<Option<(ForkGeneration, JoinHandle<()>)>>,
}

struct Shared {
    print: Box<dyn Fn(&Report) + Send + Sync>,
    /// The newest failures reported, oldest first.
    reported: Mutex<VecDeque<Key>>,
    pending: Mutex<Pending>,
    changed: Condvar,
}

/// Records to be reported, oldest first, each with its device.
#[derive(Default)]
struct Pending {
    queue: VecDeque<(Weak<Inner>, Record)>,
    has_ended: bool,
}

#[derive(Clone, PartialEq)]
enum Record {
    Refusal(Box<Failure>),
    Connection(ConnectionReport),
}

impl Reporter {
    /// Creates a reporter that calls `print` with each report, on the thread that takes the completion or on
    /// a thread of its own.
    pub fn new(print: impl Fn(&Report) + Send + Sync + 'static) -> Reporter {
        let (reported, pending, changed) = Default::default();
        let shared = Shared { print: Box::new(print), reported, pending, changed };
        Reporter { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Reports each queue pair of the device that refuses a request of its peer, with or without a receive,
    /// and each connection request that is not answered or rejected, in place of [`Context::next_refusal`]
    /// and [`Context::next_connection_report`]. If the peer of a refusal is in this process too, both get one
    /// report.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn watch(&self, context: &Context) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.as_ref().is_none_or(|(process, _)| !process.is_current()) {
            let shared = self.shared.clone();
            let started = spawn_background("urxe-explain".into(), move || shared.run())?;
            // A handle inherited by `fork` refers to no thread of this process.
            std::mem::forget(thread.replace((ForkGeneration::current(), started)));
        }
        let (device, shared) = (context.downgrade().0, Arc::downgrade(&self.shared));
        let add = move |record| {
            if let Some(shared) = shared.upgrade() {
                shared.pending.lock().queue.push_back((device.clone(), record));
                shared.changed.notify_one();
            }
        };
        let add_connection = add.clone();
        context.0.refusals.listen(move |failure| add(Record::Refusal(Box::new(failure))));
        context.0.connections.listen(move |report| add_connection(Record::Connection(report)));
        Ok(())
    }

    /// Reports a failed completion that the program has taken from `cq`, unless it was successful. Work
    /// requests that are flushed after a failure are not reported, nor are those that the program itself
    /// flushed.
    pub fn report_completion(&self, cq: &Cq, completion: &Completion) {
        if completion.status != WcStatus::Success
            && let Some(report) = cq.explain(completion)
            && !(report.is_flushed() && report.failure.cause == FailureCause::Modified)
        {
            self.shared.report(report);
        }
    }

    /// Reports at once what is still to be reported, because the process ends.
    pub fn finish(&self) {
        let queue = std::mem::take(&mut self.shared.pending.lock().queue);
        queue.iter().for_each(|(device, record)| self.shared.report_record(device, record, Duration::ZERO));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.shared.pending.lock().has_ended = true;
        self.shared.changed.notify_one();
        if let Some((process, thread)) = self.thread.get_mut().take()
            && process.is_current()
        {
            // A panic of `print` was printed when it occurred.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Reports records until the reporter is dropped.
    fn run(&self) {
        loop {
            let mut pending = self.pending.lock();
            while pending.queue.is_empty() && !pending.has_ended {
                self.changed.wait(&mut pending);
            }
            // A refusal stays in the queue, where `finish` finds it if the process ends meanwhile.
            let Some((device, record)) = pending.queue.front().cloned() else { return };
            if let Record::Connection(_) = record {
                pending.queue.pop_front();
            }
            drop(pending);
            self.report_record(&device, &record, PEER_WAIT);
            let mut pending = self.pending.lock();
            if pending.queue.front().is_some_and(|(_, first)| *first == record) {
                pending.queue.pop_front();
            }
        }
    }

    fn report_record(&self, device: &Weak<Inner>, record: &Record, wait: Duration) {
        match (record, device.upgrade()) {
            (Record::Refusal(failure), _) => self.report_refusal(device, failure, wait),
            (Record::Connection(report), Some(device)) => {
                let report = complete(report.clone(), &device);
                drop(device);
                (self.print)(&Report::Connection(report));
            }
            (Record::Connection(report), None) => (self.print)(&Report::Connection(report.clone())),
        }
    }

    /// Reports a refusal, together with the failure of the peer if that is in this process and fails within
    /// `wait`.
    fn report_refusal(&self, device: &Weak<Inner>, failure: &Failure, wait: Duration) {
        let begin = Instant::now();
        let report = loop {
            let Some(device) = device.upgrade() else {
                break FailureReport::without_device(failure.clone());
            };
            let report = FailureReport::of_failure(&device, failure.clone());
            let is_complete = report.peer.is_some() || peer_of(&device, failure).is_none();
            drop(device);
            if is_complete || begin.elapsed() >= wait || self.pending.lock().has_ended {
                break report;
            }
            thread::sleep(Duration::from_millis(1));
        };
        self.report(report);
    }

    /// Passes on a report if its failure has not been reported, without the part of the peer if that has
    /// been.
    fn report(&self, mut report: FailureReport) {
        let key = |failure: &Failure| (failure.qpn, failure.at);
        let mut reported = self.reported.lock();
        report.peer = report.peer.take().filter(|peer| !reported.contains(&key(&peer.failure)));
        let own = key(&report.failure);
        if reported.contains(&own) {
            return;
        }
        reported
            .extend([Some(own), report.peer.as_ref().map(|peer| key(&peer.failure))].into_iter().flatten());
        let surplus = reported.len().saturating_sub(REMEMBERED);
        reported.drain(..surplus);
        drop(reported);
        (self.print)(&Report::Failure(Box::new(report)));
    }
}

//! Publication of port counters in a device's sysfs tree, where other programs read them.
//!
//! Several times a second, when the last queue pair is destroyed, and when a device is closed, a process adds
//! the events counted since its last publication to the device's totals, a file in the tree, and rewrites the
//! files below `ports/1` whose values have changed. Readers therefore open ordinary files, whose values
//! include processes that have ended. A killed process loses the counts since its last publication. The data
//! path is not involved.
//!
//! The thread that publishes the counters also reads the device's congestion parameters
//! (`congestion_files.rs`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use parking_lot::Mutex;
use urxe::sys::thread::spawn_background;
use urxe::verbs::{Context, PUBLISHING_INTERVAL_MS, WeakContext, port_counter_files};

use crate::congestion_files::CongestionFiles;

/// Interval between publications of a device's counters.
const INTERVAL: Duration = Duration::from_millis(PUBLISHING_INTERVAL_MS);
/// Minimum interval between publications because of destroyed queue pairs. A publication takes 100 µs, ten
/// times as long as a program needs to create, connect, use and destroy a queue pair.
const MIN_IDLE_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum wait for a lock. A NIC's lock may never be released in a process that exits, and the process that
/// holds the lock on the totals may be stopped.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Counter values by name, as in `Counters::iter` and `LinkCounters::iter`.
type Totals = BTreeMap<String, u64>;

/// Periodic publication of a NIC's counters, which ends when this is dropped or the NIC is closed.
pub(crate) struct Publisher {
    publication: Arc<Publication>,
    /// Time of the last publication because of a destroyed queue pair.
    last_idle: Mutex<Option<Instant>>,
    /// Ends the thread by a message.
    end: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

struct Publication {
    nic: WeakContext,
    /// The port's directory in the tree.
    port: PathBuf,
    totals: PathBuf,
    /// The NIC's counters as of the last publication.
    published: Mutex<Vec<(&'static str, u64)>>,
}

impl Publisher {
    /// Starts publishing the counters of a NIC opened on the device `name`, after changing its congestion
    /// parameters to those of the device's files. Returns `None` if the device has no tree because the
    /// program does not run under `urxe run`.
    pub(crate) fn start(sysfs: &str, name: &str, nic: &Context) -> Option<Publisher> {
        let totals = PathBuf::from(format!("{sysfs}/counters/{name}"));
        if !totals.is_file() {
            return None;
        }
        let port = PathBuf::from(format!("{sysfs}/class/infiniband/{name}/ports/1"));
        let mut congestion = CongestionFiles::open(sysfs, name, nic);
        let publication =
            Arc::new(Publication { nic: nic.downgrade(), port, totals, published: Mutex::default() });
        let (end_tx, end_rx) = bounded(1);
        let publishing = Arc::clone(&publication);
        let run = move || {
            while end_rx.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) && publishing.nic.is_open()
            {
                publishing.publish();
                if let Some(files) = &mut congestion {
                    files.update(&publishing.nic, LOCK_TIMEOUT);
                }
                publishing.nic.update_warnings();
            }
        };
        // Without a thread, the counters are published when the device is closed.
        let thread = spawn_background("urxe-counters".into(), run).ok();
        Some(Publisher { publication, last_idle: Mutex::new(None), end: end_tx, thread })
    }

    /// Publishes the counters of a NIC whose last queue pair has been destroyed, unless this was done less
    /// than [`MIN_IDLE_INTERVAL`] ago. The program may call `_exit`, which runs no exit handlers.
    pub(crate) fn publish_idle(&self) {
        let mut last = self.last_idle.lock();
        if last.is_none_or(|last| last.elapsed() >= MIN_IDLE_INTERVAL) {
            self.publish();
            *last = Some(Instant::now());
        }
    }

    /// Publishes the counters now.
    pub(crate) fn publish(&self) {
        self.publication.publish();
    }
}

impl Drop for Publisher {
    /// Waits for the thread, because the lock on the totals does not exclude a later publisher of the same
    /// process. The channel is freed after that: ThreadSanitizer, which observes `pthread_join` but no Rust
    /// atomics, would report a channel freed by this thread while the other one drops its end.
    fn drop(&mut self) {
        let _ = self.end.try_send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Publication {
    /// Publishes the counters. After a failure, the next publication includes these counts.
    fn publish(&self) {
        let Some(mut published) = self.published.try_lock_for(LOCK_TIMEOUT) else { return };
        let Some((nic, link)) = self.nic.all_counters_within(LOCK_TIMEOUT) else { return };
        let now: Vec<(&str, u64)> = nic.iter().chain(link.iter()).collect();
        if now == *published {
            return;
        }
        let before: BTreeMap<_, _> = published.iter().copied().collect();
        let since = now.iter().map(|(name, n)| (*name, n - before.get(name).unwrap_or(&0)));
        if self.add(since).is_ok() {
            *published = now;
        }
    }

    /// Adds counts to the totals, and rewrites the files that change.
    fn add(&self, counts: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&self.totals)?;
        lock(&file)?;
        let old = parse(&io::read_to_string(&file)?);
        let mut new = old.clone();
        for (name, count) in counts {
            *new.entry(name.to_owned()).or_default() += count;
        }
        // The text never becomes shorter, because no counter decreases.
        let text: String = new.iter().map(|(name, n)| format!("{name} {n}\n")).collect();
        file.write_all_at(text.as_bytes(), 0)?;
        for ((name, before), (_, after)) in files(&old).into_iter().zip(files(&new)) {
            if before != after {
                // A file that somebody has deleted is restored by the next `urxe run`.
                let counter = OpenOptions::new().write(true).open(self.port.join(name));
                let _ = counter.and_then(|counter| counter.write_all_at(format!("{after}\n").as_bytes(), 0));
            }
        }
        // Closing the file releases the lock.
        Ok(())
    }
}

fn files(totals: &Totals) -> Vec<(String, u64)> {
    port_counter_files(|name| totals.get(name).copied().unwrap_or(0))
}

fn parse(text: &str) -> Totals {
    let line =
        |line: &str| line.split_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
    text.lines().filter_map(line).collect()
}

/// Locks a file against other processes, with a record lock, which a forked child does not inherit and the
/// kernel releases if the process is killed.
fn lock(file: &File) -> io::Result<()> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as _,
        l_whence: libc::SEEK_SET as _,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match fcntl(file, FcntlArg::F_SETLK(&whole)) {
            Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return Ok(other.map(drop)?),
        }
    }
}

//! How much has arrived: told by the passive end to the active one through memory that both map, so that a sender
//! whom nothing pushes back on need not drown the receiver, and is told at no cost to either.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;

const LEN: usize = 4096;

/// A count that two processes share.
pub struct Progress(NonNull<AtomicU64>);

impl Progress {
    /// Maps a file of at least a page.
    pub fn map(path: &Path) -> Result<Progress> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = NonZeroUsize::new(LEN).ok_or("no page")?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, of a file that nobody shortens, takes the place of nothing.
        let at = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, &file, 0) }?;
        Ok(Progress(at.cast()))
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping lasts as long as `self`, is aligned to a page, and is used by atomics only.
        unsafe { self.0.as_ref() }
    }

    pub fn get(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    pub fn add(&self, n: u64) {
        self.word().fetch_add(n, Ordering::Release);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nobody has a reference any more.
        let _ = unsafe { munmap(self.0.cast(), LEN) };
    }
}

/// Keeps a sender a bounded way ahead of the receiver's count.
pub struct Ahead {
    limit: u64,
    sent: u64,
    lost: u64,
    waiting_since: Option<Instant>,
}

impl Ahead {
    pub fn at_most(limit: u64) -> Ahead {
        Ahead { limit, sent: 0, lost: 0, waiting_since: None }
    }

    /// Whether more may be sent. What never arrives is taken for lost after a while.
    pub fn has_room(&mut self, arrived: u64) -> bool {
        if self.sent.saturating_sub(self.lost + arrived) <= self.limit {
            self.waiting_since = None;
            return true;
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        if since.elapsed() > Duration::from_millis(20) {
            self.lost = self.sent.saturating_sub(arrived);
        }
        false
    }

    pub fn sent(&mut self, n: u64) {
        self.sent += n;
    }

    /// The share of all that was lost.
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// The rate at which a count goes up, without what comes before the warm-up is over: from one step of the count to
/// another, so that large steps do no harm.
pub struct Meter {
    start: Instant,
    warm: Instant,
    end: Instant,
    first: Option<(Instant, u64)>,
    last: (Instant, u64),
}

impl Meter {
    pub fn start(seconds: f64) -> Meter {
        let now = Instant::now();
        let warm = now + Duration::from_secs_f64(seconds / 5.0);
        let end = warm + Duration::from_secs_f64(seconds);
        Meter { start: now, warm, end, first: None, last: (now, 0) }
    }

    /// Takes note of the count; false when the time is over.
    pub fn goes_on(&mut self, count: u64) -> bool {
        let now = Instant::now();
        if count != self.last.1 {
            self.last = (now, count);
            if self.first.is_none() && now >= self.warm {
                self.first = Some(self.last);
            }
        }
        now < self.end
    }

    /// Counts a second; over all of the time if there were no two steps.
    pub fn rate(&self) -> Result<f64> {
        let (count, time) = match self.first {
            Some((begin, count)) if self.last.0 > begin => (self.last.1 - count, self.last.0 - begin),
            _ => (self.last.1, self.end - self.start),
        };
        match count {
            0 => Err("nothing has arrived".into()),
            count => Ok(count as f64 / time.as_secs_f64()),
        }
    }
}

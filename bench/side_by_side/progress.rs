//! Count of the data received, which keeps a sender without back pressure from overrunning the receiver. The
//! passive end shares it with the active end through a file that both map, at no cost to either.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;

const LEN: usize = 4096;

/// A counter shared by two processes.
pub struct Progress(NonNull<AtomicU64>);

impl Progress {
    /// Maps a file, which must be at least one page long.
    pub fn map(path: &Path) -> Result<Progress> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = NonZeroUsize::new(LEN).ok_or("the page size is zero")?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel picks free addresses, so no existing mapping is replaced. The
        // file has at least `LEN` bytes and no process truncates it, so that accesses to the mapping cannot
        // fault.
        let at = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, &file, 0) }?;
        Ok(Progress(at.cast()))
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the pointer is to the page-aligned mapping made in `map`, which exists until `self` is
        // dropped; both processes access it through atomics only.
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
        // SAFETY: `map` made this mapping with this length, and references to it borrow `self`, so none is
        // left.
        let _ = unsafe { munmap(self.0.cast(), LEN) };
    }
}

/// Limit on how far a sender may run ahead of the receiver's count.
pub struct SendWindow {
    limit: u64,
    sent: u64,
    lost: u64,
    blocked_since: Option<Instant>,
}

impl SendWindow {
    pub fn new(limit: u64) -> SendWindow {
        SendWindow { limit, sent: 0, lost: 0, blocked_since: None }
    }

    /// Reports whether more may be sent. Data that has not arrived after 20 ms with a full window counts as
    /// lost.
    pub fn may_send(&mut self, arrived: u64) -> bool {
        if self.sent.saturating_sub(self.lost + arrived) <= self.limit {
            self.blocked_since = None;
            return true;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if since.elapsed() > Duration::from_millis(20) {
            self.lost = self.sent.saturating_sub(arrived);
        }
        false
    }

    pub fn record_sent(&mut self, n: u64) {
        self.sent += n;
    }

    /// Returns the share of the sent data that was lost.
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// Meter for the rate at which a count grows after a warm-up. The measured interval begins and ends with a
/// change of the count, so that large steps do not distort the rate.
pub struct Meter {
    start: Instant,
    warm_up_end: Instant,
    end: Instant,
    first: Option<(Instant, u64)>,
    last: (Instant, u64),
}

impl Meter {
    pub fn start(seconds: f64) -> Meter {
        let now = Instant::now();
        let warm_up_end = now + Duration::from_secs_f64(seconds / 5.0);
        let end = warm_up_end + Duration::from_secs_f64(seconds);
        Meter { start: now, warm_up_end, end, first: None, last: (now, 0) }
    }

    /// Records the count, and returns false once the time is over.
    pub fn record(&mut self, count: u64) -> bool {
        let now = Instant::now();
        if count != self.last.1 {
            self.last = (now, count);
            if self.first.is_none() && now >= self.warm_up_end {
                self.first = Some(self.last);
            }
        }
        now < self.end
    }

    /// Returns the rate per second after the warm-up, or over the whole time if the count changed less than
    /// twice after the warm-up.
    pub fn rate(&self) -> Result<f64> {
        let (count, time) = match self.first {
            Some((begin, count)) if self.last.0 > begin => (self.last.1 - count, self.last.0 - begin),
            _ => (self.last.1, self.end - self.start),
        };
        match count {
            0 => Err("no data arrived".into()),
            count => Ok(count as f64 / time.as_secs_f64()),
        }
    }
}

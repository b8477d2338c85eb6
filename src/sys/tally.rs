//! Counts of faults. A process can keep them in memory that another process reads after it has ended, however that was.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::fork::ForkGeneration;
use super::shared_words::SharedWords;

/// Words of a record: two counts, the kind and length, and the text.
const WORDS: usize = 32;

/// Number of records, of which the first one only says whether the process has reported its faults. Later counts are not
/// shared.
const RECORDS: usize = 512;

/// Maximum length of a text in bytes.
const MAX_TEXT: usize = (WORDS - 3) * size_of::<u64>();

/// Kinds of what faults apply to.
const KINDS: [&str; 3] = ["packet", "call", "object"];

/// Shared memory of a process, which is never unmapped.
struct Shared {
    process: ForkGeneration,
    words: &'static SharedWords,
    next: usize,
}

static SHARED: Mutex<Option<Shared>> = Mutex::new(None);

/// Counts of one fault.
#[derive(Debug)]
pub(crate) struct Tally {
    own: [AtomicU64; 2],
    shared: Option<&'static [AtomicU64]>,
}

impl Tally {
    /// Creates counts of 0 for a fault with the textual form `text` on a `kind` of [`KINDS`]. They are shared if this
    /// process shares its counts.
    pub fn new(text: &str, kind: &'static str) -> Tally {
        let shared = SHARED.lock().as_mut().and_then(|shared| shared.record(text, kind));
        Tally { own: Default::default(), shared }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.shared.map_or(&self.own[index], |words| &words[index])
    }

    /// Number of packets, calls or objects that matched.
    pub fn matched(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Number of those to which the fault was applied.
    pub fn struck(&self) -> &AtomicU64 {
        self.word(1)
    }
}

impl Shared {
    fn record(&mut self, text: &str, kind: &'static str) -> Option<&'static [AtomicU64]> {
        let kind = KINDS.iter().position(|known| *known == kind)?;
        let all: &'static [AtomicU64] = self.words.as_ref();
        let record = all.chunks_exact(WORDS).nth(self.next).filter(|_| self.process.is_current())?;
        let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
        for (word, bytes) in record[3..].iter().zip(text.chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        record[2].store((text.len() << 8 | (kind + 1)) as u64, Ordering::Relaxed);
        self.next += 1;
        Some(record)
    }
}

/// Shares the counts that this process creates from now on. Returns a descriptor of the memory, for [`read_shared`], the
/// first time that this process calls it.
///
/// # Errors
/// If there is no memory or descriptor left.
pub fn share() -> io::Result<Option<OwnedFd>> {
    let mut shared = SHARED.lock();
    if shared.as_ref().is_some_and(|shared| shared.process.is_current()) {
        return Ok(None);
    }
    let (words, fd) = SharedWords::create("urxe-faults", RECORDS * WORDS)?;
    let words = Box::leak(Box::new(words));
    *shared = Some(Shared { process: ForkGeneration::current(), words, next: 1 });
    Ok(Some(fd))
}

/// Notes that this process has reported the counts itself.
pub fn set_reported() {
    // Locked only if the exit interrupts `share` or the creation of a fault.
    if let Some(shared) = SHARED.try_lock().as_ref().and_then(|shared| shared.as_ref())
        && shared.process.is_current()
    {
        let words: &[AtomicU64] = shared.words.as_ref();
        words[0].store(1, Ordering::Relaxed);
    }
}

/// Counts of a fault of another process: its text, what it applies to, and how many matched and were affected.
pub type SharedCount = (String, &'static str, u64, u64);

/// Reads the counts of a process that has ended. Returns none if it has reported them itself.
///
/// # Errors
/// If the descriptor is not one of [`share`].
pub fn read_shared(fd: BorrowedFd<'_>) -> io::Result<Vec<SharedCount>> {
    let mut bytes = vec![0; RECORDS * WORDS * size_of::<u64>()];
    File::from(fd.try_clone_to_owned()?).read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<{ size_of::<u64>() }>();
    let number = |word: &[u8; size_of::<u64>()]| u64::from_ne_bytes(*word);
    if number(&words[0]) != 0 {
        return Ok(Vec::new());
    }
    let records = words.chunks_exact(WORDS).skip(1).map_while(|record| {
        let form = number(&record[2]) as usize;
        let kind = KINDS.get((form & 0xff).checked_sub(1)?)?;
        let text = record[3..].as_flattened().get(..form >> 8)?;
        Some((String::from_utf8_lossy(text).into_owned(), *kind, number(&record[0]), number(&record[1])))
    });
    Ok(records.collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn shared_counts_are_read_until_the_process_has_reported_them() {
        let before = Tally::new("test=1", "packet");
        let fd = share().unwrap().expect("the first call");
        assert!(share().unwrap().is_none());
        let long = "é".repeat(MAX_TEXT);
        let all = [Tally::new("test=every:13", "packet"), Tally::new(&long, "call")];
        before.matched().fetch_add(9, Ordering::Relaxed);
        all[0].matched().fetch_add(26, Ordering::Relaxed);
        all[0].struck().fetch_add(2, Ordering::Relaxed);
        // Other tests of the process share counts too.
        let counts = read_shared(fd.as_fd()).unwrap();
        assert!(counts.contains(&("test=every:13".into(), "packet", 26, 2)), "{counts:?}");
        assert!(counts.contains(&(long[..MAX_TEXT].into(), "call", 0, 0)), "{counts:?}");
        assert!(counts.iter().all(|(text, ..)| text != "test=1"), "{counts:?}");
        set_reported();
        assert_eq!(read_shared(fd.as_fd()).unwrap(), []);
    }
}

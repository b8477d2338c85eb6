//! Shares of an amount that is limited in the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Amount that is in use.
#[derive(Debug)]
pub(crate) struct Quota(AtomicU64);

impl Quota {
    pub const fn new() -> Quota {
        Quota(AtomicU64::new(0))
    }

    /// Takes a share. Returns `None` if more than `max` would be in use.
    pub fn take(&'static self, amount: u64, max: u64) -> Option<Share> {
        let add = |before: u64| before.checked_add(amount).filter(|after| *after <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Share { quota: self, amount })
    }
}

/// A share of a [`Quota`], in use until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    quota: &'static Quota,
    amount: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota.0.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_up_to_the_maximum_are_taken_until_they_are_dropped() {
        static QUOTA: Quota = Quota::new();
        let take = |amount| QUOTA.take(amount, 10);
        let (first, second) = (take(6), take(4));
        assert!(first.is_some() && second.is_some() && take(1).is_none() && take(u64::MAX).is_none());
        drop(first);
        assert!(take(7).is_none() && take(6).is_some());
    }
}

//! End-to-end credits: a responder advertises how many receives are available (IBA 9.7.7.2).

/// Credit limit advertised by the peer (limit sequence number, LSN): the last message number covered by its
/// credits. The peer has a receive for every message up to this one that needs a receive. `None` (no limit)
/// if the peer has not advertised credits, or does not use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CreditLimit(Option<u32>);

/// Number of receives that each credit code advertises (IBA 9.7.7.2); code 31 means that credits are not
/// used.
const VALUES: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Credit code of a responder that does not use credits.
pub(super) const NONE: u8 = 31;

/// Returns the largest credit code that advertises at most `receives` receives.
pub(super) fn code(receives: usize) -> u8 {
    (VALUES.partition_point(|v| *v as usize <= receives) - 1) as u8
}

impl CreditLimit {
    /// Computes the limit from an acknowledgement's MSN and credit code.
    pub fn new(msn: u32, code: u8) -> CreditLimit {
        let receives = VALUES.get(usize::from(code));
        CreditLimit(receives.map(|receives| msn.wrapping_add(*receives) & 0xff_ffff))
    }

    /// Reports whether message `number` is beyond the limit. Message numbers are 24 bits wide and wrap
    /// around.
    pub fn excludes(self, number: u32) -> bool {
        let beyond = |last| (number.wrapping_sub(last) & 0xff_ffff).wrapping_sub(1) < 1 << 23;
        self.0.is_some_and(beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_code_never_exceeds_available_receives() {
        for receives in 0..70_000 {
            let said = VALUES[usize::from(code(receives))] as usize;
            assert!(
                said <= receives
                    && (receives >= 32_768 || VALUES[usize::from(code(receives)) + 1] as usize > receives)
            );
        }
    }

    #[test]
    fn credit_limit_wraps_at_24_bits() {
        let limit = CreditLimit::new(0xff_fffe, 3);
        assert_eq!(limit, CreditLimit(Some(1)));
        assert!(!limit.excludes(0xff_ffff) && !limit.excludes(0) && !limit.excludes(1));
        assert!(limit.excludes(2) && limit.excludes(100));
        // Half of the number space is beyond the limit.
        assert!(limit.excludes(1 + (1 << 23)) && !limit.excludes(2 + (1 << 23)));
        assert_eq!(CreditLimit::new(5, NONE), CreditLimit(None));
        assert!(!CreditLimit(None).excludes(9));
    }
}

//! End-to-end credits: how many receives a responder says it has (IBA 9.7.7.2).

/// What a requester knows of its peer's receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Limit {
    /// Nothing: the peer does not tell, or has not yet.
    #[default]
    Unknown,
    /// Messages up to this number find a receive, as far as they need one.
    Upto(u32),
}

/// Receives by credit code (table 46); the code behind the last says that there are none of these credits.
const VALUES: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The code that says that credits are not used.
pub(super) const NONE: u8 = 31;

/// The code of so many receives: the most that it may say without saying too much.
pub(super) fn code(receives: usize) -> u8 {
    (VALUES.partition_point(|v| *v as usize <= receives) - 1) as u8
}

impl Limit {
    /// By an acknowledgement of `msn` messages with a credit code.
    pub fn new(msn: u32, code: u8) -> Limit {
        match VALUES.get(usize::from(code)) {
            Some(receives) => Limit::Upto(msn.wrapping_add(*receives) & 0xff_ffff),
            None => Limit::Unknown,
        }
    }

    /// Whether message `number` is beyond it; both are 24 bits and wrap.
    pub fn excludes(self, number: u32) -> bool {
        match self {
            Limit::Unknown => false,
            Limit::Upto(last) => (number.wrapping_sub(last) & 0xff_ffff).wrapping_sub(1) < 1 << 23,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_at_most_what_is_there() {
        for receives in 0..70_000 {
            let said = VALUES[usize::from(code(receives))] as usize;
            assert!(
                said <= receives
                    && (receives >= 32_768 || VALUES[usize::from(code(receives)) + 1] as usize > receives)
            );
        }
    }

    #[test]
    fn limits_wrap() {
        let limit = Limit::new(0xff_fffe, 3);
        assert_eq!(limit, Limit::Upto(1));
        assert!(!limit.excludes(0xff_ffff) && !limit.excludes(0) && !limit.excludes(1));
        assert!(limit.excludes(2) && limit.excludes(100));
        // Half of the numbers are beyond it.
        assert!(limit.excludes(1 + (1 << 23)) && !limit.excludes(2 + (1 << 23)));
        assert_eq!(Limit::new(5, NONE), Limit::Unknown);
        assert!(!Limit::Unknown.excludes(9));
    }
}

//! Socket options: the system-wide defaults, and the values that the program sets.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use crate::protocol::encodable_size;

/// Level of the socket options specific to rsockets.
pub(crate) const SOL_RDMA: c_int = 0x10000;
/// Option names at the level [`SOL_RDMA`], numbered as in `rdma/rsocket.h`.
const SEND_QUEUE: c_int = 0;
const RECEIVE_QUEUE: c_int = 1;
const INLINE: c_int = 2;
const MAPPINGS: c_int = 3;
const ROUTE: c_int = 4;

/// Minimum and maximum size of a buffer in bytes.
const BUFFER: (usize, usize) = (4096, 1 << 28);
/// Minimum and maximum number of entries in a queue.
const QUEUE: (usize, usize) = (4, 16_384);

/// Sizes that are fixed when a connection is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// Size of the send buffer, in bytes.
    pub send_buffer: usize,
    /// Size of each half of the receive buffer, in bytes.
    pub receive_half: usize,
    /// Number of data work requests that the send queue holds.
    pub send_queue: u32,
    /// Number of data messages that the peer may send before it receives more credits.
    pub credits: u16,
    /// Number of memory areas that the peer can map.
    pub mappings: usize,
    /// Maximum length of inline data, which has no effect.
    inline: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        defaults().0
    }
}

/// Returns the system-wide defaults, read from the files in `/etc/rdma/rsocket`: the sizes, and the time for
/// which a call polls before it sleeps.
fn defaults() -> &'static (Sizes, Duration) {
    static DEFAULTS: OnceLock<(Sizes, Duration)> = OnceLock::new();
    DEFAULTS.get_or_init(|| {
        let number = |name: &str, default: usize| {
            let text = fs::read_to_string(format!("/etc/rdma/rsocket/{name}"));
            text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        };
        let within = |value: usize, (min, max): (usize, usize)| value.clamp(min, max);
        let sizes = Sizes {
            send_buffer: within(number("wmem_default", 1 << 17), BUFFER),
            receive_half: within(number("mem_default", 1 << 17), BUFFER) / 2,
            send_queue: within(number("sqsize_default", 384), QUEUE) as u32,
            credits: within(number("rqsize_default", 384), QUEUE) as u16,
            mappings: encodable_size(number("iomap_size", 0)),
            inline: number("inline_default", 64),
        };
        let polling = Duration::from_micros(number("polling_time", 50).min(1_000_000) as u64);
        (sizes, polling)
    })
}

/// Returns the time for which a call polls before it sleeps.
pub(crate) fn polling() -> Duration {
    defaults().1
}

/// Options of one socket. An accepted socket inherits those of its listener.
#[derive(Clone, Default, Debug)]
pub struct Options {
    pub(crate) sizes: Sizes,
    /// Whether calls fail with `EAGAIN` instead of waiting.
    pub is_nonblocking: bool,
    pub(crate) reuses_address: bool,
    pub(crate) only_v6: bool,
    /// `SO_LINGER`; `None` if it is off.
    pub(crate) linger: Option<Duration>,
    pub(crate) receive_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    /// `IP_TOS`, `IPV6_TCLASS`.
    pub(crate) traffic_class: Option<u8>,
    /// Values of [`COMMON`] options that are set, by level and name.
    common: BTreeMap<(c_int, c_int), c_int>,
}

/// Options of type `int` that TCP and UDP programs set, as level, name and default value. Except for the
/// keepalive options, they have no effect over RDMA.
const COMMON: [(c_int, c_int, c_int); 14] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 0),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, 0),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1024),
];

fn int(value: &[u8]) -> Result<c_int, c_int> {
    value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(libc::EINVAL)
}

/// Parses a size and clamps it to the given range. A negative size is an error.
fn size(value: &[u8], (min, max): (usize, usize)) -> Result<usize, c_int> {
    Ok(usize::try_from(int(value)?).map_err(|_| libc::EINVAL)?.clamp(min, max))
}

fn time(value: &[u8]) -> Result<Option<Duration>, c_int> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(libc::EINVAL)?;
    let micros = rest.first_chunk::<8>().ok_or(libc::EINVAL)?;
    let time = duration(i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros)).ok_or(libc::EDOM)?;
    Ok((!time.is_zero()).then_some(time))
}

/// Returns the duration of a `timeval`, or `None` if one of its fields is negative.
pub fn duration(seconds: i64, micros: i64) -> Option<Duration> {
    let (seconds, micros) = (u64::try_from(seconds).ok()?, u64::try_from(micros).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

fn timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let parts = [time.as_secs() as i64, i64::from(time.subsec_micros())];
    parts.iter().flat_map(|part| part.to_ne_bytes()).collect()
}

impl Options {
    /// Reports whether a call with the given flags that receives may block, and for how long.
    pub(crate) fn receive_wait(&self, flags: c_int) -> (bool, Option<Duration>) {
        (flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking, self.receive_timeout)
    }

    /// Reports the same as [`receive_wait`](Self::receive_wait) for a call that sends.
    pub(crate) fn send_wait(&self, flags: c_int) -> (bool, Option<Duration>) {
        (self.receive_wait(flags).0, self.send_timeout)
    }

    /// Returns the idle time after which the connection is probed; `None` if keepalive is off.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        let is_on = self.common(libc::SOL_SOCKET, libc::SO_KEEPALIVE)? != 0;
        let seconds = u64::try_from(self.common(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE)?).ok()?;
        is_on.then(|| Duration::from_secs(seconds))
    }

    /// Returns the value of an option in [`COMMON`], or `None` for another option.
    fn common(&self, level: c_int, name: c_int) -> Option<c_int> {
        let (.., default) = COMMON.iter().find(|(l, n, _)| (*l, *n) == (level, name))?;
        Some(*self.common.get(&(level, name)).unwrap_or(default))
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option; `EINVAL` or `EDOM` for an invalid value.
    pub(crate) fn set(&mut self, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
        match (level, name) {
            // Linux doubles both sizes, to allow for its bookkeeping overhead.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.sizes.send_buffer = size(value, BUFFER)? * 2,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.sizes.receive_half = size(value, BUFFER)?,
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuses_address = int(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = (int(value)?, int(value.get(4..).ok_or(libc::EINVAL)?)?);
                let seconds = u64::try_from(seconds).unwrap_or(0);
                self.linger = (on != 0).then(|| Duration::from_secs(seconds));
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.receive_timeout = time(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_timeout = time(value)?,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_v6 = int(value)? != 0,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // `IP_TOS` may be a single byte.
                let value = int(value).or(value.first().map(|b| (*b).into()).ok_or(libc::EINVAL))?;
                self.traffic_class = u8::try_from(value).ok();
            }
            (SOL_RDMA, SEND_QUEUE) => self.sizes.send_queue = size(value, QUEUE)? as u32,
            (SOL_RDMA, RECEIVE_QUEUE) => self.sizes.credits = size(value, QUEUE)? as u16,
            (SOL_RDMA, INLINE) => self.sizes.inline = size(value, (0, BUFFER.0))?,
            (SOL_RDMA, MAPPINGS) => self.sizes.mappings = encodable_size(size(value, (0, BUFFER.1))?),
            // On Ethernet the path follows from the addresses.
            (SOL_RDMA, ROUTE) => {}
            _ => {
                self.common(level, name).ok_or(libc::ENOPROTOOPT)?;
                let value = int(value)?;
                let allowed = match (level, name) {
                    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => 1..=32_767,
                    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => 1..=127,
                    _ => c_int::MIN..=c_int::MAX,
                };
                if !allowed.contains(&value) {
                    return Err(libc::EINVAL);
                }
                self.common.insert((level, name), value);
            }
        }
        Ok(())
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option.
    pub(crate) fn get(&self, level: c_int, name: c_int) -> Result<Vec<u8>, c_int> {
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.sizes.send_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => 2 * self.sizes.receive_half as c_int,
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuses_address.into(),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = self.linger.map_or(0, |time| time.as_secs() as c_int);
                let both = [self.linger.is_some().into(), seconds];
                return Ok(both.iter().flat_map(|part: &c_int| part.to_ne_bytes()).collect());
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(timeval(self.receive_timeout)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(timeval(self.send_timeout)),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_v6.into(),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.traffic_class.unwrap_or(0).into()
            }
            (SOL_RDMA, SEND_QUEUE) => self.sizes.send_queue as c_int,
            (SOL_RDMA, RECEIVE_QUEUE) => self.sizes.credits.into(),
            (SOL_RDMA, INLINE) => self.sizes.inline as c_int,
            (SOL_RDMA, MAPPINGS) => self.sizes.mappings as c_int,
            _ => self.common(level, name).ok_or(libc::ENOPROTOOPT)?,
        };
        Ok(number.to_ne_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(options: &mut Options, level: c_int, name: c_int, value: c_int) -> Result<Vec<u8>, c_int> {
        options.set(level, name, &value.to_ne_bytes())?;
        options.get(level, name)
    }

    #[test]
    fn get_after_set_returns_the_effective_value_of_an_option() {
        let mut options = Options::default();
        let number = |n: c_int| Ok(n.to_ne_bytes().to_vec());
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 19), number(1 << 20));
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 19), number(1 << 20));
        assert_eq!(options.sizes.receive_half, 1 << 19);
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_RCVBUF, 1), number(8192));
        assert_eq!(set(&mut options, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), number(1));
        assert_eq!(options.get(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), number(9));
        assert_eq!(set(&mut options, SOL_RDMA, MAPPINGS, 3), number(3));
        assert_eq!(options.keep_alive(), None);
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1), number(1));
        assert_eq!(options.keep_alive(), Some(Duration::from_secs(7200)));
        assert_eq!(set(&mut options, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5), number(5));
        assert_eq!(options.keep_alive(), Some(Duration::from_secs(5)));
        let linger: Vec<u8> = [1, 5].iter().flat_map(|n: &c_int| n.to_ne_bytes()).collect();
        options.set(libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        assert_eq!(options.linger, Some(Duration::from_secs(5)));
        assert_eq!(options.get(libc::SOL_SOCKET, libc::SO_LINGER), Ok(linger));
        let time = timeval(Some(Duration::from_micros(2_000_003)));
        options.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time).unwrap();
        assert_eq!(options.receive_timeout, Some(Duration::from_micros(2_000_003)));
    }

    #[test]
    fn setting_an_invalid_option_or_value_fails() {
        let mut options = Options::default();
        assert_eq!(options.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &[1]), Err(libc::EINVAL));
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_SNDBUF, -1), Err(libc::EINVAL));
        assert_eq!(options.set(libc::SOL_SOCKET, libc::SO_LINGER, &[1, 0, 0, 0]), Err(libc::EINVAL));
        assert_eq!(set(&mut options, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0), Err(libc::EINVAL));
        assert_eq!(set(&mut options, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 128), Err(libc::EINVAL));
        assert_eq!(set(&mut options, 4711, 1, 1), Err(libc::ENOPROTOOPT));
        assert_eq!(options.get(SOL_RDMA, 99), Err(libc::ENOPROTOOPT));
    }
}

//! Names of error numbers.

macro_rules! errnos {
    ($($name:ident)*) => {
        /// Error numbers of the system by name: all that the calls of libibverbs and librdmacm return, and
        /// others that a program may have to handle.
        pub(super) const ERRNOS: &[(&str, i32)] = &[$((stringify!($name), libc::$name)),*];
    };
}

errnos! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE
    EMFILE ENOTTY EFBIG ENOSPC EPIPE ERANGE EDEADLK ENAMETOOLONG ENOSYS ENODATA ETIME EPROTO EOVERFLOW ENOTSOCK
    EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
    ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY
    EINPROGRESS ESTALE EREMOTEIO EDQUOT ECANCELED
}

/// Largest error number that the kernel returns (`MAX_ERRNO`).
const MAX: i32 = 4095;

/// Returns the error number with the given name or, in decimal, value.
pub(super) fn errno(text: &str) -> Option<i32> {
    let named = ERRNOS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    named.or_else(|| text.parse().ok().filter(|number| (1..=MAX).contains(number)))
}

//! Error numbers of sockets.

use std::ffi::c_int;

use urxe::verbs::cm::IdError;

/// Returns the error number that a socket reports for a connection manager error.
pub(super) fn errno(e: IdError) -> c_int {
    match e {
        IdError::PortInUse(_)
        | IdError::PortInUseByWildcard(_)
        | IdError::Claim { .. }
        | IdError::NoPort(_) => libc::EADDRINUSE,
        IdError::NoDevice(_) => libc::EADDRNOTAVAIL,
        other => other.errno(),
    }
}

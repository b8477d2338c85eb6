//! Errors of the `urxe` commands.

use std::io;

use crate::oob_handshake::HandshakeError;

/// Error of a command. The message is one line and includes a hint on how to fix the problem.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum CliError {
    /// A call of the library failed.
    Call(urxe::Error),
    /// The handshake with the peer failed.
    Handshake(#[from] HandshakeError),
    /// An option is invalid or does not apply to the link.
    #[error("{0}")]
    Usage(String),
    /// The program to run does not exist or is not executable.
    #[error("no executable program '{0}' found: specify its path or install it")]
    NoProgram(String),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Failed operation.
        what: String,
        /// Error that the system call returned.
        source: io::Error,
    },
    /// The command ran, but it failed or found a wrong result.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// Returns a function that converts the error of a system call to [`CliError::Io`]. `what` names the
    /// failed operation.
    pub fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> CliError {
        let what = what.into();
        move |source| CliError::Io { what, source: source.into() }
    }
}

impl<E: Into<urxe::Error>> From<E> for CliError {
    fn from(error: E) -> CliError {
        match error.into() {
            urxe::Error::Io(e) => CliError::Output(e),
            e => CliError::Call(e),
        }
    }
}

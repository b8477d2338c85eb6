//! Descriptors in flight: sent over Unix sockets, and not yet received. Linux permits a user's processes no
//! more of them than the sender may have open, except processes with CAP_SYS_RESOURCE or CAP_SYS_ADMIN.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};

/// Maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
const MAX_FDS: usize = 253;

/// Number of descriptors in flight up to which a [limited] process may send more. It exceeds what a user's
/// urxe processes have in flight, 64 for each address.
pub const LIMIT: usize = 4096;

/// Returns a command that runs a program whose user has too many descriptors in flight if there are more than
/// [`LIMIT`].
pub fn limited(program: impl AsRef<OsStr>) -> Command {
    let limits = format!("--nofile={LIMIT}:{LIMIT}");
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_resource,-sys_admin", "prlimit"]);
        command
    } else {
        Command::new("prlimit")
    };
    command.arg(limits).arg(program);
    command
}

/// Keeps more than [`LIMIT`] descriptors in flight until it is dropped.
pub struct InFlight(#[allow(dead_code, reason = "keeps the sockets open")] Vec<[OwnedFd; 2]>);

impl InFlight {
    pub fn new() -> InFlight {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let pairs = (0..=LIMIT / MAX_FDS).map(|_| {
            let (to, from) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // A descriptor of the pair itself would make the kernel search for cycles.
            let fds = [null.as_fd(); MAX_FDS];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
            [to, from]
        });
        InFlight(pairs.collect())
    }
}

//! Fanout group: the kernel examines each frame once, however many shard sockets the NIC has, and passes it
//! to one of them (`PACKET_FANOUT`, see packet(7)).
//!
//! That is the socket of the shard that has the frame's queue pair; all other frames go to the first shard.
//! The links pass on frames that several of them need: see
//! [`ShardGroup::forward_frame`](super::shard_group::ShardGroup::forward_frame).
#![forbid(unsafe_code)]

use std::io;

use libc::c_int;

use super::filter;
use super::socket::RawSocket;
use crate::host::socket_calls::{get_option, set_option, set_program};
use crate::nic::ShardId;

/// Fanout mode in which a classic BPF program selects the socket, and the option for the program. The
/// constants are from linux/if_packet.h; libc lacks them.
const PACKET_FANOUT_CBPF: c_int = 6;
const PACKET_FANOUT_DATA: c_int = 22;
/// Flag that makes the kernel choose an unused group ID.
const PACKET_FANOUT_FLAG_UNIQUEID: c_int = 0x2000;
/// Flag that excludes outgoing frames. Kernels before 6.10 ignore it, and the socket filters drop such frames
/// instead.
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: c_int = 0x4000;

/// Creates a fanout group from the given sockets, in shard order. The sockets must be bound, and their
/// filters must still reject all frames.
///
/// # Errors
/// The error of the kernel, or of a substitute for it. Some sockets may then be in the group, which they
/// leave only by being closed.
pub(super) fn join<'a>(sockets: impl ExactSizeIterator<Item = &'a RawSocket>) -> io::Result<()> {
    let count = sockets.len();
    let mut group = None;
    for socket in sockets {
        match group {
            Some(group) => set_option(&socket.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &group)?,
            None => {
                let flags = PACKET_FANOUT_FLAG_UNIQUEID | PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
                let new_group: c_int = (PACKET_FANOUT_CBPF | flags) << 16;
                set_option(&socket.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &new_group)?;
                let shard = ShardId::new(0, count).ok_or(io::ErrorKind::InvalidInput)?;
                let program = filter::fanout_program(shard.bits());
                set_program(&socket.fd, libc::SOL_PACKET, PACKET_FANOUT_DATA, &program)?;
                group = Some(get_option::<c_int>(&socket.fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?);
            }
        }
    }
    Ok(())
}

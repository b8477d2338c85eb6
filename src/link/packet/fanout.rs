//! The sockets of one NIC's shards as a group: the kernel looks at a frame once, however many they are, and gives it to
//! one of them (`PACKET_FANOUT`, see packet(7)).
//!
//! That is the one that has the frame's queue pair, and for all else the first. What concerns several they pass on among
//! themselves: see [`Kin::share`](super::kin::Kin::share).
#![forbid(unsafe_code)]

use std::io;

use libc::c_int;

use super::filter;
use super::socket::RawSocket;
use crate::nic::ShardId;

/// From linux/if_packet.h, which libc has only in part. By a classic BPF program:
const PACKET_FANOUT_CBPF: c_int = 6;
/// The kernel finds a number for the group that nobody else has.
const PACKET_FANOUT_FLAG_UNIQUEID: c_int = 0x2000;
/// Without what this host sends. Kernels before 6.10 do not know it, and leave it to the sockets' filters.
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: c_int = 0x4000;

/// Makes these, which are bound and receive nothing yet, a group, in the order of their shards.
///
/// # Errors
/// Those of the kernel, or of what stands in for it; then some may be in the group, which they leave only by being closed.
pub(super) fn join<'a>(sockets: impl ExactSizeIterator<Item = &'a RawSocket>) -> io::Result<()> {
    let count = sockets.len();
    let mut group = None;
    for socket in sockets {
        match group {
            Some(group) => socket.set_packet_option(libc::PACKET_FANOUT, &group)?,
            None => {
                let flags = PACKET_FANOUT_FLAG_UNIQUEID | PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
                socket.set_packet_option(libc::PACKET_FANOUT, &((PACKET_FANOUT_CBPF | flags) << 16))?;
                let shard = ShardId::new(0, count).ok_or(io::ErrorKind::InvalidInput)?;
                socket.fan_out(&filter::shard_of(shard.bits()))?;
                group = Some(socket.packet_option(libc::PACKET_FANOUT)?);
            }
        }
    }
    Ok(())
}

//! Tests of commands and data transfers over RDMA.

use std::time::{Duration, Instant};

use urxe::verbs::cm::{RejReason, SessionError};
use urxe::verbs::*;

use super::host::{HostQueue, LIMIT, in_capsule, keyed, with_target};
use super::*;
use urxe_nvme::capsule::Status;

/// Returns a Read or Write command for `count` blocks, starting at block `first`; `sgl` is its SGL
/// descriptor.
fn on_blocks(opcode: u8, first: u32, count: u32, sgl: [u8; 16]) -> Command {
    with(command(opcode, &[first, 0, count - 1]), 24, &sgl)
}

const WRITE: u8 = 1;
const READ: u8 = 2;

#[test]
fn data_of_all_sizes_is_transferred_both_ways() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (_admin, io) = HostQueue::pair(host, at);
        for count in [1, 2, 8, 9, 100, 2048] {
            let len = count as usize * BLOCK;
            let sgl = keyed(io.data.remote(0), len, 0x40);
            assert_eq!(io.status(&on_blocks(READ, 0, count, sgl).0), 0);
            let expected: Vec<u8> = (0..count as usize).flat_map(block).collect();
            assert!(io.data.to_vec()[..len] == expected, "{count} blocks");
            assert_eq!(io.status(&on_blocks(WRITE, 2048, count, sgl).0), 0);
            assert!(disk.blocks(2048, count as usize) == expected, "{count} blocks");
        }
        // In the capsule, at its end.
        let data = block(99);
        let capsule = [&on_blocks(WRITE, 7, 1, in_capsule(512, 512)).0[..], &data, &block(77)].concat();
        assert_eq!(io.status(&capsule), 0);
        assert_eq!(disk.blocks(6, 3), [block(6), block(77), block(8)].concat());
        // A descriptor that is longer than the data.
        assert_eq!(io.status(&on_blocks(READ, 7, 1, keyed(io.data.remote(0), 4096, 0x40)).0), 0);
        assert!(
            io.data.to_vec()[..1024] == [block(77), block(1)].concat(),
            "only the data of the command is transferred"
        );
    });
}

#[test]
fn commands_with_invalid_data_descriptors_fail() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (_admin, io) = HostQueue::pair(host, at);
        let remote = io.data.remote(0);
        let keyed = |len| keyed(remote, len, 0x40);
        let cases = [
            ("a READ into a shorter SGL", on_blocks(READ, 0, 2, keyed(1023)), Status::SglLength),
            ("a WRITE from a shorter SGL", on_blocks(WRITE, 0, 2, keyed(512)), Status::SglLength),
            ("an SGL of length 0", on_blocks(WRITE, 0, 1, keyed(0)), Status::SglLength),
            ("an unknown SGL type", on_blocks(READ, 0, 1, [0x77; 16]), Status::SglType),
            ("a READ into the capsule", on_blocks(READ, 0, 1, in_capsule(0, 512)), Status::SglType),
            ("data beyond the capsule", on_blocks(WRITE, 0, 1, in_capsule(512, 512)), Status::SglOffset),
            (
                "an offset that overflows",
                on_blocks(WRITE, 0, 1, in_capsule(u64::MAX, 512)),
                Status::SglOffset,
            ),
            ("less data in the capsule", on_blocks(WRITE, 0, 2, in_capsule(0, 512)), Status::SglLength),
            ("blocks beyond the end", on_blocks(READ, 4096, 1, keyed(512)), Status::LbaOutOfRange),
            ("a write beyond the end", on_blocks(WRITE, 4096, 1, keyed(512)), Status::LbaOutOfRange),
            ("an unknown opcode", on_blocks(0x42, 0, 1, keyed(512)), Status::InvalidOpcode),
        ];
        let before = disk.blocks(0, BLOCKS);
        for (number, (case, command, status)) in (1000_u16..).zip(cases) {
            let command = with(command, 2, &number.to_le_bytes());
            io.send(&[&command.0[..], &[7; 512]].concat());
            let response = io.response();
            assert_eq!((response.id, response.status), (number, status as u16), "{case}");
        }
        assert!(disk.blocks(0, BLOCKS) == before);
    });
}

/// Checks, with fast-registered memory as the kernel uses it, that each response invalidates its command's
/// R_Key.
#[test]
fn response_invalidates_the_rkey_if_the_sgl_requests_it() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (_admin, io) = HostQueue::pair(host, at);
        let (qp, len) = (io.session.qp(), 8 * BLOCK);
        let fast = qp.pd().alloc_mr(len).unwrap();
        for (opcode, first) in [(READ, 8), (WRITE, 100), (READ, 16), (WRITE, 200)] {
            let reg = fast.reg(0, len as u64, 0x1000, Access::ALL);
            qp.post_send(&SendWr::reg_mr(u64::MAX, reg)).unwrap();
            let remote = RemoteAddr { va: 0x1000, rkey: fast.rkey() };
            io.send(&on_blocks(opcode, first, 8, keyed(remote, len, 0x4f)).0);
            let response = io.response();
            assert_eq!((response.status, response.invalidated), (0, Some(fast.rkey())));
        }
        assert_eq!(disk.blocks(200, 8), disk.blocks(16, 8));
        // A response of a command that transfers no data invalidates no key.
        io.send(&on_blocks(READ, 4096, 8, keyed(RemoteAddr { va: 0x1000, rkey: fast.rkey() }, len, 0x4f)).0);
        let response = io.response();
        assert_eq!((response.status, response.invalidated), (Status::LbaOutOfRange as u16, None));
    });
}

/// Sends more Read and Write commands at once than the target has buffers.
#[test]
fn all_commands_of_a_full_queue_are_executed() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (_admin, io) = HostQueue::pair(host, at);
        for round in 0..20 {
            for id in 0..31_u16 {
                let sgl = keyed(io.data.remote(usize::from(id) * 8192), 8192, 0x40);
                let opcode = if (id + round) % 3 == 0 { READ } else { WRITE };
                let command = on_blocks(opcode, u32::from(id) * 16, 16, sgl);
                let data = WrData::Inline(&with(command, 2, &id.to_le_bytes()).0);
                io.session.qp().post_send(&SendWr::send(u64::MAX, &[]).data(data)).unwrap();
            }
            let mut ids: Vec<u16> = (0..31)
                .map(|_| io.response())
                .map(|response| (response.status == 0).then_some(response.id).unwrap())
                .collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..31).collect::<Vec<u16>>());
        }
    });
}

/// Checks that an invalid key or a malformed capsule ends only the connection on which it arrives.
#[test]
fn protocol_violation_ends_only_its_own_connection() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (good_admin, good) = HostQueue::pair(host, at);
        let remote = good.data.remote(0);
        let sgl = keyed(remote, 512, 0x40);
        let invalid_key = keyed(RemoteAddr { rkey: RKey(0x1234_5678), ..remote }, 512, 0x40);
        let cases = [
            on_blocks(READ, 0, 1, invalid_key).0.to_vec(),
            on_blocks(WRITE, 0, 1, invalid_key).0.to_vec(),
            vec![0; 63],
            Vec::new(),
            vec![0; 64 + 4096 + 1],
        ];
        for capsule in cases {
            let (bad_admin, bad) = HostQueue::pair(host, at);
            bad.send(&capsule);
            bad.session.wait_for_disconnect(LIMIT).unwrap();
            drop((bad, bad_admin));
            assert_eq!(good.status(&on_blocks(READ, 0, 1, sgl).0), 0);
            assert_eq!(good_admin.status(&command(0x18, &[]).0), 0);
        }
    });
}

#[test]
fn invalid_connection_requests_are_rejected() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let rejected = |private_data: &[u8]| match HostQueue::open_with(host, at, private_data) {
            Err(SessionError::Rejected { reason: RejReason::Consumer, private_data }) => {
                private_data[..4].to_vec()
            }
            other => panic!("{:?}", other.map(drop)),
        };
        assert_eq!(rejected(&[1]), [0, 0, 2, 0], "an unknown record format");
        assert_eq!(rejected(&[0; 32]), [0, 0, 4, 0], "no commands");
        assert_eq!(rejected(&[0, 0, 0, 0, 32, 0, 255, 255]), [0, 0, 4, 0], "too many commands");
        assert_eq!(rejected(&[0, 0, 0, 0, 0, 0, 31, 0]), [0, 0, 5, 0], "no receives");
        let queue = HostQueue::open(host, at, 0);
        assert_eq!(queue.session.private_data()[..4], [0, 0, 32, 0]);
    });
}

/// Checks that the target disconnects a controller's I/O queues when the host disconnects its admin queue.
#[test]
fn io_queues_are_disconnected_when_the_admin_queue_disconnects() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (admin, io) = HostQueue::pair(host, at);
        admin.session.disconnect(LIMIT).unwrap();
        io.session.wait_for_disconnect(LIMIT).unwrap();
        io.session.disconnect(LIMIT).unwrap();
        // The controller ID is free again.
        let admin = HostQueue::open(host, at, 0);
        assert_eq!(admin.connect(0, 0xffff), 1);
    });
}

/// Checks that the target disconnects an I/O queue even while the host keeps sending commands on it.
#[test]
fn busy_io_queues_are_disconnected_when_the_admin_queue_disconnects() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let (admin, io) = HostQueue::pair(host, at);
        let read = on_blocks(READ, 0, 1, keyed(io.data.remote(0), BLOCK, 0x40));
        assert_eq!(io.status(&read.0), 0);
        admin.session.disconnect(LIMIT).unwrap();
        let start = Instant::now();
        while io.session.wait_for_disconnect(Duration::ZERO).is_err() {
            assert!(start.elapsed() < LIMIT, "the I/O queue is still served");
            io.send(&read.0);
            let _ = io.response_within(Duration::from_millis(100));
        }
    });
}

/// Checks that the target accesses no memory of a host that has not yet sent a Connect command.
#[test]
fn read_and_write_before_connect_fail_without_a_data_transfer() {
    let disk = Disk::new();
    with_target(&disk, |host, at| {
        let io = HostQueue::open(host, at, 1);
        let invalid_key = keyed(RemoteAddr { va: 0, rkey: RKey(0x1234_5678) }, 512, 0x40);
        for opcode in [READ, WRITE] {
            let status = io.status(&on_blocks(opcode, 0, 1, invalid_key).0);
            assert_eq!(status, Status::CommandSequence as u16);
        }
    });
}

//! Tests of Connect commands, valid and invalid, and of the lifetime of controllers.

use std::time::{Duration, Instant};

use super::commands::Bench;
use super::*;
use urxe_nvme::DISCOVERY_NQN;
use urxe_nvme::capsule::{Failure, Status};
use urxe_nvme::queue::DisconnectReason;

/// Executes a Connect command on a new queue with a depth of 32, and returns the queue and the result.
fn try_connect(
    disk: &Disk,
    number: u16,
    command: &Command,
    data: Vec<u8>,
) -> (Bench, Result<Option<u64>, Failure>) {
    let mut bench = Bench::new(disk, number, 32);
    bench.data = data;
    let result = bench.run(command);
    (bench, result)
}

#[test]
fn invalid_connect_commands_fail_with_the_status_for_their_cause() {
    let disk = Disk::new();
    let (admin, _io) = Bench::pair(&disk);
    let id = admin.queue.controller().unwrap().id;
    let data = || connect_data(0xffff, NQN, HOST_NQN);
    let data_of_controller = || connect_data(id, NQN, HOST_NQN);
    let other = {
        let mut data = data_of_controller();
        data[0] = 8;
        data
    };
    let unterminated = {
        let mut data = data();
        data[256..512].fill(b'a');
        data
    };
    let of_command = |at: u64| Failure { status: Status::ConnectParameter, result: at };
    let of_data = |at: u64| of_command(1 << 16 | at);
    let format = Failure { status: Status::ConnectFormat, result: 0 };
    let sequence = Failure { status: Status::CommandSequence, result: 0 };
    let cases = [
        ("an unknown record format", 0, with(connect(0, 32), 40, &[1]), data(), format),
        ("a queue number other than that of the connection", 0, connect(1, 32), data(), of_command(42)),
        ("a deeper queue than that of the connection", 0, connect(0, 33), data(), of_command(44)),
        ("a queue of one command", 0, connect(0, 1), data(), of_command(44)),
        ("another subsystem", 0, connect(0, 32), connect_data(0xffff, "nqn.x", HOST_NQN), of_data(256)),
        ("an unterminated name", 0, connect(0, 32), unterminated, of_data(256)),
        ("an empty host name", 0, connect(0, 32), connect_data(0xffff, NQN, ""), of_data(512)),
        ("an admin queue with a controller ID", 0, connect(0, 32), data_of_controller(), of_data(16)),
        (
            "an I/O queue of an unknown controller",
            2,
            connect(2, 32),
            connect_data(99, NQN, HOST_NQN),
            of_data(16),
        ),
        ("an I/O queue of any controller", 2, connect(2, 32), data(), of_data(16)),
        (
            "the controller of another host",
            2,
            connect(2, 32),
            connect_data(id, NQN, "nqn.other"),
            of_data(512),
        ),
        ("another host identifier", 2, connect(2, 32), other, of_data(512)),
        ("a queue number beyond the limit", 17, connect(17, 32), data_of_controller(), of_command(42)),
        ("an existing queue", 1, connect(1, 32), data_of_controller(), sequence),
    ];
    for (case, number, command, data, failure) in cases {
        assert_eq!(try_connect(&disk, number, &command, data).1, Err(failure), "{case}");
    }
    assert_eq!(
        try_connect(&disk, 2, &connect(2, 32), data_of_controller()).1,
        Ok(Some(id.into())),
        "a valid Connect"
    );
}

#[test]
fn commands_before_connect_or_enable_fail_with_a_sequence_error() {
    let disk = Disk::new();
    let sequence = Err(Failure { status: Status::CommandSequence, result: 0 });
    let keep_alive = command(0x18, &[]);
    for command in [keep_alive, enable(), fabrics(4, &[0, 0x1c])] {
        assert_eq!(try_connect(&disk, 0, &command, Vec::new()).1, sequence);
    }
    let (mut admin, id) = try_connect(&disk, 0, &connect(0, 32), connect_data(0xffff, NQN, HOST_NQN));
    let id = id.unwrap().unwrap() as u16;
    assert_eq!(admin.run(&keep_alive), sequence);
    let io = || try_connect(&disk, 1, &connect(1, 32), connect_data(id, NQN, HOST_NQN)).1;
    assert_eq!(io(), sequence);
    // Property accesses as in the kernel's driver.
    assert_eq!(admin.run(&fabrics(4, &[1, 0])), Ok(Some(127 | 1 << 16 | 30 << 24 | 1 << 37)));
    assert_eq!(admin.run(&fabrics(4, &[0, 8])), Ok(Some(0x1_0400)));
    assert_eq!(admin.run(&fabrics(4, &[0, 0x1c])), Ok(Some(0)));
    assert_eq!(admin.run(&enable()), Ok(Some(0)));
    assert_eq!(admin.run(&fabrics(4, &[0, 0x14])), Ok(Some(0x46_0001)));
    assert_eq!(admin.run(&fabrics(4, &[0, 0x1c])), Ok(Some(1)));
    assert_eq!(admin.run(&keep_alive), Ok(Some(0)));
    assert_eq!(io(), Ok(Some(id.into())));
    // Shutdown, then reset.
    assert_eq!(admin.run(&fabrics(0, &[0, 0x14, 0x46_4001])), Ok(Some(0)));
    assert_eq!(admin.run(&fabrics(4, &[0, 0x1c])), Ok(Some(1 | 2 << 2)));
    assert_eq!(admin.run(&fabrics(0, &[0, 0x14, 0])), Ok(Some(0)));
    assert_eq!(admin.run(&keep_alive), sequence);
}

#[test]
fn controller_ends_when_its_admin_queue_ends_or_its_keep_alive_expires() {
    let disk = Disk::new();
    let now = Instant::now();
    let (admin, mut io) = Bench::pair(&disk);
    let id = admin.queue.controller().unwrap().id;
    let unconnected = Bench::new(&disk, 0, 32).queue;
    let check = |seconds| unconnected.check(now + Duration::from_secs(seconds));
    assert_eq!(
        (check(9), check(11)),
        (Ok(()), Err(DisconnectReason::NoConnect)),
        "a host that sends no command"
    );
    assert_eq!((admin.queue.check(now), io.queue.check(now)), (Ok(()), Ok(())));
    // The command is accepted, and its data has not arrived yet.
    let write = io.queue.accept(&command(1, &[0, 0, 0]), now).unwrap();
    drop(admin);
    assert_eq!(io.queue.check(now), Err(DisconnectReason::Controller));
    let sequence = Failure { status: Status::CommandSequence, result: 0 };
    assert_eq!(io.queue.execute(&write, &mut [7; BLOCK], now), Err(sequence));
    assert_eq!(io.queue.accept(&command(1, &[0, 0, 0]), now), Err(Status::CommandSequence));
    assert_eq!(disk.blocks(0, 1), block(0));
    drop(io);
    // The controller ID is free again.
    let wanted = fabrics(1, &[0, 31, 5000]);
    let (mut admin, result) = try_connect(&disk, 0, &wanted, connect_data(0xffff, NQN, HOST_NQN));
    assert_eq!(result, Ok(Some(id.into())));
    let later = Duration::from_millis(5100);
    assert_eq!(admin.queue.check(Instant::now()), Ok(()));
    assert_eq!(admin.queue.check(Instant::now() + later), Err(DisconnectReason::KeepAliveTimeout));
    admin.run(&enable()).unwrap();
    assert_eq!(admin.run(&command(0x0a, &[0x0f])), Ok(Some(5000)));
    assert_eq!(admin.run(&command(0x09, &[0x0f, 0])), Ok(Some(0)));
    assert_eq!(admin.queue.check(Instant::now() + later), Ok(()), "the keep alive timeout is disabled");
}

#[test]
fn submission_queue_head_includes_the_connect_command() {
    let disk = Disk::new();
    let mut heads = Vec::new();
    for flow in [0, 1 << 2] {
        let mut admin = Bench::new(&disk, 0, 32);
        for command in [with(connect(0, 3), 46, &[flow]), enable(), command(0x18, &[]), command(0x18, &[])] {
            admin.data = connect_data(0xffff, NQN, HOST_NQN);
            admin.run(&command).unwrap();
            heads.push(admin.queue.response(0, Ok(0)).head);
        }
    }
    assert_eq!(heads, [1, 2, 0, 1, 0xffff, 0xffff, 0xffff, 0xffff]);
    let admin = Bench::new(&disk, 0, 32);
    let failed =
        admin.queue.response(0x1234, Err(Failure { status: Status::ConnectParameter, result: 0x1_0100 }));
    assert_eq!(failed.bytes(), [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0x04, 0x83]);
}

#[test]
fn connect_beyond_the_controller_limit_fails_with_connect_busy() {
    let disk = Disk::new();
    let connect_host = || try_connect(&disk, 0, &connect(0, 32), connect_data(0xffff, NQN, HOST_NQN));
    let mut controllers: Vec<_> = (1..=256).map(|id| (connect_host(), id)).collect();
    assert!(controllers.iter().all(|((_, result), id)| *result == Ok(Some(*id))));
    assert_eq!(connect_host().1, Err(Failure { status: Status::ConnectBusy, result: 0 }));
    drop(controllers.remove(41));
    assert_eq!(connect_host().1, Ok(Some(42)));
}

#[test]
fn discovery_log_lists_subsystems_and_their_addresses() {
    let disk = Disk::new();
    let (mut admin, result) =
        try_connect(&disk, 0, &connect(0, 32), connect_data(0xffff, DISCOVERY_NQN, HOST_NQN));
    let id = result.unwrap().unwrap() as u16;
    // A discovery controller has no I/O queues, so it accepts entry sizes of 0.
    assert_eq!(admin.run(&fabrics(0, &[0, 0x14, 1])), Ok(Some(0)));
    let (_, io) = try_connect(&disk, 1, &connect(1, 32), connect_data(id, DISCOVERY_NQN, HOST_NQN));
    assert_eq!(io.unwrap_err().status, Status::ConnectParameter);
    assert_eq!(admin.run(&command(0x06, &[1])), Ok(Some(0)));
    assert_eq!((admin.data[111], admin.data[520]), (2, 0));
    assert_eq!(admin.data[768..768 + DISCOVERY_NQN.len()], *DISCOVERY_NQN.as_bytes());
    let invalid = |status| Err(Failure { status, result: 0 });
    assert_eq!(
        admin.run(&command(0x06, &[0])),
        invalid(Status::InvalidField),
        "a discovery controller has no namespace"
    );
    assert_eq!(admin.run(&command(0x02, &[2 | 127 << 16])), invalid(Status::InvalidLogPage));
    assert_eq!(admin.run(&command(0x09, &[7, 0])), invalid(Status::InvalidField));
    // The header of the log, then the whole log, and a part of one entry.
    let log = |dwords: u32, offset: u32| command(0x02, &[0x70 | (dwords - 1) << 16, 0, offset]);
    assert_eq!(admin.run(&log(4, 0)), Ok(Some(0)));
    assert_eq!(admin.data, [1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(admin.run(&log(5 * 256, 0)), Ok(Some(0)));
    let text = |at: usize| admin.data[at..].split(|b| *b == 0).next().map(String::from_utf8_lossy).unwrap();
    let entries: Vec<_> = (1..5)
        .map(|i| 1024 * i)
        .map(|at| (admin.data[at..at + 3].to_vec(), text(at + 256), text(at + 512), text(at + 32)))
        .collect();
    let entry = |head: [u8; 3], nqn: &'static str, ip: &'static str| {
        (head.to_vec(), nqn.into(), ip.into(), "4420".into())
    };
    let expected = [
        entry([1, 1, 3], DISCOVERY_NQN, "192.0.2.1"),
        entry([1, 1, 2], NQN, "192.0.2.1"),
        entry([1, 2, 3], DISCOVERY_NQN, "2001:db8::1"),
        entry([1, 2, 2], NQN, "2001:db8::1"),
    ];
    assert_eq!(entries, expected);
    assert_eq!(admin.run(&log(1, 2048 + 768)), Ok(Some(0)));
    assert_eq!(admin.data, [1, 4, 1, 0], "reliable connected, RoCE v2, RDMA_CM");
}

//! Tests of the target's responses to NVMe commands, without RDMA.

use std::time::Instant;

use super::*;
use urxe_nvme::capsule::{Command, DataPointer, Failure, Keyed, Status};
use urxe_nvme::private_data::{ConnectRequest, RejectReason};
use urxe_nvme::queue::Queue;
use urxe_nvme::request::{Transfer, ranges};

/// A queue of the target whose commands a test executes without RDMA.
pub struct Bench {
    pub queue: Queue,
    /// Host data for the next command, or the data returned by the last one.
    pub data: Vec<u8>,
}

impl Bench {
    pub fn new(disk: &Disk, number: u16, depth: u16) -> Bench {
        Bench { queue: Queue::new(disk.subsystem.clone(), number, depth, Instant::now()), data: Vec::new() }
    }

    /// Returns the admin queue and an I/O queue of a host that has connected and enabled its controller.
    pub fn pair(disk: &Disk) -> (Bench, Bench) {
        let (mut admin, mut io) = (Bench::new(disk, 0, 32), Bench::new(disk, 1, 32));
        admin.data = connect_data(0xffff, NQN, HOST_NQN);
        let controller = admin.run(&connect(0, 32)).unwrap().unwrap();
        assert_eq!(admin.run(&enable()), Ok(Some(0)));
        io.data = connect_data(controller as u16, NQN, HOST_NQN);
        assert_eq!(io.run(&connect(1, 32)), Ok(Some(controller)));
        (admin, io)
    }

    pub fn run(&mut self, command: &Command) -> Result<Option<u64>, Failure> {
        let now = Instant::now();
        let request = self.queue.accept(command, now)?;
        match request.transfer(BLOCK) {
            Transfer::None => self.data.clear(),
            Transfer::FromHost(len) => self.data.resize(len, 0),
            Transfer::ToHost(len) => self.data = vec![0; len],
        }
        self.queue.execute(&request, &mut self.data, now)
    }

    fn status(&mut self, command: &Command) -> Result<Option<u64>, Status> {
        self.run(command).map_err(|failure| failure.status)
    }
}

/// Returns a Read, Write or Write Zeroes command for `count` blocks, starting at block `first`.
fn on_blocks(opcode: u8, first: u64, count: u32) -> Command {
    command(opcode, &[first as u32, (first >> 32) as u32, count - 1])
}

const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const WRITE_ZEROES: u8 = 8;
const DATASET_MANAGEMENT: u8 = 9;

#[test]
fn invalid_io_commands_fail_with_the_expected_status() {
    let disk = Disk::new();
    let (_admin, mut io) = Bench::pair(&disk);
    let end = BLOCKS as u64;
    let cases = [
        ("an unknown opcode", command(0x42, &[]), Status::InvalidOpcode),
        ("an admin command", command(0x06, &[1]), Status::InvalidOpcode),
        ("no such namespace", with(on_blocks(READ, 0, 1), 4, &[2]), Status::InvalidNamespace),
        ("namespace 0", with(on_blocks(READ, 0, 1), 4, &[0]), Status::InvalidNamespace),
        ("a write to all", with(on_blocks(WRITE, 0, 1), 4, &[0xff; 4]), Status::InvalidNamespace),
        ("a fused operation", with(on_blocks(READ, 0, 1), 1, &[0x41]), Status::InvalidField),
        ("no SGL", with(on_blocks(READ, 0, 1), 1, &[0]), Status::InvalidField),
        ("more data than the limit", on_blocks(READ, 0, 2049), Status::InvalidField),
        ("a write of more data than the limit", on_blocks(WRITE, 0, 0x1_0000), Status::InvalidField),
        ("beyond the end", on_blocks(READ, end, 1), Status::LbaOutOfRange),
        ("across the end", on_blocks(READ, end - 1, 2), Status::LbaOutOfRange),
        ("a write across the end", on_blocks(WRITE, end - 1, 2), Status::LbaOutOfRange),
        ("zeroes across the end", on_blocks(WRITE_ZEROES, end - 1, 2), Status::LbaOutOfRange),
        ("the largest block number", on_blocks(READ, u64::MAX, 1), Status::LbaOutOfRange),
        ("an offset in bytes that overflows", on_blocks(READ, 1 << 55, 8), Status::LbaOutOfRange),
        ("an unknown Fabrics command", fabrics(0x05, &[]), Status::InvalidOpcode),
        ("a second Connect", connect(1, 32), Status::CommandSequence),
    ];
    let before = disk.blocks(0, BLOCKS);
    for (case, command, status) in cases {
        assert_eq!(io.status(&command), Err(status), "{case}");
    }
    assert!(disk.blocks(0, BLOCKS) == before, "an invalid command changed the disk");
    assert_eq!(io.status(&on_blocks(READ, end - 1, 1)), Ok(Some(0)));
    assert_eq!(io.data, block(BLOCKS - 1));
}

#[test]
fn blocks_are_read_written_and_zeroed() {
    let disk = Disk::new();
    let (_admin, mut io) = Bench::pair(&disk);
    assert_eq!(io.status(&on_blocks(READ, 7, 2)), Ok(Some(0)));
    assert_eq!(io.data, [block(7), block(8)].concat());
    io.data = [block(70), block(80)].concat();
    assert_eq!(io.status(&on_blocks(WRITE, 7, 2)), Ok(Some(0)));
    assert_eq!(disk.blocks(6, 4), [block(6), block(70), block(80), block(9)].concat());
    // Force unit access.
    io.data = block(90);
    assert_eq!(io.status(&with(on_blocks(WRITE, 9, 1), 51, &[0x40])), Ok(Some(0)));
    assert_eq!(disk.blocks(9, 1), block(90));
    assert_eq!(io.status(&command(FLUSH, &[])), Ok(Some(0)));
    assert_eq!(io.status(&with(command(FLUSH, &[]), 4, &[0xff; 4])), Ok(Some(0)), "all namespaces");
    assert_eq!(io.status(&on_blocks(WRITE_ZEROES, 8, 2)), Ok(Some(0)));
    assert_eq!(disk.blocks(7, 4), [block(70), block(0), block(0), block(10)].concat());

    // Two ranges, of three blocks and of one.
    let run = |first: u64, count: u32| [&[0; 4][..], &count.to_le_bytes(), &first.to_le_bytes()].concat();
    io.data = [run(20, 3), run(30, 1)].concat();
    assert_eq!(io.status(&command(DATASET_MANAGEMENT, &[1, 0])), Ok(Some(0)), "hints without deallocation");
    assert_eq!(disk.blocks(20, 1), block(20));
    assert_eq!(io.status(&command(DATASET_MANAGEMENT, &[1, 4])), Ok(Some(0)));
    assert_eq!(disk.blocks(19, 5), [block(19), vec![0; 3 * BLOCK], block(23)].concat());
    assert_eq!(disk.blocks(29, 3), [block(29), block(0), block(31)].concat());
    io.data = run(BLOCKS as u64, 1);
    assert_eq!(io.status(&command(DATASET_MANAGEMENT, &[0, 4])), Err(Status::LbaOutOfRange));
    io.data = run(0, 0);
    assert_eq!(io.status(&command(DATASET_MANAGEMENT, &[0, 4])), Ok(Some(0)), "an empty range");
    assert_eq!(disk.blocks(1, 1), block(1));
}

/// Checks that overlapping ranges of a Dataset Management command are merged, so that the target processes
/// each block only once.
#[test]
fn overlapping_block_ranges_are_merged() {
    let run = |first: u64, count: u32| [&[0; 4][..], &count.to_le_bytes(), &first.to_le_bytes()].concat();
    let merged = |runs: &[(u64, u32)]| -> Vec<(u64, u64)> {
        let data = runs.iter().flat_map(|(first, count)| run(*first, *count)).collect::<Vec<u8>>();
        ranges(&data).iter().map(|blocks| (blocks.first, blocks.count)).collect()
    };
    assert_eq!(merged(&[(0, 4096); 256]), [(0, 4096)]);
    assert_eq!(merged(&[(9, 2), (0, 3), (2, 5), (1, 1), (11, 1)]), [(0, 7), (9, 3)]);
    assert_eq!(merged(&[(u64::MAX - 1, 9), (5, 0)]), [(5, 0), (u64::MAX - 1, 9)]);
}

#[test]
fn write_to_a_read_only_disk_fails() {
    let disk = Disk::with(true);
    let (mut admin, mut io) = Bench::pair(&disk);
    assert_eq!(admin.status(&command(0x06, &[0])), Ok(Some(0)));
    assert_eq!(admin.data[99], 1);
    for opcode in [WRITE, WRITE_ZEROES] {
        assert_eq!(io.status(&on_blocks(opcode, 0, 1)), Err(Status::WriteProtected));
    }
    assert_eq!(io.status(&on_blocks(READ, 1, 1)), Ok(Some(0)));
    assert_eq!(io.data, block(1));
}

#[test]
fn invalid_admin_commands_fail_with_the_expected_status() {
    let disk = Disk::new();
    let (mut admin, _io) = Bench::pair(&disk);
    let identify = |cns: u32, nsid: u8| with(command(0x06, &[cns]), 4, &[nsid]);
    let cases = [
        ("an unknown opcode", command(0x99, &[]), Status::InvalidOpcode),
        ("a read", on_blocks(READ, 0, 1), Status::InvalidLogPage),
        ("a PCIe command", command(0x01, &[]), Status::InvalidOpcode),
        ("another namespace", identify(0, 2), Status::InvalidNamespace),
        ("descriptors of namespace 0", identify(3, 0), Status::InvalidNamespace),
        ("namespaces after 0xffffffff", with(identify(2, 0), 4, &[0xff; 4]), Status::InvalidNamespace),
        ("an unknown structure", identify(0x77, 1), Status::InvalidField),
        ("another command set", command(0x06, &[6, 2 << 24]), Status::InvalidField),
        ("an unknown log", command(0x02, &[0x55 | 7 << 16]), Status::InvalidLogPage),
        ("the discovery log", command(0x02, &[0x70 | 7 << 16]), Status::InvalidLogPage),
        ("a log page beyond its end", command(0x02, &[2 | 7 << 16, 0, 516]), Status::InvalidField),
        (
            "a log page offset that is not a multiple of 4",
            command(0x02, &[2 | 7 << 16, 0, 2]),
            Status::InvalidField,
        ),
        ("a log page that is too long", command(0x02, &[2 | 0xffff << 16, 0xffff]), Status::InvalidField),
        ("an unknown feature", command(0x0a, &[0x55]), Status::InvalidField),
        ("a feature that cannot be set", command(0x09, &[0x55]), Status::InvalidField),
        ("a feature to be saved", command(0x09, &[1 << 31 | 0x0f, 1]), Status::InvalidField),
        ("the saved value of a feature", command(0x0a, &[2 << 8 | 0x0f]), Status::InvalidField),
        ("65536 queues", command(0x09, &[7, 0xffff]), Status::InvalidField),
        ("an unknown register", fabrics(4, &[0, 0x44]), Status::InvalidField),
        ("half a register", fabrics(4, &[0, 0]), Status::InvalidField),
        ("a register of another length", fabrics(4, &[2, 0x1c]), Status::InvalidField),
        ("a read-only register", fabrics(0, &[0, 0x1c, 1]), Status::InvalidField),
        ("unsupported queue entry sizes", fabrics(0, &[0, 0x14, 1]), Status::InvalidField),
        ("an unsupported page size", fabrics(0, &[0, 0x14, 0x46_0081]), Status::InvalidField),
    ];
    for (case, command, status) in cases {
        assert_eq!(admin.status(&command), Err(status), "{case}");
    }
    assert_eq!(admin.status(&command(0x18, &[])), Ok(Some(0)), "the controller still executes commands");
}

#[test]
fn identify_data_log_pages_and_features_describe_the_controller() {
    let disk = Disk::new();
    let (mut admin, _io) = Bench::pair(&disk);
    assert_eq!(admin.status(&command(0x06, &[1])), Ok(Some(0)));
    let text = |from: usize, to: usize| String::from_utf8_lossy(&admin.data[from..to]).trim().to_string();
    assert_eq!(text(24, 64), "urxe NVMe over Fabrics target");
    assert_eq!(text(768, 768 + NQN.len()), NQN);
    assert_eq!(admin.data[77..84], [8, 1, 0, 0, 4, 1, 0], "MDTS of 1 MiB, controller ID, version");
    assert_eq!(admin.data[111], 1);
    assert_eq!(admin.data[1792..1800], [4, 1, 0, 0, 1, 0, 0, 0], "capsules of 4160 and 16 bytes");
    // The namespace.
    assert_eq!(admin.status(&command(0x06, &[0])), Ok(Some(0)));
    assert_eq!(admin.data[..8], (BLOCKS as u64).to_le_bytes());
    assert_eq!(admin.data[130], 9);
    let id = admin.data[104..120].to_vec();
    assert_eq!(admin.status(&with(command(0x06, &[2]), 4, &[0])), Ok(Some(0)));
    assert_eq!(admin.data[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(admin.status(&command(0x06, &[2])), Ok(Some(0)));
    assert_eq!(admin.data[..4], [0; 4], "no namespace after 1");
    assert_eq!(admin.status(&command(0x06, &[3])), Ok(Some(0)));
    assert_eq!((admin.data[0], &admin.data[4..20]), (3, &id[..]));
    // The logs.
    for log in [1, 2, 3, 5] {
        assert_eq!(admin.status(&command(0x02, &[log | 15 << 16])), Ok(Some(0)), "log {log}");
        assert_eq!(admin.data.len(), 64);
    }
    assert_eq!(admin.status(&command(0x02, &[5 | 1023 << 16])), Ok(Some(0)));
    assert_eq!(admin.data[4 * 0x18], 1, "Keep Alive is supported");
    assert_eq!(admin.data[1024 + 4], 3, "Write is supported and changes blocks");
    // Features.
    assert_eq!(admin.status(&command(0x09, &[7, 3 | 3 << 16])), Ok(Some(3 | 3 << 16)));
    assert_eq!(admin.status(&command(0x09, &[7, 99 | 99 << 16])), Ok(Some(15 | 15 << 16)));
    assert_eq!(admin.status(&command(0x09, &[0x0b, 0x100])), Ok(Some(0)));
    assert_eq!(admin.status(&command(0x0a, &[0x0b])), Ok(Some(0x100)));
    assert_eq!(admin.status(&command(0x0a, &[0x0b | 1 << 8])), Ok(Some(0)), "the default");
    assert_eq!(admin.status(&command(0x09, &[6, 0])), Ok(Some(0)), "no write cache");
    assert_eq!(admin.status(&command(0x0a, &[6])), Ok(Some(0)));
    assert_eq!(admin.status(&command(0x08, &[])), Ok(Some(1)), "the command was not aborted");
    // Four asynchronous event requests are pending.
    for _ in 0..4 {
        assert_eq!(admin.status(&command(0x0c, &[])), Ok(None));
    }
    assert_eq!(admin.status(&command(0x0c, &[])), Err(Status::AsyncEventLimit));
}

#[test]
fn valid_sgl_descriptors_are_decoded_and_invalid_ones_rejected() {
    let sgl = |kind: u8, bytes: [u8; 15]| with(command(READ, &[]), 24, &[&bytes[..], &[kind]].concat());
    let keyed =
        |kind: u8| sgl(kind, [1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x20, 0x30, 0xa, 0xb, 0xc, 0xd]).data_pointer();
    let expected = |invalidate| {
        let (addr, len, rkey) = (0x0807_0605_0403_0201, 0x30_2010, 0x0d0c_0b0a);
        Ok(DataPointer::Keyed(Keyed { addr, len, rkey, invalidate }))
    };
    assert_eq!(keyed(0x40), expected(false));
    assert_eq!(keyed(0x4f), expected(true));
    assert_eq!(
        sgl(0x01, [8, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0]).data_pointer(),
        Ok(DataPointer::InCapsule { offset: 8, len: 4096 })
    );
    for kind in (0..=255).filter(|kind| ![0x40, 0x4f, 0x01].contains(kind)) {
        assert_eq!(sgl(kind, [0; 15]).data_pointer(), Err(Status::SglType), "{kind:#x}");
    }
    assert_eq!(Command::of(&[0; 63]), None);
}

#[test]
fn random_commands_do_not_crash_the_target() {
    let disk = Disk::new();
    let (mut admin, mut io) = Bench::pair(&disk);
    let mut number = 0x1234_5678_9abc_def0_u64;
    for _ in 0..5_000 {
        let mut bytes = [0; 64];
        for byte in &mut bytes {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (number >> 56) as u8;
        }
        // Half of the commands have valid opcodes and small numbers.
        if number & 1 << 40 != 0 {
            bytes[0] = [0, 1, 2, 6, 8, 9, 10, 12, 0x18, 0x7f][(number >> 45) as usize % 10];
            bytes[1] = 0x40;
            bytes[4..8].copy_from_slice(&[1, 0, 0, 0]);
            bytes[42..48].fill(0);
            // Without force unit access, which is slow.
            bytes[51] = 0;
        }
        for queue in [&mut admin, &mut io] {
            let command = Command(bytes);
            let _ = command.data_pointer();
            let _ = queue.run(&command);
        }
    }
}

#[test]
fn valid_private_data_of_connections_is_parsed_and_invalid_data_rejected() {
    let request = |format: u16, receives: u16, last: u16| {
        let numbers = [format, 3, receives, last];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.resize(56, 0);
        ConnectRequest::parse(&bytes)
    };
    let parsed = ConnectRequest { queue: 3, receives: 128, commands: 128 };
    assert_eq!(request(0, 128, 127), Ok(parsed));
    assert_eq!(parsed.accepted()[..4], [0, 0, 128, 0]);
    assert_eq!(request(1, 128, 127), Err(RejectReason::Format));
    assert_eq!(request(0, 128, 128), Err(RejectReason::Commands));
    assert_eq!(request(0, 128, u16::MAX), Err(RejectReason::Commands));
    assert_eq!(request(0, 128, 0), Err(RejectReason::Commands));
    assert_eq!(request(0, 0, 127), Err(RejectReason::Receives));
    assert_eq!(ConnectRequest::parse(&[0; 31]), Err(RejectReason::Length));
    assert_eq!(RejectReason::Resources.bytes(), [0, 0, 6, 0]);
}

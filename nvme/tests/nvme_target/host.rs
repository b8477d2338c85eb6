//! NVMe host on the verbs API that sends a test's commands to the target.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

use super::*;
use urxe_nvme::{IN_CAPSULE, MAX_TRANSFER, server};

pub const LIMIT: Duration = Duration::from_secs(10);
const RESPONSES: usize = 32;

/// Runs `test` against a target on a fabric; `test` gets the host's connection manager and the target's
/// address.
pub fn with_target(disk: &Disk, test: impl FnOnce(&ConnectionManager, SocketAddr)) {
    let fabric = Fabric::new();
    let (host_context, target_context) =
        (Context::on_fabric(&fabric).unwrap(), Context::on_fabric(&fabric).unwrap());
    let at = SocketAddr::new(target_context.query_gid(0).unwrap().ip(), 4420);
    let target = ConnectionManager::new(vec![target_context]).unwrap();
    let host = ConnectionManager::new(vec![host_context]).unwrap();
    let listener = Listener::bind(&target, at).unwrap();
    let is_stopped = AtomicBool::new(false);
    // Stops the target also when the test fails.
    struct StopGuard<'a>(&'a AtomicBool);
    impl Drop for StopGuard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let (stop, listener) = (|| is_stopped.load(Ordering::Relaxed), &listener);
        scope.spawn(move || {
            server::serve(listener, &disk.subsystem, &stop, &|line| eprintln!("{line}")).unwrap()
        });
        let _guard = StopGuard(&is_stopped);
        test(&host, at);
    });
    assert_eq!(target.connections(), 0);
}

/// One of the host's queues, connected to the target.
pub struct HostQueue {
    pub session: Session,
    pub cq: Cq,
    /// Data buffer for commands.
    pub data: Mr,
    capsule: Mr,
    responses: Mr,
}

/// Size of the send buffer: a command, the largest in-capsule data, and 64 bytes more for capsules that are
/// too long.
const CAPSULE: usize = 64 + IN_CAPSULE + 64;

/// A received response: command ID, result, status code and type (without the other bits of the status
/// field), and the R_Key that it invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostResponse {
    pub id: u16,
    pub result: u64,
    pub status: u16,
    pub invalidated: Option<RKey>,
}

impl HostQueue {
    /// Connects a queue, with the given private data in the connection request.
    pub fn open_with(
        host: &ConnectionManager,
        at: SocketAddr,
        private_data: &[u8],
    ) -> Result<HostQueue, SessionError> {
        let context = host.devices().remove(0);
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
        let (data, capsule) = (pd.reg_mr(MAX_TRANSFER, Access::ALL)?, pd.reg_mr(CAPSULE, Access::ALL)?);
        let responses = pd.reg_mr(16 * RESPONSES, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        qp.enter_init(Access::ALL).unwrap();
        (0..RESPONSES).for_each(|slot| post(&qp, &responses, slot));
        let session = host.connect(at, |_| Ok(qp), &ConnParam::with_data(private_data), LIMIT)?;
        Ok(HostQueue { session, cq, data, capsule, responses })
    }

    pub fn open(host: &ConnectionManager, at: SocketAddr, queue: u16) -> HostQueue {
        let mut private_data = [0; 32];
        (private_data[2], private_data[4], private_data[6]) = (queue as u8, 32, 31);
        HostQueue::open_with(host, at, &private_data).unwrap()
    }

    /// Connects an admin queue, enables the controller, and connects an I/O queue.
    pub fn pair(host: &ConnectionManager, at: SocketAddr) -> (HostQueue, HostQueue) {
        let (admin, io) = (HostQueue::open(host, at, 0), HostQueue::open(host, at, 1));
        let id = admin.connect(0, 0xffff);
        admin.send(&enable().0);
        assert_eq!(admin.response().status, 0);
        assert_eq!(io.connect(1, id), id);
        (admin, io)
    }

    /// Sends a Connect command with its data in the capsule, and returns the controller ID from the response.
    pub fn connect(&self, queue: u16, controller: u16) -> u16 {
        let data = connect_data(controller, NQN, HOST_NQN);
        let command = with(connect(queue, 32), 24, &in_capsule(0, data.len()));
        self.send(&[&command.0[..], &data].concat());
        let response = self.response();
        assert_eq!(response.status, 0);
        response.result as u16
    }

    /// Sends a capsule.
    pub fn send(&self, capsule: &[u8]) {
        self.capsule.write(0, capsule).unwrap();
        let sge = [self.capsule.sge(0..capsule.len())];
        self.session.qp().post_send(&SendWr::send(u64::MAX, &sge)).unwrap();
    }

    /// Returns the next response.
    pub fn response(&self) -> HostResponse {
        self.response_within(LIMIT).unwrap()
    }

    /// Waits for the next response, for at most `limit`.
    pub fn response_within(&self, limit: Duration) -> Result<HostResponse, WaitError> {
        loop {
            let completion = self.cq.wait(limit)?;
            if completion.opcode != WcOpcode::Recv {
                continue;
            }
            let slot = completion.wr_id as usize;
            let mut bytes = [0; 16];
            self.responses.read(16 * slot, &mut bytes).unwrap();
            post(self.session.qp(), &self.responses, slot);
            let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let result = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let (id, status) = (u16_at(12), u16_at(14) >> 1 & 0x7ff);
            return Ok(HostResponse { id, result, status, invalidated: completion.invalidated });
        }
    }

    /// Sends a command, waits for the response, and returns the status code.
    pub fn status(&self, capsule: &[u8]) -> u16 {
        self.send(capsule);
        self.response().status
    }
}

fn post(qp: &Qp, responses: &Mr, slot: usize) {
    let sges = [responses.sge(16 * slot..16 * (slot + 1))];
    qp.post_recv(&RecvWr::new(slot as u64, &sges)).unwrap();
}

/// Returns an SGL descriptor for in-capsule data at `offset` after the command.
pub fn in_capsule(offset: u64, len: usize) -> [u8; 16] {
    let mut sgl = [0; 16];
    sgl[..8].copy_from_slice(&offset.to_le_bytes());
    sgl[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    sgl[15] = 0x01;
    sgl
}

/// Returns a keyed SGL descriptor of type `kind`, for host memory that the target accesses by RDMA.
pub fn keyed(at: RemoteAddr, len: usize, kind: u8) -> [u8; 16] {
    let mut sgl = [0; 16];
    sgl[..8].copy_from_slice(&at.va.to_le_bytes());
    sgl[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
    sgl[11..15].copy_from_slice(&at.rkey.0.to_le_bytes());
    sgl[15] = kind;
    sgl
}

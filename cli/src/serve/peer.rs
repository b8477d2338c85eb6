//! A peer of `urxe serve`: queue pair, echo buffers and counters.

use std::time::Instant;

use serde::Serialize;

use crate::CliError;
use urxe::verbs::{
    Access, Completion, ConnectOptions, Cq, Endpoint, Mr, Pd, Qp, QpOptions, RecvCaps, RecvWr, SendCaps,
    SendFlags, SendWr, WcOpcode, WcStatus, WrOp,
};

/// Number of receives per peer. Each has a buffer for a whole message, and the echo is sent from the same
/// buffer.
pub const SLOTS: usize = 16;

/// Bit of `wr_id` that marks a send; the lower bits are the slot number.
const SEND: u64 = 1 << 32;

/// A connected peer.
pub struct Peer {
    pub number: usize,
    qp: Qp,
    /// Memory region that holds all slots contiguously.
    slots: Mr,
    /// Size of a slot in bytes, which is the maximum length of a SEND.
    slot_size: usize,
    pub remote: Endpoint,
    /// Time of the last completion.
    pub last_active: Instant,
    /// Number of SENDs to the peer not yet acknowledged.
    pub unacked: u64,
    /// Number of SENDs from the peer that were echoed.
    echoes: u64,
}

/// Counts of the messages of all peers.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Totals {
    /// Number of SENDs that were echoed.
    pub echoed_sends: u64,
    /// Total length of the echoed SENDs in bytes.
    pub echoed_bytes: u64,
    /// Number of received WRITEs with immediate.
    pub writes_with_immediate: u64,
}

impl Peer {
    /// Creates a queue pair, posts its receives, and connects it to `remote`.
    pub fn connect(
        (pd, cq): (&Pd, &Cq),
        number: usize,
        remote: Endpoint,
        slot_size: usize,
        options: &ConnectOptions,
    ) -> Result<Peer, CliError> {
        let caps = SLOTS as u32;
        let qp = pd.create_qp(
            cq,
            cq,
            &QpOptions::default()
                .send(SendCaps { max_wr: caps, max_sge: 1, max_inline: 0 })
                .recv(RecvCaps { max_wr: caps, max_sge: 1 }),
        )?;
        let slots = pd.reg_mr(SLOTS * slot_size, Access::LOCAL_WRITE)?;
        qp.enter_init(options.access)?;
        let last_active = Instant::now();
        let peer = Peer { number, qp, slots, slot_size, remote, last_active, unacked: 0, echoes: 0 };
        for i in 0..SLOTS {
            peer.post_recv(i)?;
        }
        peer.qp.enter_rtr(&remote, options)?;
        peer.qp.enter_rts(options)?;
        Ok(peer)
    }

    /// Returns the local endpoint that the peer connects to.
    pub fn local(&self, gid_index: u8) -> Endpoint {
        self.qp.endpoint_at(gid_index as usize).unwrap_or_else(|| self.qp.endpoint())
    }

    fn post_recv(&self, i: usize) -> Result<(), CliError> {
        let sge = self.slots.sge(i * self.slot_size..(i + 1) * self.slot_size);
        Ok(self.qp.post_recv(&RecvWr::new(i as u64, &[sge]))?)
    }

    /// Handles a completion: echoes a SEND, or reposts a receive, and counts the message. After an error, the
    /// caller must disconnect the peer.
    pub fn complete(&mut self, wc: &Completion, totals: &mut Totals) -> Result<(), String> {
        self.last_active = Instant::now();
        if wc.status != WcStatus::Success {
            return Err(self.failure_reason(wc));
        }
        let i = (wc.wr_id & (SEND - 1)) as usize;
        match wc.opcode {
            WcOpcode::Recv => {
                self.echoes += 1;
                self.unacked += 1;
                totals.echoed_sends += 1;
                totals.echoed_bytes += wc.byte_len as u64;
                let start = i * self.slot_size;
                let sges = [self.slots.sge(start..start + wc.byte_len as usize)];
                let op = wc.imm.map_or(WrOp::Send, WrOp::SendWithImm);
                let flags = SendFlags { signaled: true, solicited: wc.solicited, fence: false };
                let wr = SendWr::new(SEND | i as u64, op, &sges).flags(flags);
                self.qp.post_send(&wr).map_err(|e| e.to_string())
            }
            WcOpcode::RecvRdmaWithImm => {
                totals.writes_with_immediate += 1;
                self.post_recv(i).map_err(|e| e.to_string())
            }
            _ => {
                self.unacked -= 1;
                self.post_recv(i).map_err(|e| e.to_string())
            }
        }
    }

    fn failure_reason(&self, wc: &Completion) -> String {
        let is_send = wc.wr_id & SEND != 0;
        match wc.status {
            WcStatus::RetryExcErr => {
                format!(
                    "the peer did not respond: the SEND of echo {} to QP {} was sent 8 times",
                    self.echoes, self.remote.qpn
                )
            }
            WcStatus::LocLenErr => {
                format!(
                    "the peer sent a message longer than {} bytes: specify a larger --message",
                    self.slot_size
                )
            }
            status if is_send => format!("the SEND of an echo failed: {status}"),
            status => status.to_string(),
        }
    }
}

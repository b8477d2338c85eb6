use std::time::Instant;

use crate::cli::CliError;
use crate::verbs::{
    Access, Completion, ConnectOptions, Cq, Endpoint, Mr, Pd, Qp, QpOptions, RecvCaps, RecvWr, SendCaps,
    SendFlags, SendWr, WcOpcode, WcStatus, WrOp,
};

/// Receives of a peer, each with room for a whole message, which is sent back from there.
pub const SLOTS: usize = 16;

/// Work request numbers of sends are above those of receives.
const SEND: u64 = 1 << 32;

/// A connected peer.
pub struct Peer {
    pub number: usize,
    qp: Qp,
    /// Slot after slot.
    slots: Mr,
    slot: usize,
    pub remote: Endpoint,
    pub last: Instant,
    /// SENDs sent back, and their bytes.
    pub echoes: u64,
    pub bytes: u64,
    /// SENDs that the peer has not acknowledged.
    pub owed: u64,
    /// WRITEs with immediate.
    pub writes: u64,
}

impl Peer {
    /// A queue pair towards `remote`, ready for its first SEND.
    pub fn connect(
        (pd, cq): (&Pd, &Cq),
        number: usize,
        remote: Endpoint,
        slot: usize,
        options: &ConnectOptions,
    ) -> Result<Peer, CliError> {
        let caps = SLOTS as u32;
        let qp = pd.create_qp(
            cq,
            cq,
            &QpOptions {
                send: SendCaps { max_wr: caps, max_sge: 1, max_inline: 0 },
                recv: RecvCaps { max_wr: caps, max_sge: 1 },
                ..QpOptions::default()
            },
        )?;
        let slots = pd.reg_mr(SLOTS * slot, Access::LOCAL_WRITE)?;
        qp.to_init(options.access)?;
        let (echoes, bytes, writes) = (0, 0, 0);
        let (last, owed) = (Instant::now(), 0);
        let peer = Peer { number, qp, slots, slot, remote, last, echoes, bytes, owed, writes };
        for i in 0..SLOTS {
            peer.post_recv(i)?;
        }
        peer.qp.to_rtr(&remote, options)?;
        peer.qp.to_rts(options)?;
        Ok(peer)
    }

    /// What the peer must know.
    pub fn local(&self, gid_index: u8) -> Endpoint {
        self.qp.endpoint_at(gid_index as usize).unwrap_or_else(|| self.qp.endpoint())
    }

    fn post_recv(&self, i: usize) -> Result<(), CliError> {
        let sge = self.slots.sge(i * self.slot..(i + 1) * self.slot);
        Ok(self.qp.post_recv(&RecvWr { wr_id: i as u64, sges: &[sge] })?)
    }

    /// Acts on a completion. An error says why the peer is over.
    pub fn complete(&mut self, wc: &Completion) -> Result<(), String> {
        self.last = Instant::now();
        if wc.status != WcStatus::Success {
            return Err(self.obituary(wc));
        }
        let i = (wc.wr_id & (SEND - 1)) as usize;
        match wc.opcode {
            WcOpcode::Recv => {
                self.echoes += 1;
                self.owed += 1;
                self.bytes += wc.byte_len as u64;
                let start = i * self.slot;
                let sges = [self.slots.sge(start..start + wc.byte_len as usize)];
                let op = wc.imm.map_or(WrOp::Send, WrOp::SendWithImm);
                let flags = SendFlags { signaled: true, solicited: wc.solicited, fence: false };
                let wr = SendWr { flags, ..SendWr::new(SEND | i as u64, op, &sges) };
                self.qp.post_send(&wr).map_err(|e| e.to_string())
            }
            WcOpcode::RecvRdmaWithImm => {
                self.writes += 1;
                self.post_recv(i).map_err(|e| e.to_string())
            }
            _ => {
                self.owed -= 1;
                self.post_recv(i).map_err(|e| e.to_string())
            }
        }
    }

    fn obituary(&self, wc: &Completion) -> String {
        let echo = wc.wr_id & SEND != 0;
        match wc.status {
            WcStatus::RetryExcErr => {
                format!(
                    "it never answered: a SEND (echo {}) to {} was sent 8 times",
                    self.echoes, self.remote.qpn
                )
            }
            WcStatus::LocLenErr => {
                format!("it sent a message of more than {} bytes: give a larger --message", self.slot)
            }
            status if echo => format!("a SEND to it failed: {status}"),
            status => status.to_string(),
        }
    }
}

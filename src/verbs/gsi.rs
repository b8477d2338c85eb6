//! The general services interface: management datagrams (MADs), which go from the QP1 of a port to that of another, and
//! the services that programs are reached by.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{
    ClaimError, CompletionChannel, Context, Cq, CqOptions, CreateError, Mr, Notify, Pd, PostError, Qp,
    QpOptions, WaitError,
};
use crate::memory::Access;
use crate::nic::Seat;
use crate::transport::{
    AddressVector, Completion, Destination, QpType, RecvCaps, RecvWr, SendCaps, SendFlags, SendWr, WcStatus,
    WrData, WrOp,
};
use crate::wire::mad::{MAD_LEN, ServiceId};
use crate::wire::{QKey, Qpn, grh};

/// MADs that may wait to be received; more are lost, as datagrams are, and counted.
const RECEIVES: u32 = 2048;

/// MADs that may wait to be sent.
const SENDS: u32 = 1024;

/// What a MAD takes where it is received: behind the routing header that datagrams have.
const SLOT: usize = grh::LEN + MAD_LEN;

/// A management datagram that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// The datagram.
    pub bytes: [u8; MAD_LEN],
    /// The path back to its sender.
    pub from: AddressVector,
    /// The queue pair that sent it: QP1, but for peers that do things their own way.
    pub src_qpn: Qpn,
    /// Index of the partition key that it came with.
    pub pkey_index: u16,
}

/// The QP1 of a device, by which it is managed: a device has one, for one who speaks for all.
///
/// Where several processes have the address, each has what is for it: answers to what it has sent, as its
/// [identifiers](Self::comm_id_prefix) tell, and requests for services that it has [claimed](Context::claim_service).
pub struct ManagementPort {
    qp: Qp,
    /// Of receives; sends complete to nobody, but when the device is gone.
    cq: Cq,
    channel: CompletionChannel,
    slots: Mr,
}

impl Context {
    /// Takes the device's QP1.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if somebody has it, [`CreateError`] for what it is made of.
    pub fn management_port(&self) -> Result<ManagementPort, CreateError> {
        ManagementPort::new(&self.alloc_pd()?)
    }
}

impl ManagementPort {
    fn new(pd: &Pd) -> Result<ManagementPort, CreateError> {
        let context = pd.context();
        let channel = context.create_channel()?;
        let cq = context.create_cq_with(&CqOptions {
            capacity: (RECEIVES + SENDS) as usize,
            channel: Some(channel.clone()),
            ..CqOptions::default()
        })?;
        let slots = pd.reg_mr(RECEIVES as usize * SLOT, Access::LOCAL_WRITE)?;
        let options = QpOptions {
            qp_type: QpType::Ud,
            send: SendCaps { max_wr: SENDS, max_sge: 0, max_inline: MAD_LEN as u32 },
            recv: RecvCaps { max_wr: RECEIVES, max_sge: 1 },
            signal_all: false,
        };
        let qp = Qp::new_gsi(pd, &cq, &options)?;
        let port = ManagementPort { qp, cq, channel, slots };
        port.qp.activate(QKey::GSI).map_err(|_| CreateError::Gone)?;
        for slot in 0..RECEIVES.into() {
            port.offer(slot).map_err(|_| CreateError::Gone)?;
        }
        port.cq.req_notify(Notify::Any);
        Ok(port)
    }

    /// The device.
    pub fn context(&self) -> &Context {
        self.qp.pd().context()
    }

    /// What the communication IDs (and the request IDs of SIDR) of this process begin with, so that what peers send to
    /// them comes here and not to another process: a value, and how many of the highest bits that is. None where no
    /// others have the address.
    pub fn comm_id_prefix(&self) -> (u32, u32) {
        let seat: Seat = self.context().0.seat;
        (seat.index(), seat.bits())
    }

    /// Sends a datagram to the QP1 of a port. It may be lost on the way.
    ///
    /// # Errors
    /// [`PostError`]: the device has no such GID, or it cannot send as fast as this; then it is not sent.
    pub fn send(&self, to: &AddressVector, mad: &[u8; MAD_LEN]) -> Result<(), PostError> {
        let pd = self.qp.pd().id();
        self.qp.post_send(&SendWr {
            wr_id: 0,
            op: WrOp::Send,
            data: WrData::Inline(mad),
            flags: SendFlags::default(),
            to: Some(Destination::Qp { pd, av: *to, qpn: Qpn::GSI, qkey: QKey::GSI }),
        })
    }

    /// The datagram that has waited longest. If there is none, the port's descriptor becomes readable when there is one.
    pub fn try_recv(&self) -> Option<Mad> {
        loop {
            if let Some(mad) = self.take() {
                return Some(mad);
            }
            if self.is_armed() {
                return None;
            }
            while self.channel.next_event().is_some() {}
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Waits for a datagram.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::Interrupted`]; [`WaitError::Idle`] in virtual time.
    pub fn recv(&self, timeout: Duration) -> Result<Mad, WaitError> {
        self.context().wait_for(self.as_fd(), timeout, || self.try_recv())
    }

    fn is_armed(&self) -> bool {
        self.cq.0.queue.is_armed()
    }

    /// The oldest that is there and that can be answered.
    fn take(&self) -> Option<Mad> {
        self.cq.look_at_link();
        loop {
            // It has room for all that can complete, so nothing is ever lost.
            let completion = self.cq.0.queue.take().ok().flatten()?.completion;
            // Only what ends with the device has another status, and only receives succeed.
            if completion.status == WcStatus::Success {
                let mad = self.read(&completion);
                // Refused only when the device is gone.
                let _ = self.offer(completion.wr_id);
                if mad.is_some() {
                    return mad;
                }
            }
        }
    }

    /// What was received; `None` if it came to an address that the port has no more.
    fn read(&self, completion: &Completion) -> Option<Mad> {
        let mut slot = [0; SLOT];
        self.slots.read(completion.wr_id as usize * SLOT, &mut slot).ok()?;
        let (header, bytes) = slot.split_first_chunk()?;
        Some(Mad {
            bytes: *bytes.first_chunk()?,
            from: self.context().path_back(header)?,
            src_qpn: completion.src_qpn,
            pkey_index: completion.pkey_index,
        })
    }

    /// Has the next datagram received into a slot.
    fn offer(&self, slot: u64) -> Result<(), PostError> {
        let start = slot as usize * SLOT;
        self.qp.post_recv(&RecvWr { wr_id: slot, sges: &[self.slots.sge(start..start + SLOT)] })
    }
}

/// Readable when a datagram may have come since [`ManagementPort::try_recv`] found none.
impl AsFd for ManagementPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl fmt::Debug for ManagementPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagementPort({:?})", self.context())
    }
}

/// Requests for a service come to this process as long as this lives.
#[derive(Debug)]
#[must_use = "dropping it ends the claim"]
pub struct ServiceClaim {
    context: Context,
    service: ServiceId,
    address: Option<IpAddr>,
}

impl Context {
    /// Has requests (REQ, SIDR_REQ) for a service, as sent to one address of the device or to any of them, come to this
    /// process's QP1. Where no other process has the device's addresses they do anyway, and nothing is refused.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] if another process has claimed it.
    pub fn claim_service(
        &self,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<ServiceClaim, ClaimError> {
        self.0.shards.of(Qpn::GSI).hold(|engine, _| engine.claim(service, address))?;
        Ok(ServiceClaim { context: self.clone(), service, address })
    }
}

impl Drop for ServiceClaim {
    fn drop(&mut self) {
        let shard = self.context.0.shards.of(Qpn::GSI);
        shard.hold(|engine, _| engine.release(self.service, self.address));
    }
}

#[cfg(test)]
mod tests;

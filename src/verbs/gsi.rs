//! General services interface: management datagrams (MADs) exchanged between QP1s, and claims on the service
//! IDs at which programs are reached.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{
    ClaimError, CompletionChannel, Context, Cq, CqOptions, CreateError, Mr, Notify, PostError, Qp, QpOptions,
    WaitError,
};
use crate::memory::Access;
use crate::nic::QpnPartition;
use crate::transport::{
    AddressVector, Completion, Destination, QpType, RecvCaps, RecvWr, SendCaps, SendWr, WcStatus,
};
use crate::wire::mad::{MAD_LEN, ServiceId};
use crate::wire::{QKey, Qpn, grh};

/// Maximum number of received MADs that can be queued. Further MADs are dropped and counted, like other
/// datagrams.
const RECV_DEPTH: u32 = 2048;

/// Maximum number of MADs that can be queued for sending.
const SEND_DEPTH: u32 = 1024;

/// Length in bytes of a receive buffer, which holds a datagram's routing header followed by a MAD.
const SLOT_LEN: usize = grh::LEN + MAD_LEN;

/// A received management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedMad {
    /// Contents of the datagram.
    pub bytes: [u8; MAD_LEN],
    /// Path to the sender.
    pub from: AddressVector,
    /// Number of the queue pair that sent the MAD: QP1, unless the peer is non-compliant.
    pub src_qpn: Qpn,
    /// Index of the datagram's partition key in the port's table.
    pub pkey_index: u16,
}

/// A device's QP1, which carries its management datagrams. There is only one, so only one component can have
/// it open at a time.
///
/// If several processes share the address, each receives only its own datagrams: responses to what it has
/// sent, recognised by their [identifiers](Self::comm_id_prefix), and requests for services that it has
/// [claimed](Context::claim_service).
pub struct ManagementPort {
    qp: Qp,
    /// Completion queue for receives. Sends are unsignaled and complete here only when the device is lost.
    cq: Cq,
    channel: CompletionChannel,
    slots: Mr,
}

impl Context {
    /// Opens the device's QP1.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] if it is in use; otherwise [`CreateError`] of the objects that it consists
    /// of.
    pub fn management_port(&self) -> Result<ManagementPort, CreateError> {
        let (pd, channel) = (self.alloc_pd()?, self.create_channel()?);
        let cq = self.create_cq(CqOptions::new((RECV_DEPTH + SEND_DEPTH) as usize).channel(&channel))?;
        let slots = pd.reg_mr(RECV_DEPTH as usize * SLOT_LEN, Access::LOCAL_WRITE)?;
        let options = QpOptions {
            qp_type: QpType::Ud,
            send: SendCaps { max_wr: SEND_DEPTH, max_sge: 0, max_inline: MAD_LEN as u32 },
            recv: RecvCaps { max_wr: RECV_DEPTH, max_sge: 1 },
            ..QpOptions::default()
        };
        let qp = Qp::new_gsi(&pd, &cq, &options)?;
        let port = ManagementPort { qp, cq, channel, slots };
        port.qp.activate(QKey::GSI).map_err(|_| CreateError::DeviceFatal)?;
        for slot in 0..RECV_DEPTH.into() {
            port.post_slot(slot).map_err(|_| CreateError::DeviceFatal)?;
        }
        port.cq.req_notify(Notify::Any);
        Ok(port)
    }
}

impl ManagementPort {
    /// Returns the device's context.
    pub fn context(&self) -> &Context {
        self.qp.pd().context()
    }

    /// Returns the prefix that this process's communication IDs (and SIDR request IDs) must have, so that
    /// peers' responses reach this process and no other. The pair holds the prefix's value and its length in
    /// high-order bits, which is 0 if no other process shares the address.
    pub fn comm_id_prefix(&self) -> (u32, u32) {
        let partition: QpnPartition = self.context().0.partition;
        (partition.index(), partition.bits())
    }

    /// Sends a datagram to the QP1 of the port at `to`. Like any datagram, it may be lost.
    ///
    /// # Errors
    /// [`PostError`] if the device has no such GID, or cannot send as fast as requested; then nothing is
    /// sent.
    pub fn send(&self, to: &AddressVector, mad: &[u8; MAD_LEN]) -> Result<(), PostError> {
        let pd = self.qp.pd().id();
        let to = Destination::Qp { pd, av: *to, qpn: Qpn::GSI, qkey: QKey::GSI };
        self.qp.post_send(&SendWr::send_to(0, &[], to).inline(mad).signaled(false))
    }

    /// Removes and returns the oldest received datagram, or returns `None` if there is none; never blocks.
    /// After `None`, the port's descriptor becomes readable when a datagram may have arrived.
    pub fn try_recv(&self) -> Option<ReceivedMad> {
        loop {
            if let Some(mad) = self.next_mad() {
                return Some(mad);
            }
            if self.is_armed() {
                return None;
            }
            while self.channel.next_event().is_some() {}
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Blocks until there is a datagram and returns it.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Interrupted`] by a signal; [`WaitError::Idle`] in virtual time.
    pub fn recv(&self, timeout: Duration) -> Result<ReceivedMad, WaitError> {
        self.context().wait_for(self.as_fd(), timeout, || self.try_recv())
    }

    fn is_armed(&self) -> bool {
        self.cq.0.queue.is_armed()
    }

    /// Removes and returns the oldest received datagram, discarding any for which there is no path to the
    /// sender.
    fn next_mad(&self) -> Option<ReceivedMad> {
        self.cq.poll_link_if_empty();
        loop {
            // The queue has room for everything that can complete, so it never overflows.
            let completion = self.cq.0.queue.take().ok().flatten()?.completion;
            // Only receives succeed; other statuses occur only when the device fails.
            if completion.status == WcStatus::Success {
                let mad = self.read(&completion);
                // Fails only when the device is lost.
                let _ = self.post_slot(completion.wr_id);
                if mad.is_some() {
                    return mad;
                }
            }
        }
    }

    /// Reads the datagram received with `completion`. Returns `None` if the port no longer has its
    /// destination address.
    fn read(&self, completion: &Completion) -> Option<ReceivedMad> {
        let mut slot = [0; SLOT_LEN];
        self.slots.read(completion.wr_id as usize * SLOT_LEN, &mut slot).ok()?;
        let (header, bytes) = slot.split_first_chunk()?;
        Some(ReceivedMad {
            bytes: *bytes.first_chunk()?,
            from: self.context().reverse_path(header)?,
            src_qpn: completion.src_qpn,
            pkey_index: completion.pkey_index,
        })
    }

    /// Posts a receive that uses buffer slot `slot`.
    fn post_slot(&self, slot: u64) -> Result<(), PostError> {
        let start = slot as usize * SLOT_LEN;
        self.qp.post_recv(&RecvWr { wr_id: slot, sges: &[self.slots.sge(start..start + SLOT_LEN)] })
    }
}

/// The descriptor becomes readable when a datagram may have arrived since [`ManagementPort::try_recv`] found
/// none.
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

/// A claim on a service ID: while it exists, requests for the service are delivered to this process.
#[derive(Debug)]
#[must_use = "dropping it ends the claim"]
pub struct ServiceClaim {
    context: Context,
    service: ServiceId,
    address: Option<IpAddr>,
}

impl Context {
    /// Claims a service, so that requests for it (REQ, SIDR_REQ) sent to `address`, or to any address of the
    /// device if `None`, are delivered to this process's QP1. If no other process shares the device's
    /// addresses, requests are delivered there anyway, and no claim is refused.
    ///
    /// # Errors
    /// [`ClaimError::InUse`] if another process has claimed the service; [`ClaimError::System`] if the device
    /// is lost.
    pub fn claim_service(
        &self,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<ServiceClaim, ClaimError> {
        self.0.shards.of(Qpn::GSI).with_state(|state, _| state.claim(service, address))?;
        Ok(ServiceClaim { context: self.clone(), service, address })
    }
}

impl Drop for ServiceClaim {
    fn drop(&mut self) {
        let shard = self.context.0.shards.of(Qpn::GSI);
        shard.with_state(|state, _| state.release(self.service, self.address));
    }
}

#[cfg(test)]
mod tests;

//! Options of queue pairs and of their connections.

use pyo3::prelude::*;
use urxe::verbs::{self, Access, AckTimeout, Mtu, RecvCaps, RnrTimer, SendCaps};

use crate::convert::{invalid, qp_type};

/// Attributes for creating a queue pair: its service, the sizes of its queues in work requests, the
/// scatter/gather elements of a work request, its bytes of inline data, and whether all sends complete
/// whatever their flags.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct QpOptions(pub verbs::QpOptions);

#[pymethods]
impl QpOptions {
    #[new]
    #[pyo3(signature = (*, qp_type=2, max_send_wr=128, max_recv_wr=128, max_send_sge=4, max_recv_sge=4, max_inline=256, signal_all=false))]
    fn new(
        qp_type: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline: u32,
        signal_all: bool,
    ) -> PyResult<QpOptions> {
        let options = verbs::QpOptions::default()
            .qp_type(self::qp_type(qp_type)?)
            .send(SendCaps { max_wr: max_send_wr, max_sge: max_send_sge, max_inline })
            .recv(RecvCaps { max_wr: max_recv_wr, max_sge: max_recv_sge })
            .signal_all(signal_all);
        Ok(QpOptions(options))
    }
}

/// Attributes of a connection between two queue pairs: what the peer may access, the path MTU in bytes (None
/// for the port's), and as in `struct ibv_qp_attr` the codes of timers, retries and numbers of READs and
/// atomics in flight.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct ConnectOptions(pub verbs::ConnectOptions);

#[pymethods]
impl ConnectOptions {
    #[new]
    #[pyo3(signature = (*, access=0xf, mtu=None, timeout=14, retry_cnt=7, rnr_retry=7, min_rnr_timer=12, max_rd_atomic=16, max_dest_rd_atomic=16))]
    fn new(
        access: u32,
        mtu: Option<usize>,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        min_rnr_timer: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
    ) -> PyResult<ConnectOptions> {
        let mtu = mtu
            .map(|bytes| {
                Mtu::from_bytes(bytes).ok_or_else(|| invalid("mtu", bytes, "256, 512, 1024, 2048 or 4096"))
            })
            .transpose()?;
        for (name, value) in [("timeout", timeout), ("min_rnr_timer", min_rnr_timer)] {
            if value > 31 {
                return Err(invalid(name, value, "a code from 0 to 31"));
            }
        }
        let options = verbs::ConnectOptions::default()
            .access(Access::from_bits_retain(access))
            .mtu(mtu)
            .timeout(AckTimeout::new(timeout))
            .retry_cnt(retry_cnt)
            .rnr_retry(rnr_retry)
            .min_rnr_timer(RnrTimer::new(min_rnr_timer))
            .max_rd_atomic(max_rd_atomic)
            .max_dest_rd_atomic(max_dest_rd_atomic);
        Ok(ConnectOptions(options))
    }
}

/// Returns the given options of a queue pair, or the default ones.
pub(crate) fn qp_options(options: Option<Bound<'_, QpOptions>>) -> verbs::QpOptions {
    options.map(|options| options.get().0.clone()).unwrap_or_default()
}

/// Returns the given options of a connection, or the default ones.
pub(crate) fn connect_options(options: Option<Bound<'_, ConnectOptions>>) -> verbs::ConnectOptions {
    options.map(|options| options.get().0).unwrap_or_default()
}

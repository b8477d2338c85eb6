"""Enumerations and exceptions of the mock NIC. The extension module imports this module."""

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Completion


class Access(enum.IntFlag):
    """Operations that a region permits. The values equal `enum ibv_access_flags`."""

    LOCAL_READ = 0
    LOCAL_WRITE = 0x1
    REMOTE_WRITE = 0x2
    REMOTE_READ = 0x4
    REMOTE_ATOMIC = 0x8
    ZERO_BASED = 0x20
    ALL = 0xF
    """Local writes, and remote WRITE, READ and atomics."""


class QpType(enum.IntEnum):
    """Service of a queue pair. The values equal `enum ibv_qp_type`."""

    RC = 2
    UC = 3
    UD = 4


class QpState(enum.IntEnum):
    """State of a queue pair. The values equal `enum ibv_qp_state`."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class WcStatus(enum.IntEnum):
    """Status of a completion. The values equal `enum ibv_wc_status`."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13


class WcOpcode(enum.IntEnum):
    """Kind of a completed work request. The values equal `enum ibv_wc_opcode`."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    FLUSH = 8
    ATOMIC_WRITE = 9
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class EventType(enum.IntEnum):
    """Kind of an asynchronous event. The values equal `enum ibv_event_type`."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    PKEY_CHANGE = 12
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    GID_CHANGE = 18


class Error(Exception):
    """Base class of the errors of the mock NIC."""


class FabricError(Error, ValueError):
    """A fabric cannot be created or changed as requested."""


class RuleError(Error, ValueError):
    """The text of a fault rule is invalid."""


class OpenError(Error):
    """A device cannot be opened."""


class CreateError(Error):
    """An object cannot be created, for example because a size is above the device's limit."""


class ConnectError(Error):
    """A queue pair cannot be connected, or its state cannot be changed."""


class PostError(Error):
    """A work request was not posted."""


class MemoryAccessError(Error, IndexError):
    """An access is outside a region."""


class CaptureError(Error):
    """A capture cannot be created or written."""


class WaitError(Error):
    """A wait ended without a result."""


class WaitTimeoutError(WaitError, TimeoutError):
    """The timeout expired."""


class IdleError(WaitError):
    """In virtual time, nothing pending on the fabric could end the wait."""


class CqOverflowError(WaitError):
    """The completion queue has overflowed, so completions were lost."""


class CompletionError(WaitError):
    """A work request failed."""

    completion: "Completion"
    """The completion, with its error status."""

    def __init__(self, message: str, completion: "Completion") -> None:
        super().__init__(message)
        self.completion = completion

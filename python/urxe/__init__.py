"""urxe: a software RoCEv2 NIC in userspace.

The mock NIC (`pair`, `mesh`, `Fabric`) connects NICs in this process: no hardware, kernel module, network or root.
`python -m urxe run -- PROGRAM` runs programs that use libibverbs, and the pytest plugin does so in tests.
"""

import os
import shutil
import sysconfig
from collections.abc import Sequence

from ._native import (
    Ah,
    AsyncEvent,
    Capture,
    Completion,
    ConnectOptions,
    Context,
    Cq,
    Destination,
    Endpoint,
    Fabric,
    FaultCount,
    Node,
    Pd,
    Qp,
    QpAddress,
    QpOptions,
    Region,
    RemoteAddr,
    Sge,
)
from ._types import (
    Access,
    CaptureError,
    CompletionError,
    ConnectError,
    CqOverflowError,
    CreateError,
    Error,
    EventType,
    FabricError,
    IdleError,
    MemoryAccessError,
    OpenError,
    PostError,
    QpState,
    QpType,
    RuleError,
    WaitError,
    WaitTimeoutError,
    WcOpcode,
    WcStatus,
)

__all__ = [
    "Access",
    "Ah",
    "AsyncEvent",
    "Capture",
    "CaptureError",
    "Completion",
    "CompletionError",
    "ConnectError",
    "ConnectOptions",
    "Context",
    "Cq",
    "CqOverflowError",
    "CreateError",
    "Destination",
    "Endpoint",
    "Error",
    "EventType",
    "Fabric",
    "FabricError",
    "FaultCount",
    "IdleError",
    "MemoryAccessError",
    "Node",
    "OpenError",
    "Pd",
    "PostError",
    "Qp",
    "QpAddress",
    "QpOptions",
    "QpState",
    "QpType",
    "Region",
    "RemoteAddr",
    "RuleError",
    "Sge",
    "WaitError",
    "WaitTimeoutError",
    "WcOpcode",
    "WcStatus",
    "executable",
    "mesh",
    "pair",
]


def pair(
    *,
    personality: str = "default",
    faults: Sequence[str] = (),
    capture: Capture | None = None,
    qp: QpOptions | None = None,
    connect: ConnectOptions | None = None,
) -> tuple[Endpoint, Endpoint]:
    """Creates two NICs with connected queue pairs on a fabric of their own, in real time; see Fabric.pair."""
    return Fabric().pair(personality=personality, faults=faults, capture=capture, qp=qp, connect=connect)


def mesh(n: int, *, personality: str = "default") -> list[Node]:
    """Creates `n` NICs on a fabric of their own, in real time, each connected to each of the others; see Fabric.mesh."""
    return Fabric().mesh(n, personality=personality)


def executable() -> str:
    """Returns the path of the `urxe` executable of this package.

    Raises FileNotFoundError if the executable has been removed.
    """
    candidates = (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user"))
    path = shutil.which("urxe", path=os.pathsep.join(candidates))
    if path is None:
        raise FileNotFoundError(f"no urxe in {' or '.join(candidates)}: reinstall the package urxe")
    return path

"""Types of the extension module. The docstrings are in the module itself: help(urxe.Fabric)."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import final

from typing_extensions import Buffer

from ._types import EventType, QpState, QpType, WcOpcode, WcStatus

__all__ = [
    "Ah",
    "AsyncEvent",
    "Capture",
    "Completion",
    "ConnectOptions",
    "Context",
    "Cq",
    "Destination",
    "Endpoint",
    "Fabric",
    "FaultCount",
    "Node",
    "Pd",
    "Qp",
    "QpAddress",
    "QpOptions",
    "Region",
    "RemoteAddr",
    "Sge",
]

# Data of a work request: registered memory, or bytes to copy when the request is posted.
_Registered = Region | Sge | Sequence[Region | Sge]
_Data = _Registered | Buffer

@final
class Fabric:
    def __new__(
        cls,
        *,
        virtual_time: bool = False,
        seed: int = 0,
        latency: float = 0.0,
        jitter: float = 0.0,
        bandwidth: int | None = None,
        queue_bytes: int | None = None,
        ecn_threshold: int | None = None,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        reorder_by: float = 50e-6,
        corrupt: float = 0.0,
        mtu: int = 9000,
    ) -> Fabric: ...
    def pair(
        self,
        *,
        personality: str = "default",
        faults: Sequence[str] = ...,
        capture: Capture | None = None,
        qp: QpOptions | None = None,
        connect: ConnectOptions | None = None,
    ) -> tuple[Endpoint, Endpoint]: ...
    def mesh(self, n: int, *, personality: str = "default") -> list[Node]: ...
    def open_device(
        self,
        addresses: Sequence[str] = ...,
        *,
        personality: str = "default",
        seed: int | None = None,
        window: int | None = None,
        min_ack_timeout: float | None = None,
        faults: Sequence[str] = ...,
        capture: Capture | None = None,
    ) -> Context: ...
    def capture(self, path: str | os.PathLike[str]) -> Capture: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def is_virtual(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    def step(self) -> int | None: ...
    def advance(self, seconds: float) -> None: ...
    def run_until_idle(self, limit: float = 10.0) -> bool: ...
    def set_port_up(self, address: str, up: bool) -> None: ...
    def remove_device(self, address: str) -> None: ...
    def counters(self) -> dict[str, int]: ...

@final
class Capture:
    def flush(self) -> None: ...
    def __enter__(self) -> Capture: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Endpoint:
    @property
    def context(self) -> Context: ...
    @property
    def pd(self) -> Pd: ...
    @property
    def cq(self) -> Cq: ...
    @property
    def qp(self) -> Qp: ...

@final
class Node:
    @property
    def context(self) -> Context: ...
    @property
    def pd(self) -> Pd: ...
    @property
    def cq(self) -> Cq: ...
    @property
    def qps(self) -> tuple[Qp | None, ...]: ...

@final
class QpOptions:
    def __new__(
        cls,
        *,
        qp_type: QpType = QpType.RC,
        max_send_wr: int = 128,
        max_recv_wr: int = 128,
        max_send_sge: int = 4,
        max_recv_sge: int = 4,
        max_inline: int = 256,
        signal_all: bool = False,
    ) -> QpOptions: ...

@final
class ConnectOptions:
    def __new__(
        cls,
        *,
        access: int = 0xF,
        mtu: int | None = None,
        timeout: int = 14,
        retry_cnt: int = 7,
        rnr_retry: int = 7,
        min_rnr_timer: int = 12,
        max_rd_atomic: int = 16,
        max_dest_rd_atomic: int = 16,
    ) -> ConnectOptions: ...

@final
class Context:
    def alloc_pd(self) -> Pd: ...
    def create_cq(self, capacity: int = 256) -> Cq: ...
    @property
    def address(self) -> str | None: ...
    @property
    def gids(self) -> list[str]: ...
    def counters(self) -> dict[str, int]: ...
    def fault_counts(self) -> list[FaultCount]: ...
    def next_event(self) -> AsyncEvent | None: ...
    def next_refusal(self) -> str | None: ...
    def wait_event(self, timeout: float = 5.0) -> AsyncEvent: ...

@final
class FaultCount:
    @property
    def rule(self) -> str: ...
    @property
    def matched(self) -> int: ...
    @property
    def affected(self) -> int: ...

@final
class AsyncEvent:
    @property
    def type(self) -> EventType: ...
    @property
    def qp_num(self) -> int | None: ...

@final
class Pd:
    def reg_mr(self, length: int, access: int = 0xF) -> Region: ...
    def reg_buffer(self, buffer: Buffer, access: int = 0xF) -> Region: ...
    def create_qp(
        self, send_cq: Cq, recv_cq: Cq | None = None, options: QpOptions | None = None
    ) -> Qp: ...
    def create_ah(self, address: str) -> Ah: ...

@final
class Ah:
    def to(self, qp_num: int, qkey: int = 0x11111111) -> Destination: ...

@final
class Destination: ...

@final
class Region:
    @property
    def addr(self) -> int: ...
    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def sge(self, offset: int = 0, length: int | None = None) -> Sge: ...
    def remote(self, offset: int = 0) -> RemoteAddr: ...
    def read(self, offset: int = 0, length: int | None = None) -> bytes: ...
    def write(self, offset: int, data: Buffer) -> None: ...
    def deregister(self) -> None: ...

@final
class Sge:
    def __new__(cls, addr: int, length: int, lkey: int) -> Sge: ...
    @property
    def addr(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lkey(self) -> int: ...

@final
class RemoteAddr:
    def __new__(cls, addr: int, rkey: int) -> RemoteAddr: ...
    @property
    def addr(self) -> int: ...
    @property
    def rkey(self) -> int: ...

@final
class Completion:
    @property
    def wr_id(self) -> int: ...
    @property
    def status(self) -> WcStatus: ...
    @property
    def opcode(self) -> WcOpcode: ...
    @property
    def ok(self) -> bool: ...
    @property
    def byte_len(self) -> int: ...
    @property
    def imm(self) -> int | None: ...
    @property
    def qp_num(self) -> int: ...
    @property
    def src_qp(self) -> int: ...
    @property
    def vendor_err(self) -> int: ...

@final
class Cq:
    def poll(self, max: int = 256) -> list[Completion]: ...
    def wait(self, timeout: float = 5.0) -> Completion: ...
    def wait_any(self, timeout: float = 5.0) -> Completion: ...
    def explain(self, completion: Completion) -> str | None: ...
    @property
    def capacity(self) -> int: ...

@final
class QpAddress:
    @property
    def gid(self) -> str: ...
    @property
    def qp_num(self) -> int: ...
    @property
    def psn(self) -> int: ...

@final
class Qp:
    @property
    def qp_num(self) -> int: ...
    @property
    def state(self) -> QpState: ...
    @property
    def address(self) -> QpAddress: ...
    def explain(self) -> str | None: ...
    def connect(self, peer: QpAddress, options: ConnectOptions | None = None) -> None: ...
    def activate(self, qkey: int = 0x11111111) -> None: ...
    def modify(self, state: QpState) -> None: ...
    def post_send(
        self,
        data: _Data | None = None,
        *,
        wr_id: int = 0,
        imm: int | None = None,
        to: Destination | None = None,
        signaled: bool = True,
        solicited: bool = False,
        fence: bool = False,
    ) -> None: ...
    def post_write(
        self,
        data: _Data | None,
        remote: RemoteAddr,
        *,
        wr_id: int = 0,
        imm: int | None = None,
        signaled: bool = True,
        solicited: bool = False,
        fence: bool = False,
    ) -> None: ...
    def post_read(
        self,
        data: _Registered | None,
        remote: RemoteAddr,
        *,
        wr_id: int = 0,
        signaled: bool = True,
        fence: bool = False,
    ) -> None: ...
    def post_compare_swap(
        self,
        data: _Registered | None,
        remote: RemoteAddr,
        compare: int,
        swap: int,
        *,
        wr_id: int = 0,
        signaled: bool = True,
        fence: bool = False,
    ) -> None: ...
    def post_fetch_add(
        self,
        data: _Registered | None,
        remote: RemoteAddr,
        add: int,
        *,
        wr_id: int = 0,
        signaled: bool = True,
        fence: bool = False,
    ) -> None: ...
    def post_atomic_write(
        self, value: bytes, remote: RemoteAddr, *, wr_id: int = 0, signaled: bool = True, fence: bool = False
    ) -> None: ...
    def post_recv(self, data: _Registered | None = None, *, wr_id: int = 0) -> None: ...

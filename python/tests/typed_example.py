"""A replicated counter over three NICs, with type annotations that `mypy --strict` checks."""

from __future__ import annotations

import struct

import urxe
from urxe import Access, Completion, CompletionError, Node, Region, WcStatus


def increment(node: Node, peer: int, counter: urxe.RemoteAddr) -> int:
    """Adds 1 to a counter of another NIC, and returns its value before."""
    qp = node.qps[peer]
    assert qp is not None
    result: Region = node.pd.reg_mr(8, Access.LOCAL_WRITE)
    qp.post_fetch_add(result, counter, 1, wr_id=1)
    completion: Completion = node.cq.wait(timeout=10.0)
    assert completion.byte_len == 8
    (before,) = struct.unpack("=Q", memoryview(result))
    return int(before)


def main() -> None:
    nodes = urxe.mesh(3)
    counter = nodes[0].pd.reg_mr(8)
    assert [increment(nodes[i], 0, counter.remote()) for i in (1, 2, 1)] == [0, 1, 2]
    counter.deregister()
    try:
        increment(nodes[2], 0, counter.remote())
    except CompletionError as error:
        assert error.completion.status is WcStatus.REM_ACCESS_ERR
    else:
        raise AssertionError("the key of a deregistered region was accepted")

    fabric = urxe.Fabric(virtual_time=True, seed=1, latency=1e-3)
    a, b = fabric.pair(faults=["drop=every:2"], qp=urxe.QpOptions(max_inline=64))
    parts = [b.pd.reg_mr(16), b.pd.reg_mr(16)]
    b.qp.post_recv([parts[0], parts[1].sge(8)])
    a.qp.post_send(bytes(20), imm=5)
    received = b.cq.wait_any(1)
    assert (received.status, received.imm) == (WcStatus.SUCCESS, 5)


if __name__ == "__main__":
    main()

"""Fabrics in virtual time: determinism, the clock, waits."""

import pathlib
import time

import pytest

import urxe


def messages(seed: int, capture: pathlib.Path) -> tuple[bytes, int, int]:
    """Sends 50 messages over a lossy wire, and returns the capture, the time and the number of lost packets."""
    fabric = urxe.Fabric(virtual_time=True, seed=seed, latency=10e-6, jitter=2e-6, loss=0.1, duplicate=0.02, reorder=0.02)
    with fabric.capture(capture) as file:
        a, b = fabric.pair(capture=file)
        for number in range(50):
            b.qp.post_recv(wr_id=number)
            a.qp.post_send(imm=number)
            assert b.cq.wait(10).imm == number
            a.cq.wait(10)
    return capture.read_bytes(), fabric.now_ns, fabric.counters()["lost"]


def test_same_seed_reproduces_the_same_packets_at_the_same_times(tmp_path: pathlib.Path):
    first = messages(42, tmp_path / "first")
    assert first == messages(42, tmp_path / "second")
    assert first[2] > 0
    assert first != messages(43, tmp_path / "third")


def test_wait_in_virtual_time_takes_no_real_time():
    fabric = urxe.Fabric(virtual_time=True, latency=100.0)
    a, b = fabric.pair(connect=urxe.ConnectOptions(timeout=0))
    b.qp.post_recv()
    a.qp.post_send()
    begin = time.monotonic()
    with pytest.raises(urxe.WaitTimeoutError):
        b.cq.wait(50)
    b.cq.wait(60)
    assert fabric.now_ns == 100_000_000_000
    assert time.monotonic() - begin < 30


def test_wait_without_anything_pending_says_so():
    a, _b = urxe.Fabric(virtual_time=True).pair()
    with pytest.raises(urxe.IdleError, match="no packet in flight and no timer"):
        a.cq.wait(10)


def test_clock_moves_only_when_it_is_advanced():
    fabric = urxe.Fabric(virtual_time=True, seed=9, latency=1e-3)
    assert (fabric.now_ns, fabric.is_virtual, fabric.seed) == (0, True, 9)
    a, b = fabric.pair()
    target = b.pd.reg_mr(8)
    a.qp.post_write(b"x", target.remote())
    assert a.cq.poll() == [] and target.read(0, 1) == b"\0"
    assert fabric.step() == 1_000_000
    assert target.read(0, 1) == b"x"
    assert fabric.run_until_idle()
    assert [completion.ok for completion in a.cq.poll()] == [True]
    now = fabric.now_ns
    fabric.advance(0.5)
    assert fabric.now_ns == now + 500_000_000 and fabric.step() is None


def test_clock_of_a_fabric_in_real_time_cannot_be_advanced():
    fabric = urxe.Fabric()
    for call in (lambda: fabric.advance(1), fabric.run_until_idle):
        with pytest.raises(ValueError, match="virtual_time=True"):
            call()
    assert fabric.step() is None and not fabric.is_virtual

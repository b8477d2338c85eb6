"""Regions as buffers of Python, and buffers of Python as regions."""

import array
import gc
import mmap
import weakref

import pytest

import urxe
from urxe import Access, WcStatus


def test_memoryview_of_a_region_shows_what_the_peer_writes_without_a_copy():
    a, b = urxe.pair()
    target = b.pd.reg_mr(16)
    view = memoryview(target)
    assert (len(view), view.readonly, view.format, view.contiguous) == (16, False, "B", True)
    a.qp.post_write(b"hello", target.remote(2))
    a.cq.wait()
    assert bytes(view[2:7]) == b"hello"
    view[0:2] = b"ab"
    assert target.read(0, 7) == b"abhello"


def test_memoryview_keeps_the_region_and_prevents_its_deregistration():
    a, _b = urxe.pair()
    region = a.pd.reg_mr(16)
    view = memoryview(region)
    with pytest.raises(BufferError, match="1 buffers of the region are exported"):
        region.deregister()
    del region, a, _b
    gc.collect()
    view[0] = 1
    assert view[0] == 1
    exporter = view.obj
    view.release()
    exporter.deregister()
    with pytest.raises(BufferError, match="the region is deregistered"):
        exporter.read()


def test_bytearray_is_registered_in_place():
    a, b = urxe.pair()
    memory = bytearray(b"0123456789")
    region = b.pd.reg_buffer(memory)
    a.qp.post_write(b"abc", region.remote(4))
    a.cq.wait()
    assert memory == b"0123abc789"
    memory[0:2] = b"xy"
    local = a.pd.reg_mr(10)
    a.qp.post_read(local, region.remote())
    a.cq.wait()
    assert local.read() == b"xy23abc789" and region.read() == local.read() and bytes(region) == local.read()


def test_registered_bytearray_cannot_be_resized_until_it_is_deregistered():
    a, _b = urxe.pair()
    memory = bytearray(64)
    region = a.pd.reg_buffer(memory)
    with pytest.raises(BufferError):
        memory.extend(b"more")
    region.deregister()
    memory.extend(b"more")
    other = a.pd.reg_buffer(memory)
    del other
    memory.extend(b"more")


def test_region_keeps_the_object_whose_memory_it_registers():
    class Owned(bytearray):
        pass

    a, _b = urxe.pair()
    memory = Owned(64)
    reference = weakref.ref(memory)
    region = a.pd.reg_buffer(memory)
    del memory
    gc.collect()
    assert reference() is not None
    del region
    gc.collect()
    assert reference() is None


def test_arrays_and_mappings_of_other_types_are_registered_as_bytes():
    a, b = urxe.pair()
    numbers = array.array("d", [0.0] * 4)
    region = b.pd.reg_buffer(numbers)
    assert len(region) == 32
    a.qp.post_write(array.array("d", [1.5, 2.5]), region.remote(8))
    a.cq.wait()
    assert list(numbers) == [0.0, 1.5, 2.5, 0.0]
    mapping = mmap.mmap(-1, 4096)
    region = b.pd.reg_buffer(mapping)
    a.qp.post_write(b"mapped", region.remote(4000))
    a.cq.wait()
    assert mapping[4000:4006] == b"mapped"
    region.deregister()
    mapping.close()


def test_read_only_buffers_can_only_be_read():
    a, b = urxe.pair()
    with pytest.raises(BufferError, match="the buffer is read-only"):
        b.pd.reg_buffer(b"constant")
    region = b.pd.reg_buffer(b"constant", Access.REMOTE_READ)
    assert memoryview(region).readonly
    with pytest.raises(TypeError):
        region.write(0, b"x")
    local = a.pd.reg_mr(8)
    a.qp.post_read(local, region.remote())
    a.cq.wait()
    assert local.read() == b"constant"
    a.qp.post_write(b"x", region.remote())
    assert a.cq.wait_any().status == WcStatus.REM_ACCESS_ERR


def test_buffer_with_gaps_is_refused():
    a, _b = urxe.pair()
    with pytest.raises(BufferError, match="not C-contiguous"):
        a.pd.reg_buffer(memoryview(bytearray(16))[::2])
    with pytest.raises(BufferError, match="not C-contiguous"):
        a.qp.post_send(memoryview(bytes(16))[::2])
    with pytest.raises(TypeError):
        a.pd.reg_buffer("text")  # type: ignore[arg-type]


def test_region_can_be_written_from_a_view_of_itself():
    a, _b = urxe.pair()
    region = a.pd.reg_mr(16)
    region.write(0, b"0123456789abcdef")
    region.write(2, memoryview(region)[:8])
    assert region.read() == b"010123456701cdef".replace(b"01cdef", b"abcdef")


def test_accesses_outside_a_region_are_refused():
    a, _b = urxe.pair()
    region = a.pd.reg_mr(16)
    assert region.read(16) == b"" and region.read(4, 0) == b""
    for offset, length in [(17, 0), (0, 17), (2**63, 2**63), (16, 1)]:
        with pytest.raises((IndexError, OverflowError)):
            region.read(offset, length)
    with pytest.raises(IndexError):
        region.write(15, b"ab")
    with pytest.raises(OverflowError):
        region.read(-1, 1)
    # The NIC checks elements, and a wrapped address is outside too.
    sge = region.sge(2**64 - 1, 1)
    assert sge.addr == region.addr - 1 and region.sge(4).length == 12
    a.qp.post_send(sge)
    assert a.cq.wait_any().status == WcStatus.LOC_PROT_ERR


def test_numpy_array_is_registered_in_place():
    numpy = pytest.importorskip("numpy")
    a, b = urxe.pair()
    numbers = numpy.zeros((4, 4), dtype=numpy.float32)
    region = b.pd.reg_buffer(numbers)
    a.qp.post_write(numpy.full(4, 2.5, dtype=numpy.float32), region.remote(16))
    a.cq.wait()
    assert numbers[1].tolist() == [2.5] * 4 and numbers.sum() == 10.0

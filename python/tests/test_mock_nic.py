"""Two NICs and meshes on a fabric in real time: posts, completions, errors, events, faults, captures."""

import gc
import multiprocessing
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

import urxe
from urxe import Access, QpState, QpType, WcOpcode, WcStatus


def test_written_bytes_arrive_and_complete():
    a, b = urxe.pair()
    source, target = a.pd.reg_mr(4096), b.pd.reg_mr(4096)
    source.write(0, b"hello")
    a.qp.post_write(source.sge(0, 5), target.remote(100), wr_id=7)
    completion = a.cq.wait()
    assert (completion.wr_id, completion.status, completion.opcode) == (7, WcStatus.SUCCESS, WcOpcode.RDMA_WRITE)
    assert isinstance(completion.status, WcStatus) and completion.ok
    assert target.read(100, 5) == b"hello"


def test_send_consumes_the_receive_and_carries_immediate_data():
    a, b = urxe.pair()
    target = b.pd.reg_mr(64, Access.LOCAL_WRITE)
    b.qp.post_recv(target, wr_id=3)
    a.qp.post_send(b"inline", imm=0xFFFFFFFF)
    received = b.cq.wait()
    assert (received.wr_id, received.opcode, received.byte_len, received.imm) == (3, WcOpcode.RECV, 6, 0xFFFFFFFF)
    assert (received.qp_num, received.src_qp) == (b.qp.qp_num, a.qp.qp_num)
    assert target.read(0, 6) == b"inline"
    assert a.cq.wait().opcode == WcOpcode.SEND


def test_read_gathers_from_the_peer_and_scatters_to_several_elements():
    a, b = urxe.pair()
    local, remote = a.pd.reg_mr(64), b.pd.reg_mr(64)
    remote.write(0, bytes(range(64)))
    a.qp.post_read([local.sge(32, 8), local.sge(0, 8)], remote.remote(10))
    assert a.cq.wait().opcode == WcOpcode.RDMA_READ
    assert local.read(32, 8) == bytes(range(10, 18)) and local.read(0, 8) == bytes(range(18, 26))


def test_atomics_return_the_original_value():
    a, b = urxe.pair()
    result, counter = a.pd.reg_mr(8), b.pd.reg_mr(8)
    counter.write(0, struct.pack("=Q", 40))
    a.qp.post_fetch_add(result, counter.remote(), 2)
    assert a.cq.wait().opcode == WcOpcode.FETCH_ADD
    assert struct.unpack("=Q", result.read()) == (40,)
    a.qp.post_compare_swap(result, counter.remote(), 42, 2**64 - 1)
    assert a.cq.wait().opcode == WcOpcode.COMP_SWAP
    assert struct.unpack("=Q", counter.read()) == (2**64 - 1,)
    a.qp.post_atomic_write(b"8 bytes.", counter.remote())
    assert a.cq.wait().opcode == WcOpcode.ATOMIC_WRITE
    assert counter.read() == b"8 bytes."


def test_unsignaled_work_requests_do_not_complete():
    a, b = urxe.pair()
    target = b.pd.reg_mr(8)
    for i in range(8):
        a.qp.post_write(bytes([i]), target.remote(i), wr_id=i, signaled=i == 7)
    assert a.cq.wait().wr_id == 7
    assert a.cq.poll() == []
    assert target.read() == bytes(range(8))


def test_forbidden_access_raises_the_completion_with_its_status():
    a, b = urxe.pair()
    local, remote = a.pd.reg_mr(64), b.pd.reg_mr(64, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    a.qp.post_read(local, remote.remote(), wr_id=9)
    with pytest.raises(urxe.CompletionError, match="work request 9 failed: remote access error") as caught:
        a.cq.wait()
    assert caught.value.completion.status == WcStatus.REM_ACCESS_ERR
    assert a.qp.state == QpState.ERR
    a.qp.post_write(b"x", remote.remote())
    assert a.cq.wait_any().status == WcStatus.WR_FLUSH_ERR


def test_key_of_a_deregistered_region_is_invalid():
    a, b = urxe.pair()
    target = b.pd.reg_mr(64)
    target.deregister()
    target.deregister()
    a.qp.post_write(b"late", target.remote())
    assert a.cq.wait_any().status == WcStatus.REM_ACCESS_ERR
    with pytest.raises(BufferError, match="deregistered"):
        memoryview(target)


def test_errors_carry_the_cause():
    a, b = urxe.pair()
    region = a.pd.reg_mr(64)
    with pytest.raises(urxe.PostError, match="257 bytes of inline data exceed the queue's limit of 256"):
        a.qp.post_send(bytes(257))
    with pytest.raises(urxe.CreateError, match="CQ size is 0, it must be 1 to"):
        a.context.create_cq(0)
    with pytest.raises(urxe.CreateError, match="requires LOCAL_WRITE"):
        a.pd.reg_mr(64, Access.REMOTE_WRITE)
    with pytest.raises(urxe.RuleError, match="unknown action 'lose'"):
        urxe.pair(faults=["lose=1"])
    with pytest.raises(urxe.FabricError, match="loss is 2; a probability must be from 0 to 1"):
        urxe.Fabric(loss=2)
    with pytest.raises(urxe.ConnectError):
        a.qp.connect(b.qp.address)
    with pytest.raises(ValueError, match="personality is mlx6; expected default, strict, mlx5, rxe or throughput"):
        urxe.pair(personality="mlx6")
    with pytest.raises(urxe.MemoryAccessError, match="8 bytes at offset 60 are not inside a buffer of 64 bytes"):
        region.read(60, 8)
    with pytest.raises(TypeError, match="a receive needs registered memory"):
        a.qp.post_recv(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Region, an Sge, a sequence"):
        a.qp.post_send([1, 2])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        urxe.pair(faults="drop=1")  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match=f"{1 << 50} bytes cannot be allocated"):
        a.pd.reg_mr(1 << 50)
    with pytest.raises(ValueError, match="timeout is -1"):
        a.cq.wait(-1)
    assert issubclass(urxe.CompletionError, urxe.WaitError) and issubclass(urxe.WaitError, urxe.Error)


def test_wait_ends_after_its_timeout():
    a, _b = urxe.pair()
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="timed out after 250ms"):
        a.cq.wait(0.25)
    assert time.monotonic() - begin >= 0.25


def test_wait_releases_the_interpreter_for_the_thread_that_ends_it():
    a, b = urxe.pair()
    b.qp.post_recv()
    sender = threading.Timer(0.2, a.qp.post_send)
    sender.start()
    assert b.cq.wait(60).opcode == WcOpcode.RECV
    sender.join()


def test_signal_handler_can_end_a_wait():
    class Interrupted(Exception):
        pass

    def interrupt(_number, _frame):
        raise Interrupted

    a, _b = urxe.pair()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            a.cq.wait(600)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_uc_and_path_mtu_are_options_of_a_pair():
    a, b = urxe.Fabric().pair(qp=urxe.QpOptions(qp_type=QpType.UC), connect=urxe.ConnectOptions(mtu=256))
    source, target = a.pd.reg_mr(1000), b.pd.reg_mr(1000)
    source.write(0, bytes(1000))
    a.qp.post_write(source, target.remote())
    a.cq.wait()
    assert a.context.counters()["sent_pkts"] == 4
    a.qp.post_read(source, target.remote())
    assert a.cq.wait_any().status == WcStatus.LOC_QP_OP_ERR
    with pytest.raises(ValueError, match="mtu is 300"):
        urxe.ConnectOptions(mtu=300)


def test_personality_decides_what_a_post_refuses():
    a, b = urxe.Fabric().pair(personality="strict", qp=urxe.QpOptions(qp_type=QpType.UC))
    local, remote = a.pd.reg_mr(8), b.pd.reg_mr(8)
    with pytest.raises(urxe.PostError, match="does not support"):
        a.qp.post_read(local, remote.remote())


def test_datagrams_reach_a_ud_queue_pair_by_address_and_number():
    fabric = urxe.Fabric()

    def endpoint():
        context = fabric.open_device()
        pd, cq = context.alloc_pd(), context.create_cq(16)
        qp = pd.create_qp(cq, options=urxe.QpOptions(qp_type=QpType.UD))
        qp.activate()
        return context, pd, cq, qp

    (_, pd, _, qp), (peer_context, peer_pd, peer_cq, peer_qp) = endpoint(), endpoint()
    target = peer_pd.reg_mr(100)
    peer_qp.post_recv(target)
    assert peer_context.address is not None
    qp.post_send(b"datagram", to=pd.create_ah(peer_context.address).to(peer_qp.qp_num))
    received = peer_cq.wait()
    assert (received.byte_len, received.src_qp) == (48, qp.qp_num)
    assert target.read(40, 8) == b"datagram"


def test_queue_pairs_of_a_mesh_reach_their_peers():
    nodes = urxe.mesh(3)
    for own, node in enumerate(nodes):
        assert [qp is None for qp in node.qps] == [own == peer for peer in range(3)]
    targets = [node.pd.reg_mr(3) for node in nodes]
    for own, node in enumerate(nodes):
        for peer, qp in enumerate(node.qps):
            if qp is not None:
                qp.post_write(bytes([own + 1]), targets[peer].remote(own))
                node.cq.wait()
    assert [target.read() for target in targets] == [b"\0\2\3", b"\1\0\3", b"\1\2\0"]
    assert urxe.mesh(0) == []


def test_objects_live_as_long_as_what_is_created_from_them():
    a, b = urxe.pair()
    qp, cq, target = a.qp, a.cq, b.pd.reg_mr(8)
    del a, b
    gc.collect()
    # The peer's NIC exists as long as its region, but its queue pair is destroyed.
    qp.modify(QpState.ERR)
    qp.post_write(b"x", target.remote())
    assert cq.wait_any().status == WcStatus.WR_FLUSH_ERR


def test_fault_rule_drops_a_packet_that_is_sent_again():
    a, b = urxe.pair(faults=["drop=1", "rx:drop=100"])
    target = b.pd.reg_mr(8)
    a.qp.post_write(b"again", target.remote())
    a.cq.wait()
    assert target.read(0, 5) == b"again"
    first, second = a.context.fault_counts()
    assert (first.rule, first.affected, second.affected) == ("drop=1", 1, 0)
    assert first.matched >= 2 and a.context.counters()["sent_pkts"] >= 2
    assert b.context.fault_counts() == []


def test_refused_request_is_explained_at_both_ends():
    a, b = urxe.pair()
    target = b.pd.reg_mr(8, Access.LOCAL_WRITE | Access.REMOTE_READ)
    a.qp.post_write(b"x", target.remote())
    completion = a.cq.wait_any()
    report = a.cq.explain(completion)
    assert report is not None and "REMOTE_WRITE is missing" in report
    assert a.qp.explain() == report == b.qp.explain() == b.context.next_refusal()
    assert b.context.next_refusal() is None


def test_refusal_is_printed_without_a_receive_or_a_poll():
    program = '''
import time, urxe
a, b = urxe.pair()
target = b.pd.reg_mr(8, urxe.Access.LOCAL_WRITE)
a.qp.post_write(b"x", target.remote())
while b.qp.state != urxe.QpState.ERR:
    time.sleep(0.001)
a.cq.wait_any()
'''
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "URXE_EXPLAIN": "1"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr.count("REMOTE_WRITE is missing") == 1, done.stderr


def test_faults_of_every_kind_are_read_from_texts_and_files(tmp_path: pathlib.Path):
    file = tmp_path / "faults.txt"
    file.write_text("# the second registration fails\ncall:ibv_reg_mr=ENOMEM@2\nrx:drop=100  # late\n")
    a, b = urxe.pair(faults=["drop=1", f"@{file}", "qp:*=err@3600s"])
    a.pd.reg_mr(8)
    with pytest.raises(urxe.CreateError, match="Cannot allocate memory .*ibv_reg_mr, by the fault rule .call:ibv_reg_mr=ENOMEM@2"):
        a.pd.reg_mr(8)
    target = b.pd.reg_mr(8)
    a.qp.post_write(b"again", target.remote())
    a.cq.wait()
    counts = [(count.rule, count.affected) for count in a.context.fault_counts()]
    assert counts == [("drop=1", 1), ("rx:drop=100", 0), ("call:ibv_reg_mr=ENOMEM@2", 1), ("qp:*=err@3600s", 0)]
    assert repr(a.context.fault_counts()[2]) == "<FaultCount fault call:ibv_reg_mr=ENOMEM@2: matched 2 calls, affected 1>"
    fabric = urxe.Fabric(virtual_time=True)
    a, _b = fabric.pair(faults=["port=down@5ms"])
    assert a.context.wait_event().type == urxe.EventType.PORT_ERR and fabric.now_ns == 5_000_000


def test_wrong_fault_names_its_file_and_line(tmp_path: pathlib.Path):
    file = tmp_path / "faults.txt"
    file.write_text("drop=1\ncall:ibv_reg_nr=EIO\n")
    with pytest.raises(urxe.RuleError, match=rf"{file}:2: fault rule 'call:ibv_reg_nr=EIO': .*similar: ibv_reg_mr"):
        urxe.pair(faults=[f"@{file}"])
    with pytest.raises(urxe.RuleError, match=f"fault rules in {tmp_path}/none: No such file"):
        urxe.pair(faults=[f"@{tmp_path}/none"])


def test_port_and_device_raise_events():
    fabric = urxe.Fabric()
    a, _b = fabric.pair()
    assert a.context.next_event() is None and a.context.address is not None
    fabric.set_port_up(a.context.address, False)
    event = a.context.wait_event()
    assert (event.type, event.qp_num) == (urxe.EventType.PORT_ERR, None)
    fabric.remove_device(a.context.address)
    assert a.context.wait_event().type == urxe.EventType.DEVICE_FATAL
    with pytest.raises(urxe.CreateError, match="the device has failed"):
        a.context.alloc_pd()
    with pytest.raises(urxe.FabricError, match="no port of this fabric has the address 192.0.2.1"):
        fabric.set_port_up("192.0.2.1", True)


def test_capture_contains_the_packets_and_marks_faults(tmp_path: pathlib.Path):
    fabric, path = urxe.Fabric(), tmp_path / "out.pcapng"
    with fabric.capture(path) as capture:
        a, b = fabric.pair(faults=["drop=1"], capture=capture)
        target = b.pd.reg_mr(8)
        a.qp.post_write(b"captured", target.remote())
        a.cq.wait()
    contents = path.read_bytes()
    assert contents[:4] == b"\x0a\x0d\x0d\x0a" and contents.count(b"captured") >= 2 and b"drop" in contents
    with pytest.raises(urxe.CaptureError, match="no/such/directory"):
        fabric.capture("/no/such/directory/out.pcapng")


def _exit_with_inherited_objects(_objects):
    gc.collect()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_of_fork_exits_although_it_inherited_objects():
    a, b = urxe.pair()
    objects = [a, b, a.pd.reg_mr(64), a.pd.reg_buffer(bytearray(64))]
    # A thread that waits without the GIL holds locks at the time of the fork.
    stop = threading.Event()

    def poll():
        while not stop.is_set():
            a.cq.poll()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                objects.clear()
                del a, b
                gc.collect()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
    process = multiprocessing.get_context("spawn").Process(target=_exit_with_inherited_objects, args=(None,))
    process.start()
    process.join()
    assert process.exitcode == 0

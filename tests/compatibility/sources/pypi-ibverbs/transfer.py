"""Connects two queue pairs in one process with the package `ibverbs`, and compares the data of RDMA WRITE and READ."""
import ctypes
import os
import time

import ibverbs as ib

SIZE = 1 << 20
ACCESS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ


def complete(cq, count=1):
    """Waits for completions, at most 30 seconds, and raises an exception if one has an error."""
    deadline = time.monotonic() + 30
    while count:
        assert time.monotonic() < deadline, "no completion within 30 s"
        for completion in cq.poll(16):
            completion.raise_for_status()
            count -= 1


def main():
    device = next(device for device in ib.get_device_list() if device.name == "urxe0")
    context = device.open()
    pd = context.alloc_pd()
    port = context.query_port(1)
    gid = context.query_gid(1, 0)
    cqs = [context.create_cq(64) for _ in range(2)]
    qps = [pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC)) for cq in cqs]
    peers = [ib.local_qp_info(qp, port, gid, port=1, psn=psn) for psn, qp in enumerate(qps)]
    for local, (qp, peer) in enumerate(zip(qps, reversed(peers))):
        ib.connect_rc(qp, peer, port=1, sgid_index=0, access=ACCESS, local_psn=local)

    data = os.urandom(SIZE)
    buffers = [ctypes.create_string_buffer(contents, SIZE) for contents in [data, b"", b""]]
    source, target, copy = regions = [pd.reg_mr(ctypes.addressof(buffer), SIZE, ACCESS) for buffer in buffers]
    for operation, local, remote in [(ib.WROpcode.RDMA_WRITE, source, target), (ib.WROpcode.RDMA_READ, copy, target)]:
        qps[0].post_send(ib.SendWR(
            wr_id=1, sg_list=[ib.SGE(local, SIZE)], opcode=operation, send_flags=ib.SendFlags.SIGNALED,
            remote_addr=ctypes.addressof(buffers[regions.index(remote)]), rkey=remote.rkey))
        complete(cqs[0])
    assert buffers[1].raw == data, "WRITE transferred other data"
    assert buffers[2].raw == data, "READ transferred other data"
    print(f"{SIZE} bytes written and read back")


main()

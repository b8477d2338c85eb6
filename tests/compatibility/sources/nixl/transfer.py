"""Transfers a buffer to another process and back with NIXL's UCX backend, and compares it.

usage: transfer.py target FILE | transfer.py initiator FILE. The target writes what the initiator needs to FILE.
"""
import ctypes
import os
import pickle
import sys
import time

from nixl import nixl_agent, nixl_agent_config

SIZE = 8 << 20
FILE = sys.argv[2]


def transfer(agent, operation, local, remote):
    """Waits for a transfer to complete, at most a minute."""
    handle = agent.initialize_xfer(operation, local, remote, "target")
    deadline = time.monotonic() + 60
    state = agent.transfer(handle)
    while state != "DONE":
        assert state == "PROC", f"{operation}: {state}"
        assert time.monotonic() < deadline, f"{operation} not done within a minute"
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)


def main():
    agent = nixl_agent(sys.argv[1], nixl_agent_config(backends=["UCX"]))
    buffer = ctypes.create_string_buffer(SIZE)
    region = [(ctypes.addressof(buffer), SIZE, 0, "")]
    agent.register_memory(agent.get_reg_descs(region, mem_type="DRAM"))
    local = agent.get_xfer_descs([entry[:3] for entry in region], mem_type="DRAM")
    if sys.argv[1] == "target":
        with open(FILE + ".new", "wb") as file:
            pickle.dump((agent.get_agent_metadata(), agent.get_serialized_descs(local)), file)
        os.rename(FILE + ".new", FILE)
        time.sleep(600)
    metadata, descriptors = pickle.load(open(FILE, "rb"))
    agent.add_remote_agent(metadata)
    remote = agent.deserialize_descs(descriptors)
    data = os.urandom(SIZE)
    ctypes.memmove(buffer, data, SIZE)
    transfer(agent, "WRITE", local, remote)
    ctypes.memset(buffer, 0, SIZE)
    transfer(agent, "READ", local, remote)
    assert buffer.raw == data, "other data was read than written"
    print(f"{SIZE} bytes written and read back")


main()

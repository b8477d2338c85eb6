"""Transfers a buffer to another process and back with Mooncake's transfer engine over RDMA, and compares it.

usage: transfer.py target | transfer.py initiator FILE. The target writes its name and its buffer's address to FILE.
"""
import ctypes
import os
import sys
import time

from mooncake.engine import TransferEngine

SIZE = 8 << 20
FILE = sys.argv[2]


def main():
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "urxe0") == 0, "initialize"
    buffer = ctypes.create_string_buffer(SIZE)
    address = ctypes.addressof(buffer)
    assert engine.register_memory(address, SIZE) == 0, "register_memory"
    if sys.argv[1] == "target":
        with open(FILE + ".new", "w") as file:
            print(f"127.0.0.1:{engine.get_rpc_port()} {address}", file=file)
        os.rename(FILE + ".new", FILE)
        time.sleep(600)
    name, remote = open(FILE).read().split()
    data = os.urandom(SIZE)
    ctypes.memmove(buffer, data, SIZE)
    assert engine.transfer_sync_write(name, address, int(remote), SIZE) == 0, "write"
    ctypes.memset(buffer, 0, SIZE)
    assert engine.transfer_sync_read(name, address, int(remote), SIZE) == 0, "read"
    assert buffer.raw == data, "other data was read than written"
    print(f"{SIZE} bytes written and read back")


main()

"""Measures transfers of Mooncake's transfer engine between two processes.

usage: transfer.py target|initiator write|read SIZE rdma|tcp IP FILE. The target writes its name and its buffer's address to FILE.
The initiator prints metrics, one "NAME VALUE" a line.
"""
import ctypes
import os
import sys
import time

from mooncake.engine import TransferEngine

END, OPERATION, SIZE, PROTOCOL, IP, FILE = sys.argv[1:]
SIZE = int(SIZE)
LATER_TRANSFERS = 8


def main():
    engine = TransferEngine()
    device = "urxe0" if PROTOCOL == "rdma" else ""
    assert engine.initialize(IP, "P2PHANDSHAKE", PROTOCOL, device) == 0, "initialize"
    buffer = ctypes.create_string_buffer(SIZE)
    address = ctypes.addressof(buffer)
    assert engine.register_memory(address, SIZE) == 0, "register_memory"
    if END == "target":
        with open(FILE + ".new", "w") as file:
            print(f"{IP}:{engine.get_rpc_port()} {address}", file=file)
        os.rename(FILE + ".new", FILE)
        time.sleep(600)
    ctypes.memset(buffer, 1, SIZE)
    while not os.path.exists(FILE):
        time.sleep(0.01)
    name, remote = open(FILE).read().split()
    transfer = engine.transfer_sync_write if OPERATION == "write" else engine.transfer_sync_read

    def seconds(count):
        start = time.monotonic()
        for _ in range(count):
            assert transfer(name, address, int(remote), SIZE) == 0, OPERATION
        return (time.monotonic() - start) / count

    first, later = seconds(1), seconds(LATER_TRANSFERS)
    print("Gb/s, first", SIZE * 8e-9 / first)
    print("Gb/s", SIZE * 8e-9 / later)
    sys.stdout.flush()
    # The engine's threads need not end.
    os._exit(0)


main()

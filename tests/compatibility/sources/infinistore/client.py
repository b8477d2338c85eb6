"""Writes blocks to an InfiniStore server on 127.0.0.1 over RDMA, reads them back, and compares them."""
import asyncio
import ctypes
import os

import infinistore

BLOCK = 64 << 10
COUNT = 64


async def main():
    connection = infinistore.InfinityConnection(infinistore.ClientConfig(
        host_addr="127.0.0.1", service_port=22345, connection_type=infinistore.TYPE_RDMA, dev_name="urxe0",
        link_type=infinistore.LINK_ETHERNET, log_level="info"))
    await connection.connect_async()
    data = os.urandom(BLOCK * COUNT)
    source = ctypes.create_string_buffer(data, len(data))
    target = ctypes.create_string_buffer(len(data))
    for buffer in [source, target]:
        connection.register_mr(ctypes.addressof(buffer), len(data))
    blocks = [(f"key {index}", index * BLOCK) for index in range(COUNT)]
    await connection.rdma_write_cache_async(blocks, BLOCK, ctypes.addressof(source))
    await connection.rdma_read_cache_async(list(reversed(blocks)), BLOCK, ctypes.addressof(target))
    assert target.raw == data, "other data was read than written"
    assert connection.check_exist("key 0") and not connection.check_exist("no key")
    connection.close()
    print(f"{len(data)} bytes written and read back")


asyncio.run(main())
